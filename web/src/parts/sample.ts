/** One sample: the card that follows the pointer, and all details for the side panel. */

import { fill, h, percent } from "../dom";
import type { SampleInfo } from "../data/types";
import type { Store } from "../store";
import { bar, chip, place, swatch } from "./bits";

/** The large picture of a sample. */
export function picture(store: Store, sample: number, alt: string): HTMLElement | null {
  if (store.run.has_samples === false || store.run.kind === "text") return null;
  const address = store.source.picture(sample);
  if (address === null) {
    const element = h("div", { class: `picture ${store.run.kind}`, role: "img", "aria-label": alt });
    place(element, store.source.sheet([sample]), sample);
    return element;
  }
  const image = h("img", { class: `picture ${store.run.kind}`, src: address, alt, decoding: "async" });
  image.addEventListener("error", () => image.classList.add("blank"));
  return image;
}

const known = new Map<number, SampleInfo>();
let knownAt = -1;

/** The details of a sample, requested once per revision. */
async function about(store: Store, sample: number): Promise<SampleInfo> {
  if (knownAt !== store.state.revision) known.clear();
  knownAt = store.state.revision;
  let info = known.get(sample);
  if (!info) {
    info = await store.source.sample(sample);
    if (known.size > 5000) known.clear();
    known.set(sample, info);
  }
  return { ...info, class: store.data.assignment[sample] };
}

function truthOf(store: Store, sample: number): string | null {
  const { truth, run } = store.data;
  return truth ? (run.truth_names?.[truth[sample]] ?? null) : null;
}

/** P(new) of a sample that came without a label, in a run with a mixture. */
function noveltyOf(store: Store, sample: number): number | null {
  const { novelty, given } = store.data;
  return novelty && !given[sample] ? novelty[sample] / 255 : null;
}

/** Values with the names of their columns. */
const valueTable = (values: [string, number][]): HTMLElement =>
  h(
    "table",
    { class: "values" },
    h("tbody", null, ...values.map(([column, value]) => h("tr", null, h("th", { scope: "row" }, column), h("td", null, typeof value === "number" ? String(Number(value.toPrecision(5))) : String(value))))),
  );

const LONGEST = 280; // characters on the hover card
const beginning = (text: string): string => (text.length <= LONGEST ? text : `${text.slice(0, LONGEST - 1)}\u2026`);

/** A card next to the pointer that shows the sample under it. */
export function hoverCard(store: Store) {
  const element = h("div", { class: "hover-card", hidden: true, "aria-hidden": "true" });
  let shown: number | null = null;
  let timer = 0;
  const settle = (x: number, y: number, room: { width: number; height: number }): void => {
    const [w, t] = [element.offsetWidth, element.offsetHeight];
    const left = x + 16 + w > room.width ? x - 16 - w : x + 16;
    const top = Math.min(Math.max(8, y - t / 2), Math.max(8, room.height - t - 8));
    element.style.transform = `translate(${Math.max(4, left)}px, ${top}px)`;
  };
  const hide = (): void => {
    shown = null;
    clearTimeout(timer);
    element.hidden = true;
  };
  const show = (sample: number, x: number, y: number, room: { width: number; height: number }): void => {
    if (sample !== shown) {
      shown = sample;
      const id = store.data.assignment[sample];
      const truth = truthOf(store, sample);
      const novelty = noveltyOf(store, sample);
      const name = h("span", { class: "sample-name" }, "\u00a0");
      const text = store.run.kind === "text" ? h("p", { class: "hover-sentence" }, "\u2026") : null;
      fill(
        element,
        picture(store, sample, ""),
        text,
        h(
          "div",
          { class: "hover-text" },
          name,
          h("span", { class: "hover-class" }, swatch(id), store.nameOf(id)),
          h(
            "span",
            { class: "quiet" },
            store.data.given[sample] ? "label was given" : `confidence ${percent(store.data.confidence[sample] / 255)}`,
            novelty !== null && ` · P(new) ${percent(novelty)}`,
            truth !== null && ` · truth: ${truth}`,
          ),
        ),
      );
      clearTimeout(timer);
      timer = window.setTimeout(() => {
        about(store, sample)
          .then((info) => {
            if (shown !== sample) return;
            name.textContent = info.id ?? `sample ${sample}`;
            if (text) text.textContent = beginning(info.text ?? "Its text is not in this report.");
            if (info.marked?.length) element.append(valueTable(info.marked));
            settle(x, y, room);
          })
          .catch(() => {});
      }, 40);
    }
    element.hidden = false;
    settle(x, y, room);
  };
  return { element, show, hide };
}

/** The details of one sample, for the side panel. */
export function sampleDetails(store: Store, sample: number): HTMLElement {
  const name = h("h2", { class: "sample-title" }, `Sample ${sample}`);
  const id = store.data.assignment[sample];
  const sure = store.data.confidence[sample] / 255;
  const truth = truthOf(store, sample);
  const novelty = noveltyOf(store, sample);
  const values = h("div");
  const text = store.run.kind === "text" ? h("blockquote", { class: "whole-text" }, "\u2026") : null;
  const element = h(
    "div",
    { class: "sample-details" },
    name,
    picture(store, sample, `Picture of sample ${sample}`),
    text,
    h(
      "dl",
      { class: "facts" },
      h("dt", null, "Class"),
      h("dd", null, chip(store, id)),
      h("dt", null, "Confidence"),
      h("dd", { class: "with-bar" }, bar(sure), percent(sure)),
      novelty !== null && [h("dt", { title: "The probability that it is of no known class" }, "P(new)"), h("dd", { class: "with-bar" }, bar(novelty), percent(novelty))],
      h("dt", null, "Label"),
      h("dd", null, store.data.given[sample] ? "given from the start" : "found"),
      truth !== null && [h("dt", null, "Truth"), h("dd", null, truth)],
    ),
    values,
  );
  about(store, sample)
    .then((info) => {
      if (info.id !== null) name.textContent = info.id;
      if (text) text.textContent = info.text ?? "Its text is not in this report.";
      if (!info.values?.length) return;
      fill(
        values,
        h("h3", null, "Values"),
        valueTable(info.values),
      );
    })
    .catch(() => {});
  return element;
}
