// @ts-check
// Decisions: what was placed where and by whom; where acting and shadow policy differ; one decision with its candidates.
import { useEffect, useRef, useState } from "../vendor/hooks.js";
import { get, useAnswer } from "../api.js";
import { basis, clusterTime, count, DASH, duration, interval, plural, words } from "../format.js";
import { html } from "../html.js";
import { keyOf } from "../live.js";
import { Answered, Empty, Facts, Meter, Notice, Panel, Scroll, Skeleton } from "../parts.js";
import { decisionPath, gpuPath, jobPath, setQuery } from "../router.js";
import { useMovingView } from "../session.js";
import { useTitle } from "../title.js";

const BASES = ["policy", "margin", "overdue", "out_of_range", "failed", "late", "missing"];

/** @param {number | null | undefined} value */
const score = (value) => (typeof value === "number" ? value.toFixed(3) : DASH);

/** @param {any} row */
function place(row) {
  const [first] = row.gpu_ids ?? [];
  if (!first) return html`<span class="quiet">nothing, hold</span>`;
  return html`<a href=${gpuPath(first)}>${first}</a>${row.gpu_count > 1 ? html` <span class="quiet num">and ${row.gpu_count - 1} more</span>` : ""}`;
}

/** @param {any} shadow */
function agreement(shadow) {
  if (!shadow) return html`<span class="quiet">no shadow</span>`;
  if (shadow.agrees) return html`<span class="quiet"><span aria-hidden="true">=</span> the same</span>`;
  return html`<span class="differs"><span aria-hidden="true">≠</span> ${shadow.job ? html`<a href=${jobPath(shadow.job)}>${shadow.job}</a> on ${shadow.gpu}` : "hold"}</span>`;
}

/** What the policy's base would have done. @param {any} row */
function ofBase(row) {
  if (!row.base) return html`<span class="quiet">${DASH}</span>`;
  if (row.base.agrees) return html`<span class="quiet"><span aria-hidden="true">=</span> the same</span>`;
  return row.base.job ? html`<a href=${jobPath(row.base.job)}>${row.base.job}</a> on ${row.base.gpu}` : "hold";
}

/** Groups of compared decisions: how many, and in how many the shadow differs. @param {any[]} rows @param {(row: any) => string} group */
function differing(rows, group) {
  /** @type {Map<string, {seen: number, differ: number}>} */
  const groups = new Map();
  for (const row of rows) {
    const name = group(row);
    const found = groups.get(name) ?? { seen: 0, differ: 0 };
    found.seen += 1;
    if (!row.shadow.agrees) found.differ += 1;
    groups.set(name, found);
  }
  return [...groups];
}

const LENGTHS = [1, 3, 10, 30, 100, 300, 1_000];

/** @param {number} waiting */
function lengthGroup(waiting) {
  const above = LENGTHS.findIndex((limit) => waiting <= limit);
  if (above < 0) return `more than ${count(LENGTHS.at(-1))} waiting`;
  return above === 0 ? "1 waiting" : `${count(LENGTHS[above - 1] + 1)} to ${count(LENGTHS[above])} waiting`;
}

/** Where acting and shadow policy differ, of the decisions that are listed. @param {{rows: any[]}} props */
function Differences({ rows }) {
  const compared = rows.filter((row) => row.shadow);
  if (compared.length < 2) return null;
  const differ = compared.filter((row) => !row.shadow.agrees).length;
  const groups = [...differing(compared, (row) => basis(row.basis)), ...differing([...compared].sort((one, other) => one.queue_length - other.queue_length), (row) => lengthGroup(row.queue_length))];
  return html`<${Panel} title="Where they differ" tools=${html`<span class="quiet num">${count(differ)} of the ${plural(compared.length, "decision")} below that were compared</span>`}>
    <div class="differences">${groups.map(([name, { seen, differ: some }]) => html`<span>${name}</span><${Meter} ratio=${some / seen} tone="4" label=${`${name}: ${some} of ${seen} differ`} /><span class="num quiet">${some} of ${seen}</span>`)}</div>
  <//>`;
}

const MOST_OLDER = 5_000;
/** Decisions before those of the live list, a page at a time. @param {URLSearchParams} query @param {any[]} rows */
function useOlder(query, rows) {
  const [older, setOlder] = useState({ key: "", rows: /** @type {any[]} */ ([]), to_s: /** @type {number | null} */ (null), error: "", asking: false });
  const key = query.toString();
  const mine = older.key === key ? older : { key, rows: [], to_s: null, error: "", asking: false };
  const ask = async () => {
    // Those of the last moment may be on both pages: each is shown once.
    const to_s = mine.rows.length ? mine.to_s : rows.at(-1)?.time_s + 1e-6;
    if (typeof to_s !== "number" || Number.isNaN(to_s)) return;
    setOlder({ ...mine, asking: true, error: "" });
    const asked = new URLSearchParams({ count: "100", to: String(to_s) });
    for (const name of ["basis", "differs", "job"]) if (query.get(name)) asked.set(name, /** @type {string} */ (query.get(name)));
    try {
      const found = await get(`/api/decisions?${asked}`);
      // What the live list shows now leaves it later on.
      setOlder({ key, rows: [...(mine.rows.length ? mine.rows : rows), ...found.decisions], to_s: found.older_s, error: "", asking: false });
    } catch (error) {
      setOlder({ ...mine, asking: false, error: /** @type {Error} */ (error).message });
    }
  };
  // New ones push others out of the live list: those stay here, or they would be in neither.
  const before = useRef(rows);
  useEffect(() => {
    const present = new Set(rows.map((row) => row.id));
    const left = before.current.filter((row) => !present.has(row.id));
    before.current = rows;
    if (mine.rows.length && left.length) setOlder((old) => (old.key === key ? { ...old, rows: [...left, ...old.rows].slice(0, MOST_OLDER) } : old));
  }, [rows]);
  const known = new Set(rows.map((row) => row.id));
  return { rows: mine.rows.filter((row) => !known.has(row.id) && known.add(row.id)), more: rows.length > 0 && (!mine.rows.length || mine.to_s !== null), ask, asking: mine.asking, error: mine.error };
}

/** @param {{query: URLSearchParams}} props */
function List({ query }) {
  useTitle("Decisions");
  const view = useMovingView(keyOf("decisions", { basis: query.get("basis"), count: 100, differs: query.get("differs") === "1" ? 1 : null, job: query.get("job") }));
  const newest = view.data?.rows ?? [];
  const older = useOlder(query, newest);
  const rows = [...newest, ...older.rows];
  // In short, a decision has no scores; and not every policy has a base.
  const scored = rows.some((row) => typeof row.score === "number");
  const based = rows.some((row) => row.base);
  return html`<h1>Decisions</h1>
    <form class="filters" role="search" aria-label="Filter the decisions" onSubmit=${(/** @type {Event} */ event) => event.preventDefault()}>
      <label class="check"><input type="checkbox" checked=${query.get("differs") === "1"} onChange=${(/** @type {any} */ event) => setQuery({ differs: event.target.checked ? "1" : "" })} /> only where the shadow policy differs</label>
      <label class="field inline"><span>Decided because</span><select value=${query.get("basis") ?? ""} onChange=${(/** @type {any} */ event) => setQuery({ basis: event.target.value })}>
        <option value="">any</option>${BASES.map((name) => html`<option key=${name} value=${name}>${basis(name)}</option>`)}</select></label>
      <label class="field inline"><span>Job</span><input type="search" class="short" spellcheck=${false} value=${query.get("job") ?? ""} onChange=${(/** @type {any} */ event) => setQuery({ job: event.target.value.trim() })} /></label>
    </form>
    ${query.get("differs") !== "1" && html`<${Differences} rows=${rows} />`}
    <${Panel} title="Newest first" view=${view} tools=${view.data && html`<span class="quiet num">${plural(rows.length, "decision")}</span>`}>
      ${!view.data
        ? html`<${Skeleton} what="The decisions" rows=${8} />`
        : rows.length === 0
          ? html`<${Empty}>No decision fits the filter.<//>`
          : html`<${Scroll} label="Decisions"><table>
              <thead><tr><th scope="col">Decision</th><th scope="col" class="number">Time</th><th scope="col" class="number c-mid">Waiting</th><th scope="col">Job</th><th scope="col">Placed on</th>
                ${scored && html`<th scope="col" class="number c-mid">Score</th><th scope="col" class="number c-mid">Margin</th>`}${based && html`<th scope="col" class="c-mid">Its base</th>`}<th scope="col" class="c-mid">Because</th><th scope="col">Shadow</th><th scope="col" class="number c-mid">Took</th></tr></thead>
              <tbody>${rows.map((/** @type {any} */ row) => html`<tr key=${row.id}>
                <th scope="row"><a href=${decisionPath(row.id)}>${row.id}</a></th>
                <td class="number num">${clusterTime(row.time_s)}</td>
                <td class="number num c-mid">${count(row.queue_length)}</td>
                <td>${row.job ? html`<a href=${jobPath(row.job)}>${row.job}</a>` : DASH}</td>
                <td>${place(row)}</td>
                ${scored && html`<td class="number num c-mid">${score(row.score)}</td><td class="number num c-mid">${score(row.margin)}</td>`}${based && html`<td class="c-mid">${ofBase(row)}</td>`}
                <td class="c-mid" title=${row.basis_text}>${row.basis === "policy" ? html`<span class="quiet">${row.deciding_policy}</span>` : basis(row.basis)}</td>
                <td>${agreement(row.shadow)}</td>
                <td class="number num c-mid">${typeof row.decision_us === "number" ? duration(row.decision_us / 1e6) : DASH}</td></tr>`)}</tbody></table><//>
            ${older.error && html`<${Notice} level="bad" role="alert">${older.error}<//>`}
            ${older.more && html`<p><button type="button" disabled=${older.asking} onClick=${older.ask}>${older.asking ? "Asking …" : "Older decisions"}</button></p>`}`}
    <//>`;
}

/** The best starts of all waiting jobs that the policy could have chosen. @param {{pairs: any[]}} props */
function Pairs({ pairs }) {
  return html`<${Scroll} label="Best starts of all waiting jobs"><table>
    <thead><tr><th scope="col">Job</th><th scope="col">GPU</th><th scope="col" class="c-mid">Model</th><th scope="col" class="number c-mid">Equal GPUs</th><th scope="col" class="number">Expected</th><th scope="col" class="number">Score</th></tr></thead>
    <tbody>${pairs.map((each) => html`<tr key=${`${each.job} ${each.gpu_id}`} class=${each.chosen ? "chosen" : ""}>
      <th scope="row"><a href=${jobPath(each.job)}>${each.job}</a></th>
      <td><a href=${gpuPath(each.gpu_id)}>${each.gpu_id}</a>${each.gpu_count > 1 ? html` <span class="quiet num">and ${each.gpu_count - 1} more</span>` : ""}</td><td class="c-mid">${each.gpu_model}</td>
      <td class="number num c-mid">${count(each.equal_gpu_count)}</td><td class="number num">${duration(each.expected_runtime_s)}</td>
      <td class="number num">${score(each.score)}${each.chosen ? html` <strong>chosen</strong>` : ""}</td></tr>`)}</tbody></table><//>`;
}

/** @param {{decision: any}} props */
function Candidates({ decision }) {
  const all = decision.candidates ?? [];
  if (!all.length) return html`<${Empty}>Its candidates are not recorded any more.<//>`;
  const scores = all.map((/** @type {any} */ each) => each.score).filter((/** @type {any} */ value) => typeof value === "number");
  const low = Math.min(...scores, decision.hold_score ?? Infinity);
  const high = Math.max(...scores, decision.hold_score ?? -Infinity);
  const width = (/** @type {number} */ value) => `${high > low ? 4 + (96 * (value - low)) / (high - low) : 100}%`;
  const row = (/** @type {any} */ each, /** @type {number} */ index, /** @type {boolean} */ chosen) => html`<tr key=${index} class=${chosen ? "chosen" : ""}>
    <td>${each.job ? html`<a href=${jobPath(each.job)}>${each.job}</a>` : html`<em>hold</em>`}</td>
    <td>${each.gpu_id ? html`<a href=${gpuPath(each.gpu_id)}>${each.gpu_id}</a>` : DASH}</td><td class="c-mid">${each.gpu_model}</td>
    <td class="number num">${duration(each.expected_runtime_s)}</td>
    <td class="number num">${score(each.score)}${chosen ? html` <strong>chosen</strong>` : ""}</td>
    <td class="bar-cell c-mid" aria-hidden="true">${typeof each.score === "number" && html`<span class="score-bar" style=${{ width: width(each.score) }}></span>`}</td></tr>`;
  const is = (/** @type {any} */ each) => each.job === decision.job && (decision.gpu_ids ?? []).includes(each.gpu_id);
  return html`<${Scroll} label="Candidates"><table>
    <thead><tr><th scope="col">Job</th><th scope="col">GPU</th><th scope="col" class="c-mid">Model</th><th scope="col" class="number">Expected</th><th scope="col" class="number">Score</th><th class="c-mid bar-cell"><span class="visually-hidden">Score as a bar</span></th></tr></thead>
    <tbody>${all.map((/** @type {any} */ each, /** @type {number} */ index) => row(each, index, is(each)))}
      ${typeof decision.hold_score === "number" && row({ score: decision.hold_score }, all.length, !decision.job)}</tbody></table><//>
    ${decision.candidates_left_out > 0 && html`<p class="quiet">${plural(decision.candidates_left_out, "more candidate")} with lower scores.</p>`}`;
}

/** @param {{id: string}} props */
function One({ id }) {
  useTitle(id);
  const answer = useAnswer(`/api/decisions/${encodeURIComponent(id)}`);
  return html`<div class="title"><h1>Decision ${id}</h1><div class="tools"><a class="button" href="/decisions">All decisions</a></div></div>
    <${Answered} answer=${answer} what="The decision" rows=${8}>${(/** @type {any} */ data) => {
      const decision = data.decision;
      const other = decision.deciding_policy && decision.deciding_policy !== decision.policy;
      const shadow = decision.shadow;
      const forecast = decision.prediction;
      return html`
        <${Panel} title="What was decided">
          <p class="sentence">${decision.summary || html`${decision.job} was placed on ${(decision.gpu_ids ?? []).join(", ")}.`}</p>
          ${other && html`<${Notice} level="warn">${decision.deciding_policy} decided, not ${decision.policy}: ${basis(decision.basis)}${decision.basis_text ? ` (${decision.basis_text})` : ""}.<//>`}
          <${Facts} rows=${[["Time", clusterTime(decision.time_s)], ["Waiting then", count(decision.queue_length)], ["Job", decision.job ? html`<a href=${jobPath(decision.job)}>${decision.job}</a>` : ""], ["On", place(decision)],
            ["Margin to the second", score(decision.margin)], ["Needed over its base", typeof decision.needed_margin === "number" ? score(decision.needed_margin) : ""], ["Value of holding", score(decision.hold_score)], ["Took", typeof decision.decision_us === "number" ? duration(decision.decision_us / 1e6) : ""]]} />
          ${(shadow || decision.base) && html`<table class="compact"><thead><tr><td></td><th scope="col">Policy</th><th scope="col">Job</th><th scope="col">GPU</th></tr></thead><tbody>
            <tr><th scope="row">acting</th><td>${decision.deciding_policy || decision.policy}</td><td>${decision.job ?? "hold"}</td><td>${(decision.gpu_ids ?? [DASH])[0]}</td></tr>
            ${shadow && html`<tr><th scope="row">shadow</th><td>${shadow.policy}</td><td>${shadow.job ?? "hold"}</td><td>${shadow.gpu ?? DASH}</td></tr>`}
            ${decision.base && html`<tr><th scope="row">base's choice</th><td></td><td>${decision.base.job ?? "hold"}</td><td>${decision.base.gpu ?? DASH}</td></tr>`}</tbody></table>`}
          ${shadow && html`<p class="quiet">${shadow.agrees ? "Both chose the same." : "They differ here. One decision tells nothing of who is better: see Policies for a paired replay."}</p>`}
        <//>
        <${Panel} title="Candidates"><${Candidates} decision=${decision} /><//>
        ${decision.pairs?.length > 0 && html`<${Panel} title="Best starts of all waiting jobs"><${Pairs} pairs=${decision.pairs} /><//>`}
        <div class="columns">
          <${Panel} title="Out of the question">${decision.masked?.length
            ? html`<table class="compact"><thead><tr><th scope="col">Reason</th><th scope="col" class="number">GPUs</th><th scope="col">Such as</th></tr></thead><tbody>
                ${decision.masked.map((/** @type {any} */ each) => html`<tr key=${each.reason}><th scope="row">${words(each.reason)}</th><td class="number num">${count(each.gpu_count)}</td><td>${(each.example_gpu_ids ?? []).slice(0, 3).join(", ")}</td></tr>`)}</tbody></table>`
            : html`<${Empty}>Every GPU was a candidate.<//>`}<//>
          <${Panel} title="Predicted then, and what came">${forecast
            ? html`<p class="sentence">Predicted <strong class="num">${duration(forecast.median_s)}</strong> <span class="num">(${interval(forecast.low_s, forecast.high_s)})</span> on ${forecast.gpu_model}.
                ${typeof decision.ran_s === "number" ? html` It ran <strong class="num">${duration(decision.ran_s)}</strong>.` : " It has not ended yet."}</p>`
            : html`<${Empty}>No prediction is recorded with this decision.<//>`}<//>
        </div>`;
    }}<//>`;
}

/** @param {{id: string, query: URLSearchParams}} props */
export default function Decisions({ id, query }) {
  return id ? html`<${One} id=${id} />` : html`<${List} query=${query} />`;
}
