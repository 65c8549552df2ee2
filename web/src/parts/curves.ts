/** Training curves: one small plot per quantity, stage by stage. */

import { figure, fill, h, s } from "../dom";
import type { Store } from "../store";
import { empty } from "./bits";

const STAGES: Record<string, string> = {
  pretrain: "Stage 1: learn the known classes",
  views: "Stage 2: learn from augmented views",
  discover: "Stage 2: separate the classes",
  expand: "Stage 3: train one classifier for known and new classes",
  refine: "Refinement: train on the reviewed labels",
  calibrate: "Calibration: known classes hidden and discovered again",
};
const WIDTH = 320;
const HEIGHT = 150;
const PAD = { right: 14, top: 12, bottom: 24 };
const DIGIT = 6.4; // width of a digit on an axis
const FEWEST = 3; // points for a curve; fewer are drawn as points

export function curves(store: Store): HTMLElement {
  const element = h("section", { class: "page", tabindex: "0", "aria-labelledby": "curves-title" });
  const stages = new Map<string, Record<string, unknown>[]>();
  for (const row of store.run.history) {
    const stage = String(row.stage ?? "training");
    if (!stages.has(stage)) stages.set(stage, []);
    stages.get(stage)!.push(row);
  }
  fill(
    element,
    h("h2", { class: "page-title", id: "curves-title" }, "Training"),
    stages.size === 0 && empty("No history", "This run has no record of its training."),
    ...[...stages].map(([stage, rows]) => {
      const names = [...new Set(rows.flatMap((r) => Object.keys(r)))].filter(
        (name) => !["stage", "epoch", "seconds"].includes(name) && rows.some((r) => typeof r[name] === "number"),
      );
      const seconds = rows.reduce((sum, r) => sum + (typeof r.seconds === "number" ? r.seconds : 0), 0);
      return h(
        "section",
        { class: "block" },
        h("h3", { class: "block-title" }, STAGES[stage] ?? stage, h("small", null, `${rows.length} ${stage === "calibrate" ? "rehearsal" : "epoch"}${rows.length === 1 ? "" : "s"}, ${figure(Number(seconds.toFixed(1)))} s`)),
        h("div", { class: "curves" }, ...names.map((name) => curve(name, rows))),
      );
    }),
  );
  return element;
}

function curve(name: string, rows: Record<string, unknown>[]): HTMLElement {
  const points = rows
    .map((r, i) => [typeof r.epoch === "number" ? r.epoch : i + 1, r[name]] as [number, unknown])
    .filter((p): p is [number, number] => typeof p[1] === "number" && Number.isFinite(p[1]));
  const [x0, x1] = [points[0][0], points[points.length - 1][0]];
  let y0 = Math.min(...points.map((p) => p[1]));
  let y1 = Math.max(...points.map((p) => p[1]));
  if (y1 - y0 < 1e-12) [y0, y1] = [y0 - Math.abs(y0 || 1) * 0.05, y1 + Math.abs(y1 || 1) * 0.05];
  const digits = Math.max(0, Math.min(6, Math.ceil(-Math.log10(y1 - y0)) + 1));
  const tick = (v: number): string => (y1 - y0 >= 1000 ? v.toExponential(1) : v.toFixed(digits)).replace(/^-(0\.?0*)$/, "$1").replace("-", "−");
  const left = 14 + DIGIT * Math.max(4, ...[y0, (y0 + y1) / 2, y1].map((v) => tick(v).length));
  const x = (v: number): number => left + ((v - x0) / Math.max(1, x1 - x0)) * (WIDTH - left - PAD.right);
  const y = (v: number): number => HEIGHT - PAD.bottom - ((v - y0) / (y1 - y0)) * (HEIGHT - PAD.top - PAD.bottom);
  const last = points[points.length - 1];
  const readout = h("span", { class: "curve-value" }, figure(last[1]));
  const dot = s("circle", { class: "curve-dot", r: "3.5", cx: String(x(last[0])), cy: String(y(last[1])) });
  const axis = (v: number): SVGGElement =>
    s("g", null, s("line", { class: "rule", x1: String(left), x2: String(WIDTH - PAD.right), y1: String(y(v)), y2: String(y(v)) }), s("text", { class: "tick", x: String(left - 6), y: String(y(v) + 3.5), "text-anchor": "end" }, tick(v)));
  const drawing = s(
    "svg",
    { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `${name.replaceAll("_", " ")}: from ${figure(points[0][1])} to ${figure(last[1])} in ${points.length} epochs` },
    axis(y0),
    axis((y0 + y1) / 2),
    axis(y1),
    s("text", { class: "tick", x: String(left), y: String(HEIGHT - 7) }, `epoch ${x0}`),
    s("text", { class: "tick", x: String(WIDTH - PAD.right), y: String(HEIGHT - 7), "text-anchor": "end" }, String(x1)),
    points.length < FEWEST
      ? s("g", null, ...points.map((p) => s("circle", { class: "curve-dot", r: "3.5", cx: String(x(p[0])), cy: String(y(p[1])) })))
      : s("path", { class: "curve", d: points.map((p, i) => `${i ? "L" : "M"}${x(p[0]).toFixed(1)} ${y(p[1]).toFixed(1)}`).join("") }),
    dot,
  );
  drawing.addEventListener("pointermove", (e) => {
    const box = drawing.getBoundingClientRect();
    const at = ((e.clientX - box.left) / box.width) * WIDTH;
    const near = points.reduce((a, b) => (Math.abs(x(b[0]) - at) < Math.abs(x(a[0]) - at) ? b : a));
    dot.setAttribute("cx", String(x(near[0])));
    dot.setAttribute("cy", String(y(near[1])));
    readout.textContent = `${figure(near[1])} at epoch ${near[0]}`;
  });
  drawing.addEventListener("pointerleave", () => {
    dot.setAttribute("cx", String(x(last[0])));
    dot.setAttribute("cy", String(y(last[1])));
    readout.textContent = figure(last[1]);
  });
  return h("figure", { class: "curve-box" }, h("figcaption", null, h("span", null, name.replaceAll("_", " ")), readout), drawing);
}
