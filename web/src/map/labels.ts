/** Where to put the name of a class on the map. */

const CELL = 0.05; // size of a cell; the map goes from -1 to 1

export interface Place {
  x: number;
  y: number;
  size: number; // samples of the class
}

/**
 * For each class, the top of its largest group of samples: the densest part of a grid (a cell with its
 * neighbours), and the samples around it. A class in two places has its name at one of them.
 */
export function labelPlaces(xy: Float32Array, assignment: Uint16Array): Map<number, Place> {
  const rows = new Map<number, number[]>();
  assignment.forEach((id, i) => {
    if (!rows.has(id)) rows.set(id, []);
    rows.get(id)!.push(i);
  });
  return new Map([...rows].map(([id, members]) => [id, { ...densest(xy, members), size: members.length }]));
}

function densest(xy: Float32Array, members: number[]): { x: number; y: number } {
  const cells = new Map<number, number[]>();
  const key = (column: number, row: number): number => (row + 100) * 1000 + column + 100;
  const column = (i: number): number => Math.floor(xy[2 * i] / CELL);
  const row = (i: number): number => Math.floor(xy[2 * i + 1] / CELL);
  for (const i of members) {
    const k = key(column(i), row(i));
    if (!cells.has(k)) cells.set(k, []);
    cells.get(k)!.push(i);
  }
  const around = (c: number, r: number): number[] =>
    [-1, 0, 1].flatMap((dr) => [-1, 0, 1].flatMap((dc) => cells.get(key(c + dc, r + dr)) ?? []));
  let best: number[] = [];
  let at = 0;
  for (const [first] of cells.values()) {
    const found = around(column(first), row(first));
    if (found.length > best.length) [best, at] = [found, first];
  }
  const middle = (values: number[]): number => values.sort((a, b) => a - b)[values.length >> 1];
  const x = middle(best.map((i) => xy[2 * i]));
  let top = row(at);
  while (cells.has(key(Math.floor(x / CELL), top + 1))) top++;
  const upper = cells.get(key(Math.floor(x / CELL), top)) ?? best;
  return { x, y: upper.reduce((y, i) => Math.max(y, xy[2 * i + 1]), -Infinity) };
}
