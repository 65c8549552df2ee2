/** The map: pan, zoom, hover, click and lasso over the plot, with class names at their classes. */

import { count, h, s, samples } from "../dom";
import { hoverCard } from "../parts/sample";
import { swatch } from "../parts/bits";
import type { Store } from "../store";
import { Grid } from "./grid";
import { labelPlaces } from "./labels";
import { looks } from "./looks";
import { canvasPlot, type Plot, webGlPlot } from "./plot";

const REACH = 12; // pixels around a point in which the pointer finds it
const MOST_NAMES = 400; // with more classes, no names are shown

const newCanvas = (): HTMLCanvasElement =>
  h("canvas", { class: "map-canvas", tabindex: "0", role: "application", "aria-roledescription": "map", "aria-describedby": "map-help" });

export class MapView {
  readonly element: HTMLElement;
  private canvas = newCanvas();
  private readonly path = s("path", { class: "lasso" });
  private readonly labels = h("div", { class: "map-labels", "aria-hidden": "true" });
  private plot: Plot;
  private readonly grid: Grid;
  private middle = { x: 0, y: 0 };
  private scale = 0; // CSS pixels per unit; 0: not yet fitted
  private size = { width: 0, height: 0 };
  private dirty = false;
  private repaint = true;
  private whole = true; // the whole map is in view, and stays in view when the window is resized
  private moving = false;
  private restTimer = 0;
  private lastFrame = 0;
  private gap = 0; // milliseconds between the last two frames in motion
  private share = 1; // of the points, while moving
  private pulseStart = 0;
  private changed: Uint8Array | null = null;
  private readonly pointers = new Map<number, { x: number; y: number }>();
  private loop: number[] | null = null; // the lasso, in pixels
  private moved = 0;
  private readonly card: ReturnType<typeof hoverCard>;
  private places: { id: number; x: number; y: number; size: number; element: HTMLElement }[] = [];
  private bounds = { x: 0, y: 0, width: 2, height: 2 };

  constructor(private readonly store: Store) {
    const xy = store.data.map;
    this.grid = new Grid(xy);
    const plot = webGlPlot(this.canvas);
    if (!plot) this.canvas = newCanvas();
    this.plot = plot ?? canvasPlot(this.canvas);
    this.plot.points(xy);
    this.canvas.setAttribute("aria-label", `Map of ${samples(store.run.n_samples)}`);
    this.card = hoverCard(store);
    this.element = h(
      "div",
      { class: "map", dataset: { plot: this.plot.kind } },
      this.canvas,
      s("svg", { class: "map-over", "aria-hidden": "true" }, this.path),
      this.labels,
      h(
        "p",
        { id: "map-help", class: "hidden" },
        "Drag to pan, scroll to zoom, click a point to select it, Shift and drag to draw a lasso. ",
        "With the keyboard: arrows pan, plus and minus zoom, 0 fits. The list of classes holds the same in words.",
      ),
      this.card.element,
    );
    this.measure();
    this.makeLabels();
    this.bind();
    new ResizeObserver(() => this.resize()).observe(this.element);
    store.on(["colour", "theme", "selection", "classes", "highlight"], () => this.restyle());
    store.on(["theme"], () => this.makeLabels());
    store.on(["tool"], () => (this.element.dataset.tool = store.tool));
    store.on(["review"], () => {
      this.makeLabels();
      this.flash(store.changed);
    });
  }

  // --- for other parts

  fit(): void {
    const { width, height } = this.size;
    if (!width || !height) return;
    const room = Math.min(56, width * 0.08);
    const top = width < 640 ? Math.min(96, height * 0.25) : Math.min(64, height * 0.16); // for the controls and the names of the top classes
    this.scale = Math.min((width - 2 * room) / this.bounds.width, (height - room - top) / this.bounds.height);
    this.middle = { x: this.bounds.x, y: this.bounds.y + (top - room) / 2 / this.scale };
    this.whole = true;
    this.redraw();
  }

  zoom(factor: number, at?: { x: number; y: number }): void {
    const place = at ?? { x: this.size.width / 2, y: this.size.height / 2 };
    const [x, y] = this.toMap(place.x, place.y);
    const fitted = Math.min(this.size.width, this.size.height) / 2;
    this.scale = Math.min(fitted * 400, Math.max(fitted * 0.3, this.scale * factor));
    this.middle.x = x - (place.x - this.size.width / 2) / this.scale;
    this.middle.y = y + (place.y - this.size.height / 2) / this.scale;
    this.inMotion();
  }

  pan(dx: number, dy: number): void {
    this.middle.x -= dx / this.scale;
    this.middle.y += dy / this.scale;
    this.inMotion();
  }

  /** Redraw while the map moves: with fewer points if frames are late, with all points once it rests. */
  private inMotion(): void {
    this.whole = false;
    this.moving = true;
    clearTimeout(this.restTimer);
    this.restTimer = window.setTimeout(
      () => {
        this.moving = false;
        this.redraw();
      },
      Math.min(900, Math.max(180, 4 * this.gap)),
    );
    this.redraw();
  }

  /** Bring samples into view. */
  reveal(members: number[]): void {
    if (!members.length) return;
    const xy = this.store.data.map;
    if (members.length === 1) {
      this.middle = { x: xy[2 * members[0]], y: xy[2 * members[0] + 1] };
      const fitted = Math.min(this.size.width, this.size.height) / 2;
      this.scale = Math.max(this.scale, fitted * 4);
      this.whole = false;
    }
    this.redraw();
  }

  screen(sample: number): [number, number] {
    const xy = this.store.data.map;
    return [
      (xy[2 * sample] - this.middle.x) * this.scale + this.size.width / 2,
      this.size.height / 2 - (xy[2 * sample + 1] - this.middle.y) * this.scale,
    ];
  }

  // --- drawing

  private toMap(x: number, y: number): [number, number] {
    return [
      this.middle.x + (x - this.size.width / 2) / this.scale,
      this.middle.y - (y - this.size.height / 2) / this.scale,
    ];
  }

  private measure(): void {
    const xy = this.store.data.map;
    let [x0, x1, y0, y1] = [Infinity, -Infinity, Infinity, -Infinity];
    for (let k = 0; k < xy.length; k += 2) {
      x0 = Math.min(x0, xy[k]);
      x1 = Math.max(x1, xy[k]);
      y0 = Math.min(y0, xy[k + 1]);
      y1 = Math.max(y1, xy[k + 1]);
    }
    if (x1 >= x0) {
      this.bounds = {
        x: (x0 + x1) / 2,
        y: (y0 + y1) / 2,
        width: Math.max(x1 - x0, 1e-3),
        height: Math.max(y1 - y0, 1e-3),
      };
    }
  }

  private resize(): void {
    const width = this.element.clientWidth;
    const height = this.element.clientHeight;
    if (!width || !height) return;
    const factor = this.whole ? 1 : Math.min(width, height) / Math.min(this.size.width || width, this.size.height || height);
    this.size = { width, height };
    this.scale *= factor;
    if (this.whole) this.fit();
    else this.redraw();
  }

  private restyle(): void {
    this.repaint = true;
    this.redraw();
  }

  private flash(changed: number[]): void {
    this.changed = null;
    if (changed.length && changed.length < this.store.run.n_samples) {
      this.changed = new Uint8Array(this.store.run.n_samples);
      for (const i of changed) this.changed[i] = 1;
      this.pulseStart = performance.now();
    }
    this.restyle();
  }

  redraw(): void {
    if (this.dirty) return;
    this.dirty = true;
    requestAnimationFrame((now) => {
      this.dirty = false;
      this.paint(now);
    });
  }

  private paint(now: number): void {
    if (!this.scale) return;
    let pulse = 0;
    if (this.changed) {
      pulse = 1 - (now - this.pulseStart) / 1600;
      if (pulse <= 0) {
        this.changed = null;
        this.repaint = true;
        pulse = 0;
      }
    }
    const { plot } = this;
    if (this.repaint) {
      const { colours, marks } = looks(this.store, this.changed);
      plot.looks(colours, marks);
      this.repaint = false;
    }
    if (this.moving && this.lastFrame) {
      this.gap = now - this.lastFrame;
      if (this.gap > 45) this.share = Math.max(0.12, this.share * Math.max(0.3, 33 / this.gap));
      else if (this.gap < 25) this.share = Math.min(1, this.share * 1.15);
    }
    this.lastFrame = this.moving ? now : 0;
    const n = this.store.run.n_samples;
    const fitted = Math.min(this.size.width, this.size.height) / 2;
    const base = Math.min(7.5, Math.max(2.2, 340 / Math.sqrt(n))) * Math.min(1, 0.35 + fitted / 600);
    plot.draw({
      x: this.middle.x,
      y: this.middle.y,
      scale: this.scale,
      ...this.size,
      ratio: Math.min(2, devicePixelRatio || 1),
      size: Math.min(18, base * Math.max(1, this.scale / fitted) ** 0.45),
      share: this.moving && n > 5000 ? this.share : 1,
      pulse,
      ink: this.store.dark ? [240, 242, 245] : [25, 28, 32],
    });
    this.element.dataset.frame = [this.middle.x, this.middle.y, this.scale].join(" "); // the position of the map, for tests
    this.placeLabels();
    if (this.changed) this.redraw();
  }

  // --- names on the map

  private makeLabels(): void {
    const places = labelPlaces(this.store.data.map, this.store.data.assignment);
    this.places = [];
    for (const info of this.store.state.classes) {
      const place = places.get(info.id);
      if (!place) continue;
      const element = h("span", { class: `map-label ${info.kind}` }, swatch(info.id), h("span", null, info.name));
      this.places.push({ id: info.id, ...place, element });
    }
    this.places.sort((a, b) => b.size - a.size);
    this.labels.replaceChildren(...this.places.map((p) => p.element));
  }

  private placeLabels(): void {
    const { width, height } = this.size;
    const show = this.store.colour !== "truth" && this.places.length <= MOST_NAMES;
    const taken: [number, number, number][] = [];
    const lit = this.store.lit();
    const first = this.places.filter((p) => lit.has(p.id));
    for (const place of [...first, ...this.places.filter((p) => !lit.has(p.id))]) {
      const x = (place.x - this.middle.x) * this.scale + width / 2;
      const y = Math.max(14, height / 2 - (place.y - this.middle.y) * this.scale - 18);
      const half = 18 + Math.min(22, this.store.nameOf(place.id).length) * 3.4;
      const clear = taken.every(([tx, ty, th]) => Math.abs(tx - x) > half + th || Math.abs(ty - y) > 21);
      const visible = show && clear && x > 0 && x < width && y < height;
      place.element.hidden = !visible;
      if (!visible) continue;
      taken.push([x, y, half]);
      place.element.style.transform = `translate(${x.toFixed(1)}px, ${y.toFixed(1)}px) translate(-50%, -50%)`;
      place.element.classList.toggle("lit", lit.has(place.id));
    }
  }

  // --- pointer and keyboard

  private bind(): void {
    const { canvas } = this;
    canvas.addEventListener("pointerdown", (e) => this.press(e));
    canvas.addEventListener("pointermove", (e) => this.move(e));
    canvas.addEventListener("pointerup", (e) => this.release(e));
    canvas.addEventListener("pointercancel", (e) => this.cancel(e));
    canvas.addEventListener("pointerleave", () => this.card.hide());
    canvas.addEventListener("dblclick", (e) => this.zoom(e.shiftKey ? 0.5 : 2, this.spot(e)));
    canvas.addEventListener(
      "wheel",
      (e) => {
        e.preventDefault();
        const step = e.deltaMode === 1 ? e.deltaY * 16 : e.deltaY;
        this.zoom(Math.exp(-Math.max(-200, Math.min(200, step)) * (e.ctrlKey ? 0.01 : 0.0022)), this.spot(e));
      },
      { passive: false },
    );
    canvas.addEventListener("keydown", (e) => {
      const step = 60;
      const moves: Record<string, () => void> = {
        ArrowLeft: () => this.pan(step, 0),
        ArrowRight: () => this.pan(-step, 0),
        ArrowUp: () => this.pan(0, step),
        ArrowDown: () => this.pan(0, -step),
      };
      if (!moves[e.key] || e.ctrlKey || e.metaKey || e.altKey) return;
      e.preventDefault();
      moves[e.key]();
    });
    canvas.addEventListener("webglcontextlost", (e) => e.preventDefault());
    canvas.addEventListener("webglcontextrestored", () => {
      this.plot = webGlPlot(canvas) ?? this.plot;
      this.plot.points(this.store.data.map);
      this.restyle();
    });
  }

  private spot(e: MouseEvent): { x: number; y: number } {
    const box = this.canvas.getBoundingClientRect();
    return { x: e.clientX - box.left, y: e.clientY - box.top };
  }

  private press(e: PointerEvent): void {
    if (e.button !== 0) return;
    const at = this.spot(e);
    this.canvas.setPointerCapture(e.pointerId);
    this.pointers.set(e.pointerId, at);
    this.moved = this.pointers.size > 1 ? 99 : 0;
    this.loop = null;
    if (this.pointers.size === 1 && (this.store.tool === "lasso" || e.shiftKey || e.altKey)) this.loop = [at.x, at.y];
    this.card.hide();
  }

  private move(e: PointerEvent): void {
    const at = this.spot(e);
    const before = this.pointers.get(e.pointerId);
    if (!before) return this.hover(at, e.pointerType);
    const [dx, dy] = [at.x - before.x, at.y - before.y];
    this.moved += Math.abs(dx) + Math.abs(dy);
    if (this.pointers.size === 2) {
      const [a, b] = [...this.pointers.values()];
      const wide = Math.hypot(a.x - b.x, a.y - b.y);
      this.pointers.set(e.pointerId, at);
      const [c, d] = [...this.pointers.values()];
      this.pan((c.x + d.x - a.x - b.x) / 2, (c.y + d.y - a.y - b.y) / 2);
      this.zoom(Math.hypot(c.x - d.x, c.y - d.y) / Math.max(1, wide), { x: (c.x + d.x) / 2, y: (c.y + d.y) / 2 });
      this.loop = null;
      this.drawLoop();
      return;
    }
    this.pointers.set(e.pointerId, at);
    if (this.loop) {
      this.loop.push(at.x, at.y);
      this.drawLoop();
    } else if (this.moved > 4) {
      this.element.dataset.grab = "yes";
      this.pan(dx, dy);
    }
  }

  private release(e: PointerEvent): void {
    if (!this.pointers.delete(e.pointerId)) return;
    delete this.element.dataset.grab;
    const how = e.altKey ? "remove" : e.shiftKey ? "add" : "replace";
    if (this.loop && this.moved > 8) {
      const loop: number[] = [];
      for (let k = 0; k < this.loop.length; k += 2) loop.push(...this.toMap(this.loop[k], this.loop[k + 1]));
      const found = this.grid.inside(loop);
      this.store.select(found, how === "add" && !this.store.selection.length ? "replace" : how);
    } else if (this.moved <= 4) {
      const at = this.spot(e);
      const found = this.at(at, e.pointerType);
      if (found !== null) {
        this.store.select([found], e.shiftKey || e.ctrlKey || e.metaKey ? "toggle" : "replace");
        if (this.store.selection.length) this.store.look("selection");
        this.canvas.setAttribute("aria-label", `Map; sample ${count(found)} chosen`);
      } else if (how === "replace") {
        this.store.select([]);
        this.store.chooseClass(null);
      }
    }
    this.loop = null;
    this.drawLoop();
  }

  private cancel(e: PointerEvent): void {
    this.pointers.delete(e.pointerId);
    this.loop = null;
    this.drawLoop();
  }

  private drawLoop(): void {
    let d = "";
    if (this.loop) for (let k = 0; k < this.loop.length; k += 2) d += `${k ? "L" : "M"}${this.loop[k]} ${this.loop[k + 1]}`;
    this.path.setAttribute("d", d && `${d}Z`);
  }

  private at(at: { x: number; y: number }, pointer: string): number | null {
    const [x, y] = this.toMap(at.x, at.y);
    return this.grid.nearest(x, y, (pointer === "touch" ? 2 * REACH : REACH) / this.scale);
  }

  private hover(at: { x: number; y: number }, pointer: string): void {
    if (pointer === "touch" || this.store.tool === "lasso") return this.card.hide();
    const found = this.at(at, pointer);
    if (found === null) return this.card.hide();
    const [x, y] = this.screen(found);
    this.card.show(found, x, y, this.size);
  }
}
