/** Find a sample by its name. */

import { count, fill, h } from "../dom";
import type { Hit } from "../data/types";
import type { MapView } from "../map/view";
import type { Store } from "../store";
import { place, swatch } from "./bits";
import { ask } from "./dialogs";

export async function searchDialog(store: Store, map: MapView): Promise<void> {
  const found = await ask<number>(
    "Find a sample",
    (answer) => {
      const reads = store.run.kind === "text";
      const prompt = reads ? "Type a word, or part of a name." : "Type part of its name.";
      const what = reads ? "Word or name" : "Name of a sample";
      let hits: Hit[] = [];
      let at = 0;
      let requests = 0;
      const list = h("ul", { class: "pick-list", role: "listbox", id: "found", "aria-label": "Samples" });
      const status = h("p", { class: "quiet", role: "status" }, prompt);
      const input = h("input", {
        class: "field", type: "search", placeholder: what, "data-first": true, role: "combobox",
        "aria-expanded": "true", "aria-controls": "found", "aria-label": what, autocomplete: "off", spellcheck: "false", maxlength: "200",
      });
      const draw = (): void => {
        const sheet = hits.length && store.run.has_samples !== false && !reads ? store.source.sheet(hits.map((x) => x.index)) : null;
        const rows = hits.map((hit, i) => {
          const picture = h("span", { class: `pick-picture ${store.run.kind}` });
          if (sheet) place(picture, sheet, hit.index);
          const id = store.data.assignment[hit.index];
          return h(
            "li",
            { class: "pick", role: "option", id: `found-${i}`, "aria-selected": String(i === at), on: { click: () => answer(hit.index) } },
            sheet && picture, h("span", { class: "pick-name" }, hit.text ?? hit.id, reads && hit.text && h("small", { class: "pick-id" }, hit.id)), h("small", null, swatch(id), " ", store.nameOf(id)),
          );
        });
        input.setAttribute("aria-activedescendant", rows.length ? `found-${at}` : "");
        fill(list, rows);
        list.children[at]?.scrollIntoView({ block: "nearest" });
      };
      const look = async (): Promise<void> => {
        const text = input.value.trim();
        const request = ++requests;
        if (!text) {
          hits = [];
          status.textContent = prompt;
          return draw();
        }
        try {
          const answerOf = await store.source.search(text);
          if (request !== requests) return;
          hits = answerOf.samples;
          at = 0;
          status.textContent =
            answerOf.total === 0 ? (reads ? "No sample has this in its text or name." : "No sample has this in its name.")
            : answerOf.total > hits.length ? `${count(answerOf.total)} found, the first ${hits.length} shown.`
            : `${count(answerOf.total)} found.`;
          draw();
        } catch (error) {
          status.textContent = error instanceof Error ? error.message : String(error);
        }
      };
      let timer = 0;
      input.addEventListener("input", () => {
        clearTimeout(timer);
        timer = window.setTimeout(() => void look(), 120);
      });
      input.addEventListener("keydown", (e) => {
        if (e.isComposing) return; // Enter accepts a word of an input method
        if (e.key === "ArrowDown" || e.key === "ArrowUp") {
          e.preventDefault();
          at = (at + (e.key === "ArrowDown" ? 1 : hits.length - 1)) % Math.max(1, hits.length);
          draw();
        } else if (e.key === "Escape") {
          e.preventDefault(); // the browser would only clear the field
          answer(null);
        } else if (e.key === "Enter" && hits[at]) {
          e.preventDefault();
          answer(hits[at].index);
        }
      });
      return [h("div", { class: "dialog-form" }, input, status, list)];
    },
    { class: "tall" },
  );
  if (found === null) return;
  store.select([found]);
  store.show("map");
  map.reveal([found]);
}
