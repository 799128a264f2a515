// @ts-check
// Cluster: what needs me? Head figures, alerts in words, and the map of nodes and GPUs.
import { useLayoutEffect, useRef, useState } from "../vendor/hooks.js";
import { Chart } from "../chart.js";
import { basis, count, duration, percent, plural, words } from "../format.js";
import { byteText, drifted, Heatmap, HIDDEN, stateText, summary } from "../heatmap.js";
import { html } from "../html.js";
import { Choice, Figure, Meter, Notice, Panel, Parts, Skeleton } from "../parts.js";
import { gpuPath, jobPath, navigate, setQuery } from "../router.js";
import { post } from "../api.js";
import { has, may, seesAll, useView } from "../session.js";
import { useTitle } from "../title.js";

/** @type {Record<string, string>} the same colour for a reason everywhere */
export const REASON_TONES = {
  resources: "1", policy: "2", launching: "3", gang_nodes: "4", reserved: "5", begin_time: "8", submitted: "8",
  nodes_drained: "warn", no_fitting_gpu: "bad", no_fitting_nodes: "bad", cluster_unavailable: "bad", launch_refused: "bad",
};

/** @param {Record<string, number> | undefined} numbers @param {(name: string, index: number) => string} tone @param {(name: string) => string | undefined} href @param {(name: string) => string} [text] */
function partsOf(numbers, tone, href, text = words) {
  return Object.entries(numbers ?? {})
    .filter(([, value]) => value > 0)
    .sort(([, one], [, other]) => other - one)
    .map(([name, value], index) => ({ name: text(name), value, tone: tone(name, index), href: href(name) }));
}

/** @param {{alerts: {level: string, text: string, href?: string}[]}} props */
function Alerts({ alerts }) {
  if (!alerts.length) return html`<${Notice} level="good">Nothing needs you.<//>`;
  return html`<ul class="alerts" aria-label="What needs you">
    ${alerts.map((alert) => html`<li key=${alert.text}><${Notice} level=${alert.level === "error" || alert.level === "bad" ? "bad" : alert.level === "info" ? "info" : "warn"}>
      ${alert.href?.startsWith("/") && alert.href !== "/" ? html`<a href=${alert.href}>${alert.text}</a>` : alert.text}<//></li>`)}
  </ul>`;
}

/** A simulated cluster's clock can be stopped. @param {{clock: {paused: boolean}}} props */
function Clock({ clock }) {
  const [error, setError] = useState("");
  const turn = () => post("/api/actions/clock", { paused: !clock.paused }).then(() => setError(""), (problem) => setError(problem.message));
  return html`${error && html`<span role="alert">${error}</span>`}<button type="button" onClick=${turn}>${clock.paused ? "Resume the clock" : "Pause the clock"}</button>`;
}

/** @param {{flagged: number, suspected?: number, by_chance: number}} drift */
const slower = (drift) => `${typeof drift.suspected === "number" ? `${count(drift.suspected)} more suspected, ` : ""}about ${count(drift.by_chance, drift.by_chance < 10 ? 1 : 0)} by chance`;

/** @param {{head: any}} props */
function HeadFigures({ head }) {
  const allocated = head.usable_gpus ? head.allocated_gpus / head.usable_gpus : null;
  const queue = (/** @type {string} */ reason) => (has("queue") ? `/queue?reason=${reason}&state=pending` : undefined);
  const fallback = head.deciding_policy && head.policy && head.deciding_policy !== head.policy;
  const flagged = head.drift?.flagged;
  const unusable = (head.lost_gpu_count ?? 0) > 0;
  return html`<dl class="figures">
    <${Figure} label="GPUs allocated" value=${html`${count(head.allocated_gpus)} <span class="of">of ${count(head.usable_gpus)}</span>`}
      note=${head.usable_gpus === head.gpu_count ? `${count(head.gpu_count)} in the cluster` : `${count(head.gpu_count)} in the cluster, ${unusable ? `${count(head.lost_gpu_count)} lost` : "the rest not usable"}`}>
      <div class="meters">
        ${allocated !== null && html`<span>allocated</span><${Meter} ratio=${allocated} label=${`allocated ${percent(allocated)}`} /><span class="num">${percent(allocated)}</span>`}
        ${typeof head.busy_ratio === "number" && html`<span>busy</span><${Meter} ratio=${head.busy_ratio} tone="3" label=${`busy ${percent(head.busy_ratio)}`} /><span class="num">${percent(head.busy_ratio)}</span>`}
      </div>
    <//>
    <${Figure} label="Waiting" href=${has("queue") ? "/queue?state=pending" : undefined} value=${count(head.queue_length)}>
      <${Parts} label="Waiting jobs by reason" parts=${partsOf(head.queue_by_reason, (name) => REASON_TONES[name] ?? "8", queue)} />
    <//>
    <${Figure} label="Running" href=${has("queue") ? "/queue?state=running" : undefined} value=${count(head.running)}>
      <${Parts} label="Running jobs by GPU model" parts=${partsOf(head.running_by_model, (_, index) => String((index % 8) + 1), () => undefined, (name) => name)} />
    <//>
    <${Figure} label="Wait, 95th percentile" value=${duration(head.wait_p95_s)} note="of the jobs that started lately" />
    <${Figure} label="Failed, last hour" value=${percent(head.failed_ratio_1h, 1)} level=${head.failed_ratio_1h > 0.1 ? "warn" : ""} note="of the jobs that ended" />
    ${seesAll() && html`<${Figure} label="Event lag" value=${typeof head.event_lag === "number" ? plural(head.event_lag, "event") : null}
      level=${head.event_lag > 100 ? "warn" : ""} note=${head.event_lag > 100 ? "the orchestrator has not yet heard of these" : "events of the cluster not yet taken in"} />`}
    ${head.policy && html`<${Figure} label="Decided by" href=${has("policies") ? "/policies" : undefined} value=${html`<span class="name">${head.deciding_policy || head.policy || "–"}</span>`}
      level=${fallback ? "warn" : ""} note=${fallback ? `${head.policy} is set, but: ${basis(head.deciding_basis)}` : "the policy that is set"} />`}
    ${typeof flagged === "number" && html`<${Figure} label="Slower than its model" value=${plural(flagged, "GPU")} note=${slower(head.drift)} />`}
  </dl>`;
}

/** @param {{data: any, metric: string}} props */
function Legend({ data, metric }) {
  const states = data.planes.state ?? new Uint8Array();
  const has_state = (/** @type {number} */ wanted) => states.some((/** @type {number} */ byte) => byte !== HIDDEN && (byte & 15) === wanted);
  const has_drift = states.some(drifted);
  return html`<div class="map-legend" aria-hidden="true">
    ${metric !== "state" && html`<span class="ramp">0 %${Array.from({ length: 16 }, (_, index) => html`<i key=${index} class=${`cell b${index}`}></i>`)}100 %</span>
      <span><i class="cell none"></i> not reported</span>`}
    ${metric === "state" && html`<span><i class="cell plain s0"></i> idle</span><span><i class="cell plain s1"></i> allocated</span>`}
    ${has_state(2) && html`<span><i class="cell plain s2"></i> shared</span>`}
    ${has_state(3) && html`<span><i class="cell plain s3"></i> lost</span>`}
    ${(has_state(4) || has_state(5)) && html`<span><i class="cell plain s4"></i> drained</span>`}
    ${states.includes(HIDDEN) && html`<span><i class="cell hidden-state"></i> not shown to you</span>`}
    ${has_drift && html`<span><i class="cell plain s0 drift"></i> slower than its model</span>`}
  </div>`;
}

/** @param {{data: any, index: number | null}} props */
function Inspector({ data, index }) {
  if (index === null || index >= data.gpus.length) return html`<p class="inspector quiet">Point at a GPU, or go there with Tab and the arrow keys; Enter opens ${seesAll() ? "it" : "your job there"}.</p>`;
  const jobs = data.jobs[index] ?? [];
  return html`<p class="inspector num">
    <strong>${data.gpus[index]}</strong> ${data.models[data.model[index]]} · ${stateText(data.planes.state?.[index] ?? 0)}
    ${data.metrics.map((/** @type {string} */ name) => (data.planes[name] ? html` · ${words(name)} ${byteText(data.planes[name][index])}` : null))}
    ${jobs.map((/** @type {string} */ id) => html` · <a href=${jobPath(id)}>${id}</a>`)}
  </p>`;
}

/** What a button of the map leads to: a GPU's page, or for who may not see that, to his own job there. @param {number} index @param {any} data */
function open(index, data) {
  const job = data.jobs[index]?.[0];
  if (seesAll()) navigate(gpuPath(data.gpus[index]));
  else if (job) navigate(jobPath(job));
}

/** @param {{query: URLSearchParams}} props */
function Map_({ query }) {
  const view = useView("gpus");
  const box = useRef(/** @type {HTMLDivElement | null} */ (null));
  const map = useRef(/** @type {Heatmap | null} */ (null));
  const [index, setIndex] = useState(/** @type {number | null} */ (null));
  const data = view.data;
  const latest = useRef(data);
  latest.current = data;
  const metrics = data ? ["state", ...data.metrics.filter((/** @type {string} */ name) => data.planes[name])] : [];
  const wanted = query.get("metric") ?? "";
  const metric = metrics.includes(wanted) ? wanted : metrics.includes("utilization") ? "utilization" : "state";
  // In the frame of the change: an effect after it would draw a second one.
  useLayoutEffect(() => {
    if (!data || !box.current) return;
    if (map.current?.box !== box.current) {
      map.current?.end();
      map.current = new Heatmap(
        box.current,
        (picked) => open(picked, latest.current),
        (looked) => looked !== null && setIndex(looked),
      );
    }
    map.current.draw(data, metric);
  }, [data, metric]);
  useLayoutEffect(() => () => map.current?.end(), []);
  const tools = data && html`<${Choice} label="What the colour tells" value=${metric} onChange=${(/** @type {string} */ name) => setQuery({ metric: name })}
    options=${metrics.map((name) => [name, words(name)])} />`;
  return html`<${Panel} title="Nodes and GPUs" view=${view} tools=${tools} class="map">
    ${data
      ? html`<p class="quiet num map-summary">${summary(data, metric)}</p>
          <div ref=${box} class="heatmap"></div>
          <${Inspector} data=${data} index=${index} /><${Legend} data=${data} metric=${metric} />`
      : html`<${Skeleton} what="The map of GPUs" rows=${5} />`}
  <//>`;
}

const KEPT = 600; // points of the curves

/** Figures of the last minutes: what the server remembers, then what came. @param {{head: any}} props */
function Trend({ head }) {
  const kept = useRef(/** @type {{time_s: number[], queue_length: (number|null)[], allocated_gpus: (number|null)[]}} */ ({ time_s: [], queue_length: [], allocated_gpus: [] }));
  const store = kept.current;
  const old = head.history;
  if (!store.time_s.length && old?.time_s?.length) {
    store.time_s = [...old.time_s];
    store.queue_length = [...(old.queue_length ?? [])];
    store.allocated_gpus = [...(old.allocated_gpus ?? [])];
  }
  const last = store.time_s.at(-1) ?? -1;
  if (typeof head.time_s === "number" && head.time_s > last) {
    store.time_s.push(head.time_s);
    store.queue_length.push(head.queue_length ?? null);
    store.allocated_gpus.push(head.allocated_gpus ?? null);
    if (store.time_s.length > KEPT) for (const column of [store.time_s, store.queue_length, store.allocated_gpus]) column.splice(0, column.length - KEPT);
  }
  if (store.time_s.length < 2) return html`<p class="empty">The curves begin now.</p>`;
  return html`<div class="trend">
    <${Chart} label="Jobs that wait, over the last minutes" axis="time" sync="cluster" height=${150} x=${[...store.time_s]} lines=${[{ name: "waiting", values: [...store.queue_length], tone: "1" }]} unit="jobs" />
    <${Chart} label="GPUs allocated, over the last minutes" axis="time" sync="cluster" height=${150} x=${[...store.time_s]} lines=${[{ name: "allocated", values: [...store.allocated_gpus], tone: "3" }]} unit="GPUs" />
  </div>`;
}

/** @param {{query: URLSearchParams}} props */
export default function Cluster({ query }) {
  useTitle("Cluster");
  const view = useView("head");
  const head = view.data;
  return html`<h1 class="visually-hidden">Cluster</h1>
    <${Panel} title=${head && !head.alerts ? "Your jobs" : "What needs you"} view=${view} class="head" tools=${head && may("clock") && head.clock && html`<${Clock} clock=${head.clock} />`}>
      ${head ? html`${head.alerts && html`<${Alerts} alerts=${head.alerts} />`}<${HeadFigures} head=${head} />` : html`<${Skeleton} what="The head figures" rows=${4} />`}
    <//>
    <${Map_} query=${query} />
    <${Panel} title="Last minutes" view=${view}>${head ? html`<${Trend} head=${head} />` : html`<${Skeleton} what="The curves" rows=${3} />`}<//>`;
}
