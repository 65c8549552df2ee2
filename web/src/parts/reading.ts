/** What can be read of a class: its words or its columns, and the name they suggest. */

import { button, figure, h, percent } from "../dom";
import type { ClassCard, ClassInfo, Column, Word } from "../data/types";
import type { Store } from "../store";

/** The words that set a class apart, in one line. */
export function wordList(words: Word[], most = 8): HTMLElement {
  return h(
    "ul",
    { class: "words", "aria-label": "Words that set it apart" },
    ...words.slice(0, most).map((word) => h("li", { class: "word", title: `in ${percent(word.here)} of its samples, in ${percent(word.elsewhere)} of the others` }, word.word)),
  );
}

const isShare = (column: Column): boolean => column.here.length === 1;
const value = (column: Column, part: number[]): string => (isShare(column) ? percent(part[0]) : figure(part[1]));

/** Where most values of a column lie: the class above, the others below. */
function spread(column: Column): HTMLElement {
  const span = column.high - column.low || 1;
  const at = (x: number): number => Math.round(1000 * Math.max(0, Math.min(1, (x - column.low) / span))) / 10;
  const line = (part: number[], look: string): HTMLElement => {
    const [from, to] = isShare(column) ? [0, at(part[0])] : [at(part[0]), at(part[2])];
    const element = h("span", { class: `spread-line ${look}` });
    element.style.left = `${from}%`;
    element.style.width = `${Math.max(2, to - from)}%`;
    return element;
  };
  return h("span", { class: "spread", "aria-hidden": "true" }, line(column.here, "here"), line(column.elsewhere, "rest"));
}

/** The columns that set a class apart: its middle value, that of the others, and where most of them lie. */
export function columnTable(columns: Column[]): HTMLElement {
  const head = ["Column", "Here", "Others"].map((name) => h("th", { scope: "col" }, name));
  return h(
    "table",
    { class: "apart" },
    h("thead", null, h("tr", null, ...head, h("th", null, h("span", { class: "hidden" }, "Where most values lie")))),
    h(
      "tbody",
      null,
      ...columns.map((column) =>
        h(
          "tr",
          { title: isShare(column) ? "The share that has this value" : "The middle value; the lines span the middle half of all values" },
          h("th", { scope: "row" }, isShare(column) ? column.name.replace("=", ": ") : column.name),
          h("td", null, value(column, column.here)),
          h("td", { class: "quiet" }, value(column, column.elsewhere)),
          h("td", null, spread(column)),
        ),
      ),
    ),
  );
}

/** Words, columns and the suggested name, for the side panel. */
export function apart(store: Store, info: ClassInfo, card: ClassCard): HTMLElement | null {
  const { words = [], columns = [], suggestion = null } = card;
  if (!words.length && !columns.length) return null;
  return h(
    "section",
    { class: "reading" },
    h("h3", { title: words.length ? "More frequent here than in other classes" : "The columns whose values differ most from those of all other samples" }, "What sets it apart"),
    words.length > 0 && wordList(words),
    columns.length > 0 && columnTable(columns),
    suggestion !== null &&
      suggestion !== info.name &&
      store.editable &&
      button(`Name it \u201c${suggestion}\u201d`, () => void store.act({ kind: "rename", class: info.id, name: suggestion }, `rename ${info.name}`), {
        icon: "spark",
        class: "small suggestion",
        title: "A suggestion: press to accept it, rename to choose your own",
      }),
  );
}
