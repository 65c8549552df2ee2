/** All commands: their keys, their titles for the help, and what they do. */

import { samples } from "./dom";
import { type Action, type Outcome, REJECTED } from "./data/types";
import type { MapView } from "./map/view";
import { askMerge, askName, askNote, askParts, exportDialog, likelyFor, pickClass, refineDialog } from "./parts/dialogs";
import { helpDialog } from "./parts/help";
import { searchDialog } from "./parts/search";
import { type ColourBy, COLOURS, type Store, VIEWS } from "./store";

export interface Command {
  id: string;
  keys: string[];
  title: string;
  group: "Classes" | "Samples" | "Map" | "Page";
  edits?: boolean; // changes the run: not in a report or a read-only run
  server?: boolean; // needs the server: not in a report
  run: () => void;
}

/** The one of the chosen classes into which the others are merged: a known one, or else the first chosen. */
export function mergeTarget(store: Store): number {
  return store.classes.find((c) => store.class(c)?.kind === "old") ?? store.classes[0];
}

export type Commands = Record<string, Command>;

export function makeCommands(store: Store, map: MapView): Commands {
  const current = () => {
    const info = store.current;
    if (!info) store.notify({ tone: "info", text: "Choose a class first: in the list, on a card, or with J and K." });
    return info;
  };
  const picked = (): number[] | null => {
    if (store.selection.length) return store.selection;
    store.notify({ tone: "info", text: "Select samples first: click one, or draw a lasso (L)." });
    return null;
  };
  const walk = (by: number): void => {
    const all = store.ordered();
    if (!all.length) return;
    const at = all.findIndex((c) => c.id === store.classes[0]);
    store.chooseClass(all[at < 0 ? (by > 0 ? 0 : all.length - 1) : (at + by + all.length) % all.length].id);
  };
  const turn = (by: number): void => {
    const views = VIEWS.filter((v) => (v !== "scores" || store.run.has_truth) && (v !== "journal" || store.source.live));
    store.show(views[(views.indexOf(store.view) + by + views.length) % views.length]);
  };

  /** For a dialog opened at revision `seen`: apply the action; return why it failed, or null. */
  async function attempt(seen: number, action: Action, what: string, then?: (outcome: Outcome) => void): Promise<string | null> {
    let why: string | null = null;
    const outcome = await store.act(action, what, (text) => (why = text), seen);
    if (outcome) then?.(outcome);
    return why;
  }

  async function rename() {
    const info = current();
    if (!info) return;
    const seen = store.state.revision;
    await askName(store, info, async (name) => (name === info.name ? null : attempt(seen, { kind: "rename", class: info.id, name }, `rename ${info.name} to ${name}`)));
  }
  async function merge() {
    const info = current();
    if (!info) return;
    const seen = store.state.revision;
    if (store.classes.length > 1) {
      const chosen = store.classes.map((c) => store.class(c)).filter((c) => c !== undefined);
      const into = mergeTarget(store);
      const what = `merge ${chosen.map((c) => c.name).join(", ")}`;
      await askMerge(store, chosen, into, () => attempt(seen, { kind: "merge", classes: chosen.map((c) => c.id), into }, what, () => store.chooseClass(into)));
      return;
    }
    const known = info.kind === "old"; // others can be merged into a known class, but it is never removed
    const other = await pickClass(store, known ? `Merge into ${info.name}` : `Merge ${info.name} into`, {
      only: (c) => c.id !== info.id && !(known && c.kind === "old"),
      likely: likelyFor(info),
      what: known
        ? "The samples of the class you choose join this one, which keeps its name."
        : `Its ${samples(info.size)} join the class you choose, which keeps its name.`,
    });
    if (!other || !("id" in other)) return;
    const [gone, into] = known ? [other.id, info.id] : [info.id, other.id];
    const done = await store.act({ kind: "merge", classes: [into, gone], into }, `merge ${store.nameOf(gone)} into ${store.nameOf(into)}`, undefined, seen);
    if (done) store.chooseClass(into);
  }
  async function split() {
    const info = current();
    if (!info) return;
    const seen = store.state.revision;
    await askParts(store, info, (k) =>
      attempt(seen, { kind: "split", class: info.id, k }, `split ${info.name}`, (outcome) => {
        const parts = outcome.changed.classes.filter((c) => store.class(c)).sort((a, b) => a - b);
        store.chooseClass(parts[0] ?? null);
      }),
    );
  }
  async function markOld() {
    const info = current();
    if (!info) return;
    const seen = store.state.revision;
    const likely = new Map<number, string>();
    if (info.nearest_old) likely.set(info.nearest_old.id, "nearest");
    const old = await pickClass(store, `${info.name} is really`, {
      only: (c) => c.kind === "old" && c.id !== info.id,
      likely,
      what: "All its samples join the known class you choose.",
    });
    if (old && "id" in old) await store.act({ kind: "mark_old", class: info.id, old: old.id }, `mark ${info.name} as ${store.nameOf(old.id)}`, undefined, seen);
  }
  async function reject() {
    if (store.selection.length) {
      const chosen = store.selection;
      if (await store.act({ kind: "reject", samples: chosen }, `reject ${samples(chosen.length)}`)) store.select([]);
      return;
    }
    const info = current();
    if (info) await store.act({ kind: "reject", class: info.id }, `reject ${info.name}`);
  }
  async function toKnown() {
    if (store.run.cannot_return) return store.notify({ tone: "info", text: store.run.cannot_return });
    if (store.selection.length) {
      const chosen = store.selection;
      if (await store.act({ kind: "old", samples: chosen }, `move ${samples(chosen.length)} to known classes`)) store.select([]);
      return;
    }
    const info = current();
    if (info?.kind === "old") store.notify({ tone: "info", text: `${info.name} is a known class already. Choose a new class, or select samples.` });
    else if (info) await store.act({ kind: "old", class: info.id }, `move ${info.name} to known classes`);
  }
  function selectRecognised() {
    const found = store.recognised();
    if (found.length) store.select(found);
    else store.notify({ tone: "info", text: "No sample that came without a label is in a known class." });
  }
  async function note() {
    const info = current();
    if (!info) return;
    const seen = store.state.revision;
    await askNote(info, async (text) => (text === info.note ? null : attempt(seen, { kind: "note", class: info.id, text }, `note on ${info.name}`)));
  }
  async function move(fresh: boolean) {
    const chosen = picked();
    if (!chosen) return;
    const seen = store.state.revision;
    const homes = new Map<number, number>();
    for (const i of chosen) homes.set(store.data.assignment[i], (homes.get(store.data.assignment[i]) ?? 0) + 1);
    const only = homes.size === 1 ? [...homes.keys()][0] : null;
    const home = only !== null && only !== REJECTED ? store.class(only) : undefined;
    const target = fresh
      ? { name: "" }
      : await pickClass(store, `Move ${samples(chosen.length)} to`, {
          create: true,
          only: (c) => c.id !== only,
          likely: home ? likelyFor(home) : undefined,
        });
    if (!target) return;
    const action =
      "id" in target
        ? ({ kind: "move", samples: chosen, to: target.id } as const)
        : ({ kind: "move", samples: chosen, to: null, ...(target.name ? { name: target.name } : {}) } as const);
    const outcome = await store.act(action, `move ${samples(chosen.length)}`, undefined, seen);
    if (!outcome) return;
    const now = store.data.assignment[chosen[0]];
    store.select([]);
    if (store.class(now)) store.chooseClass(now);
  }
  function nextHint() {
    const all = store.ordered();
    const at = all.findIndex((c) => c.id === store.classes[0]);
    const order = [...all.slice(at + 1), ...all.slice(0, at + 1)];
    const found = order.find((c) => c.hints.length);
    if (found) store.chooseClass(found.id);
    else store.notify({ tone: "info", text: "No class looks like two, and no two look like one." });
  }
  function escape() {
    if (store.selection.length) store.select([]);
    else if (store.tool === "lasso") store.chooseTool("pan");
    else if (store.classes.length) store.chooseClass(null);
  }

  const list: Command[] = [
    { id: "next", keys: ["j"], title: "Next class", group: "Classes", run: () => walk(1) },
    { id: "previous", keys: ["k"], title: "Previous class", group: "Classes", run: () => walk(-1) },
    { id: "hint", keys: ["h"], title: "Next class with a hint", group: "Classes", run: nextHint },
    { id: "rename", keys: ["r", "F2"], title: "Rename", group: "Classes", edits: true, run: () => void rename() },
    { id: "merge", keys: ["m"], title: "Merge with another class", group: "Classes", edits: true, run: () => void merge() },
    { id: "split", keys: ["s"], title: "Split into several", group: "Classes", edits: true, run: () => void split() },
    { id: "old", keys: ["o"], title: "Mark as a known class", group: "Classes", edits: true, run: () => void markOld() },
    { id: "note", keys: ["n"], title: "Write a note", group: "Classes", edits: true, run: () => void note() },
    { id: "all", keys: ["a"], title: "Select all samples of the class", group: "Samples", run: () => {
      const info = current();
      if (info) store.select(store.members(info.id));
    } },
    { id: "recognised", keys: ["g"], title: "Select all samples recognised as known", group: "Samples", run: selectRecognised },
    { id: "move", keys: ["v"], title: "Move selected samples", group: "Samples", edits: true, run: () => void move(false) },
    { id: "create", keys: ["c"], title: "New class from selected samples", group: "Samples", edits: true, run: () => void move(true) },
    { id: "to-known", keys: ["shift+o"], title: "All these are known: selected samples, or else the class. Each goes to the known class it resembles most", group: "Samples", edits: true, run: () => void toKnown() },
    { id: "reject", keys: ["x", "Delete"], title: "Reject as noise: selected samples, or else the class", group: "Samples", edits: true, run: () => void reject() },
    { id: "escape", keys: ["escape"], title: "Clear the selection", group: "Samples", run: escape },
    { id: "lasso", keys: ["l"], title: "Lasso on or off (or Shift and drag; Alt and drag removes)", group: "Map", run: () => store.chooseTool(store.tool === "lasso" ? "pan" : "lasso") },
    { id: "fit", keys: ["0"], title: "Whole map", group: "Map", run: () => map.fit() },
    { id: "closer", keys: ["plus", "="], title: "Zoom in", group: "Map", run: () => map.zoom(1.5) },
    { id: "farther", keys: ["-"], title: "Zoom out", group: "Map", run: () => map.zoom(1 / 1.5) },
    ...store.colours().map((colour: ColourBy): Command => ({
      id: `colour-${colour}`,
      keys: [COLOURS[colour].key],
      title: `Colour by ${COLOURS[colour].words}`,
      group: "Map",
      run: () => store.chooseColour(colour),
    })),
    { id: "undo", keys: ["u", "ctrl+z"], title: "Undo", group: "Page", edits: true, run: () => void store.step("undo") },
    { id: "redo", keys: ["shift+u", "ctrl+shift+z", "ctrl+y"], title: "Redo", group: "Page", edits: true, run: () => void store.step("redo") },
    { id: "search", keys: ["/"], title: "Find a sample by name", group: "Page", run: () => void searchDialog(store, map) },
    { id: "backward", keys: [","], title: "Previous page", group: "Page", run: () => turn(-1) },
    { id: "forward", keys: ["."], title: "Next page", group: "Page", run: () => turn(1) },
    { id: "export", keys: ["e"], title: "Export the labels", group: "Page", server: true, run: () => void exportDialog(store) },
    { id: "refine", keys: ["f"], title: "Refine the model", group: "Page", edits: true, run: () => void refineDialog(store) },
    { id: "theme", keys: ["t"], title: "Light or dark", group: "Page", run: () => store.toggleTheme() },
    { id: "help", keys: ["?"], title: "This list", group: "Page", run: () => void helpDialog(offered()) },
  ];
  const offered = (): Command[] =>
    list.filter((c) => (store.editable || !c.edits) && (store.source.live || !c.server) && (c.id !== "recognised" || store.run.has_mixture));
  return Object.fromEntries(offered().map((c) => [c.id, c]));
}

function pressed(e: KeyboardEvent): string {
  const key = e.key === "+" ? "plus" : e.key.length === 1 ? e.key.toLowerCase() : e.key === "Escape" ? "escape" : e.key;
  const letter = /^[a-z]$/.test(key);
  return `${e.ctrlKey || e.metaKey ? "ctrl+" : ""}${e.shiftKey && letter ? "shift+" : ""}${key}`;
}

/** Listen to the keyboard, except for keys typed into a field or a dialog. */
export function bindKeys(commands: Commands): void {
  const byKey = new Map(Object.values(commands).flatMap((c) => c.keys.map((k) => [k, c] as const)));
  addEventListener("keydown", (e) => {
    const target = e.target as HTMLElement;
    if (e.altKey || e.defaultPrevented || document.querySelector("dialog[open]")) return;
    const closing = target.closest?.("dialog"); // its field may have the focus for a moment longer
    if (!closing && target.closest?.("input:not([type=checkbox]), textarea, select, [contenteditable]")) return;
    const command = byKey.get(pressed(e));
    if (!command) return;
    e.preventDefault();
    if (!(e.repeat && command.edits)) command.run(); // a key held down makes one change
  });
}
