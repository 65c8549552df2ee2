/** Draw the points with WebGL 2, or on a plain canvas if it is missing. */

export interface Frame {
  x: number; // map coordinates of the centre
  y: number;
  scale: number; // CSS pixels per unit of the map
  width: number; // CSS pixels
  height: number;
  ratio: number; // device pixels per CSS pixel
  size: number; // of a point, CSS pixels
  share: number; // of the points to draw: fewer while the map moves on a slow machine
  pulse: number; // 1 ... 0: size of the ring around samples that just changed
  ink: [number, number, number]; // colour of rings
}

// Bits of a mark: 0-2 shape, then
export const DIM = 8;
export const SELECTED = 16;
export const CHANGED = 32;
export const KNOWN = 64; // the label was given: drawn smaller
export const UP = SELECTED | CHANGED;

export interface Plot {
  readonly kind: "webgl" | "canvas";
  points(xy: Float32Array): void;
  looks(colours: Uint8Array, marks: Uint8Array): void; // RGBA and mark of each point
  draw(frame: Frame): void;
}

const VERTEX = `#version 300 es
layout(location = 0) in vec2 place;
layout(location = 1) in vec4 colour;
layout(location = 2) in uint mark;
uniform vec4 frame;
uniform float size;
uniform float pulse;
uniform int layer;
uniform bool tiny; // too small for a shape: a plain dot, with a third of the pixels
flat out vec4 tint;
flat out uint kind;
flat out float radius;
flat out float extent;
void main() {
  bool up = (mark & 48u) != 0u;
  bool dim = (mark & 8u) != 0u;
  int mine = up ? 2 : dim ? 0 : 1;
  if (mine != layer) { gl_Position = vec4(2.0, 2.0, 2.0, 1.0); gl_PointSize = 1.0; return; }
  radius = size * 0.5 * ((mark & 64u) != 0u ? 0.8 : 1.0) * ((mark & 16u) != 0u ? 1.12 : 1.0);
  float ring = (mark & 32u) != 0u ? 2.0 + 8.0 * pulse : (mark & 16u) != 0u ? 2.5 : 0.0;
  extent = radius + ring + (tiny && !up ? 0.0 : 1.0);
  gl_PointSize = extent * 2.0;
  gl_Position = vec4(place * frame.xy + frame.zw, 0.0, 1.0);
  tint = colour;
  kind = mark;
}`;

const FRAGMENT = `#version 300 es
precision highp float;
flat in vec4 tint;
flat in highp uint kind;
flat in float radius;
flat in float extent;
uniform vec3 ink;
uniform float pulse;
uniform bool tiny;
out vec4 result;
float outside(vec2 p, uint shape) {
  vec2 q = abs(p);
  if (shape == 1u) return (q.x + q.y) * 0.7071 - radius * 0.9;
  if (shape == 2u) return max(q.x * 0.866 + p.y * 0.5, -p.y) - radius * 0.62;
  if (shape == 3u) return max(q.x, q.y) - radius * 0.86;
  if (shape == 4u) return max(min(q.x, q.y) - radius * 0.36, max(q.x, q.y) - radius * 1.05);
  return length(p) - radius;
}
void main() {
  if (tiny && (kind & 48u) == 0u) { result = vec4(tint.rgb * tint.a, tint.a); return; }
  vec2 p = (gl_PointCoord * 2.0 - 1.0) * extent;
  p.y = -p.y;
  uint shape = kind & 7u;
  float d = outside(p, shape);
  float body = clamp(0.5 - d, 0.0, 1.0) * tint.a;
  vec4 all = vec4(tint.rgb, 1.0) * body;
  float far = length(p);
  if ((kind & 16u) != 0u) {
    float ring = clamp(1.2 - abs(far - radius - 0.8), 0.0, 1.0);
    all = mix(all, vec4(ink, 1.0), ring);
  }
  if ((kind & 32u) != 0u) {
    float ring = clamp(1.5 - abs(far - radius - 1.0 - 8.0 * pulse), 0.0, 1.0) * min(1.0, pulse * 2.0) * 0.4;
    all = mix(all, vec4(tint.rgb, 1.0), ring); // in the point's colour: many rings form a glow
  }
  if (all.a < 0.004) discard;
  result = all;
}`;

/** 0 ... n-1 in a fixed random order: its beginning is a random sample. */
function shuffled(n: number): Uint32Array<ArrayBuffer> {
  const order = new Uint32Array(n).map((_, i) => i);
  let seed = 1;
  for (let i = n - 1; i > 0; i--) {
    seed = (Math.imul(seed, 1664525) + 1013904223) >>> 0;
    const j = seed % (i + 1);
    [order[i], order[j]] = [order[j], order[i]];
  }
  return order;
}

class WebGlPlot implements Plot {
  readonly kind = "webgl";
  private readonly program: WebGLProgram;
  private readonly buffers: WebGLBuffer[];
  private readonly at: Record<string, WebGLUniformLocation | null> = {};
  private n = 0;
  private order = new Uint32Array(); // of the points in the buffers: random, so that the first ones are a random sample
  private dim = false;
  private up = false;

  constructor(
    private readonly canvas: HTMLCanvasElement,
    private readonly gl: WebGL2RenderingContext,
  ) {
    const program = gl.createProgram()!;
    for (const [type, source] of [
      [gl.VERTEX_SHADER, VERTEX],
      [gl.FRAGMENT_SHADER, FRAGMENT],
    ] as const) {
      const shader = gl.createShader(type)!;
      gl.shaderSource(shader, source);
      gl.compileShader(shader);
      gl.attachShader(program, shader);
    }
    gl.linkProgram(program);
    if (!gl.getProgramParameter(program, gl.LINK_STATUS)) throw new Error(gl.getProgramInfoLog(program) ?? "shader");
    this.program = program;
    for (const name of ["frame", "size", "pulse", "layer", "ink", "tiny"]) this.at[name] = gl.getUniformLocation(program, name);
    gl.bindVertexArray(gl.createVertexArray());
    this.buffers = [0, 1, 2].map((slot) => {
      const buffer = gl.createBuffer()!;
      gl.bindBuffer(gl.ARRAY_BUFFER, buffer);
      gl.enableVertexAttribArray(slot);
      if (slot === 0) gl.vertexAttribPointer(0, 2, gl.FLOAT, false, 0, 0);
      if (slot === 1) gl.vertexAttribPointer(1, 4, gl.UNSIGNED_BYTE, true, 0, 0);
      if (slot === 2) gl.vertexAttribIPointer(2, 1, gl.UNSIGNED_BYTE, 0, 0);
      return buffer;
    });
    gl.enable(gl.BLEND);
    gl.blendFunc(gl.ONE, gl.ONE_MINUS_SRC_ALPHA);
  }

  private upload(slot: number, data: ArrayBufferView): void {
    this.gl.bindBuffer(this.gl.ARRAY_BUFFER, this.buffers[slot]);
    this.gl.bufferData(this.gl.ARRAY_BUFFER, data as ArrayBufferView<ArrayBuffer>, this.gl.DYNAMIC_DRAW);
  }

  points(xy: Float32Array): void {
    this.n = xy.length / 2;
    this.order = shuffled(this.n);
    const mixed = new Float32Array(2 * this.n);
    this.order.forEach((i, k) => {
      mixed[2 * k] = xy[2 * i];
      mixed[2 * k + 1] = xy[2 * i + 1];
    });
    this.upload(0, mixed);
  }

  looks(colours: Uint8Array, marks: Uint8Array): void {
    const whole = new Uint32Array(colours.buffer, colours.byteOffset, this.n); // RGBA as one number
    this.upload(1, this.order.map((i) => whole[i]));
    this.upload(2, new Uint8Array(this.n).map((_, k) => marks[this.order[k]]));
    this.dim = marks.some((m) => (m & DIM) !== 0 && (m & UP) === 0);
    this.up = marks.some((m) => (m & UP) !== 0);
  }

  draw(f: Frame): void {
    const gl = this.gl;
    const [w, h] = [Math.round(f.width * f.ratio), Math.round(f.height * f.ratio)];
    if (this.canvas.width !== w || this.canvas.height !== h) [this.canvas.width, this.canvas.height] = [w, h];
    gl.viewport(0, 0, w, h);
    gl.clearColor(0, 0, 0, 0);
    gl.clear(gl.COLOR_BUFFER_BIT);
    gl.useProgram(this.program);
    const [kx, ky] = [(2 * f.scale) / f.width, (2 * f.scale) / f.height];
    gl.uniform4f(this.at.frame, kx, ky, -f.x * kx, -f.y * ky);
    gl.uniform1f(this.at.size, f.size * f.ratio);
    gl.uniform1i(this.at.tiny, f.size * f.ratio < 4 ? 1 : 0);
    gl.uniform1f(this.at.pulse, f.pulse);
    gl.uniform3f(this.at.ink, f.ink[0] / 255, f.ink[1] / 255, f.ink[2] / 255);
    for (const layer of [0, 1, 2]) {
      if ((layer === 0 && !this.dim) || (layer === 2 && !this.up)) continue;
      gl.uniform1i(this.at.layer, layer);
      const n = layer === 2 ? this.n : Math.ceil(this.n * f.share);
      gl.drawArrays(gl.POINTS, 0, n);
    }
  }
}

class CanvasPlot implements Plot {
  readonly kind = "canvas";
  private xy: Float32Array = new Float32Array();
  private colours: Uint8Array = new Uint8Array();
  private marks: Uint8Array = new Uint8Array();

  constructor(
    private readonly canvas: HTMLCanvasElement,
    private readonly pen: CanvasRenderingContext2D,
  ) {}

  points(xy: Float32Array): void {
    this.xy = xy;
  }

  looks(colours: Uint8Array, marks: Uint8Array): void {
    this.colours = colours;
    this.marks = marks;
  }

  draw(f: Frame): void {
    const [w, h] = [Math.round(f.width * f.ratio), Math.round(f.height * f.ratio)];
    if (this.canvas.width !== w || this.canvas.height !== h) [this.canvas.width, this.canvas.height] = [w, h];
    const { pen, xy, colours, marks } = this;
    pen.setTransform(f.ratio, 0, 0, f.ratio, 0, 0);
    pen.clearRect(0, 0, f.width, f.height);
    for (const layer of [0, 1, 2]) {
      let last = "";
      const step = layer === 2 ? 1 : Math.max(1, Math.round(1 / f.share));
      for (let i = 0; i < marks.length; i += step) {
        const mine = marks[i] & UP ? 2 : marks[i] & DIM ? 0 : 1;
        if (mine !== layer) continue;
        const x = (xy[2 * i] - f.x) * f.scale + f.width / 2;
        const y = f.height / 2 - (xy[2 * i + 1] - f.y) * f.scale;
        if (x < -9 || y < -9 || x > f.width + 9 || y > f.height + 9) continue;
        const style = `rgba(${colours[4 * i]},${colours[4 * i + 1]},${colours[4 * i + 2]},${colours[4 * i + 3] / 255})`;
        if (style !== last) pen.fillStyle = last = style;
        const side = f.size * (marks[i] & KNOWN ? 0.8 : 1);
        pen.fillRect(x - side / 2, y - side / 2, side, side);
        if (marks[i] & UP) {
          pen.strokeStyle = marks[i] & SELECTED ? `rgb(${f.ink.join(",")})` : style;
          pen.strokeRect(x - side / 2 - 1.5, y - side / 2 - 1.5, side + 3, side + 3);
        }
      }
    }
  }
}

/** WebGL on this canvas, or null if the browser has none or its driver refuses the shaders. */
export function webGlPlot(canvas: HTMLCanvasElement): Plot | null {
  const gl = canvas.getContext("webgl2", { antialias: false, premultipliedAlpha: true, powerPreference: "low-power" });
  try {
    return gl && new WebGlPlot(canvas, gl);
  } catch (error) {
    console.warn("cdknet: drawing without WebGL.", error);
    return null;
  }
}

/** The plain canvas: needs one without a WebGL context. */
export function canvasPlot(canvas: HTMLCanvasElement): Plot {
  const pen = canvas.getContext("2d");
  if (!pen) throw new Error("This browser can draw neither WebGL nor a canvas.");
  return new CanvasPlot(canvas, pen);
}
