/** Start: find the data (a server, or the report inside this page), then build the page. */

import "./style/app.css";
import { bindKeys, makeCommands } from "./commands";
import { embedded } from "./data/embedded";
import { HttpSource } from "./data/http";
import { Refused, type Source } from "./data/types";
import { button, fill, h } from "./dom";
import { MapView } from "./map/view";
import { shell } from "./parts/shell";
import { restoreTheme, Store } from "./store";

async function start(root: HTMLElement): Promise<void> {
  fill(root, h("div", { class: "state", role: "status" }, h("span", { class: "mark busy", "aria-hidden": "true" }, h("i", { class: "a" }), h("i", { class: "b" }), h("i", { class: "c" })), h("p", null, "Reading the run ...")));
  try {
    const source: Source = embedded() ?? new HttpSource();
    const data = await source.load();
    if (!data.run.n_samples) {
      fill(root, h("div", { class: "state" }, h("h1", null, "Nothing to show"), h("p", null, "This run has no samples.")));
      return;
    }
    const store = new Store(source, data);
    const map = new MapView(store);
    const commands = makeCommands(store, map);
    shell(root, store, map, commands);
    bindKeys(commands);
    if (source.live) {
      store.listen();
      source
        .refineState()
        .then((refine) => {
          store.refine = refine;
          store.emit("refine");
        })
        .catch(() => {});
    }
    root.dataset.ready = "yes";
  } catch (error) {
    const text = error instanceof Error ? error.message : String(error);
    const locked = error instanceof Refused && error.status === 401;
    fill(
      root,
      h(
        "div",
        { class: "state", role: "alert" },
        h("h1", null, locked ? "This page needs its key" : "The run could not be read"),
        h("p", null, locked ? "Open the whole address that cdknet explore printed; the key is at its end." : text),
        button("Try again", () => void start(root), { class: "primary" }),
      ),
    );
  }
}

restoreTheme();
void start(document.getElementById("app")!);
