/** The list of all keys. */

import type { Command } from "../commands";
import { h } from "../dom";
import { keyName } from "../keys";
import { ask } from "./dialogs";

export function helpDialog(commands: Command[]): Promise<null> {
  const groups = ["Classes", "Samples", "Map", "Page"] as const;
  return ask(
    "Keyboard",
    () => [
      h(
        "div",
        { class: "help", tabindex: "0", "data-first": true },
        ...groups.map((group) =>
          h(
            "section",
            null,
            h("h3", null, group),
            h(
              "dl",
              null,
              ...commands
                .filter((c) => c.group === group)
                .flatMap((c) => [h("dt", null, ...c.keys.slice(0, 2).map((k) => h("kbd", null, keyName(k)))), h("dd", null, c.title)]),
            ),
          ),
        ),
      ),
    ],
    { class: "wide" },
  );
}
