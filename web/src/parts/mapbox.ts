/** The map with its overlays: colours, tools, legend. */

import type { Commands } from "../commands";
import { button, count, fill, h } from "../dom";
import { keyName } from "../keys";
import type { MapView } from "../map/view";
import { confidenceColour, newColour, noveltyColour, oldColour, type Rgb } from "../palette";
import { COLOURS, type Store } from "../store";
import { lights, swatch } from "./bits";

export function mapBox(store: Store, map: MapView, commands: Commands): HTMLElement {
  const colours = h("div", { class: "segments on-map", role: "group", "aria-label": "Colour by" });
  const legend = h("div", { class: "legend", role: "note", "aria-label": "Legend" });
  const lasso = button("Lasso", () => commands.lasso.run(), { icon: "lasso", bare: true, key: keyName("l") });
  const tools = h(
    "div",
    { class: "map-tools", role: "toolbar", "aria-label": "Map" },
    lasso,
    button("Zoom in", () => map.zoom(1.6), { icon: "plus", bare: true, key: "+", class: "desk" }),
    button("Zoom out", () => map.zoom(1 / 1.6), { icon: "minus", bare: true, key: "-", class: "desk" }),
    button("Whole map", () => map.fit(), { icon: "fit", bare: true, key: "0" }),
  );

  function drawColours(): void {
    fill(
      colours,
      ...store.colours().map((c) =>
        h("button", { type: "button", class: "segment", "aria-pressed": String(store.colour === c), title: `Colour by ${COLOURS[c].words} (${COLOURS[c].key})`, on: { click: () => store.chooseColour(c) } }, COLOURS[c].name),
      ),
    );
  }

  const dot = (colour: Rgb): HTMLElement => {
    const element = h("span", { class: "dot" });
    element.style.background = `rgb(${colour.join(",")})`;
    return element;
  };

  /** A scale with the words at its two ends. */
  const scale = (low: string, colour: (share: number, dark: boolean) => Rgb, high: string): HTMLElement => {
    const strip = h("span", { class: "strip" });
    const stops = [0, 0.25, 0.5, 0.75, 1].map((v) => `rgb(${colour(v, store.dark).join(",")})`);
    strip.style.background = `linear-gradient(to right, ${stops.join(",")})`;
    return h("span", { class: "legend-item" }, low, strip, high);
  };

  function drawLegend(): void {
    const { dark, run } = store;
    if (store.colour === "old") {
      const old = store.state.classes.filter((c) => c.kind === "old").reduce((n, c) => n + c.size, 0);
      const fresh = store.state.classes.filter((c) => c.kind === "new").reduce((n, c) => n + c.size, 0);
      fill(legend, h("span", { class: "legend-item" }, dot(oldColour(dark)), `known, ${count(old)}`), h("span", { class: "legend-item" }, dot(newColour(dark)), `new, ${count(fresh)}`));
    } else if (store.colour === "confidence") {
      fill(legend, scale("not sure", confidenceColour, "sure"));
    } else if (store.colour === "novelty") {
      fill(legend, scale("known, 0 %", noveltyColour, "100 %, new"));
    } else if (store.colour === "truth" && run.truth_names) {
      fill(legend, ...run.truth_names.slice(0, 60).map((name, i) => h("span", { class: "legend-item" }, swatch(i), name)));
    } else {
      fill(
        legend,
        ...store.ordered().slice(0, 60).map((c) =>
          h("button", { type: "button", class: "legend-item of-class", on: { click: () => store.chooseClass(c.id), ...lights(store, c.id) } }, swatch(c.id), h("span", null, c.name)),
        ),
      );
    }
    if (store.state.rejected && store.colour !== "truth") legend.append(h("span", { class: "legend-item" }, swatch(65535), `noise, ${count(store.state.rejected)}`));
    if (store.colour !== "confidence") drawGiven();
  }

  function drawGiven(): void {
    if (store.data.given.some((g) => g)) legend.append(h("span", { class: "legend-item" }, h("span", { class: "dot pale" }), "label was given"), h("span", { class: "legend-item" }, h("span", { class: "dot" }), "found"));
  }

  const drawTool = (): void => {
    lasso.setAttribute("aria-pressed", String(store.tool === "lasso"));
  };
  store.on(["colour"], drawColours);
  store.on(["colour", "review", "theme"], drawLegend);
  store.on(["tool"], drawTool);
  drawColours();
  drawLegend();
  drawTool();
  return h("div", { class: "map-box" }, map.element, h("div", { class: "map-top" }, colours), tools, legend);
}
