/** How well the labels agree with the truth, if it is given: scores and confusion. */

import { count, fill, h, percent } from "../dom";
import type { Store } from "../store";
import { empty } from "./bits";

const SCORES: [string, string, string][] = [
  ["acc", "Accuracy", "share of unlabelled samples in the class that is matched to their true class, one to one"],
  ["purity", "Purity", "share of unlabelled samples whose true class is the most frequent one in their class"],
  ["nmi", "NMI", "normalised mutual information"],
  ["ari", "ARI", "adjusted Rand index"],
];

export function scores(store: Store): HTMLElement {
  const element = h("section", { class: "page", tabindex: "0", "aria-labelledby": "scores-title" });
  let drawn = -1;

  async function draw(): Promise<void> {
    if (store.view !== "scores" || drawn === store.state.revision) return;
    const first = drawn < 0;
    drawn = store.state.revision;
    if (!first) await store.rescore().catch((error) => store.fail(error));
    const { scores: values, confusion } = store.run;
    fill(
      element,
      h("h2", { class: "page-title", id: "scores-title" }, "Scores"),
      h("p", { class: "quiet" }, "The reviewed labels against the truth, over ", values?.n_scored !== undefined ? `${count(values.n_scored)} samples` : "samples", " that came without a label."),
      values
        ? h("div", { class: "score-row" }, ...SCORES.filter(([key]) => typeof values[key] === "number").map(([key, name, title]) => h("div", { class: "score", title }, h("span", { class: "score-value" }, values[key].toFixed(3)), h("span", { class: "score-name" }, name))))
        : empty("No scores", "The truth of this run is not known."),
      confusion && matrix(confusion),
    );
  }

  function matrix(c: { rows: string[]; columns: string[]; counts: number[][] }): HTMLElement {
    const rowSums = c.counts.map((row) => row.reduce((a, b) => a + b, 0));
    const used = c.columns.map((_, j) => j).filter((j) => c.counts.some((row) => row[j] > 0));
    const rows = c.rows.map((_, i) => i).filter((i) => rowSums[i] > 0);
    // columns in the order of their most frequent row, so that agreement is on the diagonal
    const home = (j: number): number => rows.reduce((best, i) => (c.counts[i][j] > c.counts[best][j] ? i : best), rows[0]);
    used.sort((a, b) => home(a) - home(b));
    return h(
      "section",
      { class: "block" },
      h("h3", { class: "block-title" }, "Confusion", h("small", null, "one row per true class, one column per class of this run, in percent of the row")),
      h(
        "div",
        { class: "matrix-box", tabindex: "0", role: "region", "aria-label": "Confusion matrix" },
        h(
          "table",
          { class: "matrix" },
          h("thead", null, h("tr", null, h("td"), ...used.map((j) => h("th", { scope: "col" }, h("span", null, c.columns[j]))))),
          h(
            "tbody",
            null,
            ...rows.map((i) =>
              h(
                "tr",
                null,
                h("th", { scope: "row" }, c.rows[i]),
                ...used.map((j) => {
                  const share = rowSums[i] ? c.counts[i][j] / rowSums[i] : 0;
                  const cell = h("td", { title: `${c.rows[i]} as ${c.columns[j]}: ${count(c.counts[i][j])}`, class: share > 0.55 ? "full" : "" }, c.counts[i][j] ? percent(share).replace(" %", "") : "");
                  cell.style.setProperty("--share", String(share));
                  return cell;
                }),
              ),
            ),
          ),
        ),
      ),
    );
  }

  store.on(["review", "view"], () => void draw());
  void draw();
  return element;
}
