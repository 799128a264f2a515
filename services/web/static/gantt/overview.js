// @ts-check
// All of the time that is known as a strip: how many GPUs were allocated, and the view as a window that moves over it.
import { useEffect, useLayoutEffect, useRef, useState } from "../vendor/hooks.js";
import { useAnswer } from "../api.js";
import { clusterTime, percent } from "../format.js";
import { html } from "../html.js";
import { colour, onTheme } from "../theme.js";

const HEIGHT_PX = 44;
const LONGEST_S = 86_400;
/** The strip is asked for again when it lacks about this part of its length. */
const RENEWED_RATIO = 0.02;
/** @typedef {{from_s: number, to_s: number}} Span */
/** @typedef {"move" | "from" | "to"} Hold */

/**
 * @param {object} props
 * @param {Span & {live: boolean}} props.range the view
 * @param {number} props.now_s
 * @param {number} props.gpu_count
 * @param {Span | null} props.mark
 * @param {(from_s: number, to_s: number) => void} props.onShow
 * @param {() => void} props.onLive
 * @param {number} props.shortest_s of a view
 * @param {number} props.longest_s
 */
export function Overview({ range, now_s, gpu_count, mark, onShow, onLive, shortest_s, longest_s }) {
  const [every_s, setEvery] = useState(60);
  const { data } = useAnswer(`/api/load?span_s=${LONGEST_S}`, every_s);
  const wanted_s = data ? 2 ** Math.ceil(Math.log2(Math.min(600, Math.max(15, (data.now_s - data.from_s) * RENEWED_RATIO)))) : every_s;
  useEffect(() => setEvery(wanted_s), [wanted_s]);
  const box = useRef(/** @type {HTMLDivElement | null} */ (null));
  const canvas = useRef(/** @type {HTMLCanvasElement | null} */ (null));
  const [width, setWidth] = useState(0);
  const [theme, setTheme] = useState(0);
  const grip = useRef(/** @type {{hold: Hold, at_s: number, range: Span, whole: Span} | null} */ (null));
  useEffect(() => onTheme(() => setTheme((before) => before + 1)), []);
  useEffect(() => {
    const watch = new ResizeObserver(() => box.current && setWidth(box.current.clientWidth));
    if (box.current) watch.observe(box.current);
    return () => watch.disconnect();
  }, []);
  // A view of a time before is in it too; while the window is moved nothing else moves.
  const known_s = data?.from_s ?? range.from_s;
  const whole = grip.current?.whole ?? { from_s: Math.min(known_s, range.from_s), to_s: Math.max(now_s, range.to_s) };
  const length_s = Math.max(1, whole.to_s - whole.from_s);

  useLayoutEffect(() => {
    const context = canvas.current?.getContext("2d");
    if (!canvas.current || !context || !width || !data) return;
    const scale = Math.min(2, devicePixelRatio || 1);
    Object.assign(canvas.current, { width: Math.round(width * scale), height: Math.round(HEIGHT_PX * scale) });
    context.scale(scale, scale);
    const x = (/** @type {number} */ time_s) => ((time_s - whole.from_s) / length_s) * width;
    const y = (/** @type {number} */ taken) => HEIGHT_PX - Math.min(1, taken / Math.max(1, gpu_count)) * (HEIGHT_PX - 4);
    const { time_s, count } = data.allocated;
    // Before all is known nothing is drawn: hatched, as a time without figures.
    context.fillStyle = colour("--line");
    for (let at = -HEIGHT_PX; at < x(time_s[0]); at += 8) {
      context.save();
      context.beginPath();
      context.rect(0, 0, x(time_s[0]), HEIGHT_PX);
      context.clip();
      context.translate(at, HEIGHT_PX);
      context.rotate(-Math.PI / 4);
      context.fillRect(0, 0, HEIGHT_PX * 2, 1);
      context.restore();
    }
    context.fillStyle = colour("--tone-1");
    context.beginPath();
    context.moveTo(x(time_s[0]), HEIGHT_PX);
    for (let index = 0; index < time_s.length; index += 1) {
      if (index) context.lineTo(x(time_s[index]), y(count[index - 1]));
      context.lineTo(x(time_s[index]), y(count[index]));
    }
    context.lineTo(x(time_s[time_s.length - 1]), HEIGHT_PX);
    context.fill();
  }, [data, width, theme, gpu_count, Math.round(whole.from_s), Math.round(length_s)]);

  /** Keeps a view within what the strip has. @param {number} from_s @param {number} to_s @param {Span} [within] */
  const show = (from_s, to_s, within = whole) => {
    const span_s = Math.min(longest_s, Math.max(shortest_s, to_s - from_s));
    const begin_s = Math.max(within.from_s, Math.min(from_s, within.to_s - span_s));
    onShow(begin_s, begin_s + span_s);
  };
  /** @param {PointerEvent} event */
  const timeAt = (event) => {
    const place = /** @type {HTMLElement} */ (box.current).getBoundingClientRect();
    const of = grip.current?.whole ?? whole;
    return of.from_s + ((event.clientX - place.left) / Math.max(1, place.width)) * (of.to_s - of.from_s);
  };
  /** @param {PointerEvent} event */
  const onDown = (event) => {
    if (event.button !== 0) return;
    const hold = /** @type {Hold | undefined} */ (/** @type {HTMLElement} */ (event.target).dataset.hold);
    const at_s = timeAt(event);
    let { from_s, to_s } = range;
    if (!hold) {
      // Beside the window: it comes there.
      [from_s, to_s] = [at_s - (to_s - from_s) / 2, at_s + (to_s - from_s) / 2];
      show(from_s, to_s);
    }
    grip.current = { hold: hold ?? "move", at_s, range: { from_s, to_s }, whole };
    /** @type {HTMLElement} */ (box.current).setPointerCapture(event.pointerId);
  };
  /** @param {PointerEvent} event */
  const onMove = (event) => {
    const held = grip.current;
    if (!held) return;
    const by_s = timeAt(event) - held.at_s;
    const { from_s, to_s } = held.range;
    if (held.hold === "move") show(from_s + by_s, to_s + by_s, held.whole);
    else if (held.hold === "from") show(Math.max(held.whole.from_s, Math.min(from_s + by_s, to_s - shortest_s)), to_s, held.whole);
    else show(from_s, Math.min(held.whole.to_s, Math.max(to_s + by_s, from_s + shortest_s)), held.whole);
  };
  const onUp = () => void (grip.current = null);
  /** @param {KeyboardEvent} event */
  const onKey = (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const { from_s, to_s } = range;
    const span_s = to_s - from_s;
    const move = (/** @type {number} */ ratio) => show(from_s + ratio * span_s, to_s + ratio * span_s);
    const size = (/** @type {number} */ factor) => show(from_s, from_s + Math.min(span_s * factor, whole.to_s - from_s));
    const step = event.key === "ArrowLeft" || event.key === "ArrowDown" ? -0.1 : 0.1;
    if (event.key.startsWith("Arrow")) event.shiftKey ? size(1 + step) : move(step);
    else if (event.key === "PageUp") move(-1);
    else if (event.key === "PageDown") move(1);
    else if (event.key === "Home") show(whole.from_s, whole.from_s + span_s);
    else if (event.key === "End") onLive();
    else return;
    event.preventDefault();
  };
  const place = (/** @type {Span} */ span) => {
    const left = Math.max(0, (span.from_s - whole.from_s) / length_s);
    const right = Math.min(1, (span.to_s - whole.from_s) / length_s);
    return { left: `${left * 100}%`, width: `${Math.max(0, right - left) * 100}%` };
  };
  const last = data?.allocated.count.at(-1);
  return html`<div class="overview" ref=${box} onPointerDown=${onDown} onPointerMove=${onMove} onPointerUp=${onUp} onPointerCancel=${onUp} style=${{ height: `${HEIGHT_PX}px` }}>
    <canvas ref=${canvas} role="img" aria-label=${`GPUs allocated since ${clusterTime(data?.from_s)}${typeof last === "number" && gpu_count ? `, now ${percent(last / gpu_count)}` : ""}`}></canvas>
    ${mark && mark.to_s > whole.from_s && html`<div class="overview-mark" aria-hidden="true" style=${place(mark)}></div>`}
    <div class="overview-window" data-hold="move" role="slider" tabindex="0" aria-label="The view, in all of the time that is known. Arrows move it, with Shift they change its length."
      aria-valuemin=${Math.round(whole.from_s)} aria-valuemax=${Math.round(whole.to_s)} aria-valuenow=${Math.round(range.from_s)}
      aria-valuetext=${`${clusterTime(range.from_s)} to ${range.live ? "now" : clusterTime(range.to_s)}`} onKeyDown=${onKey} style=${place(range)}>
      <span data-hold="from"></span><span data-hold="to"></span></div>
  </div>`;
}
