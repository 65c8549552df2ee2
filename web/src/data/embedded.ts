/** The data of a run from inside the page: a read-only report that opens from disk. */

import {
  type ClassCard,
  type Everything,
  type Hit,
  type JournalEntry,
  type Review,
  type ReviewState,
  type RunInfo,
  Refused,
  type SampleInfo,
  type SampleOrder,
  type Sheet,
  type Source,
} from "./types";

interface Embedded {
  run: RunInfo;
  state: ReviewState;
  classes: Record<string, ClassCard>;
  map: string;
  assignment: string;
  confidence: string;
  novelty: string | null;
  given: string;
  truth: string | null;
  ids?: string[];
  journal?: { entries: JournalEntry[] };
  texts?: { samples: number[]; texts: string[] } | null;
  thumbs: { size: number; columns: number; png: string; samples: number[] } | null;
}

function bytes(base64: string): ArrayBuffer {
  const text = atob(base64);
  const out = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) out[i] = text.charCodeAt(i);
  return out.buffer;
}

const readOnly = (): Promise<never> =>
  Promise.reject(new Refused("This is a report, which is read-only.", 405));

export class EmbeddedSource implements Source {
  readonly live = false;
  private readonly all: Everything;
  private readonly thumbs: Sheet;
  private readonly words: Map<number, string>;

  constructor(private readonly data: Embedded) {
    this.all = {
      run: { ...data.run, read_only: true },
      state: data.state,
      map: new Float32Array(bytes(data.map)),
      assignment: new Uint16Array(bytes(data.assignment)),
      confidence: new Uint8Array(bytes(data.confidence)),
      novelty: data.novelty === null ? null : new Uint8Array(bytes(data.novelty)),
      given: new Uint8Array(bytes(data.given)),
      truth: data.truth === null ? null : new Uint16Array(bytes(data.truth)),
    };
    this.words = new Map(data.texts?.samples.map((sample, i) => [sample, data.texts!.texts[i]]));
    const { columns = 1, samples = [], png = "" } = data.thumbs ?? {};
    const place = new Map(samples.map((sample, slot) => [sample, slot]));
    const picture = png ? URL.createObjectURL(new Blob([bytes(png)], { type: "image/png" })) : "";
    this.thumbs = {
      url: picture,
      columns,
      rows: Math.max(1, Math.ceil(samples.length / columns)),
      slot: (sample) => place.get(sample),
    };
  }

  load = async (): Promise<Everything> => this.all;
  review = async (): Promise<Review> => this.all;

  card = async (id: number): Promise<ClassCard> => {
    const card = this.data.classes[id];
    if (card) return card;
    throw new Refused(`There is no class ${id} in this report.`, 404);
  };

  async list(id: number, offset: number, limit: number, order: SampleOrder) {
    const { assignment, confidence } = this.all;
    const members: number[] = [];
    assignment.forEach((c, i) => c === id && members.push(i));
    if (order === "unsure") members.sort((a, b) => confidence[a] - confidence[b]);
    if (order === "central") members.sort((a, b) => confidence[b] - confidence[a]);
    return { total: members.length, samples: members.slice(offset, offset + limit) };
  }

  sample = async (index: number): Promise<SampleInfo> => {
    const { assignment, confidence, novelty, given, truth, run } = this.all;
    return {
      index,
      id: this.data.ids?.[index] ?? null,
      class: assignment[index],
      given: given[index] === 1,
      confidence: confidence[index] / 255,
      novelty: novelty && novelty[index] / 255,
      truth: (truth && run.truth_names?.[truth[index]]) ?? null,
      values: null,
      text: this.words.get(index) ?? null,
    };
  };

  scores = async () => this.all.run;

  async search(text: string) {
    const wanted = text.toLowerCase();
    const found: Hit[] = [];
    let total = 0;
    this.data.ids?.forEach((id, index) => {
      const text = this.words.get(index) ?? null;
      if (!id.toLowerCase().includes(wanted) && !text?.toLowerCase().includes(wanted)) return;
      total++;
      if (found.length < 50) found.push({ index, id, text });
    });
    return { samples: found, total };
  }

  texts = async (samples: number[]) => samples.map((sample) => this.words.get(sample) ?? null);
  sheet = (): Sheet => this.thumbs;
  picture = (): null => null;
  journal = async () => this.data.journal?.entries ?? [];
  act = readOnly;
  step = readOnly;
  refine = readOnly;
  refineState = readOnly;
  exported = readOnly;
  listen = (): void => {};
}

/** The report inside this page, if there is one. */
export function embedded(): EmbeddedSource | null {
  const element = document.getElementById("cdknet-report");
  return element ? new EmbeddedSource(JSON.parse(element.textContent ?? "") as Embedded) : null;
}
