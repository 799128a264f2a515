// @ts-check
// Curves by uPlot, which is loaded when the first is drawn; colours come from the style sheet.
import { useEffect, useLayoutEffect, useRef, useState } from "./vendor/hooks.js";
import { html } from "./html.js";
import { clusterTime, count } from "./format.js";
import { colour, onTheme } from "./theme.js";

const TRIED_EVERY_MS = 2000;
const TRIES = 30;

/** @type {Promise<any> | null} */
let library = null;
/** For a minute tried again where the page's server does not answer; a later call begins anew. */
function load() {
  library ??= Promise.all([untilLoaded(script), untilLoaded(sheet)]).then(
    ([module]) => module.default,
    (error) => {
      library = null;
      throw error;
    },
  );
  return library;
}

/** A browser may keep the failure of an address: each try has another one. @param {(end: string) => Promise<any>} part */
async function untilLoaded(part) {
  for (let tries = 0; ; tries++) {
    try {
      return await part(tries ? `?try=${tries}` : "");
    } catch (error) {
      if (tries === TRIES) throw error;
    }
    await new Promise((done) => setTimeout(done, TRIED_EVERY_MS));
  }
}

/** @param {string} end of the address */
const script = (end) => import(`./vendor/uplot.js${end}`);

/** @param {string} end of the address @returns {Promise<any>} */
const sheet = (end) => new Promise((done, failed) => {
  const link = document.createElement("link");
  link.rel = "stylesheet";
  link.href = new URL(`./vendor/uplot.css${end}`, import.meta.url).href;
  link.onload = done;
  link.onerror = () => {
    link.remove();
    failed(new Error(`${link.href} could not be loaded`));
  };
  document.head.append(link);
});

/**
 * @typedef {object} Line
 * @property {string} name
 * @property {(number | null | undefined)[]} values one for each x; null breaks the line, undefined does not
 * @property {string} [tone] number of the categorical colour; default: its place
 * @property {number} [width]
 * @property {[(number | null | undefined)[], (number | null | undefined)[]]} [band] low and high around the line
 * @property {boolean} [faint] beside others that matter more, and not in the legend
 * @property {boolean} [stepped] each value stays until the next
 */

/**
 * @param {object} props
 * @param {string} props.label what a screen reader says
 * @param {(number | null)[]} props.x
 * @param {Line[]} props.lines
 * @param {"time" | "number"} [props.axis] of x: the cluster's clock, or plain
 * @param {string} [props.unit]
 * @param {number} [props.height] px
 * @param {string} [props.sync] charts with one name share the cursor
 */
export function Chart({ label, x, lines, axis = "number", unit = "", height = 180, sync = "" }) {
  const box = useRef(/** @type {HTMLElement | null} */ (null));
  const plot = useRef(/** @type {any} */ (null));
  const shape = JSON.stringify([lines.map(({ name, tone, width, band, faint, stepped }) => [name, tone, width, Boolean(band), faint, stepped]), axis, unit, height, sync]);
  /** @type {any[]} */
  const columns = [x];
  for (const line of lines) columns.push(line.values, ...(line.band ?? []));
  const [lost, setLost] = useState(false);
  const latest = useRef(columns);
  latest.current = columns;

  useEffect(() => {
    let wanted = true;
    const draw = async () => {
      const uPlot = await load().catch(() => null);
      const place = box.current;
      if (!wanted || !place) return;
      if (!uPlot) {
        setLost(true);
        return;
      }
      plot.current?.destroy();
      plot.current = new uPlot(options(uPlot, place, lines, axis, unit, height, sync), latest.current, place);
    };
    void draw();
    const endTheme = onTheme(() => void draw());
    const size = new ResizeObserver(() => {
      const width = box.current?.clientWidth;
      if (width && plot.current && plot.current.width !== width) plot.current.setSize({ width, height });
    });
    if (box.current) size.observe(box.current);
    return () => {
      wanted = false;
      endTheme();
      size.disconnect();
      plot.current?.destroy();
      plot.current = null;
    };
  }, [shape]);
  // In the frame of the change. A plot of other lines is about to be replaced.
  useLayoutEffect(() => {
    if (plot.current?.series.length === columns.length) plot.current.setData(columns);
  });
  if (lost) return html`<p class="empty">The curves could not be loaded. Load the page again.</p>`;
  const last = lines.filter((line) => !line.faint).map(({ name, values }) => {
    const value = values.findLast((each) => typeof each === "number");
    return `${name} ${count(value, Number.isInteger(value) ? 0 : 2)}${unit && ` ${unit}`}`;
  }).join(", ");
  return html`<figure class="chart" role="img" aria-label=${`${label}. Last: ${last}.`}><div ref=${box} aria-hidden="true" style=${{ minHeight: `${height}px` }}></div></figure>`;
}

/** @param {any} uPlot @param {HTMLElement} place @param {Line[]} lines @param {string} axis @param {string} unit @param {number} height @param {string} sync */
function options(uPlot, place, lines, axis, unit, height, sync) {
  const ink = colour("--ink-2");
  const grid = { stroke: colour("--line"), width: 1 };
  const font = `11px ${getComputedStyle(document.body).fontFamily}`;
  // While nobody points at the curves, the legend tells their last figures.
  const pointed = (/** @type {any} */ plot, /** @type {number | null} */ value, /** @type {number} */ which) =>
    (plot.cursor.left ?? -1) < 0 ? plot.data?.[which]?.findLast((/** @type {unknown} */ each) => typeof each === "number") ?? null : value;
  /** @type {any[]} */
  const series = [
    {
      label: axis === "time" ? "time" : "step",
      value: (/** @type {any} */ plot, /** @type {number | null} */ value) => {
        const shown = pointed(plot, value, 0);
        return shown === null ? "–" : axis === "time" ? clusterTime(shown) : count(shown);
      },
    },
  ];
  /** @type {any[]} */
  const bands = [];
  lines.forEach((line, index) => {
    const stroke = colour(`--tone-${line.tone ?? (index % 8) + 1}`);
    const value = (/** @type {any} */ plot, /** @type {number | null} */ raw, /** @type {number} */ which) => {
      const shown = pointed(plot, raw, which);
      return shown === null || shown === undefined ? "–" : `${count(shown, Math.abs(shown) < 10 && !Number.isInteger(shown) ? 2 : 0)}${unit && ` ${unit}`}`;
    };
    const drawn = { points: { show: false }, ...(line.stepped ? { paths: uPlot.paths.stepped({ align: 1 }) } : {}) };
    series.push({ ...drawn, label: line.name, ...(line.faint ? { class: "unlisted" } : {}), stroke: line.faint ? `${stroke}66` : stroke, width: line.width ?? 1.5, value });
    if (!line.band) return;
    series.push({ ...drawn, label: "lowest", stroke: `${stroke}55`, width: 1, value });
    series.push({ ...drawn, label: "highest", stroke: `${stroke}55`, width: 1, value });
    bands.push({ series: [series.length - 1, series.length - 2], fill: `${stroke}2e` });
  });
  return {
    width: place.clientWidth || 300,
    height,
    series,
    bands,
    cursor: sync ? { sync: { key: sync } } : {},
    // A count is seen against zero.
    scales: { x: { time: false }, ...(lines.some((line) => line.stepped) ? { y: { range: (/** @type {any} */ _, /** @type {number} */ __, /** @type {number | null} */ most) => [0, Math.max(1, (most ?? 0) * 1.08)] } } : {}) },
    legend: { live: true },
    axes: [
      { stroke: ink, font, grid, ticks: grid, values: axis === "time" ? (/** @type {any} */ _, /** @type {number[]} */ marks) => marks.map(clusterTime) : undefined, space: 80 },
      { stroke: ink, font, grid, ticks: grid, size: 52 },
    ],
  };
}
