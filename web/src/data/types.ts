/** The data of a run, and its two sources: the server, or the JSON inside a report. */

export const REJECTED = 65535;

export type Json = null | boolean | number | string | Json[] | { [key: string]: Json };

export interface RunInfo {
  name: string;
  kind: "image" | "radio" | "vector" | "text";
  n_samples: number;
  sample_shape: number[];
  columns: string[] | null;
  n_old: number;
  has_truth: boolean;
  truth_names: string[] | null;
  read_only: boolean;
  options: Record<string, Json>;
  option_help?: Record<string, string>; // for the options that the run's method reads
  formats?: Record<string, string | null>; // export formats: why one is not available, or null
  cannot_refine?: string | null;
  cannot_return?: string | null; // why samples cannot go to the known classes that they resemble most
  has_mixture?: boolean; // unlabelled samples were taken to be of known and new classes
  seed: number | null;
  count?: string | null; // how many new classes were found, as a sentence
  mixture?: string | null; // how many unlabelled samples are of known classes, as a sentence
  confidence?: string | null; // how far to trust the run, as a sentence
  notes?: string[]; // warnings about its data
  source: Json;
  versions: Record<string, string>;
  history: Record<string, Json>[];
  scores: Record<string, number> | null; // of the reviewed labels
  confusion: { rows: string[]; columns: string[]; counts: number[][] } | null; // one row per true class
  seconds: Json;
  has_samples?: boolean;
  samples_note?: string | null;
  folder?: string;
}

export interface Hint {
  kind: "split" | "merge";
  with: number | null;
  into: number | null;
  reason: string;
}

export interface ClassInfo {
  id: number;
  name: string;
  kind: "old" | "new";
  size: number;
  given: number;
  confidence: number | null;
  cohesion: number | null;
  nearest_old: { id: number; distance: number } | null;
  confusable: { id: number; share: number }[];
  hints: Hint[];
  note: string;
}

/** A word that sets a class apart, and the share of samples that have it. */
export interface Word {
  word: string;
  here: number;
  elsewhere: number;
}

/** A column that sets a class apart: quartiles of its numbers, or the share that has a category. */
export interface Column {
  name: string;
  effect: number; // 1: all values here are larger than elsewhere; -1: smaller
  here: number[];
  elsewhere: number[];
  low: number; // the range of most values
  high: number;
}

export interface ClassCard extends ClassInfo {
  central: number[];
  unsure: number[];
  outliers: number[];
  words?: Word[];
  columns?: Column[];
  suggestion?: string | null; // a name, from words or columns
}

export interface ReviewState {
  revision: number;
  undo: string | null;
  redo: string | null;
  rejected: number;
  classes: ClassInfo[];
}

export interface SampleInfo {
  index: number;
  id: string | null;
  class: number;
  given: boolean;
  confidence: number;
  novelty: number | null; // P(new); null without a mixture
  truth: string | null;
  values: [string, number][] | null;
  marked?: [string, number][] | null; // its values in the columns that set its class apart
  text?: string | null;
}

export type Action =
  | { kind: "rename"; class: number; name: string }
  | { kind: "merge"; classes: number[]; into: number }
  | { kind: "split"; class: number; k: number }
  | { kind: "move"; samples: number[]; to: number | null; name?: string }
  | { kind: "mark_old"; class: number; old: number }
  | { kind: "old"; samples: number[] }
  | { kind: "old"; class: number }
  | { kind: "reject"; samples: number[] }
  | { kind: "reject"; class: number }
  | { kind: "note"; class: number; text: string }
  | { kind: "dismiss"; class: number; hint: "split" | "merge"; with?: number };

export interface Outcome {
  revision: number;
  summary: string;
  changed: { samples: number; classes: number[] };
}

export interface JournalEntry {
  revision: number;
  when: string | number;
  summary: string;
  undone: boolean;
}

export interface RefineState {
  state: "idle" | "running" | "done" | "failed";
  stage: string | null;
  share: number | null;
  seconds_left: number | null;
  out: string | null;
  error: string | null;
  free: string; // a name for a new run that is not taken
}

export interface Review {
  state: ReviewState;
  assignment: Uint16Array;
}

export interface Everything extends Review {
  run: RunInfo;
  map: Float32Array; // x, y, x, y, ... in [-1, 1]
  confidence: Uint8Array;
  novelty: Uint8Array | null; // P(new); null without a mixture
  given: Uint8Array;
  truth: Uint16Array | null;
}

/** Thumbnails on one sheet: that of `samples[s]` is at column s % columns, row s / columns. */
export interface Sheet {
  url: string;
  columns: number;
  rows: number;
  slot: (sample: number) => number | undefined;
}

/** A sample that was searched for; of a text, the part around what was found. */
export interface Hit {
  index: number;
  id: string;
  text?: string | null;
}

export type SampleOrder = "central" | "unsure" | "name";

export type ServerEvent =
  | { kind: "revision"; revision: number; summary: string | null }
  | { kind: "refine"; refine: RefineState }
  | { kind: "online" }
  | { kind: "offline" };

export interface Source {
  readonly live: boolean; // has a server: actions, search, exports
  load(): Promise<Everything>;
  review(): Promise<Review>;
  card(id: number): Promise<ClassCard>;
  list(id: number, offset: number, limit: number, order: SampleOrder): Promise<{ total: number; samples: number[] }>;
  sample(index: number): Promise<SampleInfo>;
  scores(): Promise<Pick<RunInfo, "scores" | "confusion">>;
  search(text: string): Promise<{ samples: Hit[]; total: number }>;
  texts(samples: number[]): Promise<(string | null)[]>; // their beginnings; null: not in this report
  sheet(samples: number[]): Sheet;
  picture(sample: number): string | null; // the URL of the large picture; null: use the sheet
  journal(limit?: number): Promise<JournalEntry[]>;
  act(revision: number, action: Action): Promise<Outcome>;
  step(direction: "undo" | "redo", revision: number): Promise<Outcome>;
  exported(format: string): Promise<Blob>;
  refine(out: string): Promise<void>;
  refineState(): Promise<RefineState>;
  listen(hear: (event: ServerEvent) => void): void;
}

/** The server refused a request; the message is its own. */
export class Refused extends Error {
  constructor(
    message: string,
    readonly status: number,
  ) {
    super(message);
  }
}

/** The server does not answer at all. */
export class Unreachable extends Error {}
