/** The side panel: the chosen class, the selected samples, or an overview. */

import { type Commands, mergeTarget } from "../commands";
import { button, count, figure, fill, h, icon, percent, samples } from "../dom";
import { keyName } from "../keys";
import type { ClassCard, ClassInfo, Hint, SampleOrder } from "../data/types";
import type { Store } from "../store";
import { bar, chip, empty, fits, swatch, thumbs } from "./bits";
import { apart } from "./reading";
import { sampleDetails } from "./sample";

/** Cards of the newest revision, each requested once. */
export class Cards {
  private revision = -1;
  private cache = new Map<number, Promise<ClassCard>>();

  constructor(private readonly store: Store) {}

  get(id: number): Promise<ClassCard> {
    if (this.revision !== this.store.state.revision) {
      this.cache.clear();
      this.revision = this.store.state.revision;
    }
    let card = this.cache.get(id);
    if (!card) {
      card = this.store.source.card(id);
      card.catch(() => this.cache.delete(id));
      this.cache.set(id, card);
    }
    return card;
  }
}

/** Merge two classes: into the known one, or else into the larger. */
function mergeTwo(store: Store, a: ClassInfo, b: ClassInfo): Promise<unknown> {
  const stays = a.kind !== b.kind ? (a.kind === "old" ? a : b) : a.size >= b.size ? a : b;
  const goes = stays === a ? b : a;
  return store.act({ kind: "merge", classes: [stays.id, goes.id], into: stays.id }, `merge ${goes.name} into ${stays.name}`);
}

/** A hint with its reason and a button to apply it. */
export function hintBox(store: Store, info: ClassInfo, hint: Hint, named = false): HTMLElement {
  const split = hint.kind === "split";
  const other = hint.with === null ? undefined : store.class(hint.with);
  const parts = hint.into ?? 2;
  return h(
    "div",
    { class: "hint" },
    icon("spark"),
    h(
      "div",
      null,
      h("strong", null, named ? `${info.name} looks` : "Looks", split ? ` like ${parts} classes` : ` like one class with ${other?.name ?? "another"}`),
      h("p", null, hint.reason),
      h(
        "div",
        { class: "hint-do" },
        named && chip(store, info.id),
        !split && other && chip(store, other.id),
        store.editable &&
          button(
            split ? `Split in ${parts}` : "Merge the two",
            () =>
              void (split
                ? store.act({ kind: "split", class: info.id, k: parts }, `split ${info.name}`)
                : other && mergeTwo(store, info, other)),
            { class: "small" },
          ),
        store.editable &&
          button(
            "Dismiss",
            () => void store.act({ kind: "dismiss", class: info.id, hint: hint.kind, ...(hint.with === null ? {} : { with: hint.with }) }, `dismiss the hint on ${info.name}`),
            { class: "small quiet-button", title: "Do not show this hint again, unless the class changes" },
          ),
      ),
    ),
  );
}

export function stats(info: ClassInfo): HTMLElement {
  const row = (label: string, value: string, share: number | null, title: string): HTMLElement =>
    h("div", { class: "stat", title }, h("span", { class: "stat-label" }, label), h("span", { class: "stat-value" }, value), share !== null && bar(share));
  return h(
    "div",
    { class: "stats" },
    row("Samples", count(info.size), null, "Number of samples in the class"),
    row("Confidence", info.confidence === null ? "-" : percent(info.confidence), info.confidence, "Mean confidence of the classifier"),
    row("Cohesion", info.cohesion === null ? "-" : info.cohesion.toFixed(2), info.cohesion === null ? null : Math.max(0, info.cohesion), "How close together its samples are, at most 1"),
  );
}

export function panel(store: Store, commands: Commands, cards: Cards): HTMLElement {
  const body = h("div", { class: "panel-body" });
  const element = h("aside", { class: "panel", "aria-label": "Details" }, body);
  let turn = 0;

  const tool = (id: string, label: string, sign: string, extra: { class?: string } = {}): HTMLElement | null => {
    const command = commands[id];
    const why = id === "to-known" ? store.run.cannot_return : null;
    return command ? button(label, () => command.run(), { icon: sign, key: keyName(command.keys[0]), title: why ?? command.title, disabled: !!why, ...extra }) : null;
  };

  function tabs(): HTMLElement | null {
    if (!store.selection.length || !store.current) return null;
    const tab = (what: "class" | "selection", label: string): HTMLElement =>
      h("button", { type: "button", class: "segment", "aria-pressed": String(store.inspect === what), on: { click: () => store.look(what) } }, label);
    return h("div", { class: "segments", role: "group", "aria-label": "What to show" }, tab("class", "Class"), tab("selection", `Selection · ${count(store.selection.length)}`));
  }

  const top = (...children: (Node | null)[]): HTMLElement =>
    h("div", { class: "panel-top" }, ...children, button("Close", () => (store.select([]), store.chooseClass(null)), { icon: "close", bare: true, class: "panel-close" }));

  function drawOverview(): void {
    const { classes, rejected } = store.state;
    const fresh = classes.filter((c) => c.kind === "new");
    const hinted = store.ordered().flatMap((c) => c.hints.map((hint) => ({ c, hint })));
    const seen = new Set<string>();
    const once = hinted.filter(({ c, hint }) => {
      const key = hint.kind === "merge" && hint.with !== null ? `m${Math.min(c.id, hint.with)}-${Math.max(c.id, hint.with)}` : `s${c.id}`;
      return !seen.has(key) && seen.add(key);
    });
    const unnamed = fresh.filter((c) => /^(new|class|split|cluster)[-_ ]?\d*$/i.test(c.name)).length;
    fill(
      body,
      h("p", { class: "eyebrow" }, "What was found"),
      h("h2", { class: "panel-title" }, `${count(fresh.length)} new ${fresh.length === 1 ? "class" : "classes"}`),
      h(
        "dl",
        { class: "facts" },
        h("dt", null, "Samples"), h("dd", null, count(store.run.n_samples)),
        h("dt", null, "Known classes"), h("dd", null, count(classes.length - fresh.length)),
        h("dt", null, "Without a name yet"), h("dd", null, unnamed ? count(unnamed) : "none"),
        store.run.has_mixture && [h("dt", null, "Recognised as known"), h("dd", null, samples(store.recognised().length))],
        h("dt", null, "Set aside as noise"), h("dd", null, count(rejected)),
      ),
      once.length
        ? [
            h("h3", null, "Worth a look"),
            ...once.slice(0, 12).map(({ c, hint }) => hintBox(store, c, hint, true)),
          ]
        : h("p", { class: "quiet" }, "No class looks like two, and no two look like one."),
      store.editable &&
        h("p", { class: "quiet tip" }, "Choose a class in the list or on the map, look at its samples, and give it a name. ", h("kbd", null, "J"), " and ", h("kbd", null, "K"), " step through the classes, ", h("kbd", null, "?"), " lists all keys."),
    );
  }

  function drawMany(): void {
    const chosen = store.classes.map((c) => store.class(c)).filter((c): c is ClassInfo => c !== undefined);
    const total = chosen.reduce((sum, c) => sum + c.size, 0);
    fill(
      body,
      tabs(),
      top(h("p", { class: "eyebrow" }, `${chosen.length} classes chosen`)),
      h("h2", { class: "panel-title" }, samples(total)),
      h("div", { class: "chips" }, ...chosen.map((c) => chip(store, c.id, count(c.size)))),
      h("div", { class: "tools flow" }, tool("merge", `Merge into ${store.nameOf(mergeTarget(store))}`, "merge", { class: "primary" })),
      h("p", { class: "quiet" }, "This one keeps its name and number; the others join it."),
    );
  }

  async function drawClass(info: ClassInfo): Promise<void> {
    const mine = ++turn;
    const cardBox = h("div", { class: "card-samples", "aria-busy": "true" }, ...["", "", ""].map(() => h("div", { class: "ghost" })));
    const others = info.confusable.filter((x) => store.class(x.id) && x.share >= 0.005);
    fill(
      body,
      tabs(),
      top(h("p", { class: "eyebrow" }, info.kind === "new" ? "New class" : "Known class", ` · no. ${info.id}`)),
      h("h2", { class: "panel-title" }, swatch(info.id), h("span", null, info.name)),
      stats(info),
      info.note && h("blockquote", { class: "note" }, info.note),
      info.hints.map((hint) => hintBox(store, info, hint)),
      store.editable &&
        h(
          "div",
          { class: "tools" },
          tool("rename", "Rename", "edit", { class: "primary" }),
          tool("merge", "Merge", "merge"),
          tool("split", "Split", "split"),
          info.kind === "new" && tool("old", "Known", "tag"),
          h("button", { type: "button", class: "button", title: "Reject the whole class as noise", on: { click: () => void store.act({ kind: "reject", class: info.id }, `reject ${info.name}`) } }, icon("noise"), h("span", null, "Reject"), h("kbd", { "aria-hidden": "true" }, "X")),
          tool("note", "Note", "note"),
          info.kind === "new" && tool("to-known", "Each to a known class", "tag", { class: "wide" }),
        ),
      cardBox,
      h(
        "dl",
        { class: "facts" },
        info.nearest_old && store.class(info.nearest_old.id) && [h("dt", null, "Nearest known"), h("dd", null, chip(store, info.nearest_old.id, `${figure(Number(info.nearest_old.distance.toFixed(1)))} radii away`))],
        others.length > 0 && [h("dt", null, "Confusable with"), h("dd", { class: "chips" }, ...others.slice(0, 4).map((x) => chip(store, x.id, percent(x.share))))],
        info.given > 0 && [h("dt", null, "Labels given"), h("dd", null, count(info.given))],
      ),
    );
    try {
      const card = await cards.get(info.id);
      if (mine !== turn) return;
      cardBox.removeAttribute("aria-busy");
      const part = (title: string, text: string, members: number[]): HTMLElement | null =>
        members.length ? h("section", null, h("h3", { title: text }, title), thumbs(store, members, title)) : null;
      fill(
        cardBox,
        store.run.has_samples === false && h("p", { class: "quiet" }, store.run.samples_note ?? "This run does not hold its samples."),
        info.kind === "old" && recognisedHere(info),
        apart(store, info, card),
        part("Most central", "Nearest to the centre of the class", card.central.slice(0, fits(store, 18))),
        part("Least sure", "The classifier is least sure of these", card.unsure.slice(0, fits(store, 12))),
        part("Outliers", "Farthest from the rest of the class", card.outliers.slice(0, fits(store, 12))),
        everyone(info),
      );
    } catch (error) {
      if (mine === turn) fill(cardBox, empty("The samples could not be read", error instanceof Error ? error.message : ""));
    }
  }

  /** Samples of a known class that came without a label. */
  function recognisedHere(info: ClassInfo): HTMLElement | null {
    const found = store.recognised(info.id);
    return found.length
      ? h(
          "section",
          { class: "recognised-here" },
          h("h3", { title: "The least sure first" }, `Recognised here: ${count(found.length)} of ${samples(info.size)} came without a label`),
          thumbs(store, found.slice(0, fits(store, 12)), "Recognised here, the least sure first"),
          button(found.length > 1 ? `Select all ${count(found.length)}` : "Select it", () => store.select(found), { class: "quiet-button small" }),
        )
      : null;
  }

  /** All samples of a class, one page at a time. */
  function everyone(info: ClassInfo): HTMLElement {
    const page = 100;
    const list = h("div");
    const order = h("select", { class: "field small", "aria-label": "Order" }, ...[["central", "central first"], ["unsure", "least sure first"], ["name", "by name"]].map(([value, label]) => h("option", { value }, label)));
    let shown = 0;
    const more = button("Show more", () => void load(), { class: "quiet-button" });
    const load = async (): Promise<void> => {
      more.disabled = true;
      try {
        const { total, samples: members } = await store.source.list(info.id, shown, page, order.value as SampleOrder);
        list.append(thumbs(store, members, `Samples ${shown + 1} to ${shown + members.length}`));
        shown += members.length;
        more.hidden = shown >= total || !members.length;
      } catch (error) {
        store.fail(error);
      } finally {
        more.disabled = false;
      }
    };
    order.addEventListener("change", () => {
      shown = 0;
      list.replaceChildren();
      void load();
    });
    const box = h("details", { class: "everyone" }, h("summary", null, `All ${samples(info.size)}`), h("div", { class: "row" }, order, button("Select all", () => store.select(store.members(info.id)), { class: "quiet-button small", key: keyName("a") })), list, more);
    box.addEventListener("toggle", () => box.open && !shown && void load());
    return box;
  }

  function drawSelection(): void {
    turn++;
    const { selection } = store;
    const homes = new Map<number, number>();
    for (const i of selection) homes.set(store.data.assignment[i], (homes.get(store.data.assignment[i]) ?? 0) + 1);
    const shares = [...homes].sort((a, b) => b[1] - a[1]);
    const one = selection.length === 1;
    fill(
      body,
      tabs(),
      top(h("p", { class: "eyebrow" }, one ? "Sample" : "Selection")),
      one ? sampleDetails(store, selection[0]) : h("h2", { class: "panel-title" }, samples(selection.length)),
      store.editable &&
        h("div", { class: "tools flow of-picks" }, tool("move", "Move to", "move", { class: "primary" }), tool("create", "New class", "plus"), tool("to-known", "To known", "tag"), tool("reject", "Reject", "noise")),
      !one && [
        h("h3", null, shares.length === 1 ? "All of one class" : `From ${shares.length} classes`),
        h(
          "ul",
          { class: "shares" },
          ...shares.slice(0, 8).map(([id, n]) => {
            const strip = bar(n / selection.length);
            return h("li", null, chip(store, id), strip, h("span", { class: "share-count" }, count(n)), h("button", { type: "button", class: "link", title: `Remove ${store.nameOf(id)} from the selection`, on: { click: () => store.select(selection.filter((i) => store.data.assignment[i] === id), "remove") } }, "drop"));
          }),
        ),
        h("h3", null, "Samples, the least sure first"),
        thumbs(store, store.leastSure(selection).slice(0, 100), "Selected samples", "chosen"),
        selection.length > 100 && h("p", { class: "quiet" }, `and ${count(selection.length - 100)} more`),
      ],
    );
  }

  function draw(): void {
    const showSelection = store.selection.length > 0 && (store.inspect === "selection" || !store.current);
    element.dataset.filled = String(showSelection || store.classes.length > 0);
    body.scrollTop = 0;
    if (showSelection) drawSelection();
    else if (store.classes.length > 1) (turn++, drawMany());
    else if (store.current) void drawClass(store.current);
    else (turn++, drawOverview());
  }

  let seen = "";
  store.on(["review", "classes", "inspect", "selection"], () => {
    const key = [store.inspect, store.classes.join(), store.state.revision, store.selections].join("|");
    if (key === seen) return;
    const onlyCount = seen.split("|").slice(0, 3).join("|") === key.split("|").slice(0, 3).join("|") && store.inspect === "class" && !!store.current;
    seen = key;
    if (onlyCount && store.classes.length === 1) {
      const old = body.querySelector(":scope > .segments");
      const fresh = tabs();
      if (old && fresh) old.replaceWith(fresh);
      else if (fresh) body.prepend(fresh);
      else old?.remove();
    } else draw();
  });
  draw();
  return element;
}
