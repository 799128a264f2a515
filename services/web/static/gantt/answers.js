// @ts-check
// What ran around the view, as the page's server tells it: asked again when the view leaves it, and while it goes on.
import { useEffect, useRef, useState } from "../vendor/hooks.js";
import { get } from "../api.js";
import { withNewer } from "./rows.js";

export const MAX_BARS = 5_000;
/** @typedef {{from_s: number, to_s: number}} Area */
/** @typedef {Area & {live: boolean}} Range */

/** Bars around the view, asked again when the view leaves what is there. @param {Range | null} range @param {number | null} now_s */
export function useChart(range, now_s) {
  const [chart, setChart] = useState(/** @type {any} */ (null));
  const [error, setError] = useState("");
  const [round, setRound] = useState(0);
  /** The area of the last answer, and that of the request on its way. */
  const asked = useRef(/** @type {Area | null} */ (null));
  const flight = useRef(/** @type {{wanted: Area, abort: AbortController} | null} */ (null));
  const span = range ? range.to_s - range.from_s : 0;
  const covers = (/** @type {Area | null | undefined} */ area) =>
    range && area && range.from_s >= area.from_s && (range.to_s <= area.to_s || (now_s !== null && area.to_s >= now_s)) && span * 4 >= area.to_s - area.from_s;
  // What is on its way is waited for, however slow: a live view moves each second.
  const stale = Boolean(range) && !covers(asked.current) && !covers(flight.current?.wanted);
  useEffect(() => () => flight.current?.abort.abort(), []);
  useEffect(() => {
    if (!range || !stale) return undefined;
    const timer = setTimeout(() => {
      flight.current?.abort.abort();
      const wanted = { from_s: Math.max(0, range.from_s - span / 2), to_s: range.to_s + span / 2 };
      const abort = new AbortController();
      flight.current = { wanted, abort };
      get(`/api/gantt?from=${wanted.from_s.toFixed(3)}&max_bars=${MAX_BARS}&to=${wanted.to_s.toFixed(3)}`, abort.signal)
        .then(
          (data) => {
            asked.current = wanted;
            setChart(data);
            setError("");
          },
          (problem) => abort.signal.aborted || setError(problem.message),
        )
        .finally(() => {
          if (flight.current?.abort === abort) flight.current = null;
        });
    }, asked.current ? 120 : 0);
    return () => clearTimeout(timer);
  }, [stale, stale ? Math.round(range?.from_s ?? 0) : 0, stale ? Math.round(span) : 0, round]);
  const anew = () => {
    asked.current = null;
    setRound((before) => before + 1);
  };
  // Live: only what ran since the last answer is asked for, not the whole view again.
  const latest = useRef(/** @type {any} */ (null));
  latest.current = { chart, range };
  useEffect(() => {
    if (!range?.live) return undefined;
    const abort = new AbortController();
    const timer = setInterval(async () => {
      const { chart: old, range: view } = latest.current;
      if (document.hidden || !old || !view || !asked.current) return;
      if (!old.bars) return anew();
      const to_s = view.to_s + (view.to_s - view.from_s) / 2;
      try {
        const newer = await get(`/api/gantt?from=${Math.max(0, old.now_s - 1).toFixed(3)}&max_bars=${MAX_BARS}&to=${to_s.toFixed(3)}`, abort.signal);
        if (!newer.bars || newer.left_out || newer.gpus.length !== old.gpus.length || old.bars.gpu.length > 2 * MAX_BARS) return anew();
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
  return { chart, error, again: anew };
}
