/** The state of the page: its data and what is chosen. Every part listens here and makes its changes here. */

import {
  type Action,
  type ClassInfo,
  type Everything,
  type Outcome,
  type RefineState,
  Refused,
  REJECTED,
  type Source,
  Unreachable,
} from "./data/types";

export type Topic =
  | "review" // classes, names, who is in which
  | "classes" // which classes are chosen
  | "selection" // which samples are chosen
  | "inspect" // class or selection in the side panel
  | "view"
  | "colour"
  | "tool"
  | "highlight"
  | "theme"
  | "refine"
  | "online"
  | "busy";

export type View = "map" | "classes" | "scores" | "training" | "run" | "journal";
export const VIEWS: readonly View[] = ["map", "classes", "scores", "training", "run", "journal"];
/** What the map can be coloured by: the name on its button, and in the list of keys. A key never changes its meaning. */
export const COLOURS = {
  class: { name: "Class", words: "class", key: "1" },
  old: { name: "Known / new", words: "known and new", key: "2" },
  confidence: { name: "Confidence", words: "confidence", key: "3" },
  truth: { name: "Truth", words: "truth", key: "4" },
  novelty: { name: "P(new)", words: "the probability of being new", key: "5" },
} as const;
export type ColourBy = keyof typeof COLOURS;

export interface Message {
  text: string;
  tone: "done" | "info" | "error";
  actions?: { label: string; run: () => void }[];
  stays?: boolean;
}

const remembered = (key: string): string | null => {
  try {
    return localStorage.getItem(`cdknet.${key}`);
  } catch {
    return null;
  }
};
const remember = (key: string, value: string): void => {
  try {
    localStorage.setItem(`cdknet.${key}`, value);
  } catch {
    // a private window: the choice is lost with the page
  }
};

export class Store {
  view: View = "map";
  colour: ColourBy = "class";
  tool: "pan" | "lasso" = "pan";
  inspect: "class" | "selection" = "class";
  classes: number[] = []; // chosen classes; the first is the one in the side panel
  selection: number[] = [];
  selections = 0; // how many there have been: a number for each
  selected: Uint8Array; // 1 where a sample is in the selection
  highlight: number | null = null; // class under the pointer
  changed: number[] = []; // samples moved by the last change
  refine: RefineState | null = null;
  online = true;
  busy = false;
  notify: (message: Message) => void = () => {};

  private newest: { revision: number; summary: string | null } = { revision: 0, summary: null }; // as reported by the server
  private readonly listeners = new Map<Topic, Set<() => void>>();
  private byId = new Map<number, ClassInfo>();
  private readonly darkScreen = matchMedia("(prefers-color-scheme: dark)");

  constructor(
    readonly source: Source,
    readonly data: Everything,
  ) {
    this.selected = new Uint8Array(data.run.n_samples);
    this.index();
    const colour = remembered("colour") as ColourBy | null;
    if (colour && this.colours().includes(colour)) this.colour = colour;
    this.darkScreen.addEventListener("change", () => this.emit("theme"));
    this.followAddress();
    addEventListener("hashchange", () => this.followAddress());
  }

  // --- listening

  /** Call `hear` whenever one of these changes; returns a function that ends it. */
  on(topics: Topic[], hear: () => void): () => void {
    for (const topic of topics) {
      if (!this.listeners.has(topic)) this.listeners.set(topic, new Set());
      this.listeners.get(topic)!.add(hear);
    }
    return () => topics.forEach((topic) => this.listeners.get(topic)!.delete(hear));
  }

  emit(...topics: Topic[]): void {
    const heard = new Set<() => void>();
    for (const topic of topics) for (const hear of this.listeners.get(topic) ?? []) heard.add(hear);
    for (const hear of heard) hear();
  }

  // --- reading

  get run() {
    return this.data.run;
  }
  get state() {
    return this.data.state;
  }
  get editable(): boolean {
    return this.source.live && !this.run.read_only;
  }

  private index(): void {
    this.byId = new Map(this.state.classes.map((c) => [c.id, c]));
  }

  class(id: number): ClassInfo | undefined {
    return this.byId.get(id);
  }

  nameOf(id: number): string {
    return id === REJECTED ? "noise" : (this.byId.get(id)?.name ?? `class ${id}`);
  }

  /** Classes highlighted on the map: those chosen and the one under the pointer, or the latter alone if one is chosen. */
  lit(): Set<number> {
    if (this.highlight === null) return new Set(this.classes);
    return new Set(this.classes.length > 1 ? [...this.classes, this.highlight] : [this.highlight]);
  }

  /** The class in the side panel. */
  get current(): ClassInfo | undefined {
    return this.byId.get(this.classes[0]);
  }

  /** Classes in the order of the list: new ones first, as they are the ones to review. */
  ordered(): ClassInfo[] {
    const { classes } = this.state;
    return [...classes.filter((c) => c.kind === "new"), ...classes.filter((c) => c.kind === "old")];
  }

  colours(): ColourBy[] {
    const there: Record<ColourBy, boolean> = { class: true, old: true, confidence: true, truth: this.run.has_truth, novelty: this.data.novelty !== null };
    return (Object.keys(COLOURS) as ColourBy[]).filter((colour) => there[colour]);
  }

  members(id: number): number[] {
    const found: number[] = [];
    this.data.assignment.forEach((c, i) => c === id && found.push(i));
    return found;
  }

  /** Samples that came without a label and are in a known class, or in this one; the least sure first. */
  recognised(id?: number): number[] {
    if (!this.run.has_mixture) return [];
    const { assignment, given } = this.data;
    const found: number[] = [];
    assignment.forEach((c, i) => !given[i] && (id === undefined || c === id) && this.byId.get(c)?.kind === "old" && found.push(i));
    return this.leastSure(found);
  }

  leastSure(samples: number[]): number[] {
    return [...samples].sort((a, b) => this.data.confidence[a] - this.data.confidence[b]);
  }

  // --- choosing

  show(view: View): void {
    if (view === this.view) return;
    this.view = view;
    this.writeAddress();
    this.emit("view");
  }

  chooseColour(colour: ColourBy): void {
    this.colour = colour;
    remember("colour", colour);
    this.emit("colour");
  }

  chooseTool(tool: "pan" | "lasso"): void {
    this.tool = tool;
    this.emit("tool");
  }

  /** Show a class in the side panel; with `more`, those already chosen stay chosen (to merge them). */
  chooseClass(id: number | null, more = false): void {
    if (id === null) this.classes = [];
    else if (!more) this.classes = [id];
    else if (this.classes.includes(id)) this.classes = this.classes.filter((c) => c !== id);
    else this.classes = [...this.classes, id];
    this.inspect = "class";
    this.highlight = null; // what was under the pointer is redrawn: the next move sets it again
    this.writeAddress();
    this.emit("classes", "inspect");
  }

  select(samples: Iterable<number>, how: "replace" | "add" | "remove" | "toggle" = "replace"): void {
    if (how === "replace") this.selected.fill(0);
    for (const i of samples) this.selected[i] = how === "remove" ? 0 : how === "toggle" ? 1 - this.selected[i] : 1;
    this.selection = [];
    this.selections++;
    this.selected.forEach((on, i) => on && this.selection.push(i));
    if (how !== "toggle") this.inspect = this.selection.length ? "selection" : "class";
    else if (!this.selection.length) this.inspect = "class";
    this.emit("selection", "inspect");
  }

  look(inspect: "class" | "selection"): void {
    this.inspect = inspect;
    this.emit("inspect");
  }

  point(id: number | null): void {
    if (id === this.highlight) return;
    this.highlight = id;
    this.emit("highlight");
  }

  // --- the address: which view, which class

  private followAddress(): void {
    const [view, id] = location.hash.replace(/^#\/?/, "").split("/");
    if ((VIEWS as readonly string[]).includes(view)) this.view = view as View;
    if (this.view === "scores" && !this.run.has_truth) this.view = "map";
    const chosen = Number(id);
    if (id && this.byId.has(chosen) && this.classes[0] !== chosen) this.classes = [chosen];
    this.emit("view", "classes", "inspect");
  }

  private writeAddress(): void {
    const id = this.classes[0];
    const hash = `#/${this.view}${id === undefined ? "" : `/${id}`}`;
    if (hash !== location.hash) history.replaceState(null, "", location.pathname + hash);
  }

  // --- theme

  get dark(): boolean {
    const theme = document.documentElement.dataset.theme;
    return theme ? theme === "dark" : this.darkScreen.matches;
  }

  toggleTheme(): void {
    const theme = this.dark ? "light" : "dark";
    document.documentElement.dataset.theme = theme;
    remember("theme", theme);
    this.emit("theme");
  }

  // --- changing

  /** Load the newest state from the server, and record which samples it moved. */
  async refresh(): Promise<void> {
    const { state, assignment } = await this.source.review();
    if (state.revision < this.state.revision && state.revision !== 0) return;
    const before = this.data.assignment;
    const changed: number[] = [];
    assignment.forEach((c, i) => c !== before[i] && changed.push(i));
    this.data.state = state;
    this.data.assignment = assignment;
    this.index();
    this.changed = changed;
    const left = this.classes.filter((c) => this.byId.has(c));
    if (this.classes.length && !left.length && changed.length) {
      // the class is gone: follow its samples
      const heirs = new Map<number, number>();
      for (const i of changed) heirs.set(assignment[i], (heirs.get(assignment[i]) ?? 0) + 1);
      const [heir] = [...heirs].filter(([c]) => c !== REJECTED).sort((a, b) => b[1] - a[1])[0] ?? [];
      if (heir !== undefined) left.push(heir);
    }
    this.classes = left;
    this.highlight = null;
    this.writeAddress();
    this.emit("review", "classes");
  }

  /**
   * Apply an action and report it. An error is shown as a message, or passed to `refused` if given. `seen` is the
   * revision that the decision is based on: for a dialog, the one at which it was opened.
   */
  act(action: Action, what: string, refused?: (why: string) => void, seen = this.state.revision): Promise<Outcome | null> {
    return this.change(() => this.source.act(seen, action), what, () => this.act(action, what), null, refused);
  }

  step(direction: "undo" | "redo", what = this.state[direction], seen = this.state.revision): Promise<Outcome | null> {
    if (!what) {
      this.notify({ tone: "info", text: `There is nothing to ${direction}.` });
      return Promise.resolve(null);
    }
    return this.change(() => this.source.step(direction, seen), `${direction}: ${what}`, null, direction);
  }

  private async change(
    send: () => Promise<Outcome>,
    what: string,
    again: (() => void) | null,
    step: "undo" | "redo" | null = null,
    refused?: (why: string) => void,
  ): Promise<Outcome | null> {
    if (!this.editable || this.busy) {
      refused?.("The previous change is still in progress. Try again in a moment.");
      return null;
    }
    this.setBusy(true);
    try {
      const outcome = await send();
      await this.refresh();
      const back = step === "undo" ? "redo" : "undo";
      const its = this.state[back]; // before another tab changes it
      this.notify({
        tone: "done",
        text: outcome.summary,
        actions: [{ label: back === "undo" ? "Undo" : "Redo", run: () => void this.step(back, its, outcome.revision) }],
      });
      return outcome;
    } catch (error) {
      if (error instanceof Refused && error.status === 409) {
        await this.refresh().catch(() => {});
        this.notify({
          tone: "error",
          stays: true,
          text:
            `Not done: ${what}. The run was changed somewhere else first (in another tab, or by another person), ` +
            "and this would have overwritten that change. You now see the newest state.",
          actions: again ? [{ label: "Do it now", run: again }] : [],
        });
      } else if (refused) refused(this.problem(error));
      else this.fail(error, what);
      return null;
    } finally {
      this.setBusy(false);
      this.catchUp();
    }
  }

  /** The message of an error; marks the page as offline if the server is gone. */
  problem(error: unknown): string {
    if (error instanceof Unreachable || (error instanceof Refused && error.status === 401)) this.setOnline(false);
    return error instanceof Error ? error.message : String(error);
  }

  fail(error: unknown, what?: string): void {
    const text = this.problem(error);
    this.notify({ tone: "error", text: what ? `Not done: ${what}. ${text}` : text });
  }

  private setBusy(busy: boolean): void {
    this.busy = busy;
    this.emit("busy");
  }

  setOnline(online: boolean): void {
    if (online === this.online) return;
    this.online = online;
    this.emit("online");
  }

  /** Scores and confusion depend on the labels: request them again. */
  async rescore(): Promise<void> {
    if (this.source.live && this.run.has_truth) Object.assign(this.data.run, await this.source.scores());
  }

  /** Load the changes that another tab made first. */
  private catchUp(): void {
    const { revision, summary } = this.newest;
    if (revision <= this.state.revision) return;
    void this.refresh()
      .then(() => this.notify({ tone: "info", text: `Changed in another tab${summary ? `: ${summary}` : "."}` }))
      .catch((error) => this.fail(error));
  }

  /** Follow the server: changes by other tabs, progress of a refinement, and whether it answers. */
  listen(): void {
    this.source.listen((event) => {
      if (event.kind === "offline") this.setOnline(false);
      else if (event.kind === "online") {
        this.setOnline(true);
        void this.refresh().catch((error) => this.fail(error));
      } else if (event.kind === "refine") {
        this.refine = event.refine;
        this.emit("refine");
      } else {
        this.newest = event;
        if (!this.busy) this.catchUp();
      }
    });
  }
}

/** Restore the last theme, before anything is drawn. */
export function restoreTheme(): void {
  const theme = remembered("theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
}
