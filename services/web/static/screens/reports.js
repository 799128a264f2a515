// @ts-check
// Reports: evaluations as tables in the page's own look; the evaluation's own page in a frame that can't touch this one.
import { useAnswer } from "../api.js";
import { count, wallTime, words } from "../format.js";
import { html } from "../html.js";
import { Answered, Empty, Panel, Scroll } from "../parts.js";
import { useTitle } from "../title.js";

/** Rows that have a figure. @param {any} report @returns {any[]} */
const figures = (report) => (report.rows ?? []).filter((/** @type {any} */ row) => typeof row.mean === "number");

/** @param {{rows: any[]}} props */
function Summary({ rows }) {
  const cells = rows.some((row) => row.scenario || typeof row.load === "number");
  return html`<${Scroll} label="Results"><table class="compact"><thead><tr>${cells && html`<th scope="col">Scenario</th><th scope="col" class="number">Load</th>`}<th scope="col">Policy</th><th scope="col">Figure</th><th scope="col" class="number">Mean</th><th scope="col" class="number">95 % interval</th></tr></thead>
    <tbody>${rows.map((row, index) => html`<tr key=${index}>${cells && html`<td>${row.scenario}</td><td class="number num">${count(row.load, 1)}</td>`}<th scope="row">${row.policy}</th><td>${words(row.metric)}</td><td class="number num">${count(row.mean, 1)}</td><td class="number num">${count(row.low, 1)} to ${count(row.high, 1)}</td></tr>`)}</tbody></table><//>`;
}

/** @param {{id: string}} props */
export default function Reports({ id }) {
  useTitle(id || "Reports");
  const answer = useAnswer("/api/reports", id ? 0 : 30);
  return html`<h1>Reports</h1>
    <${Answered} answer=${answer} what="The reports" rows=${5}>${(/** @type {any} */ data) => {
      if (!data.reports.length) return html`<${Empty}>There is no report yet. <code>adlro evaluate</code> writes one.<//>`;
      return data.reports.map((/** @type {any} */ report) => html`<${Panel} key=${report.name} title=${report.title || report.name} tools=${html`<span class="quiet num">${wallTime(report.written_unix_s)} · ${count(report.size_bytes / 1e6, 1)} MB</span>
          <a class="button" href=${`/reports/${encodeURIComponent(report.name)}`} target="_blank" rel="noreferrer">Open the whole report</a>`}>
        ${figures(report).length ? html`<${Summary} rows=${figures(report)} />` : html`<${Empty}>It has no summary; open the whole report.<//>`}
      <//>`);
    }}<//>`;
}
