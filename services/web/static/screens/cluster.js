// @ts-check
// Cluster: what needs me? Head figures, alerts in words, and the map of nodes and GPUs.
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "../vendor/hooks.js";
import { Chart } from "../chart.js";
import { basis, clusterTime, count, duration, percent, plural, words } from "../format.js";
import { byteText, drifted, Heatmap, HIDDEN, stateText, summary } from "../heatmap.js";
import { html } from "../html.js";
import { Answered, Choice, Figure, Meter, Notice, Panel, Parts, Skeleton } from "../parts.js";
import { gpuPath, jobPath, navigate, setQuery } from "../router.js";
import { post, useAnswer } from "../api.js";
import { has, may, seesAll, useView } from "../session.js";
import { Steps } from "../steps.js";
import { useTitle } from "../title.js";

/** @type {Record<string, string>} the same colour for a reason everywhere */
export const REASON_TONES = {
  resources: "1", policy: "2", launching: "3", gang_nodes: "4", reserved: "5", begin_time: "8", submitted: "8",
  held: "8", dependency: "6", array_limit: "7", quota: "7",
  nodes_drained: "warn", no_fitting_gpu: "bad", no_fitting_nodes: "bad", cluster_unavailable: "bad", launch_refused: "bad",
};

/** Reasons of jobs that are not in the queue yet. */
const BEFORE_QUEUE = ["begin_time", "held", "dependency"];

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
  const allocated = head.usable_gpus && typeof head.allocated_gpus === "number" ? head.allocated_gpus / head.usable_gpus : null;
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

/** Name in the address, name in words, seconds. @type {[string, string, number][]} */
const RANGES = [["10m", "10 minutes", 600], ["1h", "hour", 3_600], ["6h", "6 hours", 21_600], ["1d", "day", 86_400]];
/** The past is asked for again where the curves have gone on by this part of their range; not more often than that. */
const RENEWED_RATIO = 0.25;
const RENEWED_MS = 10_000;
/** Means of so many parts of the range, where the server has no exact curve. */
const PARTS = 400;

/** @param {URLSearchParams} query */
const rangeOf = (query) => RANGES.find(([name]) => name === query.get("last")) ?? RANGES[1];

/** Both curves of a range: what ingest keeps, and then what the head says. @param {any} head @param {boolean} live @param {number} span_s */
function useLoad(head, live, span_s) {
  // Where the head has no numbers, the page's server does not know all jobs yet.
  const known = typeof head.queue_length === "number" && typeof head.time_s === "number";
  const answer = useAnswer(known ? `/api/load?span_s=${span_s}` : null);
  const asked_ms = useRef(0);
  const again = () => {
    asked_ms.current = Date.now();
    answer.again();
  };
  // What happened while nothing came is not known here.
  const [was, setWas] = useState(live);
  useEffect(() => {
    setWas(live);
    if (live && !was && answer.data) again();
  }, [live]);
  useEffect(() => {
    const onShown = () => document.hidden || again();
    document.addEventListener("visibilitychange", onShown);
    return () => document.removeEventListener("visibilitychange", onShown);
  }, [answer.again]);
  const begun_s = answer.data?.now_s;
  const old = begun_s !== undefined && known && (head.time_s - begun_s > span_s * RENEWED_RATIO || head.time_s < begun_s - 60);
  useEffect(() => {
    if (old && live && Date.now() - asked_ms.current > RENEWED_MS) again();
  });
  const curves = useMemo(() => answer.data && { waiting: new Steps(answer.data.waiting), allocated: new Steps(answer.data.allocated) }, [answer.data]);
  if (curves && known && live) {
    // Jobs whose begin time has not come do not wait yet.
    curves.waiting.push(head.time_s, head.queue_length - BEFORE_QUEUE.reduce((sum, reason) => sum + (head.queue_by_reason?.[reason] ?? 0), 0), head.time_s - span_s);
    curves.allocated.push(head.time_s, head.allocated_gpus, head.time_s - span_s);
  }
  return { answer, curves };
}

/** Jobs that wait and GPUs that are allocated, over the last time. @param {{head: any, live: boolean, range: [string, string, number]}} props */
function Trend({ head, live, range: [, name, span_s] }) {
  const { answer, curves } = useLoad(head, live, span_s);
  return html`<${Answered} answer=${answer} what="The curves" rows=${4}>${(/** @type {any} */ data) => html`<div class="trend">
      <figure><h3>${seesAll() ? "Jobs that wait" : "Your jobs that wait"}</h3>
        <${Chart} label=${`Jobs that wait, over the last ${name}`} axis="time" sync="cluster" height=${150} x=${curves.waiting.time_s} lines=${[{ name: "waiting", values: curves.waiting.count, tone: "1", stepped: true }]} unit="jobs" /></figure>
      <figure><h3>GPUs allocated</h3>
        <${Chart} label=${`GPUs allocated, over the last ${name}`} axis="time" sync="cluster" height=${150} x=${curves.allocated.time_s} lines=${[{ name: "allocated", values: curves.allocated.count, tone: "3", stepped: true }]} unit="GPUs" /></figure>
    </div>
    ${data.from_s > data.asked_s && html`<p class="quiet">Too many jobs have ended for all of this time: the curves begin at ${clusterTime(data.from_s)}.</p>`}
    ${!data.exact && html`<p class="quiet">Too many starts for single ones: the GPUs are means of ${duration((data.now_s - data.from_s) / PARTS)}, and of a job that was stopped only the last start is known.</p>`}`}<//>`;
}

/** @param {{query: URLSearchParams}} props */
export default function Cluster({ query }) {
  useTitle("Cluster");
  const view = useView("head");
  const head = view.data;
  const range = rangeOf(query);
  return html`<h1 class="visually-hidden">Cluster</h1>
    <${Panel} title=${head && !head.alerts ? "Your jobs" : "What needs you"} view=${view} class="head" tools=${head && may("clock") && head.clock && html`<${Clock} clock=${head.clock} />`}>
      ${head ? html`${head.alerts && html`<${Alerts} alerts=${head.alerts} />`}<${HeadFigures} head=${head} />` : html`<${Skeleton} what="The head figures" rows=${4} />`}
    <//>
    <${Map_} query=${query} />
    <${Panel} title=${`The last ${range[1]}`} view=${view} tools=${head && html`<${Choice} label="Range of the curves" value=${range[0]} onChange=${(/** @type {string} */ name) => setQuery({ last: name === "1h" ? "" : name })}
      options=${RANGES.map(([name]) => [name, name.replace(/([mhd])$/, " $1")])} />`}>${head ? html`<${Trend} head=${head} live=${view.state === "live"} range=${range} />` : html`<${Skeleton} what="The curves" rows=${4} />`}<//>`;
}
