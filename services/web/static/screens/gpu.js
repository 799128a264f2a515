// @ts-check
// GPU: what it is, what runs on it, how it fared in the last hour, and whether it is slower than its model.
import { useState } from "../vendor/hooks.js";
import { post, useAnswer } from "../api.js";
import { Chart } from "../chart.js";
import { clusterTime, count, DASH, duration, mib, percent, plural, withUnit } from "../format.js";
import { html } from "../html.js";
import { keyOf } from "../live.js";
import { Answered, Confirm, Empty, Facts, Figure, JobState, Notice, Panel, Scroll, Skeleton } from "../parts.js";
import { jobPath } from "../router.js";
import { may, useView } from "../session.js";
import { useTitle } from "../title.js";

/** @type {[string, string, string, number][]} name, words, unit, factor */
const SERIES = [
  ["utilization_ratio", "Utilization", "%", 100],
  ["memory_used_mib", "Memory used", "GiB", 1 / 1024],
  ["temperature_c", "Temperature", "°C", 1],
  ["power_w", "Power", "W", 1],
];

/** @param {{drift: any}} props */
function Drift({ drift }) {
  if (!drift || !drift.job_count) return html`<${Empty}>No finished job tells yet whether it is slower than its model.<//>`;
  const slower = drift.speed_ratio < 1;
  return html`<p class="sentence">It runs at <strong class="num">${percent(drift.speed_ratio)}</strong> of its model's speed, by ${plural(drift.job_count, "finished job")}.</p>
    ${drift.flagged
      ? html`<${Notice} level="warn">Flagged: ${slower ? "slower" : "other"} than chance explains (score ${count(drift.score, 2)}). Some healthy GPUs are flagged by chance too: look at its neighbours before you drain the node.<//>`
      : html`<p class="quiet">Within what chance explains (score ${count(drift.score, 2)}).</p>`}`;
}

/** @param {{id: string}} props */
export default function Gpu({ id }) {
  useTitle(id);
  const view = useView(keyOf("gpu", { id }));
  const answer = useAnswer(`/api/gpus/${encodeURIComponent(id)}?window_s=3600`, 10);
  const [asking, setAsking] = useState(false);
  const [reason, setReason] = useState("");
  const gpu = view.data ?? answer.data?.gpu;
  if (!gpu && answer.error) return html`<h1>${id}</h1><${Notice} level="bad" role="alert">${answer.error.message}<//><p><a href="/">To the cluster</a></p>`;
  if (!gpu) return html`<h1>${id}</h1><${Skeleton} what="The GPU" rows=${6} />`;
  const values = gpu.values ?? {};
  const jobs = gpu.jobs ?? [];
  const act = gpu.drained ? "undrain" : "drain";
  return html`
    <div class="title">
      <h1>${id} <span class="quiet name">${gpu.model}</span></h1>
      <span class="quiet">${gpu.state}${gpu.drained && gpu.state !== "drained" ? ", drained" : ""} · node ${gpu.node}</span>
      <div class="tools">
        ${answer.data?.grafana_url && html`<a class="button" href=${answer.data.grafana_url} target="_blank" rel="noreferrer">Open in Grafana</a>`}
        ${may("drain") && html`<button type="button" onClick=${() => setAsking(true)}>${gpu.drained ? "Take node back" : "Drain node"}</button>`}
      </div>
    </div>
    ${asking && html`<${Confirm} title=${gpu.drained ? `Take ${gpu.node} back?` : `Drain ${gpu.node}?`} act=${gpu.drained ? "Take back" : "Drain"} typed=${gpu.drained ? "" : gpu.node} onClose=${() => setAsking(false)}
      onAct=${() => post(`/api/actions/${act}`, gpu.drained ? { node_id: gpu.node } : { node_id: gpu.node, reason })}>
      <p>${gpu.drained ? "Jobs are placed on it again." : "Nothing new starts on its GPUs; what runs there runs on."}</p>
      ${!gpu.drained && html`<label class="field">Reason, for others <input type="text" value=${reason} onInput=${(/** @type {any} */ event) => setReason(event.target.value)} /></label>`}
    <//>`}
    <${Panel} title="Now" view=${view}>
      <dl class="figures">
        <${Figure} label="Utilization" value=${percent(values.utilization_ratio)} />
        <${Figure} label="Memory used" value=${html`${mib(values.memory_used_mib === undefined || values.memory_used_mib === null ? null : Math.round(values.memory_used_mib))} <span class="of">of ${mib(gpu.memory_mib)}</span>`} />
        <${Figure} label="Temperature" value=${withUnit(values.temperature_c, "°C")} note=${gpu.spec?.max_temperature_c ? `limit ${withUnit(gpu.spec.max_temperature_c, "°C")}` : ""} />
        <${Figure} label="Power" value=${withUnit(values.power_w, "W")} note=${gpu.spec?.power_limit_w ? `limit ${withUnit(gpu.spec.power_limit_w, "W")}` : ""} />
      </dl>
      <${Facts} rows=${[["Runs", jobs.length ? jobs.map((/** @type {string} */ job, /** @type {number} */ index) => html`${index ? ", " : ""}<a href=${jobPath(job)}>${job}</a>`) : "nothing"],
        ["Memory bandwidth", gpu.spec?.memory_bandwidth_gb_per_s ? withUnit(gpu.spec.memory_bandwidth_gb_per_s, "GB/s") : ""]]} />
    <//>
    <${Panel} title="Slower than its model?" view=${view}><${Drift} drift=${gpu.drift} /><//>
    <${Panel} title="Last hour">
      <${Answered} answer=${answer} what="The last hour">${(/** @type {any} */ data) => {
        const series = data.series;
        if (!series?.time_s?.length) return html`<${Empty}>No telemetry of this GPU in the last hour.<//>`;
        return html`<div class="trend">${SERIES.filter(([name]) => series.metrics[name]?.some((/** @type {any} */ value) => typeof value === "number")).map(
          ([name, label, unit, factor]) => html`<figure key=${name}><h3>${label}</h3><${Chart} label=${`${label} in the last hour`} axis="time" sync="gpu" height=${140} unit=${unit} x=${series.time_s}
            lines=${[{ name: label.toLowerCase(), values: series.metrics[name].map((/** @type {number | null} */ value) => (value === null ? null : value * factor)) }]} /></figure>`)}</div>`;
      }}<//>
    <//>
    ${answer.data?.attempts && html`<${Panel} title="Jobs of the last hour">
      <${Answered} answer=${answer} what="The jobs">${(/** @type {any} */ data) =>
        data.attempts?.length
          ? html`<${Scroll} label="Jobs of the last hour"><table class="compact"><thead><tr><th scope="col">Job</th><th scope="col" class="number">Start</th><th scope="col" class="number">Ran</th><th scope="col">Outcome</th></tr></thead>
              <tbody>${data.attempts.map((/** @type {any} */ each) => html`<tr key=${each.job + each.start_s}><th scope="row"><a href=${jobPath(each.job)}>${each.job}</a></th>
                <td class="number num">${clusterTime(each.start_s)}</td><td class="number num">${typeof each.end_s === "number" ? duration(each.end_s - each.start_s) : DASH}</td>
                <td><${JobState} state=${each.outcome || "running"} /></td></tr>`)}</tbody></table><//>`
          : html`<${Empty}>No job ran here in the last hour.<//>`}<//>
    <//>`}`;
}
