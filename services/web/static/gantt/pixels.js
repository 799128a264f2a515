// @ts-check
// Draws bars into a pixel buffer: 32-bit pixels, row by row. A hundred thousand bars take a few milliseconds, where a
// drawing call for each took over a hundred.

/** @typedef {import("./rows.js").Chart} Chart */
/** @typedef {import("./rows.js").Rows} Rows */
/**
 * What is drawn. Sizes in CSS pixels; `scale` device pixels for each.
 * @typedef {object} Scene
 * @property {Chart} chart
 * @property {Rows} rows
 * @property {number} from_s
 * @property {number} to_s
 * @property {number} now_s
 * @property {number} top of the view, in the rows
 * @property {number} left where time begins
 * @property {number} scale
 * @property {Uint8Array} tone of each bar: an index of `tones`
 * @property {Uint32Array} tones pixels
 * @property {Uint32Array} faint the same, for bars that are not selected
 * @property {Uint32Array} ramp sixteen pixels, for occupancy
 * @property {{page: number, line: number, bad: number, ink: number, panel: number}} colours
 * @property {string} selected a job's id: the other bars are drawn faint
 */

/** Shapes of ends, so that an outcome is not told by colour alone. */
const NOTCH = { failed: 1, lost: 2, preempted: 3, cancelled: 3 };

/**
 * Columns of an answer's bars as numbers of one kind, made once: a frame goes through all of them.
 * @typedef {object} Columns
 * @property {Int32Array} gpu
 * @property {Int32Array} node
 * @property {Float64Array} start_s
 * @property {Float64Array} end_s infinite: it still runs
 */
/** @type {WeakMap<import("./rows.js").Bars, Columns>} */
const known = new WeakMap();

/** @param {Chart} chart with bars @returns {Columns} */
function columnsOf(chart) {
  const bars = /** @type {import("./rows.js").Bars} */ (chart.bars);
  let found = known.get(bars);
  if (!found) {
    const gpu = Int32Array.from(bars.gpu);
    found = { gpu, node: gpu.map((index) => chart.node[index]), start_s: Float64Array.from(bars.start_s), end_s: Float64Array.from(bars.end_s, (end_s) => end_s ?? Infinity) };
    known.set(bars, found);
  }
  return found;
}

/**
 * @param {Uint32Array} buffer width x height device pixels
 * @param {number} width device pixels
 * @param {number} height device pixels
 * @param {Scene} scene
 */
export function draw(buffer, width, height, scene) {
  const { rows, colours, scale, top } = scene;
  buffer.fill(colours.panel);
  const left = Math.round(scene.left * scale);
  const first = Math.max(0, rows.list.findIndex((row) => row.top + row.height > top));
  let last = first;
  while (last < rows.list.length && (rows.list[last].top - top) * scale < height) last += 1;
  /** @type {Int32Array} device y of each row in view */
  const y0 = new Int32Array(rows.list.length).fill(-1);
  const y1 = new Int32Array(rows.list.length).fill(-1);
  for (let place = first; place < last; place += 1) {
    const row = rows.list[place];
    y0[place] = Math.round((row.top - top) * scale);
    y1[place] = Math.min(height, Math.round((row.top + row.height - top) * scale) - 1);
    if (row.kind === "node" && y1[place] >= 0 && y1[place] < height) buffer.fill(colours.line, y1[place] * width + left, (y1[place] + 1) * width);
  }
  if (scene.chart.bars) {
    foldedBars(buffer, width, left, scene, y0, y1);
    singleBars(buffer, width, left, scene, y0, y1);
  } else if (scene.chart.occupancy) {
    occupancy(buffer, width, left, scene, y0, y1);
  }
  const now = Math.round(left + ((scene.now_s - scene.from_s) / (scene.to_s - scene.from_s)) * (width - left));
  if (now >= left && now < width) for (let y = 0; y < height; y += 1) buffer[y * width + now] = colours.bad;
}

/** @param {Uint32Array} buffer @param {number} width @param {number} left @param {Scene} scene @param {Int32Array} y0 @param {Int32Array} y1 */
function singleBars(buffer, width, left, scene, y0, y1) {
  const { chart, rows, from_s, to_s, now_s, tone, tones, faint, colours, selected, scale } = scene;
  const { job, outcome } = /** @type {import("./rows.js").Bars} */ (chart.bars);
  const columns = columnsOf(chart);
  const per_s = (width - left) / (to_s - from_s);
  const total = columns.gpu.length;
  for (let index = 0; index < total; index += 1) {
    const start_s = columns.start_s[index];
    if (start_s >= to_s) continue;
    const open = columns.end_s[index] === Infinity;
    const end_s = open ? now_s : columns.end_s[index];
    if (end_s <= from_s) continue;
    const place = rows.of_gpu[columns.gpu[index]];
    if (place < 0) continue;
    const begin = y0[place];
    if (begin < 0 && y1[place] <= 0) continue;
    const x0 = Math.max(left, Math.round(left + (start_s - from_s) * per_s));
    let x1 = Math.min(width, Math.round(left + (end_s - from_s) * per_s));
    if (x1 <= x0) x1 = Math.min(width, x0 + 1);
    else if (x1 - x0 > 3 * scale) x1 -= 1; // a gap between neighbours
    const colour = selected && job[index] !== selected ? faint[tone[index]] : tones[tone[index]];
    const low = Math.max(0, begin);
    const high = y1[place];
    for (let y = low; y < high; y += 1) buffer.fill(colour, y * width + x0, y * width + x1);
    const notch = open ? 4 : (NOTCH[/** @type {keyof typeof NOTCH} */ (outcome[index])] ?? 0);
    if (notch && x1 - x0 >= 4) endOf(buffer, width, x0, x1, low, high, notch, colours, scale);
  }
}

/**
 * The end of a bar: failed, a dark edge; lost, hatched all over; preempted and cancelled, a stepped end; running, open.
 * @param {Uint32Array} buffer @param {number} width @param {number} x0 @param {number} x1 @param {number} low @param {number} high
 * @param {number} kind @param {Scene["colours"]} colours @param {number} scale
 */
function endOf(buffer, width, x0, x1, low, high, kind, colours, scale) {
  const size = Math.min(x1 - x0, Math.round(4 * scale));
  for (let y = low; y < high; y += 1) {
    const row = y * width;
    if (kind === 1) buffer.fill(colours.bad, row + x1 - size, row + x1);
    else if (kind === 2) for (let x = x0; x < x1; x += 1) { if ((x + y) % 6 < 2) buffer[row + x] = colours.bad; }
    else if (kind === 3) { if ((y - low) * 2 < high - low) buffer.fill(colours.panel, row + x1 - size, row + x1); }
    else for (let x = x1 - 2 * size; x < x1; x += 1) { if (x > x0 && (x1 - x) % 3 === 1) buffer[row + x] = colours.panel; }
  }
}

/** Folded nodes: how many of a node's GPUs are taken, for each column of pixels. @param {Uint32Array} buffer @param {number} width @param {number} left @param {Scene} scene @param {Int32Array} y0 @param {Int32Array} y1 */
function foldedBars(buffer, width, left, scene, y0, y1) {
  const { chart, rows, from_s, to_s, now_s } = scene;
  const columns = columnsOf(chart);
  const span = width - left;
  const per_s = span / (to_s - from_s);
  /** @type {(Float32Array | null)[]} taken time by node and column */
  const changes = chart.nodes.map((_, node) => (y1[rows.of_node[node]] > 0 && !rows.list[rows.of_node[node]].open ? new Float32Array(span + 1) : null));
  for (let index = 0; index < columns.gpu.length; index += 1) {
    const start_s = columns.start_s[index];
    if (start_s >= to_s) continue;
    const end_s = Math.min(columns.end_s[index], now_s);
    if (end_s <= from_s) continue;
    const change = changes[columns.node[index]];
    if (!change) continue;
    const x0 = Math.max(0, Math.round((start_s - from_s) * per_s));
    const x1 = Math.min(span, Math.round((end_s - from_s) * per_s));
    if (x1 <= x0) continue;
    change[x0] += 1;
    change[x1] -= 1;
  }
  const sizes = new Int32Array(chart.nodes.length);
  for (const node of chart.node) sizes[node] += 1;
  changes.forEach((change, node) => {
    if (!change) return;
    let taken = 0;
    const ratios = new Float32Array(span);
    for (let x = 0; x < span; x += 1) {
      taken += change[x];
      ratios[x] = taken / sizes[node];
    }
    const place = rows.of_node[node];
    stripes(buffer, width, left, ratios, Math.max(0, y0[place]), y1[place], scene.ramp);
  });
}

/** Occupancy as the server folded it. @param {Uint32Array} buffer @param {number} width @param {number} left @param {Scene} scene @param {Int32Array} y0 @param {Int32Array} y1 */
function occupancy(buffer, width, left, scene, y0, y1) {
  const { chart, rows, from_s, to_s } = scene;
  const given = /** @type {{bucket_s: number, node: number[][]}} */ (chart.occupancy);
  const span = width - left;
  const per_px = (to_s - from_s) / span;
  const ratios = new Float32Array(span);
  chart.nodes.forEach((_, node) => {
    const place = rows.of_node[node];
    if (y1[place] <= 0) return;
    for (let x = 0; x < span; x += 1) ratios[x] = given.node[node]?.[Math.floor((from_s + (x + 0.5) * per_px - chart.from_s) / given.bucket_s)] ?? 0;
    stripes(buffer, width, left, ratios, Math.max(0, y0[place]), y1[place], scene.ramp);
  });
}

/** @param {Uint32Array} buffer @param {number} width @param {number} left @param {Float32Array} ratios @param {number} low @param {number} high @param {Uint32Array} ramp */
function stripes(buffer, width, left, ratios, low, high, ramp) {
  if (high <= low) return;
  // Also by height, for those who can't tell the shades: a quarter taken fills a quarter of the row.
  const line = new Uint32Array(ratios.length);
  const tops = new Int32Array(ratios.length);
  for (let x = 0; x < ratios.length; x += 1) {
    const filled = ratios[x] > 0 ? Math.floor((ratios[x] + 1e-6) * (high - low) + 1) : 0;
    line[x] = filled ? ramp[Math.min(15, Math.max(1, Math.round(ratios[x] * 15)))] : 0;
    tops[x] = filled ? high - filled : high;
  }
  for (let y = low; y < high; y += 1) {
    const row = y * width + left;
    for (let x = 0; x < line.length; x += 1) if (tops[x] <= y) buffer[row + x] = line[x];
  }
}
