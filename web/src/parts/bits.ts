/** Small elements that many parts share: the swatch of a class, its chip, thumbnails, bars. */

import { h, s } from "../dom";
import { type Sheet, REJECTED } from "../data/types";
import { colourSlot, SHAPES, shapeSlot } from "../palette";
import type { Store } from "../store";

const OUTLINES: Record<(typeof SHAPES)[number], string> = {
  circle: "M8 2a6 6 0 1 1 0 12A6 6 0 0 1 8 2Z",
  diamond: "M8 1l7 7-7 7-7-7Z",
  triangle: "M8 1.500 15 14H1Z",
  square: "M2.500 2.500h11v11h-11Z",
  cross: "M6 1.500h4V6h4.500v4H10v4.500H6V10H1.500V6H6Z",
};

/** Colour and shape of a class. */
export function swatch(id: number): SVGSVGElement {
  const noise = id === REJECTED;
  const shape = noise ? "cross" : SHAPES[shapeSlot(id)];
  return s(
    "svg",
    { class: `swatch ${noise ? "noise" : `c${colourSlot(id)}`}`, viewBox: "0 0 16 16", "aria-hidden": "true" },
    s("path", { d: OUTLINES[shape] }),
  );
}

const where = (e: PointerEvent): string => `${e.screenX} ${e.screenY}`;
let pointer = ""; // its last position; set after the listeners of a move have compared it
addEventListener("pointermove", (e) => (pointer = where(e)));

/** Hovering highlights the class on the map, unless the page moved under a pointer at rest. */
export function lights(store: Store, id: number) {
  return {
    pointermove: (e: PointerEvent) => where(e) !== pointer && store.point(id),
    pointerleave: () => store.point(null),
  };
}

/** A class by sign and name; a press opens it. */
export function chip(store: Store, id: number, extra: string | null = null): HTMLElement {
  const known = store.class(id);
  const inside = [swatch(id), h("span", { class: "chip-name" }, store.nameOf(id)), extra && h("small", null, extra)];
  if (!known) return h("span", { class: "chip" }, ...inside);
  return h(
    "button",
    {
      type: "button",
      class: "chip",
      on: { click: () => store.chooseClass(id), ...lights(store, id) },
    },
    ...inside,
  );
}

/** Show the thumbnail of one sample from a sheet. */
export function place(element: HTMLElement, sheet: Sheet, sample: number): void {
  const slot = sheet.slot(sample);
  if (slot === undefined || !sheet.url) {
    element.classList.add("blank");
    return;
  }
  const [column, row] = [slot % sheet.columns, Math.floor(slot / sheet.columns)];
  const at = (k: number, n: number): string => (n > 1 ? `${(100 * k) / (n - 1)}%` : "0%");
  element.style.backgroundImage = `url("${sheet.url}")`;
  element.style.backgroundSize = `${100 * sheet.columns}% ${100 * sheet.rows}%`;
  element.style.backgroundPosition = `${at(column, sheet.columns)} ${at(row, sheet.rows)}`;
}

/** Texts as buttons, in place of thumbnails. */
function sentences(store: Store, list: HTMLElement, members: number[]): void {
  for (let from = 0; from < members.length; from += 100) {
    const part = members.slice(from, from + 100);
    const boxes = part.map((sample) =>
      h("button", { type: "button", class: "thumb sentence", dataset: { sample: String(sample) }, "aria-pressed": store.selected[sample] ? "true" : "false" }, "\u2026"),
    );
    list.append(...boxes);
    store.source
      .texts(part)
      .then((texts) => texts.forEach((text, i) => (boxes[i].textContent = text ?? `Sample ${part[i]}: its text is not in this report.`)))
      .catch(() => boxes.forEach((box, i) => (box.textContent = `Sample ${part[i]}`)));
  }
}

/** How many samples of a kind a card shows: a sentence takes more room than a picture. */
export const fits = (store: Store, pictures: number): number => (store.run.kind === "text" ? Math.max(2, Math.round(pictures / 3)) : pictures);

/** Thumbnails as buttons: a click adds the sample to the selection or removes it. */
export function thumbs(store: Store, members: number[], label: string, look = ""): HTMLElement {
  const list = h("div", { class: `thumbs ${store.run.kind} ${look}`, role: "group", "aria-label": label });
  if (store.run.kind === "text") {
    sentences(store, list, members);
    return list;
  }
  const size = store.source.live ? 100 : members.length || 1;
  for (let from = 0; from < members.length; from += size) {
    const part = members.slice(from, from + size);
    const sheet = store.run.has_samples === false ? null : store.source.sheet(part);
    for (const sample of part) {
      const picture = h("button", {
        type: "button",
        class: "thumb",
        dataset: { sample: String(sample) },
        "aria-pressed": store.selected[sample] ? "true" : "false",
        "aria-label": `Sample ${sample}`,
      });
      if (sheet) place(picture, sheet, sample);
      else picture.textContent = String(sample);
      list.append(picture);
    }
  }
  return list;
}

/** A share as a bar. */
export function bar(share: number | null, tone = ""): HTMLElement {
  const inner = h("span", { class: `bar-in ${tone}` });
  inner.style.width = `${Math.round(100 * Math.max(0, Math.min(1, share ?? 0)))}%`;
  return h("span", { class: "bar", "aria-hidden": "true" }, inner);
}

export function empty(title: string, text: string): HTMLElement {
  return h("div", { class: "empty" }, h("p", { class: "empty-title" }, title), h("p", null, text));
}
