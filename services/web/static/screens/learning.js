// @ts-check
// Learning: curves of trainings, runs of one recipe together, a pinned baseline, and what differs in their settings.
import { useEffect, useRef, useState } from "../vendor/hooks.js";
import { get, useAnswer } from "../api.js";
import { Chart } from "../chart.js";
import { count, plural, wallTime, words } from "../format.js";
import { html } from "../html.js";
import { Answered, Choice, Empty, Notice, Panel, Scroll, Skeleton } from "../parts.js";
import { setQuery } from "../router.js";
import { differing, groupsOf, meanOf, onAxis, stepsOf, valuesOf } from "../runs.js";
import { useTitle } from "../title.js";

const MOST = 24; // runs in one figure
const FIRST = 8; // so many are shown before somebody chooses
/** @typedef {import("../runs.js").Run} Run */
/** @typedef {import("../runs.js").GroupBy} GroupBy */

/** The chosen runs' curves; one whose number of scores has grown is asked for again. @param {{id: string, row_count: number}[]} chosen */
function useRuns(chosen) {
  const [runs, setRuns] = useState(/** @type {Record<string, Run>} */ ({}));
  const [error, setError] = useState("");
  const had = useRef(/** @type {Map<string, number>} */ (new Map()));
  const key = chosen.map(({ id, row_count }) => `${id} ${row_count}`).join("\n");
  useEffect(() => {
    const abort = new AbortController();
    const wanted = chosen.filter(({ id, row_count }) => had.current.get(id) !== row_count);
    Promise.all(wanted.map(async ({ id }) => /** @type {const} */ ([id, await get(`/api/runs/${encodeURIComponent(id)}`, abort.signal)]))).then(
      (found) => {
        for (const { id, row_count } of wanted) had.current.set(id, row_count);
        setRuns((before) => ({ ...before, ...Object.fromEntries(found) }));
        setError("");
      },
      (problem) => abort.signal.aborted || setError(problem.message),
    );
    return () => abort.abort();
  }, [key]);
  return { runs, error };
}

/** What counts how far a training has come, the most comparable first. */
const PROGRESS = ["decisions", "steps", "step"];
/** Columns that only grow with time: no figure of its own. */
const COUNTERS = new Set([...PROGRESS, "episodes", "elapsed_s"]);
/** @type {[GroupBy, string][]} */
const GROUPINGS = [["recipe", "by recipe"], ["settings", "by equal settings"], ["none", "each alone"]];

/**
 * The lines of a figure: of each group its trainings, faint, and their mean within the lowest and the highest; the baseline
 * is never faint.
 * @param {import("../runs.js").Group[]} groups @param {(number | null)[]} axis @param {string} metric @param {string} progress @param {string} baseline
 */
function linesOf(groups, axis, metric, progress, baseline) {
  /** @type {import("../chart.js").Line[]} */
  const means = [];
  /** @type {import("../chart.js").Line[]} */
  const single = [];
  groups.forEach(({ name, runs }, index) => {
    const tone = String((index % 8) + 1);
    const mean = runs.length > 1 ? meanOf(runs, metric, progress) : null;
    for (const run of runs) {
      const pinned = run.id === baseline;
      const values = onAxis(axis, run.columns[progress] ?? [], run.columns[metric] ?? []);
      single.push({ name: pinned ? `${run.id} (baseline)` : run.id, values, tone, width: pinned ? 3 : mean ? 1 : 1.5, faint: Boolean(mean?.step.length) && !pinned });
    }
    if (!mean?.step.length) return;
    const column = (/** @type {number[]} */ values) => onAxis(axis, mean.step, values);
    means.push({ name: `mean of ${runs.length}: ${name}`, values: column(mean.mean), tone, width: 2, band: [column(mean.low), column(mean.high)] });
  });
  return [...single, ...means];
}

/** @param {{chosen: {id: string, row_count: number}[], baseline: string, by: GroupBy}} props */
function Curves({ chosen, baseline, by }) {
  const { runs, error } = useRuns(chosen);
  const shown = chosen.map(({ id }) => runs[id]).filter(Boolean);
  if (!shown.length) return error ? html`<${Notice} level="bad" role="alert">${error}<//>` : html`<${Skeleton} what="The curves" rows=${5} />`;
  const names = [...new Set(shown.flatMap((run) => Object.keys(run.columns)))].filter((name) => !COUNTERS.has(name) && shown.some((run) => run.columns[name]?.some((value) => typeof value === "number")));
  const progress = PROGRESS.find((name) => shown.every((run) => run.columns[name])) ?? "step";
  const groups = groupsOf(shown, by);
  const several = groups.some((group) => group.runs.length > 1);
  const axis = stepsOf(shown, progress);
  const differ = differing(shown);
  const of = (/** @type {import("../runs.js").Group} */ group) => (group.runs.some((run) => run.id === baseline) ? (group.runs.length > 1 ? " (with the baseline)" : " (baseline)") : "");
  return html`
    ${error && html`<${Notice} level="warn">${error}<//>`}
    <${Panel} title="Curves" tools=${html`<${Choice} label="Groups" value=${by} options=${GROUPINGS} onChange=${(/** @type {string} */ name) => setQuery({ group: name === "recipe" ? "" : name })} />`}>
      <p class="quiet">Values as recorded, not smoothed.${several ? " Of a group: the mean between the lowest and the highest, where all its trainings have scores; between two scores on a straight line. Single trainings are faint." : ""}</p>
      <div class="trend">${names.map((name) => html`<figure key=${name}><h3>${words(name)} <span class="quiet">by ${progress}</span></h3>
        <${Chart} label=${`${words(name)} by ${progress}`} sync="learning" x=${axis} lines=${linesOf(groups, axis, name, progress, baseline)} height=${190} /></figure>`)}</div><//>
    ${shown.length > 1 && html`<${Panel} title="Settings that differ">${differ.length
      ? html`<${Scroll} label="Settings that differ"><table class="compact"><thead><tr><th scope="col">Setting</th>${groups.map((group) => html`<th key=${group.name} scope="col">${group.name}${group.runs.length > 1 ? `, ${group.runs.length} trainings` : ""}${of(group)}</th>`)}</tr></thead>
          <tbody>${differ.map((name) => html`<tr key=${name}><th scope="row"><code>${name}</code></th>${groups.map((group) => {
            const values = valuesOf(group.runs, name);
            return html`<td key=${group.name} class="num">${values.length > 8 ? `${values.length} different values` : values.join(", ")}</td>`;
          })}</tr>`)}</tbody></table><//>`
      : html`<${Empty}>The settings are equal.<//>`}<//>`}`;
}

/** @param {{query: URLSearchParams}} props */
export default function Learning({ query }) {
  useTitle("Learning");
  const answer = useAnswer("/api/runs", 5);
  return html`<h1>Learning</h1>
    <${Answered} answer=${answer} what="The trainings" rows=${6}>${(/** @type {any} */ data) => {
      const runs = data.runs;
      if (!runs.length) return html`<${Empty}>There is no training yet. <code>adlro train</code> makes one.<//>`;
      const known = runs.map((/** @type {any} */ run) => run.id);
      const wished = (query.get("runs") ?? "").split(",").filter((id) => known.includes(id));
      const baseline = query.get("baseline") ?? runs.find((/** @type {any} */ run) => run.baseline)?.id ?? "";
      const chosen = [...new Set([...(known.includes(baseline) ? [baseline] : []), ...(wished.length ? wished : known.slice(0, FIRST))])].slice(0, MOST);
      const by = /** @type {GroupBy} */ (GROUPINGS.some(([name]) => name === query.get("group")) ? query.get("group") : "recipe");
      const recipes = [...new Set(runs.map((/** @type {any} */ run) => run.recipe || ""))];
      return html`
        <${Curves} chosen=${chosen.map((id) => runs.find((/** @type {any} */ run) => run.id === id))} baseline=${baseline} by=${by} />
        <${Panel} title="Trainings" tools=${html`<span class="quiet">at most ${MOST} together</span>`}>
          ${recipes.map((recipe) => html`<section key=${recipe} aria-label=${`Recipe ${recipe || "without a name"}`}><div class="title"><h3>${recipe || "without a recipe"}</h3>
              <button type="button" onClick=${() => setQuery({ runs: runs.filter((/** @type {any} */ run) => (run.recipe || "") === recipe).map((/** @type {any} */ run) => run.id).slice(0, MOST).join(",") })}>Show all of these</button></div>
            <${Scroll} label=${`Trainings of ${recipe || "no recipe"}`}><table class="compact"><thead><tr><th scope="col">Shown</th><th scope="col">Training</th><th scope="col">Baseline</th><th scope="col">Begun</th><th scope="col" class="number">Scores</th><th scope="col">Last</th></tr></thead>
              <tbody>${runs.filter((/** @type {any} */ run) => (run.recipe || "") === recipe).map((/** @type {any} */ run) => html`<tr key=${run.id}>
                <td><input type="checkbox" aria-label=${`Show ${run.id}`} checked=${chosen.includes(run.id)} disabled=${run.id === baseline || (!chosen.includes(run.id) && chosen.length >= MOST)}
                  onChange=${(/** @type {any} */ event) => setQuery({ runs: (event.target.checked ? [...chosen, run.id] : chosen.filter((id) => id !== run.id)).join(",") })} /></td>
                <th scope="row">${run.id}</th>
                <td><input type="radio" name="baseline" aria-label=${`${run.id} is the baseline`} checked=${run.id === baseline} onChange=${() => setQuery({ baseline: run.id })} /></td>
                <td>${wallTime(run.started_unix_s)}</td><td class="number num">${count(run.row_count)}</td>
                <td class="num quiet">${Object.entries(run.last ?? {}).slice(0, 3).map(([name, value]) => `${name} ${typeof value === "number" ? count(value, Number.isInteger(value) ? 0 : 3) : value}`).join(" · ")}</td></tr>`)}</tbody></table><//></section>`)}
          <p class="quiet">${plural(runs.length, "training")}</p>
        <//>`;
    }}<//>`;
}
