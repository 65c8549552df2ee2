/** The colour and the mark of every point, depending on what is chosen in the page. */

import { REJECTED } from "../data/types";
import {
  classColour,
  colourSlot,
  confidenceColour,
  newColour,
  noiseColour,
  noveltyColour,
  oldColour,
  type Rgb,
  SHAPES,
  shapeSlot,
} from "../palette";
import type { Store } from "../store";
import { CHANGED, DIM, KNOWN, SELECTED } from "./plot";

const UNKNOWN = 65535; // the truth of this sample is not known
const CROSS = SHAPES.indexOf("cross");

export function looks(store: Store, changed: Uint8Array | null): { colours: Uint8Array; marks: Uint8Array } {
  const { assignment, confidence, novelty, given, truth } = store.data;
  const dark = store.dark;
  const n = assignment.length;
  const colours = new Uint8Array(4 * n);
  const marks = new Uint8Array(n);
  const cache = new Map<number, Rgb>();
  const cached = (key: number, make: () => Rgb): Rgb => {
    let colour = cache.get(key);
    if (!colour) cache.set(key, (colour = make()));
    return colour;
  };
  const old = new Set(store.state.classes.filter((c) => c.kind === "old").map((c) => c.id));
  const chosen = store.lit();

  for (let i = 0; i < n; i++) {
    const id = assignment[i];
    let shape = 0;
    let colour: Rgb;
    if (id === REJECTED) {
      colour = cached(-1, () => noiseColour(dark));
      shape = CROSS;
    } else if (store.colour === "old") {
      colour = old.has(id) ? cached(-2, () => oldColour(dark)) : cached(-3, () => newColour(dark));
    } else if (store.colour === "confidence") {
      colour = cached(confidence[i], () => confidenceColour(confidence[i] / 255, dark));
    } else if (store.colour === "novelty" && novelty) {
      colour = cached(novelty[i], () => noveltyColour(novelty[i] / 255, dark));
    } else {
      const key = store.colour === "truth" && truth ? truth[i] : id;
      if (key === UNKNOWN) {
        colours.set(cached(-1, () => noiseColour(dark)), 4 * i);
        colours[4 * i + 3] = 110;
        marks[i] = (store.selected[i] ? SELECTED : 0) | (changed?.[i] ? CHANGED : 0) | KNOWN;
        continue;
      }
      colour = cached(1000 + colourSlot(key), () => classColour(key, dark));
      shape = shapeSlot(key);
    }
    const dim = chosen.size > 0 && !chosen.has(id);
    colours.set(colour, 4 * i);
    colours[4 * i + 3] = dim ? 46 : given[i] ? 150 : 225;
    marks[i] =
      shape |
      (dim ? DIM : 0) |
      (store.selected[i] ? SELECTED : 0) |
      (changed?.[i] ? CHANGED : 0) |
      (given[i] ? KNOWN : 0);
  }
  return { colours, marks };
}
