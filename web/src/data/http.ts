/** The data of a run from the server of `cdknet explore`. */

import {
  type Action,
  type Everything,
  type JournalEntry,
  type Outcome,
  type RefineState,
  Refused,
  type Review,
  type RunInfo,
  type ServerEvent,
  type Sheet,
  type Source,
  Unreachable,
} from "./types";

const THUMB = 64; // pixels requested; shown smaller, to be sharp on high-density screens

async function ask(path: string, body?: unknown): Promise<Response> {
  let answer: Response;
  try {
    answer = await fetch(`api/${path}`, {
      method: body === undefined ? "GET" : "POST",
      headers: body === undefined ? {} : { "Content-Type": "application/json" },
      body: body === undefined ? undefined : JSON.stringify(body),
      credentials: "same-origin",
      cache: "no-store",
    });
  } catch {
    throw new Unreachable("The server does not answer. Is cdknet explore still running?");
  }
  if (answer.ok) return answer;
  const said = await answer.json().catch(() => null);
  const text = said && typeof said.error === "string" ? said.error : `The server answered ${answer.status}.`;
  throw new Refused(text, answer.status);
}

async function json<T>(path: string, body?: unknown): Promise<T> {
  return (await (await ask(path, body)).json()) as T;
}

async function binary(path: string): Promise<ArrayBuffer> {
  return (await ask(path)).arrayBuffer();
}

export class HttpSource implements Source {
  readonly live = true;

  async load(): Promise<Everything> {
    const run = await json<RunInfo>("run");
    const [map, confidence, novelty, given, truth, review] = await Promise.all([
      binary("map"),
      binary("confidence"),
      run.has_mixture ? binary("novelty") : null,
      binary("given"),
      run.has_truth ? binary("truth") : null,
      this.review(),
    ]);
    return {
      run,
      map: new Float32Array(map),
      confidence: new Uint8Array(confidence),
      novelty: novelty && new Uint8Array(novelty),
      given: new Uint8Array(given),
      truth: truth && new Uint16Array(truth),
      ...review,
    };
  }

  /** State and assignment of one revision: requested again if there was a change between the two. */
  async review(): Promise<Review> {
    for (let attempt = 0; ; attempt++) {
      const [state, answer] = await Promise.all([json<Review["state"]>("state"), ask("assignment")]);
      const revision = Number(answer.headers.get("X-Revision") ?? state.revision);
      const assignment = new Uint16Array(await answer.arrayBuffer());
      if (revision === state.revision || attempt >= 5) return { state, assignment };
    }
  }

  card = (id: number) => json<Awaited<ReturnType<Source["card"]>>>(`classes/${id}`);

  list: Source["list"] = (id, offset, limit, order) =>
    json(`classes/${id}/samples?offset=${offset}&limit=${limit}&order=${order}`);

  sample: Source["sample"] = (index) => json(`samples/${index}`);

  async scores() {
    const { scores, confusion } = await json<RunInfo>("run");
    return { scores, confusion };
  }

  search: Source["search"] = (text) => json(`search?q=${encodeURIComponent(text)}`);

  texts: Source["texts"] = (samples) => json(`texts?samples=${samples.join(",")}`);

  sheet(samples: number[]): Sheet {
    const place = new Map(samples.map((sample, slot) => [sample, slot]));
    return {
      url: `api/sheet?samples=${samples.join(",")}&size=${THUMB}`,
      columns: samples.length,
      rows: 1,
      slot: (sample) => place.get(sample),
    };
  }

  picture = (sample: number): string => `api/samples/${sample}/picture`;

  journal = async (limit = 1000): Promise<JournalEntry[]> =>
    (await json<{ entries: JournalEntry[] }>(`journal?offset=0&limit=${limit}`)).entries;

  act = (revision: number, action: Action) => json<Outcome>("actions", { revision, action });

  step = (direction: "undo" | "redo", revision: number) => json<Outcome>(direction, { revision });

  exported = async (format: string): Promise<Blob> => (await ask(`export?format=${format}`)).blob();

  async refine(out: string): Promise<void> {
    await ask("refine", { out });
  }

  refineState = () => json<RefineState>("refine");

  listen(hear: (event: ServerEvent) => void): void {
    let online = true;
    const open = (): void => {
      const events = new EventSource("api/events");
      events.onopen = () => {
        if (!online) hear({ kind: "online" });
        online = true;
      };
      events.onmessage = (message) => {
        const said = JSON.parse(message.data) as { revision?: number; summary?: string; refine?: RefineState };
        if (said.refine) hear({ kind: "refine", refine: said.refine });
        if (typeof said.revision === "number") {
          hear({ kind: "revision", revision: said.revision, summary: said.summary ?? null });
        }
      };
      events.onerror = () => {
        if (online) hear({ kind: "offline" });
        online = false;
        events.close();
        setTimeout(open, 2000);
      };
    };
    open();
  }
}
