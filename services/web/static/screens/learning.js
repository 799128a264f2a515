// @ts-check
// Learning: curves of trainings, runs of one recipe together, a pinned baseline, and what differs in their settings.
import { useEffect, useState } from "../vendor/hooks.js";
import { get, useAnswer } from "../api.js";
import { Chart } from "../chart.js";
import { count, plural, wallTime, words } from "../format.js";
import { html } from "../html.js";
import { Answered, Empty, Notice, Panel, Scroll, Skeleton } from "../parts.js";
import { setQuery } from "../router.js";
import { useTitle } from "../title.js";

const MOST = 6; // runs in one figure

/** The chosen runs' curves, asked again while a training may go on. @param {string[]} ids @param {boolean} live */
function useRuns(ids, live) {
  const [runs, setRuns] = useState(/** @type {Record<string, any>} */ ({}));
  const [error, setError] = useState("");
  const key = ids.join("\n");
  useEffect(() => {
    const abort = new AbortController();
    const ask = () =>
      Promise.all(ids.map(async (id) => /** @type {const} */ ([id, await get(`/api/runs/${encodeURIComponent(id)}`, abort.signal)]))).then(
        (found) => {
          setRuns(Object.fromEntries(found));
          setError("");
        },
        (problem) => abort.signal.aborted || setError(problem.message),
      );
    void ask();
    const timer = live ? setInterval(() => document.hidden || ask(), 5_000) : undefined;
    return () => {
      abort.abort();
      clearInterval(timer);
    };
  }, [key, live]);
  return { runs, error };
}

/** What counts how far a training has come, the most comparable first. */
const PROGRESS = ["decisions", "steps", "step"];
/** Columns that only grow with time: no figure of its own. */
const COUNTERS = new Set([...PROGRESS, "episodes", "elapsed_s"]);

/** One x axis for runs that scored at different steps. @param {any[]} runs @param {string} metric @param {string} progress */
function aligned(runs, metric, progress) {
  const steps = [...new Set(runs.flatMap((run) => run.columns[progress] ?? []))].sort((one, other) => one - other);
  const place = new Map(steps.map((step, index) => [step, index]));
  return {
    steps,
    columns: runs.map((run) => {
      /** @type {(number | null)[]} */
      const column = new Array(steps.length).fill(null);
      (run.columns[progress] ?? []).forEach((/** @type {number} */ step, /** @type {number} */ index) => {
        column[/** @type {number} */ (place.get(step))] = run.columns[metric]?.[index] ?? null;
      });
      return column;
    }),
  };
}

/** @param {{ids: string[], baseline: string, live: boolean}} props */
function Curves({ ids, baseline, live }) {
  const { runs, error } = useRuns(ids, live);
  const shown = ids.map((id) => runs[id]).filter(Boolean);
  if (!shown.length) return error ? html`<${Notice} level="bad" role="alert">${error}<//>` : html`<${Skeleton} what="The curves" rows=${5} />`;
  const names = [...new Set(shown.flatMap((run) => Object.keys(run.columns)))].filter((name) => !COUNTERS.has(name) && shown.some((run) => run.columns[name].some((/** @type {any} */ value) => typeof value === "number")));
  const progress = PROGRESS.find((name) => shown.every((run) => run.columns[name])) ?? "step";
  const all = [...new Set(shown.flatMap((run) => Object.keys(run.settings ?? {})))].sort();
  const differ = all.filter((name) => new Set(shown.map((run) => JSON.stringify(run.settings?.[name]))).size > 1);
  return html`
    ${error && html`<${Notice} level="warn">${error}<//>`}
    <${Panel} title="Curves" tools=${html`<span class="quiet">values as recorded, not smoothed</span>`}><div class="trend">
      ${names.map((name) => {
        const { steps, columns } = aligned(shown, name, progress);
        const lines = shown.map((run, index) => ({ name: run.id, values: columns[index], tone: String((ids.indexOf(run.id) % 8) + 1), width: run.id === baseline ? 3 : 1.5 }));
        return html`<figure key=${name}><h3>${words(name)} <span class="quiet">by ${progress}</span></h3><${Chart} label=${`${words(name)} by ${progress}`} sync="learning" x=${steps} lines=${lines} height=${190} /></figure>`;
      })}</div><//>
    ${shown.length > 1 && html`<${Panel} title="Settings that differ">${differ.length
      ? html`<${Scroll} label="Settings that differ"><table class="compact"><thead><tr><th scope="col">Setting</th>${shown.map((run) => html`<th key=${run.id} scope="col">${run.id}${run.id === baseline ? " (baseline)" : ""}</th>`)}</tr></thead>
          <tbody>${differ.map((name) => html`<tr key=${name}><th scope="row"><code>${name}</code></th>${shown.map((run) => html`<td key=${run.id} class="num">${JSON.stringify(run.settings?.[name]) ?? "–"}</td>`)}</tr>`)}</tbody></table><//>`
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
      const chosen = [...new Set([...(known.includes(baseline) ? [baseline] : []), ...(wished.length ? wished : known.slice(0, 2))])].slice(0, MOST);
      const live = runs.some((/** @type {any} */ run) => run.state === "running" && chosen.includes(run.id));
      const recipes = [...new Set(runs.map((/** @type {any} */ run) => run.recipe || ""))];
      return html`
        <${Curves} ids=${chosen} baseline=${baseline} live=${live} />
        <${Panel} title="Trainings" tools=${html`<span class="quiet">at most ${MOST} together</span>`}>
          ${recipes.map((recipe) => html`<section key=${recipe} aria-label=${`Recipe ${recipe || "without a name"}`}><h3>${recipe || "without a recipe"}</h3>
            <${Scroll} label=${`Trainings of ${recipe || "no recipe"}`}><table class="compact"><thead><tr><th scope="col">Shown</th><th scope="col">Training</th><th scope="col">Baseline</th><th scope="col">Begun</th>${runs.some((/** @type {any} */ run) => run.state) && html`<th scope="col">State</th>`}<th scope="col" class="number">Scores</th><th scope="col">Last</th></tr></thead>
              <tbody>${runs.filter((/** @type {any} */ run) => (run.recipe || "") === recipe).map((/** @type {any} */ run) => html`<tr key=${run.id}>
                <td><input type="checkbox" aria-label=${`Show ${run.id}`} checked=${chosen.includes(run.id)} disabled=${run.id === baseline || (!chosen.includes(run.id) && chosen.length >= MOST)}
                  onChange=${(/** @type {any} */ event) => setQuery({ runs: (event.target.checked ? [...chosen, run.id] : chosen.filter((id) => id !== run.id)).join(",") })} /></td>
                <th scope="row">${run.id}</th>
                <td><input type="radio" name="baseline" aria-label=${`${run.id} is the baseline`} checked=${run.id === baseline} onChange=${() => setQuery({ baseline: run.id })} /></td>
                <td>${wallTime(run.started_unix_s)}</td>${runs.some((/** @type {any} */ each) => each.state) && html`<td>${run.state}</td>`}<td class="number num">${count(run.row_count)}</td>
                <td class="num quiet">${Object.entries(run.last ?? {}).slice(0, 3).map(([name, value]) => `${name} ${typeof value === "number" ? count(value, Number.isInteger(value) ? 0 : 3) : value}`).join(" · ")}</td></tr>`)}</tbody></table><//></section>`)}
          <p class="quiet">${plural(runs.length, "training")}</p>
        <//>`;
    }}<//>`;
}
