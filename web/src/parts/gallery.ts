/** All classes as cards, side by side. */

import { count, fill, h, icon, percent } from "../dom";
import type { ClassInfo } from "../data/types";
import type { Store } from "../store";
import { fits, swatch, thumbs } from "./bits";
import type { Cards } from "./panel";
import { columnTable, wordList } from "./reading";

export function gallery(store: Store, cards: Cards): HTMLElement {
  const list = h("div", { class: "gallery-list" });
  const element = h("section", { class: "gallery", "aria-labelledby": "gallery-title" }, h("h2", { class: "hidden", id: "gallery-title" }, "All classes"), list);
  const seen = new IntersectionObserver(
    (entries) => {
      for (const entry of entries) {
        if (!entry.isIntersecting) continue;
        seen.unobserve(entry.target);
        void load(entry.target as HTMLElement);
      }
    },
    { rootMargin: "300px" },
  );

  async function load(box: HTMLElement): Promise<void> {
    const id = Number(box.dataset.id);
    try {
      const card = await cards.get(id);
      const part = (title: string, members: number[]): HTMLElement[] =>
        members.length ? [h("h3", null, title), thumbs(store, members, `${store.nameOf(id)}: ${title}`)] : [];
      const { words = [], columns = [] } = card;
      fill(
        box,
        words.length > 0 && wordList(words),
        columns.length > 0 && columnTable(columns),
        ...part("Most central", card.central.slice(0, fits(store, 12))),
        ...part("Least sure", card.unsure.slice(0, fits(store, 6))),
        ...part("Outliers", card.outliers.slice(0, fits(store, 6))),
      );
    } catch {
      fill(box, h("p", { class: "quiet" }, "The samples could not be read."));
    }
  }

  function card(info: ClassInfo): HTMLElement {
    const box = h("div", { class: "gallery-samples", dataset: { id: String(info.id) } }, h("div", { class: "ghost" }));
    seen.observe(box);
    return h(
      "article",
      { class: `gallery-card ${store.classes.includes(info.id) ? "chosen" : ""}`, dataset: { card: String(info.id) } },
      h(
        "button",
        { type: "button", class: "gallery-top", on: { click: (e) => store.chooseClass(info.id, e.ctrlKey || e.metaKey || e.shiftKey) } },
        swatch(info.id),
        h("span", { class: "class-name" }, info.name),
        info.hints.length > 0 && h("span", { class: "class-sign spark", role: "img", "aria-label": "has a hint", title: info.hints.map((x) => x.reason).join(" ") }, icon("spark")),
        h("span", { class: "class-size" }, count(info.size)),
      ),
      h("p", { class: "gallery-facts" }, info.kind === "new" ? "new" : "known", info.confidence !== null && ` · confidence ${percent(info.confidence)}`, info.cohesion !== null && ` · cohesion ${info.cohesion.toFixed(2)}`),
      box,
      info.note && h("blockquote", { class: "note" }, info.note),
    );
  }

  let revision = -1;
  function draw(): void {
    if (store.view !== "classes") return;
    if (revision === store.state.revision) {
      for (const element of list.querySelectorAll<HTMLElement>("[data-card]")) {
        element.classList.toggle("chosen", store.classes.includes(Number(element.dataset.card)));
      }
    } else {
      revision = store.state.revision;
      seen.disconnect();
      fill(list, ...store.ordered().map(card));
    }
  }
  store.on(["review", "classes", "view"], draw);
  store.on(["classes"], () => store.view === "classes" && list.querySelector(".chosen")?.scrollIntoView({ block: "nearest" }));
  draw();
  return element;
}
