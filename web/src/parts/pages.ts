/** The pages about the run itself: its options, and the journal of changes. */

import { button, count, figure, fill, h } from "../dom";
import type { Json, RunInfo } from "../data/types";
import type { Store } from "../store";
import { empty } from "./bits";

const written = (value: Json | undefined): string =>
  value === null || value === undefined ? "not set"
  : Array.isArray(value) ? value.map((v) => written(v)).join(", ")
  : typeof value === "object" ? JSON.stringify(value)
  : figure(value);

const table = (title: string, rows: [string, string][]): HTMLElement =>
  h("section", { class: "block" }, h("h3", { class: "block-title" }, title), h("table", { class: "plain" }, h("tbody", null, ...rows.map(([key, value]) => h("tr", null, h("th", { scope: "row" }, key), h("td", null, value))))));

/** The options that the method of the run reads, each with its help text. */
function options(run: RunInfo): HTMLElement {
  const help = run.option_help ?? {};
  const shown = Object.entries(run.options ?? {}).filter(([key]) => !run.option_help || key in help);
  return h(
    "section",
    { class: "block" },
    h("h3", { class: "block-title" }, "Options", h("small", null, "as requested; epochs and steps are limits, the Training page shows what was done")),
    h("table", { class: "plain" }, h("tbody", null, ...shown.map(([key, value]) => h("tr", null, h("th", { scope: "row" }, key, help[key] && h("small", null, help[key])), h("td", null, written(value)))))),
  );
}

/** What the unlabelled samples are, how far to trust the run, and warnings about its data, as sentences. */
function trust(run: RunInfo): HTMLElement | false {
  const ended = (text: string): string => (text.endsWith(".") ? text : `${text}.`);
  const said = [...[run.count, run.mixture, run.confidence].filter((text) => !!text).map((text) => ended(text!)), ...(run.notes ?? [])];
  const sentence = (text: string): HTMLElement => h("p", null, text.charAt(0).toUpperCase() + text.slice(1));
  return said.length > 0 && h("section", { class: "block" }, h("h3", { class: "block-title" }, "How far to trust it"), ...said.map(sentence));
}

export function runPage(store: Store): HTMLElement {
  const { run } = store;
  const about: [string, string][] = [
    ["name", run.name],
    ["data", written(run.source)],
    ["kind of sample", `${run.kind}, ${run.sample_shape.join(" x ")}`],
    ["samples", count(run.n_samples)],
    ["known classes", count(run.n_old)],
    ["seed", written(run.seed)],
  ];
  if (typeof run.seconds === "number") about.push(["seconds", figure(Number(run.seconds.toFixed(1)))]);
  return h(
    "section",
    { class: "page", tabindex: "0", "aria-labelledby": "run-title" },
    h("h2", { class: "page-title", id: "run-title" }, "The run"),
    h(
      "div",
      { class: "columns" },
      trust(run),
      table("About", about),
      table("Versions", Object.entries(run.versions ?? {})),
      options(run),
    ),
  );
}

export function journalPage(store: Store): HTMLElement {
  const list = h("ol", { class: "journal" });
  const element = h(
    "section",
    { class: "page", tabindex: "0", "aria-labelledby": "journal-title" },
    h("h2", { class: "page-title", id: "journal-title" }, "Journal"),
    h("p", { class: "quiet" }, "Every action is saved in the run folder at once. Nothing is lost, and every action can be undone."),
    store.editable &&
      h(
        "div",
        { class: "row" },
        button("Undo", () => void store.step("undo"), { icon: "undo", class: "small" }),
        button("Redo", () => void store.step("redo"), { icon: "redo", class: "small" }),
      ),
    list,
  );
  async function draw(): Promise<void> {
    if (store.view !== "journal") return;
    try {
      const entries = await store.source.journal();
      fill(
        list,
        entries.length
          ? entries.map((e) => {
              const when = new Date(typeof e.when === "number" ? e.when * 1000 : e.when);
              return h("li", { class: e.undone ? "undone" : "" }, h("span", { class: "journal-number" }, count(e.revision)), h("span", null, h("span", { class: "journal-what" }, e.summary), e.undone && h("small", null, " undone")), h("time", null, Number.isNaN(when.getTime()) ? String(e.when) : when.toLocaleString()));
            })
          : h("li", null, empty("Nothing yet", "Rename a class, and the first line appears here.")),
      );
    } catch (error) {
      fill(list, h("li", null, empty("The journal could not be read", error instanceof Error ? error.message : "")));
    }
  }
  store.on(["review", "view"], () => void draw());
  void draw();
  return element;
}
