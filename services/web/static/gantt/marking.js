// @ts-check
// A time that is marked in the Gantt: its bars, asked for by themselves, and its figures.
import { useEffect, useMemo, useState } from "../vendor/hooks.js";
import { useAnswer } from "../api.js";
import { clusterTime, count, DASH, duration, plural } from "../format.js";
import { html } from "../html.js";
import { Notice } from "../parts.js";
import { barsIn } from "./rows.js";

/** @typedef {{from_s: number, to_s: number}} Mark */

/** A marked time from the address, "94000.0-94600.0", or null. @param {string} text @returns {Mark | null} */
export function markOf(text) {
  const [from_s, to_s] = text.split("-").map(Number);
  return text && from_s >= 0 && to_s > from_s && Number.isFinite(to_s) ? { from_s, to_s } : null;
}

/** The same for the address. @param {Mark | null} mark */
export const markText = (mark) => (mark ? `${mark.from_s.toFixed(1)}-${mark.to_s.toFixed(1)}` : "");

/**
 * What ran in the marked time. It is asked for even where the view has it: the view may show no single bars, or move on.
 * @param {Mark | null} mark @param {number | null} now_s @param {number} max_bars
 */
export function useMarked(mark, now_s, max_bars) {
  const [settled, setSettled] = useState(mark);
  useEffect(() => {
    const timer = setTimeout(() => setSettled(mark), mark && settled ? 200 : 0);
    return () => clearTimeout(timer);
  }, [mark?.from_s, mark?.to_s]);
  const goes_on = Boolean(settled && now_s !== null && settled.to_s > now_s);
  const path = mark && settled ? `/api/gantt?from=${settled.from_s.toFixed(3)}&max_bars=${max_bars}&to=${settled.to_s.toFixed(3)}` : null;
  return useAnswer(path, goes_on ? 5 : 0);
}

/**
 * Figures of a time: bars, GPU time, jobs. GPU time counts a GPU once, however many jobs share it.
 * @param {import("./rows.js").Chart} chart with bars or occupancy of that time
 * @param {Mark} mark
 * @param {number} now_s
 * @param {string} selected a job's id: only its bars
 * @returns {{bars: number, gpu_s: number, jobs: number | null, others: boolean}} jobs: null where single bars are not known
 */
export function figuresOf(chart, mark, now_s, selected) {
  const { bars, occupancy } = chart;
  if (!bars) {
    const sizes = new Int32Array(chart.nodes.length);
    for (const node of chart.node) sizes[node] += 1;
    let gpu_s = 0;
    occupancy?.node.forEach((ratios, node) => {
      for (const ratio of ratios) gpu_s += ratio * occupancy.bucket_s * sizes[node];
    });
    return { bars: chart.bar_count, gpu_s, jobs: null, others: false };
  }
  const found = barsIn(chart, mark.from_s, mark.to_s, (index) => !selected || bars.job[index] === selected).reverse();
  /** @type {Map<number, number>} until when each GPU is counted */
  const until = new Map();
  let gpu_s = 0;
  for (const index of found) {
    const from_s = Math.max(bars.start_s[index], mark.from_s, until.get(bars.gpu[index]) ?? 0);
    const to_s = Math.min(bars.end_s[index] ?? now_s, mark.to_s);
    if (to_s <= from_s) continue;
    gpu_s += to_s - from_s;
    until.set(bars.gpu[index], to_s);
  }
  const jobs = new Set(found.map((index) => bars.job[index]));
  const others = jobs.delete("");
  return { bars: found.length, gpu_s, jobs: jobs.size, others };
}

/** @param {number} gpu_s */
const hours = (gpu_s) => `${count(gpu_s / 3_600, gpu_s < 360 ? 3 : gpu_s < 360_000 ? 1 : 0)} GPU hours`;

/** @param {{mark: Mark, answer: ReturnType<typeof useMarked>, selected: string, now_s: number | null, onShow: () => void, onClear: () => void}} props */
export function Marked({ mark, answer, selected, now_s, onShow, onClear }) {
  const { data, error, again } = answer;
  const figures = useMemo(() => data && figuresOf(data, mark, now_s ?? data.now_s, data.bars ? selected : ""), [data, selected]);
  const jobs = figures && (figures.jobs === null ? "" : `, ${plural(figures.jobs, "job")}${figures.others ? " and others\u2019" : ""}`);
  return html`<div class="gantt-marked" role="group" aria-label="The marked time">
    <p class="num"><strong>${clusterTime(mark.from_s)} to ${clusterTime(mark.to_s)}</strong> <span class="quiet">${duration(mark.to_s - mark.from_s)}</span></p>
    <p class="num" role="status">${figures ? `${plural(figures.bars, "bar")}, ${hours(figures.gpu_s)}${jobs}${selected && data.bars ? `, of ${selected}` : ""}` : error ? "" : DASH}</p>
    <span class="buttons-row"><button type="button" onClick=${onShow}>Zoom to it</button><button type="button" onClick=${onClear}>Unmark</button></span>
    ${error && html`<${Notice} level="bad" role="alert">${error.message} <button type="button" onClick=${again}>Ask again</button><//>`}
    ${data && !data.bars && html`<p class="quiet">Too many bars for a list: mark a shorter time.</p>`}
    ${data?.bars && data.left_out > 0 && html`<p class="quiet">${plural(data.left_out, "bar")} of ${count(data.bar_count)} are left out.</p>`}
  </div>`;
}
