/** How a key is shown to users. */
export function keyName(key: string): string {
  const mac = /Mac|iPhone|iPad/.test(navigator.platform);
  return key
    .split("+")
    .map((part) => {
      if (part === "ctrl") return mac ? "⌘" : "Ctrl";
      if (part === "shift") return mac ? "⇧" : "Shift";
      if (part === "escape") return "Esc";
      if (part === "plus") return "+";
      return part.length === 1 ? part.toUpperCase() : part;
    })
    .join(mac ? "" : " ");
}
