/** The frame of the page: top bar, pages, side panel, the selection bar, and the bottom bar on a phone. */

import type { Commands } from "../commands";
import { button, count, fill, h, icon, percent, samples } from "../dom";
import { keyName } from "../keys";
import { MapView } from "../map/view";
import { type Store, type View } from "../store";
import { classList } from "./classlist";
import { curves } from "./curves";
import { gallery } from "./gallery";
import { mapBox } from "./mapbox";
import { journalPage, runPage } from "./pages";
import { Cards, panel } from "./panel";
import { hoverCard } from "./sample";
import { scores } from "./scores";
import { toasts } from "./toasts";

const NAMES: Record<View, string> = { map: "Map", classes: "Classes", scores: "Scores", training: "Training", run: "Run", journal: "Journal" };
const SIGNS: Record<View, string> = { map: "map", classes: "grid", scores: "check", training: "chart", run: "list", journal: "note" };

export function shell(root: HTMLElement, store: Store, map: MapView, commands: Commands): void {
  const cards = new Cards(store);
  const offered = (["map", "classes", "scores", "training", "run", "journal"] as View[]).filter(
    (v) => (v !== "scores" || store.run.has_truth) && (v !== "journal" || store.source.live),
  );
  const pages: Record<View, HTMLElement> = {
    map: mapBox(store, map, commands),
    classes: gallery(store, cards),
    scores: scores(store),
    training: curves(store),
    run: runPage(store),
    journal: journalPage(store),
  };

  const link = (view: View, tall: boolean): HTMLElement =>
    h("button", { type: "button", class: "tab", dataset: { view }, on: { click: () => store.show(view) } }, tall && icon(SIGNS[view]), h("span", null, NAMES[view]));
  const tabs = h("nav", { class: "tabs", "aria-label": "Pages" }, ...offered.map((v) => link(v, false)));
  const bottom = h("nav", { class: "bottom", "aria-label": "Pages" }, ...offered.map((v) => link(v, true)));

  const undo = button("Undo", () => commands.undo?.run(), { icon: "undo", bare: true, key: keyName("ctrl+z") });
  const redo = button("Redo", () => commands.redo?.run(), { icon: "redo", bare: true, key: keyName("ctrl+shift+z") });
  const refine = h("button", { type: "button", class: "button primary refine-button", title: `Refine the model (${keyName("f")})`, on: { click: () => commands.refine?.run() } });
  const theme = button("Light or dark", () => store.toggleTheme(), { icon: "moon", bare: true, key: keyName("t"), class: "desk" });

  const top = h(
    "header",
    { class: "top" },
    h("button", { type: "button", class: "skip", on: { click: () => (store.show("map"), root.querySelector<HTMLElement>(".class-main")?.focus()) } }, "Skip to the list of classes"),
    h("div", { class: "brand" }, mark(), h("div", { class: "brand-words" }, h("h1", null, store.run.name), h("span", { class: "quiet" }, h("span", { class: "desk" }, store.source.live ? "explorer · " : "report · "), samples(store.run.n_samples)))),
    tabs,
    h(
      "div",
      { class: "top-tools" },
      button("Find a sample", () => commands.search.run(), { icon: "search", bare: true, key: "/" }),
      store.editable && [undo, redo],
      commands.export && button("Export", () => commands.export.run(), { icon: "down", bare: true, key: keyName("e") }),
      store.editable && refine,
      theme,
      button("Keyboard", () => commands.help.run(), { icon: "help", bare: true, key: "?", class: "desk" }),
    ),
  );
  const banner = h("div", { class: "banner", role: "alert", hidden: true });
  const main = h("main", { class: "main" }, classList(store), h("div", { class: "content" }, ...offered.map((v) => pages[v])), panel(store, commands, cards));
  const picks = h("div", { class: "picks", role: "toolbar", "aria-label": "Selected samples", hidden: true });
  const spoken = h("div", { class: "hidden", "aria-live": "polite" });
  fill(root, top, banner, main, picks, bottom, toasts(store), spoken);
  thumbEvents(store, root);
  // Show the focus ring of the map to keyboard users only.
  addEventListener("keydown", (e) => e.key === "Tab" && document.body.toggleAttribute("data-tabbing", true), true);
  addEventListener("pointerdown", () => document.body.toggleAttribute("data-tabbing", false), true);

  const drawView = (): void => {
    document.body.dataset.view = store.view;
    for (const v of offered) pages[v].hidden = v !== store.view;
    for (const tab of root.querySelectorAll<HTMLElement>(".tab")) {
      if (tab.dataset.view === store.view) tab.setAttribute("aria-current", "page");
      else tab.removeAttribute("aria-current");
    }
    document.title = `${NAMES[store.view]} - ${store.run.name} - cdknet`;
    if (store.view === "map") map.redraw();
  };
  const drawHistory = (): void => {
    undo.disabled = !store.state.undo || store.busy;
    redo.disabled = !store.state.redo || store.busy;
    undo.title = store.state.undo ? `Undo: ${store.state.undo} (${keyName("ctrl+z")})` : "Nothing to undo";
    redo.title = store.state.redo ? `Redo: ${store.state.redo} (${keyName("ctrl+shift+z")})` : "Nothing to redo";
    document.body.toggleAttribute("data-busy", store.busy);
  };
  let reported = "";
  const drawRefine = (): void => {
    const r = store.refine;
    const running = r?.state === "running";
    fill(refine, icon("spark"), h("span", null, running ? `Refining ${percent(r.share ?? 0)}` : "Refine"));
    refine.style.setProperty("--done", String(running ? (r.share ?? 0) : 0));
    refine.classList.toggle("running", running);
    refine.disabled = !running && !!store.run.cannot_refine;
    refine.title = store.run.cannot_refine ?? `Refine the model (${keyName("f")})`;
    if (r && r.state !== reported) {
      if (reported === "running" && r.state === "done") store.notify({ tone: "done", stays: true, text: `Refined: the new run is ${r.out}. Open it with: cdknet explore ${r.out}` });
      if (reported === "running" && r.state === "failed") store.notify({ tone: "error", stays: true, text: `The refinement failed: ${r.error ?? "no reason was given"}` });
      reported = r.state;
    }
  };
  const drawOnline = (): void => {
    banner.hidden = store.online;
    fill(banner, icon("warn"), h("span", null, "The server does not answer. Nothing you did is lost; this page continues when the server is back. If it was restarted, open the address that it printed."));
  };
  const drawPicks = (): void => {
    const n = store.selection.length;
    picks.hidden = n === 0;
    document.body.toggleAttribute("data-picks", n > 0);
    if (!n) return;
    const act = (id: string, label: string, sign: string): HTMLElement | null => {
      const command = commands[id];
      const why = id === "to-known" ? store.run.cannot_return : null;
      return command ? button(label, () => command.run(), { icon: sign, key: keyName(command.keys[0]), disabled: !!why, title: why ?? command.title }) : null;
    };
    fill(
      picks,
      h("button", { type: "button", class: "picks-count", "aria-label": `${count(n)} selected: show them`, on: { click: () => store.look("selection") } }, h("strong", null, count(n)), h("span", { class: "desk" }, " selected")),
      act("move", "Move", "move"),
      act("create", "New class", "plus"),
      act("to-known", "Known", "tag"),
      act("reject", "Reject", "noise"),
      button("Clear", () => store.select([]), { icon: "close", bare: true, key: "Esc" }),
    );
    spoken.textContent = `${samples(n)} selected`;
  };
  const drawTheme = (): void => theme.querySelector("svg")?.replaceWith(icon(store.dark ? "sun" : "moon"));

  store.on(["view"], drawView);
  store.on(["review", "busy"], drawHistory);
  store.on(["refine"], drawRefine);
  store.on(["online"], drawOnline);
  store.on(["selection"], drawPicks);
  store.on(["theme"], drawTheme);
  for (const draw of [drawView, drawHistory, drawRefine, drawOnline, drawPicks, drawTheme]) draw();
}

function mark(): HTMLElement {
  const element = h("span", { class: "mark", "aria-hidden": "true" });
  for (const part of ["a", "b", "c"]) element.append(h("i", { class: part }));
  return element;
}

/** A click on any thumbnail adds its sample to the selection or removes it; hovering shows it large. */
function thumbEvents(store: Store, root: HTMLElement): void {
  const card = hoverCard(store);
  card.element.classList.add("free");
  document.body.append(card.element);
  const of = (target: EventTarget | null): HTMLElement | null => (target as HTMLElement | null)?.closest?.("[data-sample]") ?? null;
  let last: number | null = null;
  root.addEventListener("click", (e) => {
    const thumb = of(e.target);
    if (!thumb) return;
    const sample = Number(thumb.dataset.sample);
    const all = [...(thumb.closest(".thumbs")?.querySelectorAll<HTMLElement>("[data-sample]") ?? [])].map((t) => Number(t.dataset.sample));
    if (e.shiftKey && last !== null && all.includes(last)) {
      const [from, to] = [all.indexOf(last), all.indexOf(sample)].sort((a, b) => a - b);
      const inspect = store.inspect;
      store.select(all.slice(from, to + 1), "add");
      store.look(inspect);
    } else store.select([sample], "toggle");
    last = sample;
  });
  const show = (thumb: HTMLElement): void => {
    const box = thumb.getBoundingClientRect();
    card.show(Number(thumb.dataset.sample), box.left + box.width / 2, box.top + box.height / 2, { width: innerWidth, height: innerHeight });
  };
  root.addEventListener("pointerover", (e) => {
    const thumb = of(e.target);
    if (thumb && e.pointerType === "mouse") show(thumb);
    else card.hide();
  });
  root.addEventListener("focusin", (e) => {
    const thumb = of(e.target);
    if (thumb?.matches(":focus-visible")) show(thumb);
    else card.hide();
  });
  root.addEventListener("scroll", () => card.hide(), true);
  store.on(["selection"], () => {
    for (const thumb of document.querySelectorAll<HTMLElement>(".thumb[data-sample]")) {
      thumb.setAttribute("aria-pressed", store.selected[Number(thumb.dataset.sample)] ? "true" : "false");
    }
  });
}
