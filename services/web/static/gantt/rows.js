// @ts-check
// Rows of the Gantt: a node folded to one row, or its GPUs. Pure arithmetic; the same rows are drawn, picked and listed.

/**
 * An answer of /api/gantt.
 * @typedef {object} Chart
 * @property {number} from_s
 * @property {number} to_s
 * @property {number} now_s
 * @property {string[]} gpus
 * @property {string[]} nodes
 * @property {number[]} node of each GPU
 * @property {Bars | null} bars
 * @property {{bucket_s: number, node: number[][], row_kind?: string} | null} occupancy
 * @property {number} bar_count
 * @property {number} left_out
 */
/**
 * Columns: one place a bar. A bar is one GPU's part of an attempt.
 * @typedef {object} Bars
 * @property {number[]} gpu
 * @property {number[]} start_s
 * @property {(number | null)[]} end_s null: it still runs
 * @property {string[]} job
 * @property {string[]} name
 * @property {string[]} user
 * @property {string[]} type
 * @property {string[]} outcome
 * @property {number[]} differs
 */
/**
 * @typedef {object} Row
 * @property {"node" | "gpu"} kind
 * @property {number} index of the node, or of the GPU
 * @property {number} top px
 * @property {number} height px
 * @property {string} label
 * @property {boolean} open of a node: its GPUs follow
 */
/**
 * @typedef {object} Rows
 * @property {Row[]} list
 * @property {Int32Array} of_gpu the place in `list` of each GPU's own row; -1 where its node is folded
 * @property {Int32Array} of_node the place in `list` of each node's row
 * @property {number} height px
 */

export const NODE_PX = 20;
/** A cluster with at most so many GPUs is shown unfolded. */
export const FEW_GPUS = 64;

/**
 * @param {Pick<Chart, "gpus" | "nodes" | "node">} chart
 * @param {(node: number) => boolean} isOpen
 * @param {number} [gpu_px] height of a GPU's row
 * @returns {Rows}
 */
export function rowsOf(chart, isOpen, gpu_px = 14) {
  /** @type {number[][]} */
  const gpus = chart.nodes.map(() => []);
  chart.node.forEach((node, gpu) => gpus[node]?.push(gpu));
  /** @type {Row[]} */
  const list = [];
  const of_gpu = new Int32Array(chart.gpus.length).fill(-1);
  const of_node = new Int32Array(chart.nodes.length).fill(-1);
  let top = 0;
  chart.nodes.forEach((label, node) => {
    const open = isOpen(node);
    of_node[node] = list.length;
    list.push({ kind: "node", index: node, top, height: NODE_PX, label, open });
    top += NODE_PX;
    if (!open) return;
    for (const gpu of gpus[node]) {
      of_gpu[gpu] = list.length;
      list.push({ kind: "gpu", index: gpu, top, height: gpu_px, label: chart.gpus[gpu], open: false });
      top += gpu_px;
    }
  });
  return { list, of_gpu, of_node, height: top };
}

/** The row at a height, or null. @param {Rows} rows @param {number} y */
export function rowAt(rows, y) {
  let low = 0;
  let high = rows.list.length - 1;
  while (low <= high) {
    const middle = (low + high) >> 1;
    const row = rows.list[middle];
    if (y < row.top) high = middle - 1;
    else if (y >= row.top + row.height) low = middle + 1;
    else return row;
  }
  return null;
}

/**
 * Bars that overlap a time range, newest start first.
 * @param {Chart} chart @param {number} from_s @param {number} to_s @param {(index: number) => boolean} [wanted]
 * @returns {number[]}
 */
export function barsIn(chart, from_s, to_s, wanted = () => true) {
  const bars = chart.bars;
  if (!bars) return [];
  /** @type {number[]} */
  const found = [];
  for (let index = 0; index < bars.gpu.length; index += 1) {
    if (bars.start_s[index] < to_s && (bars.end_s[index] ?? chart.now_s) > from_s && wanted(index)) found.push(index);
  }
  return found.sort((one, other) => bars.start_s[other] - bars.start_s[one]);
}

/** Columns of a bar, by which an answer is added to another. @type {(keyof Bars)[]} */
const COLUMNS = ["gpu", "start_s", "end_s", "job", "name", "user", "type", "outcome", "differs"];

/**
 * A chart with what came since: bars of `newer` replace those that had not ended; bars that ended before `from_s` go.
 * @param {Chart} chart with bars @param {Chart} newer with bars, of a later and shorter time @param {number} from_s
 * @returns {Chart}
 */
export function withNewer(chart, newer, from_s) {
  const [old, add] = [/** @type {Bars} */ (chart.bars), /** @type {Bars} */ (newer.bars)];
  const keyOf = (/** @type {Bars} */ bars, /** @type {number} */ index) => `${bars.job[index]} ${bars.gpu[index]} ${bars.start_s[index]}`;
  const known = new Set(add.gpu.map((_, index) => keyOf(add, index)));
  const kept = [...old.gpu.keys()].filter((index) => {
    const end_s = old.end_s[index];
    return !known.has(keyOf(old, index)) && (end_s === null || end_s > from_s);
  });
  const bars = /** @type {any} */ ({});
  for (const name of COLUMNS) bars[name] = old[name] && add[name] ? [...kept.map((index) => old[name][index]), ...add[name]] : [];
  return { ...newer, from_s: Math.max(chart.from_s, from_s), bars, bar_count: bars.gpu.length, left_out: chart.left_out };
}

/** The bar of a row at a time, or -1. @param {Chart} chart @param {Row} row @param {number} time_s @param {number} now_s */
export function barAt(chart, row, time_s, now_s) {
  const bars = chart.bars;
  if (!bars || row.kind !== "gpu") return -1;
  for (let index = bars.gpu.length - 1; index >= 0; index -= 1) {
    if (bars.gpu[index] === row.index && bars.start_s[index] <= time_s && (bars.end_s[index] ?? now_s) >= time_s) return index;
  }
  return -1;
}
