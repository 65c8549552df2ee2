/** Questions to the user, each a modal dialog that resolves a promise; Escape resolves it with null. */

import { button, count, fill, h, icon, percent, samples } from "../dom";
import type { ClassInfo } from "../data/types";
import { keyName } from "../keys";
import type { Store } from "../store";
import { fits, swatch, thumbs } from "./bits";

/** A modal dialog. `build` receives a function that closes it with an answer. */
export function ask<T>(
  title: string,
  build: (answer: (value: T | null) => void) => (Node | null)[],
  options: { class?: string } = {},
): Promise<T | null> {
  return new Promise((resolve) => {
    let result: T | null = null;
    const before = document.activeElement;
    const heading = h("h2", { id: "dialog-title" }, title);
    const dialog = h("dialog", { class: `dialog ${options.class ?? ""}`, "aria-labelledby": "dialog-title" });
    const answer = (value: T | null): void => {
      result = value;
      dialog.close();
    };
    const shut = button("Close", () => answer(null), { icon: "close", bare: true, key: "Esc" });
    fill(dialog, h("header", { class: "dialog-top" }, heading, shut), ...build(answer));
    dialog.addEventListener("close", () => {
      dialog.remove();
      if (before instanceof HTMLElement && before.isConnected) before.focus({ preventScroll: true });
      resolve(result);
    });
    dialog.addEventListener("pointerdown", (e) => {
      if (e.target !== dialog) return;
      const box = dialog.getBoundingClientRect();
      const inside = e.clientX >= box.left && e.clientX <= box.right && e.clientY >= box.top && e.clientY <= box.bottom;
      if (!inside) answer(null);
    });
    document.body.append(dialog);
    dialog.showModal();
    dialog.querySelector<HTMLElement>("[data-first]")?.focus();
  });
}

const buttons = (label: string, answer: (value: null) => void): HTMLElement =>
  h(
    "footer",
    { class: "dialog-end" },
    button("Cancel", () => answer(null), { class: "quiet-button" }),
    h("button", { type: "submit", class: "button primary" }, label),
  );

/** Applies the answer; resolves with the reason if it failed, else with null. */
export type Attempt<T> = (value: T) => Promise<string | null>;

/** A form that stays open, with its values, until the attempt succeeds. */
function form<T>(read: () => T | null, attempt: Attempt<T>, done: () => void, ...children: (Node | null)[]): HTMLFormElement {
  const problem = h("p", { class: "problem", role: "alert", hidden: true });
  const element = h("form", { class: "dialog-form" }, ...children.slice(0, -1), problem, children.at(-1));
  let busy = false;
  element.addEventListener("submit", async (e) => {
    e.preventDefault();
    const value = read();
    if (value === null || busy) return;
    busy = true;
    const why = await attempt(value);
    busy = false;
    if (why === null) return done();
    problem.hidden = false;
    fill(problem, icon("warn"), h("span", null, `Not done. ${why}`));
    problem.scrollIntoView({ block: "nearest" });
  });
  return element;
}

/** Some samples of the class that the dialog is about. */
function glimpse(store: Store, id: number): HTMLElement {
  const box = h("div", { class: "glimpse" });
  store.source
    .card(id)
    .then((card) => fill(box, thumbs(store, card.central.slice(0, fits(store, 8)), "Most central samples")))
    .catch(() => {});
  return box;
}

export function askName(store: Store, info: ClassInfo, attempt: Attempt<string>): Promise<null> {
  return ask<null>(`Rename ${info.name}`, (answer) => {
    const input = h("input", { class: "field", value: info.name, maxlength: "100", required: true, "data-first": true, autocomplete: "off", spellcheck: "false", "aria-label": "New name" });
    setTimeout(() => input.select());
    return [
      form(
        () => input.value.trim() || null,
        attempt,
        () => answer(null),
        glimpse(store, info.id),
        input,
        h("p", { class: "quiet" }, "The class keeps its identity: colour, samples and number stay."),
        buttons("Rename", answer),
      ),
    ];
  });
}

export function askNote(info: ClassInfo, attempt: Attempt<string>): Promise<null> {
  return ask<null>(`Note on ${info.name}`, (answer) => {
    const text = h("textarea", { class: "field", rows: "5", maxlength: "4000", "data-first": true, "aria-label": "Note" }, info.note ?? "");
    text.addEventListener("keydown", (e) => {
      if (e.key === "Enter" && (e.ctrlKey || e.metaKey)) text.form!.requestSubmit();
    });
    const keys = h("p", { class: "quiet" }, h("kbd", null, `${keyName("ctrl")} Enter`), " saves it, ", h("kbd", null, "Esc"), " leaves it as it was.");
    return [form(() => text.value.trim(), attempt, () => answer(null), text, keys, buttons("Save note", answer))];
  });
}

export function askParts(store: Store, info: ClassInfo, attempt: Attempt<number>): Promise<null> {
  const hint = info.hints.find((x) => x.kind === "split");
  return ask<null>(`Split ${info.name}`, (answer) => {
    const input = h("input", { class: "field number", type: "number", min: "2", max: "20", value: String(hint?.into ?? 2), required: true, "data-first": true, "aria-label": "Number of parts" });
    setTimeout(() => input.select());
    return [
      form(
        () => Number(input.value),
        attempt,
        () => answer(null),
        glimpse(store, info.id),
        h("label", { class: "row" }, h("span", null, "Into how many classes?"), input),
        hint ? h("p", { class: "hint-line" }, icon("spark"), hint.reason) : null,
        h("p", { class: "quiet" }, `Only these ${samples(info.size)} are clustered again. The largest part keeps the name.`),
        info.given > 0 ? h("p", { class: "quiet" }, `${count(info.given)} of them were labelled. Like all others they go to the class of their part, and take its label.`) : null,
        buttons("Split", answer),
      ),
    ];
  });
}

/** Show which classes become one, before they are merged. */
export function askMerge(store: Store, chosen: ClassInfo[], into: number, attempt: Attempt<true>): Promise<null> {
  return ask<null>(`Merge ${chosen.length} classes`, (answer) => [
    form<true>(
      () => true,
      attempt,
      () => answer(null),
      h(
        "ul",
        { class: "pick-list", "aria-label": "Classes that become one" },
        ...chosen.map((c) => h("li", { class: "pick still" }, swatch(c.id), h("span", { class: "pick-name" }, c.name), h("small", null, c.id === into ? "keeps its name" : ""), h("small", { class: "pick-size" }, count(c.size)))),
      ),
      h("p", { class: "quiet" }, `In total ${samples(chosen.reduce((sum, c) => sum + c.size, 0))}, all of them ${store.nameOf(into)}.`),
      focusFirst(buttons(`Merge into ${store.nameOf(into)}`, answer)),
    ),
  ]);
}

function focusFirst(end: HTMLElement): HTMLElement {
  end.querySelector("[type=submit]")?.setAttribute("data-first", "");
  return end;
}

export type Picked = { id: number } | { name: string };

/** Choose a class by typing a few letters of its name. */
export function pickClass(
  store: Store,
  title: string,
  options: { only?: (c: ClassInfo) => boolean; likely?: Map<number, string>; create?: boolean; what?: string },
): Promise<Picked | null> {
  return ask<Picked>(
    title,
    (answer) => {
      const likely = options.likely ?? new Map<number, string>();
      const all = store.ordered().filter((c) => options.only?.(c) ?? true);
      all.sort((a, b) => Number(likely.has(b.id)) - Number(likely.has(a.id)));
      let choices: Picked[] = [];
      let at = all.some((c) => likely.has(c.id)) ? 0 : -1; // without a likely class, none is preselected
      const list = h("ul", { class: "pick-list", role: "listbox", id: "pick-list", "aria-label": "Classes" });
      const input = h("input", {
        class: "field", placeholder: options.create ? "Type a class, or a new name" : "Type a class", "data-first": true,
        role: "combobox", "aria-expanded": "true", "aria-controls": "pick-list", "aria-label": "Class", autocomplete: "off", spellcheck: "false", maxlength: "100",
      });
      const draw = (): void => {
        const text = input.value.trim();
        const found = all.filter((c) => c.name.toLowerCase().includes(text.toLowerCase()));
        choices = found.map((c) => ({ id: c.id }));
        const rows: HTMLElement[] = found.map((c) =>
          h("li", { class: "pick" }, swatch(c.id), h("span", { class: "pick-name" }, c.name), h("small", null, likely.get(c.id) ?? (c.kind === "old" ? "known class" : "")), h("small", { class: "pick-size" }, count(c.size))),
        );
        if (options.create) {
          const row = h("li", { class: "pick make" }, icon("plus"), h("span", { class: "pick-name" }, text ? `New class “${text}”` : "New class"));
          const exact = found.some((c) => c.name.toLowerCase() === text.toLowerCase());
          const first = text && !exact && !found.length;
          if (first) {
            rows.unshift(row);
            choices.unshift({ name: text });
          } else {
            rows.push(row);
            choices.push({ name: text });
          }
        }
        at = Math.min(at, rows.length - 1);
        rows.forEach((row, i) => {
          row.id = `pick-${i}`;
          row.setAttribute("role", "option");
          row.setAttribute("aria-selected", String(i === at));
          row.addEventListener("click", () => answer(choices[i]));
        });
        input.setAttribute("aria-activedescendant", at >= 0 ? `pick-${at}` : "");
        fill(list, rows.length ? rows : h("li", { class: "quiet" }, "No class of that name."));
        list.children[at]?.scrollIntoView({ block: "nearest" });
      };
      input.addEventListener("input", () => {
        at = 0;
        draw();
      });
      input.addEventListener("keydown", (e) => {
        if (e.isComposing) return; // Enter accepts a word of an input method
        if (e.key === "ArrowDown" || e.key === "ArrowUp") {
          e.preventDefault();
          at = e.key === "ArrowDown" ? (at + 1) % Math.max(1, choices.length) : (at > 0 ? at : choices.length) - 1;
          draw();
        } else if (e.key === "Enter") {
          e.preventDefault();
          if (choices[at]) answer(choices[at]);
        }
      });
      draw();
      return [h("div", { class: "dialog-form" }, options.what ? h("p", { class: "quiet" }, options.what) : null, input, list)];
    },
    { class: "tall" },
  );
}

/** The classes that a class is most often confused with, and how often. */
export function likelyFor(info: ClassInfo): Map<number, string> {
  const likely = new Map<number, string>();
  for (const hint of info.hints) if (hint.kind === "merge" && hint.with !== null) likely.set(hint.with, "looks like the same");
  for (const other of info.confusable) if (other.share >= 0.005 && !likely.has(other.id)) likely.set(other.id, `${percent(other.share)} confusable`);
  return likely;
}

export function exportDialog(store: Store): Promise<null> {
  const formats = [
    ["csv", "CSV", "opens in any spreadsheet; text that looks like a formula starts with '"],
    ["parquet", "Parquet", "small and typed, for pandas, polars, DuckDB"],
    ["json", "JSON", "for programs"],
  ];
  return ask<null>("Export the reviewed labels", (answer) => {
    const problem = h("p", { class: "problem", role: "alert", hidden: true });
    const save = async (format: string): Promise<void> => {
      try {
        const link = h("a", { href: URL.createObjectURL(await store.source.exported(format)), download: `reviewed.${format}` });
        link.click();
        setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
        answer(null);
      } catch (error) {
        problem.hidden = false;
        fill(problem, icon("warn"), h("span", null, `Not done. ${store.problem(error)}`));
      }
    };
    return [
      h(
        "div",
        { class: "dialog-form" },
        h("p", { class: "quiet" }, `One line per sample (${count(store.run.n_samples)} in total): its name, label, class number, old or new, given or found, confidence, and whether it was rejected.`),
        h(
          "div",
          { class: "choices" },
          ...formats.map(([format, name, text], i) => {
            const missing = store.run.formats?.[format] ?? null;
            return h(
              "button",
              { type: "button", class: "choice", disabled: missing !== null, "data-first": i === 0, on: { click: () => void save(format) } },
              icon("down"), h("strong", null, name), h("small", null, missing ?? text),
            );
          }),
        ),
        problem,
      ),
    ];
  });
}

export async function refineDialog(store: Store): Promise<void> {
  if (store.run.cannot_refine) return store.notify({ tone: "info", text: store.run.cannot_refine });
  if (store.refine?.state === "running") return void (await ask<null>("Refine the model", () => [h("div", { class: "dialog-form" }, refineProgress(store))]));
  const free = await store.source.refineState().then((r) => r.free, () => `${store.run.name}-refined`);
  await ask<null>("Refine the model", (answer) => {
    const input = h("input", { class: "field", value: free, required: true, maxlength: "80", pattern: "[A-Za-z0-9][A-Za-z0-9._\\-]*", title: "Letters, digits, dots, hyphens and underscores", "data-first": true, "aria-label": "Name of the new run", autocomplete: "off", spellcheck: "false" });
    const start = async (out: string): Promise<string | null> => {
      try {
        await store.source.refine(out);
      } catch (error) {
        return store.problem(error);
      }
      store.refine = { state: "running", stage: null, share: 0, seconds_left: null, out, error: null, free };
      store.emit("refine");
      store.notify({ tone: "info", text: `Refining into ${out}. You can continue to review.` });
      return null;
    };
    return [
      form(
        () => input.value.trim() || null,
        start,
        () => answer(null),
        h("p", null, "Trains the classifier again on your reviewed labels. Classes keep their names and numbers; this run is not changed."),
        h("label", { class: "stack" }, h("span", null, "Name of the new run, in the same folder as this one"), input),
        buttons("Start", answer),
      ),
    ];
  });
}

const STAGES: Record<string, string> = { refine: "Training", map: "Drawing the map" };

/** How far a refinement is. */
export function refineProgress(store: Store): HTMLElement {
  const box = h("div", { class: "refine" });
  let shown = false;
  const draw = (): void => {
    const r = store.refine;
    if (shown && !box.isConnected) return off();
    shown = box.isConnected;
    if (!r || r.state === "idle") return fill(box);
    const share = r.state === "done" ? 1 : (r.share ?? 0);
    const meter = h("progress", { value: String(share), max: "1", "aria-label": "Refinement" });
    const left = r.seconds_left !== null && r.state === "running" ? `, about ${Math.max(1, Math.round(r.seconds_left))} s left` : "";
    const text =
      r.state === "running" ? `${STAGES[r.stage ?? ""] ?? "Starting"}: ${percent(share)}${left}`
      : r.state === "done" ? `Done. The new run is ${r.out}.`
      : `Failed: ${r.error ?? "no reason was given"}`;
    fill(box, meter, h("p", { role: "status" }, text), r.state === "done" && h("p", { class: "quiet" }, `cdknet explore ${r.out} opens it; cdknet predict ${r.out} FILE uses your names.`));
  };
  const off = store.on(["refine"], draw);
  draw();
  return box;
}
