/** Building the page: elements from a tag, properties and children. Strings always become text nodes. */

export type Child = Node | string | number | null | undefined | false | Child[];

type Props = {
  class?: string;
  dataset?: Record<string, string>;
  on?: { [K in keyof HTMLElementEventMap]?: (event: HTMLElementEventMap[K]) => void };
  [attribute: string]: unknown;
};

function put(parent: Node, child: Child): void {
  if (child === null || child === undefined || child === false) return;
  if (Array.isArray(child)) for (const c of child) put(parent, c);
  else parent.appendChild(child instanceof Node ? child : document.createTextNode(String(child)));
}

/** An HTML element. `true` sets a bare attribute; `false`, null and undefined leave it out. */
export function h<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  props: Props | null = null,
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  setProps(element, props);
  put(element, children);
  return element;
}

/** An SVG element. */
export function s<K extends keyof SVGElementTagNameMap>(
  tag: K,
  props: Props | null = null,
  ...children: Child[]
): SVGElementTagNameMap[K] {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  setProps(element, props);
  put(element, children);
  return element;
}

function setProps(element: Element & { dataset: DOMStringMap }, props: Props | null): void {
  for (const [key, value] of Object.entries(props ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (key === "class") element.setAttribute("class", String(value));
    else if (key === "dataset") Object.assign(element.dataset, value);
    else if (key === "on") {
      for (const [name, handler] of Object.entries(value as object)) element.addEventListener(name, handler);
    } else element.setAttribute(key, value === true ? "" : String(value));
  }
}

/** Replace all children. */
export function fill(parent: Element, ...children: Child[]): void {
  parent.replaceChildren();
  put(parent, children);
}

const ICONS: Record<string, string> = {
  undo: "M9 7H4V2M4.500 7A8 8 0 1 1 4 13",
  redo: "M15 7h5V2M19.500 7A8 8 0 1 0 20 13",
  search: "M10.500 17a6.500 6.500 0 1 0 0-13 6.500 6.500 0 0 0 0 13ZM15.500 15.500 21 21",
  lasso: "M12 4c5 0 9 2.500 9 6s-4 6-9 6-9-2.500-9-6 4-6 9-6ZM7 15c-2 2 0 4 2 3s2 1.500 0 3",
  hand: "M12 2v20M2 12h20M12 2 9.500 4.500M12 2l2.500 2.500M12 22l-2.500-2.500M12 22l2.500-2.500M2 12l2.500-2.500M2 12l2.500 2.500M22 12l-2.500-2.500M22 12l-2.500 2.500",
  plus: "M12 5v14M5 12h14",
  minus: "M5 12h14",
  fit: "M4 9V4h5M20 9V4h-5M4 15v5h5M20 15v5h-5",
  sun: "M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8ZM12 2v2M12 20v2M2 12h2M20 12h2M5 5l1.500 1.500M17.500 17.500 19 19M5 19l1.500-1.500M17.500 6.500 19 5",
  moon: "M20 14.500A8.500 8.500 0 1 1 9.500 4 7 7 0 0 0 20 14.500Z",
  help: "M9 9a3 3 0 1 1 4.500 2.600c-1 .6-1.500 1.200-1.500 2.400M12 17.500v.01M12 22a10 10 0 1 0 0-20 10 10 0 0 0 0 20Z",
  close: "M6 6l12 12M18 6 6 18",
  edit: "M4 20l1-4L16 5l3 3L8 19l-4 1ZM14 7l3 3",
  merge: "M6 3v5c0 4 6 4 6 9v4M18 3v5c0 4-6 4-6 9M9 18l3 3 3-3",
  split: "M12 3v5M12 8c0 5-6 4-6 9v4M12 8c0 5 6 4 6 9v4M3 18l3 3 3-3M15 18l3 3 3-3",
  tag: "M3 12V4a1 1 0 0 1 1-1h8l9 9-9 9-9-9ZM7.500 7.500v.01",
  noise: "M12 21a9 9 0 1 0 0-18 9 9 0 0 0 0 18ZM5.700 5.700l12.600 12.600",
  move: "M4 12h14M13 6l6 6-6 6",
  note: "M5 3h10l4 4v14H5V3ZM8 11h8M8 15h5",
  down: "M12 4v12M7 11l5 5 5-5M4 20h16",
  spark: "M12 3l1.900 6.100L20 11l-6.100 1.900L12 19l-1.900-6.100L4 11l6.100-1.900L12 3Z",
  map: "M9 4 3 6.500v14L9 18l6 2.500 6-2.500v-14L15 6.500 9 4ZM9 4v14M15 6.500v14",
  grid: "M4 4h6v6H4V4ZM14 4h6v6h-6V4ZM4 14h6v6H4v-6ZM14 14h6v6h-6v-6Z",
  chart: "M4 4v16h16M8 15l4-5 3 3 5-7",
  list: "M8 6h12M8 12h12M8 18h12M4 6v.01M4 12v.01M4 18v.01",
  more: "M5 12v.01M12 12v.01M19 12v.01",
  check: "M5 12.500 10 17.500 19.500 7",
  back: "M15 5l-7 7 7 7",
  warn: "M12 4 2.500 20h19L12 4ZM12 10v4.500M12 17.500v.01",
};

/** A drawn icon; decoration only, its button has the label. */
export function icon(name: string): SVGSVGElement {
  return s(
    "svg",
    { class: "icon", viewBox: "0 0 24 24", "aria-hidden": "true", focusable: "false" },
    s("path", { d: ICONS[name] ?? "" }),
  );
}

/** A button with an icon, a label that may be hidden, and a tooltip. */
export function button(
  label: string,
  action: (event: MouseEvent) => void,
  options: { icon?: string; class?: string; key?: string; bare?: boolean; disabled?: boolean; title?: string } = {},
): HTMLButtonElement {
  const title = options.title ?? (options.bare ? label : undefined);
  return h(
    "button",
    {
      type: "button",
      class: `button ${options.bare ? "bare" : ""} ${options.class ?? ""}`,
      title: title && options.key ? `${title} (${options.key})` : title,
      "aria-label": options.bare ? label : undefined,
      disabled: options.disabled,
      on: { click: action },
    },
    options.icon && icon(options.icon),
    !options.bare && h("span", null, label),
    !options.bare && options.key && h("kbd", { "aria-hidden": "true" }, options.key),
  );
}

const whole = new Intl.NumberFormat("en");
export const count = (n: number): string => whole.format(n);
export const samples = (n: number): string => `${count(n)} ${n === 1 ? "sample" : "samples"}`;
export const percent = (share: number): string =>
  share > 0.995 && share < 1 ? "> 99 %" : share < 0.005 && share > 0 ? "< 1 %" : `${Math.round(share * 100)} %`;

/** A number with few digits. */
export function figure(value: unknown): string {
  if (typeof value !== "number") return String(value);
  if (!Number.isFinite(value)) return String(value);
  if (Number.isInteger(value)) return count(value);
  const size = Math.abs(value);
  if (size >= 1000 || size < 0.001) return value.toExponential(2);
  return String(Number(value.toPrecision(size < 1 ? 3 : 4)));
}
