// @ts-check
// Gantt: what ran where and when. A canvas to look at, and a table of the same for everybody else.
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "../vendor/hooks.js";
import { clusterTime, count, plural, visible, words } from "../format.js";
import { MAX_BARS, useChart } from "../gantt/answers.js";
import { markOf, markText, Marked, useMarked } from "../gantt/marking.js";
import { Overview } from "../gantt/overview.js";
import { draw } from "../gantt/pixels.js";
import { barAt, FEW_GPUS, rowAt, rowsOf } from "../gantt/rows.js";
import { BarTable } from "../gantt/table.js";
import { AXIS_PX, LABELS_PX, texts } from "../gantt/texts.js";
import { chromeTrace } from "../gantt/trace.js";
import { html } from "../html.js";
import { Choice, Notice, Panel, Skeleton } from "../parts.js";
import { setQuery } from "../router.js";
import { useView } from "../session.js";
import { onTheme, pixel } from "../theme.js";
import { useTitle } from "../title.js";

const SHORTEST_S = 5;
const LONGEST_S = 30 * 86_400;
/** @typedef {import("../gantt/answers.js").Range} Range */
/** @typedef {"type" | "user" | "outcome" | "differs"} ColourBy */

/** The last `span_s`, with a little room for the future; a young cluster has no more past than there is. @param {number} now_s @param {number} span_s @returns {Range} */
function liveRange(now_s, span_s) {
  const length = Math.min(span_s, Math.max(60, now_s * 1.03));
  return { from_s: Math.max(0, now_s - length * 0.97), to_s: Math.max(0, now_s - length * 0.97) + length, live: true };
}

/** The view that an address names; null: the live one. @param {URLSearchParams} query */
function fixedOf(query) {
  const [from_s, to_s] = [Number(query.get("from") || NaN), Number(query.get("to") || NaN)];
  return Number.isFinite(from_s) && Number.isFinite(to_s) && to_s > from_s ? { from_s, to_s } : null;
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

/** @param {{query: URLSearchParams}} props */
export default function Gantt({ query }) {
  useTitle("Gantt");
  const head = useView("head");
  const now_s = /** @type {number | null} */ (head.data?.time_s ?? null);
  const [fixed, setFixed] = useState(() => fixedOf(query));
  const [span_s, setSpan] = useState(Math.min(LONGEST_S, Math.max(SHORTEST_S, Number(query.get("span")) || 3_600)));
  const by = /** @type {ColourBy} */ (["type", "user", "outcome", "differs"].includes(query.get("colour") ?? "") ? query.get("colour") : "type");
  const [folds, setFolds] = useState(/** @type {Record<number, boolean>} */ ({}));
  const [selected, setSelected] = useState("");
  const [mark, setMark] = useState(() => markOf(query.get("mark") ?? ""));
  /** @type {Range | null} */
  const range = fixed ? { ...fixed, live: false } : now_s === null ? null : liveRange(now_s, span_s);
  const { chart, error, again } = useChart(range, now_s);
  const marked = useMarked(mark, now_s, MAX_BARS);

  const few = (chart?.gpus.length ?? 0) <= FEW_GPUS;
  const rows = useMemo(() => (chart ? rowsOf(chart, (node) => Boolean(chart.bars) && (folds[node] ?? few), few ? 18 : 14) : null), [chart, folds]);
  const { tone, names } = useMemo(() => tonesOf(chart, by), [chart, by]);

  const canvas = useRef(/** @type {HTMLCanvasElement | null} */ (null));
  const box = useRef(/** @type {HTMLDivElement | null} */ (null));
  /** The last frame's buffer: megabytes, sixty times a second. */
  const picture = useRef(/** @type {ImageData | null} */ (null));
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
  }, [chart === null, head.state === "refused"]);

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
    const image = picture.current?.width === width && picture.current.height === height ? picture.current : context.createImageData(width, height);
    picture.current = image;
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
  const address = `${query.get("from") ?? ""} ${query.get("to") ?? ""}`;
  const written = useRef(address);
  useEffect(() => {
    if (address === written.current) return;
    written.current = address;
    setFixed(fixedOf(query));
  }, [address]);
  useEffect(() => {
    const [from, to] = fixed ? [fixed.from_s.toFixed(1), fixed.to_s.toFixed(1)] : ["", ""];
    const timer = setTimeout(() => {
      written.current = `${from} ${to}`;
      setQuery({ from, to, span: fixed || span_s === 3_600 ? "" : Math.round(span_s), mark: markText(mark) });
    }, 300);
    return () => clearTimeout(timer);
  }, [fixed, span_s, mark]);
  /** The marked time, or one end of it, moves by a part of the view. @param {"from_s" | "to_s"} end @param {number} ratio */
  const stretch = (end, ratio) => {
    const { range: now } = latest.current;
    if (!now || !mark) return;
    const to_s = mark[end] + ratio * (now.to_s - now.from_s);
    setMark(end === "to_s" ? { ...mark, to_s: Math.max(mark.from_s + 0.1, to_s) } : { ...mark, from_s: Math.max(0, Math.min(mark.to_s - 0.1, to_s)) });
  };
  const markMiddle = () => {
    const { range: now } = latest.current;
    if (now) setMark({ from_s: Math.max(0, now.from_s + (now.to_s - now.from_s) / 3), to_s: now.from_s + ((now.to_s - now.from_s) * 2) / 3 });
  };

  /** @param {KeyboardEvent} event */
  const onKey = (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const stretches = /** @type {Record<string, () => void>} */ ({
      ArrowLeft: () => stretch("to_s", -0.02), ArrowRight: () => stretch("to_s", 0.02), a: () => stretch("from_s", -0.02), d: () => stretch("from_s", 0.02),
    });
    const acts = /** @type {Record<string, () => void>} */ ({
      m: markMiddle, w: () => zoom(0.7), s: () => zoom(1 / 0.7), a: () => pan(-0.2), d: () => pan(0.2), ArrowLeft: () => pan(-0.1), ArrowRight: () => pan(0.1),
      "+": () => zoom(0.7), "-": () => zoom(1 / 0.7), Home: live, Escape: () => (mark ? setMark(null) : setSelected("")),
    });
    const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
    const act = event.shiftKey && mark && stretches[key] ? stretches[key] : acts[key];
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
  }, [chart === null, head.state === "refused"]);
  const grip = useRef(/** @type {{x: number, range: Range, moved: boolean, marks_s: number | null} | null} */ (null));
  /** The time at a place of the canvas; left of it, that of its edge. @param {PointerEvent} event */
  const timeAt = (event) => {
    const place = /** @type {Element} */ (event.currentTarget).getBoundingClientRect();
    const shown = /** @type {Range} */ (range);
    const ratio = Math.min(1, Math.max(0, (event.clientX - place.left - LABELS_PX) / (size.width - LABELS_PX)));
    return Math.max(0, shown.from_s + ratio * (shown.to_s - shown.from_s));
  };
  /** @param {PointerEvent} event */
  const onDown = (event) => {
    if (event.button !== 0 || !range) return;
    // With Shift a time is marked, in place of a move.
    grip.current = { x: event.clientX, range, moved: false, marks_s: event.shiftKey ? timeAt(event) : null };
    /** @type {Element} */ (event.currentTarget).setPointerCapture(event.pointerId);
  };
  /** @param {PointerEvent} event */
  const onMove = (event) => {
    const held = grip.current;
    if (!held) return;
    const moved = event.clientX - held.x;
    if (!held.moved && Math.abs(moved) < 4) return;
    held.moved = true;
    if (held.marks_s !== null) {
      const time_s = timeAt(event);
      setMark({ from_s: Math.min(held.marks_s, time_s), to_s: Math.max(held.marks_s, time_s) });
      return;
    }
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
    const bar = barAt(chart, row, timeAt(event), now_s ?? chart.now_s);
    setSelected(bar < 0 ? "" : chart.bars.job[bar]);
  };

  const tools = html`
    <${Choice} label="Colour by" value=${by} onChange=${(/** @type {string} */ name) => setQuery({ colour: name === "type" ? "" : name })} options=${[["type", "type"], ["user", "user"], ["outcome", "outcome"], ["differs", "shadow"]]} />
    <span class="buttons-row" role="group" aria-label="Time">
      <button type="button" onClick=${() => pan(-0.5)} aria-label="Earlier">←</button><button type="button" onClick=${() => zoom(0.5)} aria-label="Nearer">+</button>
      <button type="button" onClick=${() => zoom(2)} aria-label="Farther">−</button><button type="button" onClick=${() => pan(0.5)} aria-label="Later">→</button>
      <button type="button" aria-pressed=${range?.live ? "true" : "false"} onClick=${live}>Live</button></span>`;
  // What the table has: the marked time, where one is marked.
  const listed = mark ? marked.data : chart;
  const total = rows ? rows.height + AXIS_PX : 0;
  return html`<h1>Gantt</h1>
    <${Panel} title=${range ? `${clusterTime(range.from_s)} to ${range.live ? "now" : clusterTime(range.to_s)}` : "What ran where"} view=${head} tools=${tools} class="gantt">
      ${error && html`<${Notice} level="bad" role="alert">${error} <button type="button" onClick=${again}>Ask again</button><//>`}
      ${!chart || !range || !rows
        ? !error && html`<${Skeleton} what="The bars" rows=${7} />`
        : html`
          ${chart.left_out > 0 && html`<${Notice} level="info">${chart.bars ? `${plural(chart.left_out, "bar")} of ${count(chart.bar_count)} are left out.` : `${plural(chart.bar_count, "bar")} here: shown is how many of ${chart.occupancy?.row_kind === "gpu_model" ? "the GPUs of each node's model" : "each node's GPUs"} were taken. Zoom nearer for single bars.`}<//>`}
          <${Overview} range=${range} now_s=${now_s ?? chart.now_s} gpu_count=${chart.gpus.length} mark=${mark} onShow=${show} onLive=${live} shortest_s=${SHORTEST_S} longest_s=${LONGEST_S} />
          <div class="gantt-box" ref=${box} tabindex="0" style=${{ height: `${total + 2}px` }} role="application" aria-label="Bars of what ran where; the table below lists the same. Keys: W and S zoom, A and D move, Home goes to now, arrows up and down scroll. M marks a time; with Shift, arrows move its end and A and D its begin; Escape unmarks it."
            onKeyDown=${onKey} onScroll=${(/** @type {any} */ event) => setTop(event.target.scrollTop)}>
            <div class="gantt-rows" style=${{ height: `${total}px` }}>
              <canvas ref=${canvas} aria-hidden="true" style=${{ width: `${size.width}px`, height: `${size.height}px` }} onPointerDown=${onDown} onPointerMove=${onMove} onPointerUp=${onUp}></canvas>
              ${mark && mark.to_s > range.from_s && mark.from_s < range.to_s && html`<div class="gantt-mark" aria-hidden="true" style=${markPlace(mark, range, size.width)}></div>`}</div>
          </div>
          <div class="gantt-foot">
            ${chart.bars && html`<ul class="legend" aria-label="Colours">${[...names].map(([name, index]) => html`<li key=${name}><span class=${`swatch tone-${index + 1}`} aria-hidden="true"></span>${by === "user" ? visible(name) : words(name)}</li>`)}</ul>`}
            <span class="quiet">drag or A D to move, Ctrl+wheel or W S to zoom, Shift+drag or M to mark a time, click a node to fold it, click a bar to see its job</span>
            ${chart.bars && html`<span class="buttons-row"><button type="button" onClick=${() => setFolds(Object.fromEntries(chart.nodes.map((/** @type {string} */ _, /** @type {number} */ node) => [node, !rows.list.some((row) => row.open)])))}>${rows.list.some((row) => row.open) ? "Fold all" : "Unfold all"}</button></span>`}
          </div>`}
      ${mark && html`<${Marked} mark=${mark} answer=${marked} selected=${selected} now_s=${now_s} onShow=${() => show(mark.from_s, mark.to_s)} onClear=${() => {
        setMark(null);
        box.current?.focus();
      }} />`}
    <//>
    ${listed?.bars && range && html`<${BarTable} chart=${listed} range=${mark ? { ...mark, live: false } : range} marked=${Boolean(mark)} selected=${selected} onClear=${() => setSelected("")} now_s=${now_s ?? listed.now_s}
      onSave=${(/** @type {number[]} */ bars) => download(chromeTrace(listed, bars))} />`}`;
}

/** Where the marked time stands in the rows; its own part beyond the view is cut. @param {{from_s: number, to_s: number}} mark @param {Range} range @param {number} width */
function markPlace(mark, range, width) {
  const place = (/** @type {number} */ time_s) => LABELS_PX + Math.min(1, Math.max(0, (time_s - range.from_s) / (range.to_s - range.from_s))) * (width - LABELS_PX);
  const [left, right] = [place(mark.from_s), place(mark.to_s)];
  return { left: `${left}px`, width: `${Math.max(1, right - left)}px`, top: `${AXIS_PX}px` };
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
