// @ts-check
// Queue: jobs that wait or run, as a window on a list of any length; filters and order stand in the address.
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "../vendor/hooks.js";
import { count, duration, plural, visible, words } from "../format.js";
import { html } from "../html.js";
import { keyOf } from "../live.js";
import { Empty, JobState, Panel, Skeleton, Told } from "../parts.js";
import { jobPath, setQuery } from "../router.js";
import { seesAll, session, useMovingView, useView } from "../session.js";
import { waited } from "../jobs.js";
import { useTitle } from "../title.js";

const ROW_PX = 34;
const STEP = 10; // rows by which the window moves
const MOST = 200; // rows in a window, as the server allows
const SHOWN_AFTER_MS = 120; // old rows are pale from then on

/** @type {{name: string, label: string, class: string, sort: string, down?: boolean}[]} `down`: the first click sorts the largest first */
const COLUMNS = [
  { name: "place", label: "Place", class: "number c-wide", sort: "place" },
  { name: "job", label: "Job", class: "c-job", sort: "name" },
  { name: "user", label: "User", class: "c-mid", sort: "user" },
  { name: "type", label: "Type", class: "c-wide c-type", sort: "type" },
  { name: "state", label: "State", class: "", sort: "state" },
  { name: "why", label: "Why or where", class: "c-mid c-why", sort: "reason" },
  { name: "gpu_count", label: "GPUs", class: "number c-mid", sort: "gpu_count", down: true },
  { name: "priority", label: "Priority", class: "number c-wide", sort: "priority", down: true },
  { name: "wait_s", label: "Waited", class: "number", sort: "wait_s", down: true },
];

/** @param {string} text @param {number} wait_ms */
function useLate(text, wait_ms) {
  const [late, setLate] = useState(text);
  useEffect(() => {
    // What is over is over at once.
    const timer = setTimeout(() => setLate(text), text ? wait_ms : 0);
    return () => clearTimeout(timer);
  }, [text]);
  return late;
}

/** The filter in the server's words, from the address' parameters. @param {URLSearchParams} query */
export function filterOf(query) {
  const parts = [];
  for (const name of ["array", "state", "reason", "user", "type"]) {
    const value = query.get(name);
    if (value) parts.push(`${name}:${value}`);
  }
  return [...parts, ...(query.get("q") ?? "").split(/\s+/)].filter(Boolean).join(" ");
}

/** @param {{query: URLSearchParams, counts: any}} props */
function Filters({ query, counts }) {
  const [text, setText] = useState(query.get("q") ?? "");
  const address = query.get("q") ?? "";
  /** The last text that this box has written into the address itself: it must not come back over what was typed since. */
  const written = useRef(address);
  useEffect(() => {
    if (address === written.current) return;
    written.current = address;
    setText(address);
  }, [address]);
  useEffect(() => {
    const wanted = text.trim();
    if (wanted === address) return undefined;
    const timer = setTimeout(() => {
      written.current = wanted;
      setQuery({ q: wanted });
    }, 150);
    return () => clearTimeout(timer);
  }, [text, address]);
  const numbers = (/** @type {string} */ group, /** @type {string} */ name) => (counts?.[group]?.[name] ? ` (${count(counts[group][name])})` : "");
  const select = (/** @type {string} */ name, /** @type {string} */ label, /** @type {string} */ all, /** @type {string[]} */ values) => html`<label class="field inline"><span>${label}</span>
    <select value=${query.get(name) ?? ""} onChange=${(/** @type {any} */ event) => setQuery({ [name]: event.target.value })}>
      <option value="">${all}</option>
      ${[...new Set([...values, query.get(name) ?? ""])].filter(Boolean).map((value) => html`<option key=${value} value=${value}>${words(value) === "pending" ? "waiting" : words(value)}${numbers(name, value)}</option>`)}
    </select></label>`;
  const any = ["q", "array", "state", "reason", "user", "type"].some((name) => query.get(name));
  const array = query.get("array");
  const me = session.me?.user;
  return html`<form class="filters" role="search" aria-label="Filter the jobs" onSubmit=${(/** @type {Event} */ event) => event.preventDefault()}>
    <label class="field inline grow"><span>Name or id</span>
      <input type="search" value=${text} placeholder="press / to search" onInput=${(/** @type {any} */ event) => setText(event.target.value)} /></label>
    ${select("state", "State", array ? "any" : "not ended", ["pending", "running", "succeeded", "failed", "cancelled"])}
    ${select("reason", "Reason", "any", Object.keys(counts?.reason ?? {}))}
    <label class="field inline"><span>User</span>
      <input type="text" class="short" spellcheck=${false} value=${query.get("user") ?? ""} onChange=${(/** @type {any} */ event) => setQuery({ user: event.target.value.trim() })} /></label>
    ${me && seesAll() && html`<button type="button" aria-pressed=${query.get("user") === me ? "true" : "false"} onClick=${() => setQuery({ user: query.get("user") === me ? "" : me })}>Mine</button>`}
    ${array && html`<span class="badge soft">${array}</span>`}
    ${any && html`<button type="button" onClick=${() => setQuery({ q: "", array: "", state: "", reason: "", user: "", type: "" })}>Clear</button>`}
  </form>`;
}

/** How many jobs the list has, and of how many: those that have not ended. @param {number} total @param {any} states @param {URLSearchParams} query */
function countText(total, states, query) {
  const ended = !["", "pending", "running"].includes(query.get("state") ?? "") || query.get("array");
  return `${plural(total, "job")}${filterOf(query) && states && !ended ? ` of ${count((states.pending ?? 0) + (states.running ?? 0))}` : ""}`;
}

/** @param {any} job */
function whyOrWhere(job) {
  if (job.state === "pending") return job.reason ? words(job.reason) : "";
  const gpus = job.gpus ?? [];
  return job.gpu_count > 2 && gpus.length ? `${gpus[0]} and ${count(job.gpu_count - 1)} more` : gpus.join(", ");
}

/** @param {{job: any, index: number, active: boolean, now_s: number | null, onFocus: () => void}} props */
function Row({ job, index, active, now_s, onFocus }) {
  return html`<tr aria-rowindex=${index + 2} data-index=${index}>
    <td class="number c-wide num">${job.place ? count(job.place) : ""}</td>
    <th scope="row" class="c-job"><a href=${jobPath(job.id)} tabindex=${active ? 0 : -1} onFocus=${onFocus}>${job.id}</a> <span class="quiet" title=${visible(job.name)}><bdi>${visible(job.name)}</bdi></span></th>
    <td class="c-mid">${job.user}</td>
    <td class="c-wide">${words(job.type)}</td>
    <td><${JobState} state=${job.state} /></td>
    <td class="c-mid c-why" title=${visible(job.message)}>${whyOrWhere(job)}</td>
    <td class="number c-mid num">${count(job.gpu_count)}</td>
    <td class="number c-wide num">${typeof job.priority === "number" ? job.priority.toFixed(2) : "–"}</td>
    <td class="number num">${duration(waited(job, now_s))}</td>
  </tr>`;
}

/**
 * Keys of rows. A job keeps its elements while most of the window stays; one that comes takes those of one that has gone:
 * a browser writes texts anew in half of the time that new elements take. After another order or filter all elements stay
 * where they are.
 */
export class RowKeys {
  constructor() {
    /** @type {Map<string, number>} by job, in the order of the rows */
    this.keys = new Map();
    this.count = 0;
  }

  /** @param {any[]} rows @param {Element | null} focused its row becomes no other job's: who is there would be led astray @returns {number[]} */
  of(rows, focused) {
    const ids = rows.filter(Boolean).map((job) => job.id);
    const staying = new Set(ids.filter((id) => this.keys.has(id)));
    const path = focused?.getAttribute("href");
    const held = [...this.keys.keys()].find((id) => jobPath(id) === path);
    if (held === undefined && staying.size < ids.length / 2) staying.clear();
    // Elements that are lent may have to be moved, and one that is moved loses the focus.
    const free = held === undefined ? [...this.keys].filter(([id]) => !staying.has(id)).map(([, key]) => key).reverse() : [];
    this.keys = new Map(ids.map((id) => [id, (staying.has(id) ? this.keys.get(id) : free.pop()) ?? (this.count += 1)]));
    return rows.map((job) => this.keys.get(job?.id) ?? 0);
  }
}

/** @param {{query: URLSearchParams}} props */
export default function Queue({ query }) {
  useTitle("Queue");
  const filter = filterOf(query);
  const sort = query.get("sort") ?? "";
  const box = useRef(/** @type {HTMLDivElement | null} */ (null));
  const [top, setTop] = useState(0);
  const [height, setHeight] = useState(600);
  const [active, setActive] = useState(0);
  const move = useRef(false);
  const focused = useRef(/** @type {Element | null} */ (null));
  const keys = useRef(new RowKeys());
  const rowsSeen = Math.ceil(height / ROW_PX);
  const size = Math.min(MOST, Math.ceil((rowsSeen + 2 * STEP) / STEP) * STEP);
  const from = useLate(String(Math.max(0, Math.floor((top / ROW_PX - STEP) / STEP) * STEP)), 40);
  const view = useMovingView(keyOf("queue", { count: size, filter, from: Number(from), sort }));
  const data = view.data;
  // Most answers are there before anybody could see that they are waited for: until then nothing is drawn, and heads
  // and numbers tell of the rows that are seen.
  const late = useLate(view.moving ? "moving" : "", SHOWN_AFTER_MS);
  const awaited = view.moving && late !== "";
  const last = useRef({ query, sort, view });
  if (!view.moving || awaited) last.current = { query, sort, view };
  const seen = last.current;
  const now_s = useView("head").data?.time_s ?? null;
  const total = data?.total ?? 0;

  useEffect(() => {
    if (box.current) box.current.scrollTop = 0;
    setActive(0);
  }, [filter, sort]);
  useEffect(() => {
    if (!box.current) return undefined;
    const watch = new ResizeObserver(() => setHeight(box.current?.clientHeight ?? 600));
    watch.observe(box.current);
    return () => watch.disconnect();
  }, [data === null]);
  useLayoutEffect(() => {
    // A row with the focus that leaves the list, or the window, takes the focus with it: arrows must go on.
    const lost = focused.current !== null && !focused.current.isConnected && document.activeElement === document.body;
    if (!move.current && !lost) return;
    const link = box.current?.querySelector(`tr[data-index="${Math.min(active, total - 1)}"] a`);
    if (link instanceof HTMLElement) {
      move.current = false;
      link.focus({ preventScroll: true });
    } else if (lost) {
      box.current?.focus({ preventScroll: true });
    }
  });

  /** @param {KeyboardEvent} event */
  const onKey = (event) => {
    const steps = /** @type {Record<string, number>} */ ({ ArrowDown: 1, ArrowUp: -1, PageDown: rowsSeen - 2, PageUp: 2 - rowsSeen, Home: -total, End: total });
    const step = steps[event.key];
    if (step === undefined || event.ctrlKey || event.altKey || event.metaKey || !box.current || !total) return;
    event.preventDefault();
    const next = Math.min(total - 1, Math.max(0, active + step));
    const at = next * ROW_PX;
    if (at < box.current.scrollTop) box.current.scrollTop = at;
    else if (at > box.current.scrollTop + height - 3 * ROW_PX) box.current.scrollTop = at - height + 3 * ROW_PX;
    move.current = true;
    setActive(next);
  };

  /** Whether an order is that of a column; without a wish it is that of places. @param {{sort: string}} column @param {string} wish */
  const ordered = (column, wish) => wish.replace("-", "") === column.sort || (!wish && column.sort === "place");
  /** @param {{sort: string, down?: boolean}} column */
  const order = (column) => {
    const down = ordered(column, sort) ? !sort.startsWith("-") : (column.down ?? false);
    setQuery({ sort: (down ? "-" : "") + column.sort });
  };
  // The list may have become shorter than where this window begins: the browser then scrolls back to the list's end.
  const first = Math.min(data?.from ?? 0, total);
  const rows = data?.rows ?? [];
  const stop = active >= first && active < first + rows.length ? active : first;
  // The same elements while nothing of them changes: sixty rows are not gone through for a click on a column's head.
  const drawn = useMemo(
    () => keys.current.of(rows, document.activeElement).map((key, index) => rows[index] && html`<${Row} key=${key} job=${rows[index]} index=${first + index} active=${first + index === stop} now_s=${now_s} onFocus=${() => setActive(first + index)} />`),
    [data?.rows, first, stop, now_s],
  );
  const told = filter ? `${plural(total, "job")} ${total === 1 ? "fits" : "fit"} the filter` : "";
  return html`<h1>Queue</h1>
    <${Filters} query=${query} counts=${data?.counts} />
    <${Panel} title="Jobs" view=${seen.view} class="queue"
      tools=${html`<${Told} topic=${filter} text=${data && !view.moving ? told : null} />${data && html`<span class="num quiet">${countText(total, data.counts?.state, seen.query)}</span>`}`}>
      ${!data
        ? html`<${Skeleton} what="The queue" rows=${8} />`
        : html`<div class=${`queue-box ${awaited ? "moving" : ""}`} ref=${box} tabindex=${total ? -1 : 0} onScroll=${(/** @type {any} */ event) => setTop(event.target.scrollTop)} onKeyDown=${onKey}
            onFocusIn=${(/** @type {any} */ event) => (focused.current = event.target)} onFocusOut=${(/** @type {any} */ event) => queueMicrotask(() => event.target.isConnected && focused.current === event.target && (focused.current = null))}>
            <table aria-rowcount=${total + 1} aria-label="Jobs">
              <thead><tr aria-rowindex=${1}>
                ${COLUMNS.map((column) => {
                  const here = ordered(column, seen.sort);
                  const down = seen.sort.startsWith("-");
                  return html`<th key=${column.name} scope="col" class=${column.class} aria-sort=${here ? (down ? "descending" : "ascending") : undefined}>
                    <button type="button" onClick=${() => order(column)}>${column.label}<span aria-hidden="true">${here ? (down ? " ↓" : " ↑") : ""}</span></button></th>`;
                })}
              </tr></thead>
              <tbody>
                ${first > 0 && html`<tr key="before" aria-hidden="true"><td style=${{ height: `${first * ROW_PX}px`, padding: 0 }}></td></tr>`}
                ${drawn}
                ${first + rows.length < total && html`<tr key="after" aria-hidden="true"><td style=${{ height: `${(total - first - rows.length) * ROW_PX}px`, padding: 0 }}></td></tr>`}
              </tbody>
            </table>
            ${total === 0 && html`<${Empty}>${filter ? "No job fits the filter." : "No job waits or runs."}<//>`}
          </div>`}
    <//>`;
}
