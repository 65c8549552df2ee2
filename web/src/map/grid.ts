/** Find points: the nearest one, and all inside a drawn loop. Points are sorted into the cells of a grid. */

export class Grid {
  private readonly side: number;
  private readonly start: Uint32Array; // where the points of a cell begin in `order`
  private readonly order: Uint32Array;

  constructor(private readonly xy: Float32Array) {
    const n = xy.length / 2;
    this.side = Math.max(1, Math.min(512, Math.ceil(Math.sqrt(n / 2))));
    this.start = new Uint32Array(this.side * this.side + 1);
    this.order = new Uint32Array(n);
    for (let i = 0; i < n; i++) this.start[this.cellOf(i) + 1]++;
    for (let c = 0; c < this.side * this.side; c++) this.start[c + 1] += this.start[c];
    const next = this.start.slice();
    for (let i = 0; i < n; i++) this.order[next[this.cellOf(i)]++] = i;
  }

  private cell(v: number): number {
    return Math.min(this.side - 1, Math.max(0, Math.floor(((v + 1) / 2) * this.side)));
  }

  private cellOf(i: number): number {
    return this.cell(this.xy[2 * i + 1]) * this.side + this.cell(this.xy[2 * i]);
  }

  private *inBox(x0: number, y0: number, x1: number, y1: number): Generator<number> {
    for (let row = this.cell(y0); row <= this.cell(y1); row++) {
      const base = row * this.side;
      const end = this.start[base + this.cell(x1) + 1];
      for (let at = this.start[base + this.cell(x0)]; at < end; at++) yield this.order[at];
    }
  }

  /** The point nearest to (x, y) within `reach`, or null. */
  nearest(x: number, y: number, reach: number): number | null {
    let best: number | null = null;
    let least = reach * reach;
    for (const i of this.inBox(x - reach, y - reach, x + reach, y + reach)) {
      const d = (this.xy[2 * i] - x) ** 2 + (this.xy[2 * i + 1] - y) ** 2;
      if (d <= least) {
        least = d;
        best = i;
      }
    }
    return best;
  }

  /** All points inside the closed loop x0, y0, x1, y1, ... (even-odd rule). */
  inside(loop: number[]): number[] {
    if (loop.length < 6) return [];
    let [x0, y0, x1, y1] = [Infinity, Infinity, -Infinity, -Infinity];
    for (let k = 0; k < loop.length; k += 2) {
      x0 = Math.min(x0, loop[k]);
      x1 = Math.max(x1, loop[k]);
      y0 = Math.min(y0, loop[k + 1]);
      y1 = Math.max(y1, loop[k + 1]);
    }
    const found: number[] = [];
    for (const i of this.inBox(x0, y0, x1, y1)) if (isInside(this.xy[2 * i], this.xy[2 * i + 1], loop)) found.push(i);
    return found.sort((a, b) => a - b);
  }
}

function isInside(x: number, y: number, loop: number[]): boolean {
  let inside = false;
  for (let k = 0, j = loop.length - 2; k < loop.length; j = k, k += 2) {
    const [xk, yk, xj, yj] = [loop[k], loop[k + 1], loop[j], loop[j + 1]];
    if (yk > y !== yj > y && x < ((xj - xk) * (y - yk)) / (yj - yk) + xk) inside = !inside;
  }
  return inside;
}
