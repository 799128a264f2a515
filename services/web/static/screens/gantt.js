// @ts-check
// Gantt: what ran where and when. A canvas to look at, and a table of the same for everybody else.
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "../vendor/hooks.js";
import { get } from "../api.js";
import { clusterTime, count, DASH, duration, plural, visible, words } from "../format.js";
import { draw } from "../gantt/pixels.js";
import { barAt, barsIn, FEW_GPUS, rowAt, rowsOf, withNewer } from "../gantt/rows.js";
import { chromeTrace } from "../gantt/trace.js";
import { html } from "../html.js";
import { Choice, Empty, JobState, Notice, Panel, Scroll, Skeleton } from "../parts.js";
import { gpuPath, jobPath, setQuery } from "../router.js";
import { useView } from "../session.js";
import { colour, onTheme, pixel } from "../theme.js";
import { useTitle } from "../title.js";

const MAX_BARS = 5_000;
const LABELS_PX = 92;
const AXIS_PX = 22;
const SHORTEST_S = 5;
const LONGEST_S = 30 * 86_400;
const TABLE_ROWS = 40;
/** @typedef {{from_s: number, to_s: number, live: boolean}} Range */
/** @typedef {"type" | "user" | "outcome" | "differs"} ColourBy */

/** The last `span_s`, with a little room for the future; a young cluster has no more past than there is. @param {number} now_s @param {number} span_s @returns {Range} */
function liveRange(now_s, span_s) {
  const length = Math.min(span_s, Math.max(60, now_s * 1.03));
  return { from_s: Math.max(0, now_s - length * 0.97), to_s: Math.max(0, now_s - length * 0.97) + length, live: true };
}

/** @param {import("../gantt/rows.js").Chart | null} chart @param {ColourBy} by */
function tonesOf(chart, by) {
  const bars = chart?.bars;
  const tone = new Uint8Array(bars?.gpu.length ?? 0);
  /** @type {Map<string, number>} */
  const names = new Map();
  if (!bars) return { tone, names };
  if (by === "differs") {
    names.set("as the shadow policy", 7).set("other than the shadow policy", 3);
    bars.differs?.forEach((value, index) => (tone[index] = value ? 3 : 7));
    return { tone, names };
  }
  /** @type {Record<string, number>} */
  const fixed = by === "outcome" ? { running: 0, succeeded: 2, failed: 4, lost: 4, preempted: 3, cancelled: 7 } : {};
  const column = bars[by] ?? [];
  for (const name of [...new Set(column)].sort()) names.set(name, fixed[name] ?? names.size % 8);
  column.forEach((name, index) => (tone[index] = names.get(name) ?? 7));
  return { tone, names };
}

/** Pixels of the present colours. */
function palette() {
  const panel = pixel("--panel");
  const mix = (/** @type {number} */ one, /** @type {number} */ other, /** @type {number} */ ratio) => {
    let mixed = 255 << 24;
    for (const shift of [0, 8, 16]) mixed |= Math.round(((one >>> shift) & 255) * (1 - ratio) + ((other >>> shift) & 255) * ratio) << shift;
    return mixed >>> 0;
  };
  const tones = Uint32Array.from({ length: 8 }, (_, index) => pixel(`--tone-${index + 1}`));
  const [low, high] = [pixel("--ramp-0"), pixel("--ramp-15")];
  return {
    tones,
    faint: tones.map((each) => mix(each, panel, 0.75)),
    ramp: Uint32Array.from({ length: 16 }, (_, index) => mix(low, high, index / 15)),
    colours: { page: pixel("--page"), line: pixel("--line"), bad: pixel("--bad"), ink: pixel("--ink"), panel },
  };
}

/** Bars around the view, asked again when the view leaves what is there. @param {Range | null} range @param {number | null} now_s */
function useChart(range, now_s) {
  const [chart, setChart] = useState(/** @type {any} */ (null));
  const [error, setError] = useState("");
  const [round, setRound] = useState(0);
  const asked = useRef(/** @type {{from_s: number, to_s: number} | null} */ (null));
  const span = range ? range.to_s - range.from_s : 0;
  const covered = asked.current;
  const stale = range && (!covered || range.from_s < covered.from_s || (range.to_s > covered.to_s && (now_s === null || covered.to_s < now_s)) || span * 4 < covered.to_s - covered.from_s);
  useEffect(() => {
    if (!range) return undefined;
    const abort = new AbortController();
    const timer = setTimeout(() => {
      const wanted = { from_s: Math.max(0, range.from_s - span / 2), to_s: range.to_s + span / 2 };
      get(`/api/gantt?from=${wanted.from_s.toFixed(3)}&max_bars=${MAX_BARS}&to=${wanted.to_s.toFixed(3)}`, abort.signal).then(
        (data) => {
          asked.current = wanted;
          setChart(data);
          setError("");
        },
        (problem) => abort.signal.aborted || setError(problem.message),
      );
    }, covered ? 120 : 0);
    return () => {
      abort.abort();
      clearTimeout(timer);
    };
  }, [Boolean(stale), stale ? Math.round(range.from_s) : 0, stale ? Math.round(span) : 0, round]);
  // Live: only what ran since the last answer is asked for, not the whole view again.
  const latest = useRef(/** @type {any} */ (null));
  latest.current = { chart, range };
  useEffect(() => {
    if (!range?.live) return undefined;
    const abort = new AbortController();
    const timer = setInterval(async () => {
      const { chart: old, range: view } = latest.current;
      if (document.hidden || !old || !view || !asked.current) return;
      if (!old.bars) return setRound((before) => before + 1);
      const to_s = view.to_s + (view.to_s - view.from_s) / 2;
      try {
        const newer = await get(`/api/gantt?from=${Math.max(0, old.now_s - 1).toFixed(3)}&max_bars=${MAX_BARS}&to=${to_s.toFixed(3)}`, abort.signal);
        if (!newer.bars || newer.left_out || newer.gpus.length !== old.gpus.length || old.bars.gpu.length > 2 * MAX_BARS) return setRound((before) => before + 1);
        const from_s = view.from_s - (view.to_s - view.from_s) / 2;
        asked.current = { from_s: Math.max(0, Math.min(from_s, asked.current.from_s)), to_s };
        setChart((/** @type {any} */ before) => (before === old ? withNewer(old, newer, from_s) : before));
        setError("");
      } catch (problem) {
        if (!abort.signal.aborted) setError(/** @type {Error} */ (problem).message);
      }
      return undefined;
    }, 2_000);
    return () => {
      abort.abort();
      clearInterval(timer);
    };
  }, [range?.live]);
  return { chart, error, again: () => setRound((before) => before + 1) };
}

/** @param {{query: URLSearchParams}} props */
export default function Gantt({ query }) {
  useTitle("Gantt");
  const head = useView("head");
  const now_s = /** @type {number | null} */ (head.data?.time_s ?? null);
  const [fixed, setFixed] = useState(/** @type {{from_s: number, to_s: number} | null} */ (
    query.get("from") && query.get("to") ? { from_s: Number(query.get("from")), to_s: Number(query.get("to")) } : null
  ));
  const [span_s, setSpan] = useState(Math.min(LONGEST_S, Math.max(SHORTEST_S, Number(query.get("span")) || 3_600)));
  const by = /** @type {ColourBy} */ (["type", "user", "outcome", "differs"].includes(query.get("colour") ?? "") ? query.get("colour") : "type");
  const [folds, setFolds] = useState(/** @type {Record<number, boolean>} */ ({}));
  const [selected, setSelected] = useState("");
  /** @type {Range | null} */
  const range = fixed ? { ...fixed, live: false } : now_s === null ? null : liveRange(now_s, span_s);
  const { chart, error, again } = useChart(range, now_s);

  const few = (chart?.gpus.length ?? 0) <= FEW_GPUS;
  const rows = useMemo(() => (chart ? rowsOf(chart, (node) => Boolean(chart.bars) && (folds[node] ?? few), few ? 18 : 14) : null), [chart, folds]);
  const { tone, names } = useMemo(() => tonesOf(chart, by), [chart, by]);

  const canvas = useRef(/** @type {HTMLCanvasElement | null} */ (null));
  const box = useRef(/** @type {HTMLDivElement | null} */ (null));
  const inks = useRef(/** @type {ReturnType<typeof palette> | null} */ (null));
  const [size, setSize] = useState({ width: 0, height: 0 });
  const [top, setTop] = useState(0);
  const [theme, setTheme] = useState(0);
  const latest = useRef(/** @type {any} */ (null));
  latest.current = { range, rows, chart, size, top, now_s };

  useEffect(() => onTheme(() => {
    inks.current = null;
    setTheme((before) => before + 1);
  }), []);
  useEffect(() => {
    if (!box.current) return undefined;
    const watch = new ResizeObserver(() => box.current && setSize({ width: box.current.clientWidth, height: box.current.clientHeight }));
    watch.observe(box.current);
    return () => watch.disconnect();
  }, [chart === null]);

  // In the same frame as the change: moves of the pointer come once a frame.
  useLayoutEffect(() => {
    const place = canvas.current;
    const context = place?.getContext("2d", { alpha: false });
    if (!place || !context || !range || !rows || !chart || !size.width) return;
    inks.current ??= palette();
    const scale = Math.min(2, devicePixelRatio || 1);
    const width = Math.round(size.width * scale);
    const height = Math.round(size.height * scale);
    if (place.width !== width || place.height !== height) Object.assign(place, { width, height });
    const started = performance.now();
    const image = context.createImageData(width, height);
    draw(new Uint32Array(image.data.buffer), width, height, {
      chart, rows, from_s: range.from_s, to_s: range.to_s, now_s: now_s ?? chart.now_s, top: top - AXIS_PX, left: LABELS_PX, scale, tone, selected, ...inks.current,
    });
    context.putImageData(image, 0, 0);
    texts(context, range, rows, top, size, scale);
    Object.assign(place.dataset, { drawMs: (performance.now() - started).toFixed(1), fromS: String(range.from_s), toS: String(range.to_s) });
  }, [chart, rows, range?.from_s, range?.to_s, size, top, tone, selected, theme]);

  /** @param {number} from_s @param {number} to_s */
  const show = (from_s, to_s) => {
    const length = Math.min(LONGEST_S, Math.max(SHORTEST_S, to_s - from_s));
    const middle = (from_s + to_s) / 2;
    setFixed({ from_s: middle - length / 2, to_s: middle + length / 2 });
    setSpan(length);
  };
  /** @param {number} ratio of the span, to the right */
  const pan = (ratio) => {
    const { range: now } = latest.current;
    if (!now) return;
    const by_s = ratio * (now.to_s - now.from_s);
    show(now.from_s + by_s, now.to_s + by_s);
  };
  /** @param {number} factor below 1: nearer @param {number} [at] place in the view that stays, 0 to 1 */
  const zoom = (factor, at = 0.5) => {
    const { range: now } = latest.current;
    if (!now) return;
    const length = now.to_s - now.from_s;
    if (now.live) return setSpan(Math.min(LONGEST_S, Math.max(SHORTEST_S, length * factor)));
    const stays = now.from_s + at * length;
    const next = Math.min(LONGEST_S, Math.max(SHORTEST_S, length * factor));
    show(stays - at * next, stays + (1 - at) * next);
  };
  const live = () => setFixed(null);
  useEffect(() => {
    const timer = setTimeout(() => setQuery({ from: fixed ? fixed.from_s.toFixed(1) : "", to: fixed ? fixed.to_s.toFixed(1) : "", span: fixed || span_s === 3_600 ? "" : Math.round(span_s) }), 300);
    return () => clearTimeout(timer);
  }, [fixed, span_s]);

  /** @param {KeyboardEvent} event */
  const onKey = (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const acts = /** @type {Record<string, () => void>} */ ({
      w: () => zoom(0.7), s: () => zoom(1 / 0.7), a: () => pan(-0.2), d: () => pan(0.2), ArrowLeft: () => pan(-0.1), ArrowRight: () => pan(0.1),
      "+": () => zoom(0.7), "-": () => zoom(1 / 0.7), Home: live, Escape: () => setSelected(""),
    });
    const act = acts[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    if (!act) return;
    event.preventDefault();
    act();
  };
  // Wheel: up and down scrolls the rows; with Ctrl it zooms at the pointer; sideways, or with Shift, it pans. Not passive.
  useEffect(() => {
    const place = box.current;
    if (!place) return undefined;
    const onWheel = (/** @type {WheelEvent} */ event) => {
      const sideways = event.shiftKey ? event.deltaY : event.deltaX;
      if (event.ctrlKey || event.metaKey) zoom(Math.exp(event.deltaY / 300), Math.min(1, Math.max(0, (event.offsetX - LABELS_PX) / (place.clientWidth - LABELS_PX))));
      else if (Math.abs(sideways) > Math.abs(event.shiftKey ? 0 : event.deltaY)) pan(sideways / place.clientWidth);
      else return;
      event.preventDefault();
    };
    place.addEventListener("wheel", onWheel, { passive: false });
    return () => place.removeEventListener("wheel", onWheel);
  }, [chart === null]);
  const grip = useRef(/** @type {{x: number, range: Range, moved: boolean} | null} */ (null));
  /** @param {PointerEvent} event */
  const onDown = (event) => {
    if (event.button !== 0 || !range) return;
    grip.current = { x: event.clientX, range, moved: false };
    /** @type {Element} */ (event.currentTarget).setPointerCapture(event.pointerId);
  };
  /** @param {PointerEvent} event */
  const onMove = (event) => {
    const held = grip.current;
    if (!held) return;
    const moved = event.clientX - held.x;
    if (!held.moved && Math.abs(moved) < 4) return;
    held.moved = true;
    const by_s = (moved / (size.width - LABELS_PX)) * (held.range.to_s - held.range.from_s);
    show(held.range.from_s - by_s, held.range.to_s - by_s);
  };
  /** @param {PointerEvent} event */
  const onUp = (event) => {
    const held = grip.current;
    grip.current = null;
    if (!held || held.moved || !rows || !chart || !range) return;
    const place = /** @type {Element} */ (event.currentTarget).getBoundingClientRect();
    const [x, y] = [event.clientX - place.left, event.clientY - place.top];
    const row = y < AXIS_PX ? null : rowAt(rows, y - AXIS_PX + top);
    if (!row) return;
    if (row.kind === "node") {
      if (chart.bars) setFolds((before) => ({ ...before, [row.index]: !row.open }));
      return;
    }
    if (x < LABELS_PX) return;
    const time_s = range.from_s + ((x - LABELS_PX) / (size.width - LABELS_PX)) * (range.to_s - range.from_s);
    const bar = barAt(chart, row, time_s, now_s ?? chart.now_s);
    setSelected(bar < 0 ? "" : chart.bars.job[bar]);
  };

  const tools = html`
    <${Choice} label="Colour by" value=${by} onChange=${(/** @type {string} */ name) => setQuery({ colour: name === "type" ? "" : name })} options=${[["type", "type"], ["user", "user"], ["outcome", "outcome"], ["differs", "shadow"]]} />
    <span class="buttons-row" role="group" aria-label="Time">
      <button type="button" onClick=${() => pan(-0.5)} aria-label="Earlier">←</button><button type="button" onClick=${() => zoom(0.5)} aria-label="Nearer">+</button>
      <button type="button" onClick=${() => zoom(2)} aria-label="Farther">−</button><button type="button" onClick=${() => pan(0.5)} aria-label="Later">→</button>
      <button type="button" aria-pressed=${range?.live ? "true" : "false"} onClick=${live}>Live</button></span>`;
  const total = rows ? rows.height + AXIS_PX : 0;
  return html`<h1>Gantt</h1>
    <${Panel} title=${range ? `${clusterTime(range.from_s)} to ${range.live ? "now" : clusterTime(range.to_s)}` : "What ran where"} view=${head} tools=${tools} class="gantt">
      ${error && html`<${Notice} level="bad" role="alert">${error} <button type="button" onClick=${again}>Ask again</button><//>`}
      ${!chart || !range || !rows
        ? !error && html`<${Skeleton} what="The bars" rows=${7} />`
        : html`
          ${chart.left_out > 0 && html`<${Notice} level="info">${chart.bars ? `${plural(chart.left_out, "bar")} of ${count(chart.bar_count)} are left out.` : `${plural(chart.bar_count, "bar")} here: shown is how many of ${chart.occupancy?.row_kind === "gpu_model" ? "the GPUs of each node's model" : "each node's GPUs"} were taken. Zoom nearer for single bars.`}<//>`}
          <div class="gantt-box" ref=${box} tabindex="0" style=${{ height: `${total + 2}px` }} role="application" aria-label="Bars of what ran where; the table below lists the same. Keys: W and S zoom, A and D move, Home goes to now, arrows up and down scroll."
            onKeyDown=${onKey} onScroll=${(/** @type {any} */ event) => setTop(event.target.scrollTop)}>
            <div class="gantt-rows" style=${{ height: `${total}px` }}>
              <canvas ref=${canvas} aria-hidden="true" style=${{ width: `${size.width}px`, height: `${size.height}px` }} onPointerDown=${onDown} onPointerMove=${onMove} onPointerUp=${onUp}></canvas></div>
          </div>
          <div class="gantt-foot">
            ${chart.bars && html`<ul class="legend" aria-label="Colours">${[...names].map(([name, index]) => html`<li key=${name}><span class=${`swatch tone-${index + 1}`} aria-hidden="true"></span>${words(name)}</li>`)}</ul>`}
            <span class="quiet">drag or A D to move, Ctrl+wheel or W S to zoom, click a node to fold it, click a bar to see its job</span>
            ${chart.bars && html`<span class="buttons-row"><button type="button" onClick=${() => setFolds(Object.fromEntries(chart.nodes.map((/** @type {string} */ _, /** @type {number} */ node) => [node, !rows.list.some((row) => row.open)])))}>${rows.list.some((row) => row.open) ? "Fold all" : "Unfold all"}</button>
              <button type="button" onClick=${() => download(chromeTrace(chart, barsIn(chart, range.from_s, range.to_s, (index) => !selected || chart.bars.job[index] === selected)))}>Save as Chrome trace</button></span>`}
          </div>`}
    <//>
    ${chart?.bars && range && html`<${BarTable} chart=${chart} range=${range} selected=${selected} onClear=${() => setSelected("")} now_s=${now_s ?? chart.now_s} />`}`;
}

/** Labels and the axis over the pixels. @param {CanvasRenderingContext2D} context @param {Range} range @param {import("../gantt/rows.js").Rows} rows @param {number} top @param {{width: number, height: number}} size @param {number} scale */
function texts(context, range, rows, top, size, scale) {
  context.save();
  context.scale(scale, scale);
  context.font = `11px ${getComputedStyle(document.body).fontFamily}`;
  context.textBaseline = "middle";
  const [ink, quiet, panel, line] = [colour("--ink"), colour("--ink-2"), colour("--panel"), colour("--line")];
  for (const row of rows.list) {
    const y = row.top - top + AXIS_PX;
    if (y + row.height < 0 || y > size.height) continue;
    if (row.kind === "gpu" && row.height < 11) continue;
    context.fillStyle = row.kind === "node" ? ink : quiet;
    const text = row.kind === "node" ? `${row.open ? "▾" : "▸"} ${row.label}` : `  ${row.label.split("/").at(-1)}`;
    context.fillText(text, 4, y + row.height / 2, LABELS_PX - 8);
  }
  context.fillStyle = panel;
  context.fillRect(0, 0, size.width, AXIS_PX);
  context.fillStyle = quiet;
  const marks = Math.max(2, Math.floor((size.width - LABELS_PX) / 110));
  const step = niceStep((range.to_s - range.from_s) / marks);
  for (let time_s = Math.ceil(range.from_s / step) * step; time_s < range.to_s; time_s += step) {
    const x = LABELS_PX + ((time_s - range.from_s) / (range.to_s - range.from_s)) * (size.width - LABELS_PX);
    if (time_s >= 0 && x + 60 < size.width) context.fillText(clusterTime(time_s), x + 3, AXIS_PX / 2);
    context.fillRect(Math.round(x), AXIS_PX - 6, 1, 6);
  }
  context.fillStyle = line;
  context.fillRect(0, AXIS_PX - 1, size.width, 1);
  context.restore();
}

/** @param {number} least_s */
function niceStep(least_s) {
  return [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 14_400, 21_600, 43_200, 86_400].find((step) => step >= least_s) ?? Math.ceil(least_s / 86_400) * 86_400;
}

/** @param {string} text */
function download(text) {
  const address = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  const link = document.createElement("a");
  link.href = address;
  link.download = "adlro-trace.json";
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

/** @param {{chart: any, range: Range, selected: string, onClear: () => void, now_s: number}} props */
function BarTable({ chart, range, selected, onClear, now_s }) {
  // The table follows a moment after the view stands still, and every 2 s while it runs on: not at each frame of a drag.
  const [shown, setShown] = useState(range);
  const since_ms = useRef(0);
  useEffect(() => {
    const wait_ms = range.live ? Math.max(0, since_ms.current + 2_000 - performance.now()) : 250;
    const timer = setTimeout(() => {
      since_ms.current = performance.now();
      setShown(range);
    }, wait_ms);
    return () => clearTimeout(timer);
  }, [range.from_s, range.to_s, range.live]);
  const found = useMemo(() => barsIn(chart, shown.from_s, shown.to_s, (index) => !selected || chart.bars.job[index] === selected), [chart, shown, selected]);
  const bars = chart.bars;
  return html`<${Panel} title=${selected ? `Bars of ${selected}` : "Bars in view"} tools=${html`<span class="quiet num">${found.length > TABLE_ROWS ? `the newest ${TABLE_ROWS} of ${plural(found.length, "bar")}` : plural(found.length, "bar")}</span>
      ${selected && html`<button type="button" onClick=${onClear}>Show all</button>`}`}>
    ${found.length === 0
      ? html`<${Empty}>Nothing ran in this time.<//>`
      : html`<${Scroll} label="Bars in view"><table><thead><tr><th scope="col">Job</th><th scope="col">GPU</th><th scope="col" class="number">Start</th><th scope="col" class="number">Ran</th><th scope="col" class="c-mid">User</th><th scope="col" class="c-mid">Type</th><th scope="col">Outcome</th></tr></thead>
          <tbody>${found.slice(0, TABLE_ROWS).map((index) => html`<tr key=${`${bars.job[index]} ${bars.gpu[index]} ${bars.start_s[index]}`}>
            <th scope="row">${bars.job[index] ? html`<a href=${jobPath(bars.job[index])}>${bars.job[index]}</a> <bdi class="quiet">${visible(bars.name?.[index])}</bdi>` : html`<span class="quiet">another user's job</span>`}</th>
            <td><a href=${gpuPath(chart.gpus[bars.gpu[index]])}>${chart.gpus[bars.gpu[index]]}</a></td>
            <td class="number num">${clusterTime(bars.start_s[index])}</td><td class="number num">${duration((bars.end_s[index] ?? now_s) - bars.start_s[index])}</td>
            <td class="c-mid">${bars.user[index]}</td><td class="c-mid">${words(bars.type[index])}</td><td>${bars.outcome[index] || bars.end_s[index] === null ? html`<${JobState} state=${bars.outcome[index] || "running"} />` : DASH}</td></tr>`)}</tbody></table><//>`}
  <//>`;
}
