/** Messages about what just happened, in the corner and for screen readers. */

import { button, h, icon } from "../dom";
import type { Message, Store } from "../store";

export function toasts(store: Store): HTMLElement {
  const box = h("div", { class: "toasts", role: "region", "aria-label": "Messages" });
  const polite = h("div", { class: "toast-list", "aria-live": "polite" });
  box.append(polite);
  store.notify = (message: Message) => {
    const item = h(
      "div",
      { class: `toast ${message.tone}`, role: message.tone === "error" ? "alert" : "status" },
      icon(message.tone === "done" ? "check" : message.tone === "error" ? "warn" : "spark"),
      h("p", null, message.text),
    );
    const away = (): void => item.remove();
    for (const action of message.actions ?? []) {
      item.append(button(action.label, () => (away(), action.run()), { class: "toast-action" }));
    }
    item.append(button("Dismiss", away, { icon: "close", bare: true }));
    if (message.tone === "done") for (const old of polite.querySelectorAll(".toast.done")) old.remove(); // its Undo is out of date
    while (polite.children.length > 2) polite.firstElementChild!.remove();
    polite.append(item);
    if (!message.stays) {
      let timer = window.setTimeout(away, message.tone === "error" ? 12000 : 7000);
      item.addEventListener("pointerenter", () => clearTimeout(timer));
      item.addEventListener("pointerleave", () => (timer = window.setTimeout(away, 3000)));
    }
  };
  return box;
}
