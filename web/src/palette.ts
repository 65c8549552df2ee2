/**
 * Colours and shapes of classes.
 *
 * Ten colours per theme, chosen so that any two are distinct for full colour vision and under protan, deutan and
 * tritan simulation; ten more would not be. So a class has a colour and a shape: ten by five gives fifty looks.
 * They depend on the number of the class, which never changes, so a class looks the same after every action. In
 * the dark theme a number has another colour, of about the same hue.
 */

export const LIGHT = [
  "#0066cc", "#aa8800", "#662244", "#66ccff", "#bb4477", "#446600", "#8888ff", "#ee8899", "#332299", "#bbcc00",
];
export const DARK = [
  "#66aaff", "#eecc88", "#884477", "#88eeff", "#dd1100", "#99aa11", "#aa55ff", "#ee88aa", "#3355bb", "#ddff11",
];
export const SHAPES = ["circle", "diamond", "triangle", "square", "cross"] as const;
export const COLOURS = LIGHT.length;

export const colourSlot = (id: number): number => id % COLOURS;
export const shapeSlot = (id: number): number => Math.floor(id / COLOURS) % SHAPES.length;

export type Rgb = [number, number, number];

export function rgb(hex: string): Rgb {
  const n = parseInt(hex.slice(1), 16);
  return [n >> 16, (n >> 8) & 255, n & 255];
}

/** From not sure (orange) to sure (blue): in order for every kind of colour vision. */
const SURE = { light: ["#d9480f", "#d9a441", "#8f9bb3", "#1c5fae"], dark: ["#ff7a33", "#e0b04c", "#8aa0c0", "#4aa3ff"] };

/** From known (pale) to new (strong): away from the ground in even steps, for every kind of colour vision. */
const NOVEL = { light: ["#9cb1c3", "#8d81bd", "#93509f", "#5d0f5c"], dark: ["#566b80", "#8570b8", "#d989c9", "#ffc4d9"] };

export const confidenceColour = (share: number, dark: boolean): Rgb => between(dark ? SURE.dark : SURE.light, share);
export const noveltyColour = (share: number, dark: boolean): Rgb => between(dark ? NOVEL.dark : NOVEL.light, share);

/** The colour at a share of the way along a scale. */
function between(scale: string[], share: number): Rgb {
  const stops = scale.map(rgb);
  const at = Math.min(0.9999, Math.max(0, share)) * (stops.length - 1);
  const low = Math.floor(at);
  return stops[low].map((v, i) => Math.round(v + (stops[low + 1][i] - v) * (at - low))) as Rgb;
}

export const oldColour = (dark: boolean): Rgb => rgb(dark ? "#71809c" : "#8794ab");
export const newColour = (dark: boolean): Rgb => rgb(dark ? "#ffa94d" : "#c2410c");
export const noiseColour = (dark: boolean): Rgb => rgb(dark ? "#5a5f68" : "#b3b1ac");
export const classColour = (id: number, dark: boolean): Rgb => rgb((dark ? DARK : LIGHT)[colourSlot(id)]);
