/** The list of classes: new ones first, then the known ones, then the noise. */

import { count, fill, h, icon } from "../dom";
import { type ClassInfo, REJECTED } from "../data/types";
import { keyName } from "../keys";
import type { Store } from "../store";
import { lights, swatch } from "./bits";

export function classList(store: Store): HTMLElement {
  const filter = h("input", { class: "field", type: "search", placeholder: "Filter classes", "aria-label": "Filter classes", autocomplete: "off", spellcheck: "false" });
  const list = h("div", { class: "class-rows" });
  const element = h("aside", { class: "list", "aria-label": "Classes" }, h("div", { class: "list-top" }, filter), list);
  let largest = 1;

  function row(info: ClassInfo): HTMLElement {
    const chosen = store.classes.includes(info.id);
    const size = h("span", { class: "class-size" }, count(info.size));
    const line = h("span", { class: "class-line", "aria-hidden": "true" });
    line.style.width = `${Math.max(1, (100 * info.size) / largest)}%`;
    line.classList.add(`b${info.id % 10}`);
    const hints = info.hints.map((x) => x.reason).join(" ");
    return h(
      "li",
      { class: `class-row ${chosen ? "chosen" : ""}`, on: lights(store, info.id) },
      h(
        "button",
        {
          type: "button",
          class: "class-main",
          "aria-pressed": String(chosen),
          dataset: { class: String(info.id) },
          on: { click: (e) => store.chooseClass(info.id, e.ctrlKey || e.metaKey || e.shiftKey) },
        },
        swatch(info.id),
        h("span", { class: "class-name" }, info.name),
        info.note && h("span", { class: "class-sign", title: info.note }, icon("note")),
        info.hints.length > 0 && h("span", { class: "class-sign spark", title: hints, role: "img", "aria-label": "has a hint" }, icon("spark")),
        size,
        line,
      ),
      h("input", {
        type: "checkbox",
        class: "class-check",
        dataset: { class: String(info.id) },
        checked: chosen,
        title: "Choose several to merge them",
        "aria-label": `Choose ${info.name} together with others`,
        on: { change: () => store.chooseClass(info.id, true) },
      }),
    );
  }

  function draw(): void {
    const active = list.contains(document.activeElement) ? (document.activeElement as HTMLElement) : null;
    const focused = active?.dataset.class && `.${active.classList[0]}[data-class="${active.dataset.class}"]`;
    const text = filter.value.trim().toLowerCase();
    const all = store.state.classes.filter((c) => c.name.toLowerCase().includes(text));
    largest = Math.max(1, ...store.state.classes.map((c) => c.size));
    const recognised = store.recognised().length;
    const group = (title: string, members: ClassInfo[], more: HTMLElement | false = false): HTMLElement | null =>
      members.length
        ? h("section", null, h("h2", { class: "list-title" }, title, h("small", null, count(members.length)), more), h("ul", { class: store.classes.length > 1 ? "many" : "" }, ...members.map(row)))
        : null;
    const { rejected } = store.state;
    fill(
      list,
      group("New", all.filter((c) => c.kind === "new")),
      group(
        "Known",
        all.filter((c) => c.kind === "old"),
        recognised > 0 &&
          h("button", { type: "button", class: "link recognised", title: `Select all samples that came without a label and were recognised as known (${keyName("g")})`, on: { click: () => store.select(store.recognised()) } }, `${count(recognised)} recognised`),
      ),
      rejected > 0 &&
        h(
          "section",
          null,
          h("h2", { class: "list-title" }, "Noise"),
          h("ul", null, h("li", { class: "class-row" }, h("button", { type: "button", class: "class-main", on: { click: () => store.select(store.members(REJECTED)) } }, swatch(REJECTED), h("span", { class: "class-name" }, "set aside"), h("span", { class: "class-size" }, count(rejected))))),
        ),
      !all.length && h("p", { class: "quiet pad" }, "No class of that name."),
    );
    if (focused) list.querySelector<HTMLElement>(focused)?.focus({ preventScroll: true });
  }

  filter.addEventListener("input", draw);
  store.on(["review", "classes"], draw);
  store.on(["classes"], () => list.querySelector(".chosen")?.scrollIntoView({ block: "nearest" }));
  draw();
  return element;
}
