// @ts-check
// Job: why it waits and when it may start; where it ran; its output; what was predicted and what came.
import { useEffect, useLayoutEffect, useRef, useState } from "../vendor/hooks.js";
import { newRequestId, post, useAnswer } from "../api.js";
import { clusterTime, count, DASH, duration, interval, mib, percent, plural, visible, wallTime, words } from "../format.js";
import { html } from "../html.js";
import { waited } from "../jobs.js";
import { keyOf } from "../live.js";
import { Answered, Choice, Confirm, Copyable, Empty, Facts, JobState, Notice, Panel, Parts, Scroll, Skeleton } from "../parts.js";
import { arrayPath, decisionPath, gpuPath, jobPath, navigate } from "../router.js";
import { has, may, seesAll, session, useView } from "../session.js";
import { useTitle } from "../title.js";

/** @param {number | null | undefined} start_s @param {number | null | undefined} end_s */
const since = (start_s, end_s) => (typeof start_s === "number" && typeof end_s === "number" ? Math.max(0, end_s - start_s) : null);

/** @param {{ids: string[] | undefined}} props */
function GpuLinks({ ids }) {
  const [all, setAll] = useState(false);
  if (!ids?.length) return DASH;
  const shown = all ? ids : ids.slice(0, 4);
  return html`${shown.map((id, index) => html`${index ? ", " : ""}${seesAll() ? html`<a href=${gpuPath(id)}>${id}</a>` : id}`)}
    ${ids.length > shown.length && html` <button type="button" class="link" onClick=${() => setAll(true)}>and ${ids.length - shown.length} more</button>`}`;
}

/** @type {Record<string, string>} how the other job must have ended */
const CONDITIONS = { ok: "must succeed", any: "must end", fail: "must fail" };
/** @type {Record<string, string>} how an array's jobs must have ended */
const ARRAY_CONDITIONS = { ok: "all of its jobs must succeed", any: "all of its jobs must end", fail: "one of its jobs at least must fail" };

/** How far an array is: "60 waiting, 10 running, 30 succeeded". @param {Record<string, number>} states */
const progressOf = (states) => STATES.filter((name) => states[name]).map((name) => `${count(states[name])} ${name === "pending" ? "waiting" : name}`).join(", ");

/** @type {Record<string, string>} states of an array's jobs in their order, and their colours */
const TONES = { pending: "8", running: "1", succeeded: "good", failed: "bad", cancelled: "4" };
const STATES = Object.keys(TONES);

/** A moment of the cluster's clock that is to come, with the wall's where both run alike. @param {{at_s: number, now_s: number | null}} props */
function Moment({ at_s, now_s }) {
  const left_s = now_s === null ? null : at_s - now_s;
  // To the nearest minute: the two clocks are read a moment apart, and 16:00 must not be 15:59 now and then.
  const wall = left_s !== null && session.me?.clock === "real" ? wallTime(Math.round((Date.now() / 1_000 + left_s) / 60) * 60) : "";
  return html`<span class="num">${left_s === null || left_s <= 0 ? "" : html`in ${duration(left_s)}, `}${wall ? `${wall} (${clusterTime(at_s)} of the cluster's clock)` : `at ${clusterTime(at_s)} of the cluster's clock`}</span>`;
}

/** What must be over before it may start: a hold, other jobs, its begin time, others of its array. @param {{job: any, now_s: number | null}} props */
function WaitsFor({ job, now_s }) {
  const early = typeof job.begin_time_s === "number" && (now_s === null || job.begin_time_s > now_s);
  const array = job.array;
  const limited = job.reason === "array_limit" && array?.max_running;
  if (!job.held_by && !job.after?.length && !early && !limited) return null;
  return html`<h3>What it waits for</h3><ul class="advice">
    ${job.held_by && html`<li key="held">its release: held by <bdi>${visible(job.held_by)}</bdi>${job.held_by_operator ? ", an operator; only an operator releases it" : ""}</li>`}
    ${(job.after ?? []).map((/** @type {any} */ each) => html`<li key=${each.id}>${each.states
      ? html`<a href=${arrayPath(each.id)}>${each.id}</a>: ${ARRAY_CONDITIONS[each.condition]}${progressOf(each.states) && html` <span class="quiet num">(${progressOf(each.states)})</span>`}`
      : html`<a href=${jobPath(each.id)}>${each.id}</a> ${CONDITIONS[each.condition]}${each.state && html` <span class="quiet">(now</span> <${JobState} state=${each.state} /><span class="quiet">)</span>`}`}</li>`)}
    ${early && html`<li key="begin">its begin time: <${Moment} at_s=${job.begin_time_s} now_s=${now_s} /></li>`}
    ${limited && html`<li key="array">others of <a href=${arrayPath(array.id, "running")}>${array.id}</a>: ${count(array.max_running)} run at once</li>`}
  </ul>`;
}

/** Its array, how far that is, and what can be done to all of it. @param {{job: any, act: (name: string, id: string) => Promise<void>}} props */
function ArrayPart({ job, act }) {
  const [asking, setAsking] = useState(false);
  const { id, index, count: all, max_running } = job.array;
  const states = job.array_states ?? {};
  const known = STATES.reduce((sum, name) => sum + (states[name] ?? 0), 0);
  const waits = states.pending > 0;
  const open = (states.pending ?? 0) + (states.running ?? 0);
  const button = (/** @type {string} */ name, /** @type {string} */ label) => may(name) && waits && html`<button type="button" onClick=${() => act(name, id)}>${label}</button>`;
  return html`<${Panel} title="Its array" tools=${job.may_change && html`<span class="buttons-row">
      ${button("hold", "Hold all")}${button("release", "Release all")}
      ${may("cancel") && open > 0 && html`<button type="button" class="danger" onClick=${() => setAsking(true)}>Cancel array</button>`}</span>`}>
    ${asking && html`<${Confirm} title=${`Cancel ${id}?`} act="Cancel array" danger=${true} onClose=${() => setAsking(false)} onAct=${() => post("/api/actions/cancel", { job_id: id })}>
      <p>${plural(open, "job")} ${open === 1 ? "has" : "have"} not ended. What running programs have not saved is lost. This can't be undone.</p><//>`}
    <p>Index <strong class="num">${index}</strong> of <a href=${arrayPath(id)}>${id}</a>: ${plural(all, "job")}${max_running ? `, at most ${count(max_running)} at once` : ""}.</p>
    <${Parts} label="The array's jobs" parts=${STATES.filter((name) => states[name]).map((name) => ({ name: name === "pending" ? "waiting" : name, value: states[name], tone: TONES[name], href: arrayPath(id, name) }))} />
    ${known > 0 && known < all && html`<p class="quiet num">${count(all - known)} more ended longer ago.</p>`}
  <//>`;
}

/** Why it waits, and when it may start. @param {{waiting: any, job: any, now_s: number | null}} props */
function Waiting({ waiting, job, now_s }) {
  const start = waiting.start;
  const record = waiting.record;
  return html`<div class="waiting">
    <p class="sentence">${visible(waiting.sentence || job.message)}</p>
    <${WaitsFor} job=${job} now_s=${now_s} />
    <dl class="figures">
      <div class="figure"><dt>Place in the queue</dt><dd class="num">${waiting.place ? html`${count(waiting.place)} <span class="of">of ${count(waiting.queue_length)}</span>` : DASH}</dd></div>
      <div class="figure"><dt>Expected start</dt>
        <dd class="num">${start ? html`in ${interval(start.low_s, start.high_s)}` : DASH}</dd>
        <dd class="note">${start
          ? html`8 of 10 such intervals are meant to hold${record?.forecast_count ? `; ${percent(record.within_ratio)} of the last ${count(record.forecast_count)} did` : ""}`
          : waiting.no_start || "no forecast for this job"}</dd></div>
      <div class="figure"><dt>Waited</dt><dd class="num">${duration(waited(job, now_s))}</dd></div>
    </dl>
    ${waiting.advice?.length > 0 && html`<h3>What you could change</h3>
      <ul class="advice">${waiting.advice.map((/** @type {any} */ each) => html`<li key=${each.text}>${each.text}</li>`)}</ul>`}
    ${waiting.gpus?.length > 0 && html`<h3>The cluster's GPUs, for this job</h3>
      <table class="compact"><thead><tr><th scope="col">What stands in the way</th><th scope="col" class="number">GPUs</th></tr></thead>
        <tbody>${waiting.gpus.map((/** @type {any} */ each) => html`<tr key=${each.reason}><th scope="row">${each.text || words(each.reason)}</th><td class="number num">${count(each.gpu_count)}</td></tr>`)}</tbody></table>`}
  </div>`;
}

/** @type {Record<string, string>} the first word of an attempt's outcome, and the state that it stands for */
const KINDS = { succeeded: "succeeded", failed: "failed", lost: "lost", preempted: "preempted", stopped: "cancelled", cancelled: "cancelled", given: "lost" };

/**
 * What became of an attempt: the orchestrator's outcomes are "succeeded", "stopped", "failed: why", "lost: why", "given up: why".
 * @param {any} attempt
 * @returns {{kind: string, why: string}} `why`: what the kind does not say
 */
export function outcomeOf(attempt) {
  const text = attempt.outcome ?? "";
  if (!text) return { kind: "running", why: "" };
  const word = /^[^:\s]*/.exec(text)?.[0] ?? "";
  const kind = attempt.preempted ? "preempted" : KINDS[word] ?? "failed";
  const why = word in KINDS && word !== "given" ? text.slice(word.length).replace(/^[:\s]+/, "") : text;
  return { kind, why };
}

/** Waiting and runs on one line of time; the table below says the same. @param {{job: any, now_s: number | null}} props */
function Timeline({ job, now_s }) {
  const from = job.submit_s;
  const to = job.end_s ?? now_s;
  if (typeof from !== "number" || typeof to !== "number" || to <= from) return null;
  const at = (/** @type {number} */ time_s) => `${(100 * (Math.min(to, Math.max(from, time_s)) - from)) / (to - from)}%`;
  const width = (/** @type {number} */ begin, /** @type {number} */ end) => `${Math.max(0.3, (100 * (Math.min(to, end) - Math.max(from, begin))) / (to - from))}%`;
  return html`<div class="timeline" aria-hidden="true">
    <div class="track">
      ${(job.attempts ?? []).filter((/** @type {any} */ each) => typeof each.start_s === "number").map((/** @type {any} */ each) => html`<span key=${each.attempt}
        class=${`run outcome-${outcomeOf(each).kind}`} style=${{ left: at(each.start_s), width: width(each.start_s, each.end_s ?? to) }}></span>`)}
    </div>
    <div class="ends num quiet"><span>submitted ${clusterTime(from)}</span><span>${typeof job.end_s === "number" ? `ended ${clusterTime(job.end_s)}` : `now ${clusterTime(to)}`}</span></div>
  </div>`;
}

/** @param {{attempts: any[], now_s: number | null}} props */
function Attempts({ attempts, now_s }) {
  if (!attempts?.length) return html`<${Empty}>It has not been started yet.<//>`;
  return html`<${Scroll} label="Attempts"><table class="compact">
    <thead><tr><th scope="col" class="number">No.</th><th scope="col">GPUs</th><th scope="col">Model</th><th scope="col" class="number">Start</th><th scope="col" class="number">Ran</th><th scope="col">Outcome</th></tr></thead>
    <tbody>${attempts.map((each) => {
      const { kind, why } = outcomeOf(each);
      return html`<tr key=${each.attempt}>
      <td class="number num">${each.attempt}</td>
      <td><${GpuLinks} ids=${each.gpu_ids} /></td>
      <td>${each.gpu_model}</td>
      <td class="number num">${clusterTime(each.start_s)}</td>
      <td class="number num">${duration(each.run_s ?? since(each.start_s, each.end_s ?? (each.outcome ? null : now_s)))}</td>
      <td><${JobState} state=${kind} /> ${why && html`<span class="quiet">${visible(why)}</span>`}
        ${each.excused && html` <span class="quiet">not the job's fault</span>`} ${each.exit_text && !why.includes(each.exit_text) && html`<span class="quiet">${each.exit_text}</span>`}</td>
    </tr>`;
    })}</tbody></table><//>`;
}

const TAIL_BYTES = 16_384;
const LATE_LINES_MS = 10_000;

/** @param {{id: string, running: boolean}} props */
function Log({ id, running }) {
  const [stream, setStream] = useState("stdout");
  const [late, setLate] = useState(false);
  const answer = useAnswer(`/api/jobs/${encodeURIComponent(id)}/logs?stream=${stream}&tail=${TAIL_BYTES}`, running || late ? 2 : 0);
  const box = useRef(/** @type {HTMLElement | null} */ (null));
  const atEnd = useRef(true);
  const before = useRef(running);
  const text = answer.data?.text;
  // Its last lines are written while it ends, and stored a moment after.
  useEffect(() => {
    const ended = before.current && !running;
    before.current = running;
    if (!ended) return undefined;
    answer.again();
    setLate(true);
    const timer = setTimeout(() => setLate(false), LATE_LINES_MS);
    return () => clearTimeout(timer);
  }, [running]);
  useEffect(() => {
    atEnd.current = true;
  }, [stream]);
  // At first at the end; then there as long as one does not scroll back.
  useLayoutEffect(() => {
    const pre = box.current;
    if (pre && atEnd.current) pre.scrollTop = pre.scrollHeight;
  }, [text]);
  const onScroll = (/** @type {any} */ event) => {
    const pre = event.target;
    atEnd.current = pre.scrollHeight - pre.scrollTop - pre.clientHeight < 40;
  };
  return html`<${Panel} title="Output" tools=${html`<${Choice} label="Stream" value=${stream} onChange=${setStream} options=${[["stdout", "stdout"], ["stderr", "stderr"]]} />`}>
    <${Answered} answer=${answer} what="The output">${(/** @type {any} */ log) => html`
      ${log.size_bytes > TAIL_BYTES && html`<p class="quiet">The last ${count(TAIL_BYTES / 1024)} KiB of ${count(log.size_bytes / 1024)} KiB; <code>adlro logs ${id}</code> has all.</p>`}
      <pre class="log" tabindex="0" role="log" aria-live="off" aria-label=${`Output, ${stream}`} ref=${box} onScroll=${onScroll}>${log.text || "No output yet."}</pre>`}<//>
  <//>`;
}

/** What was predicted when it was decided, and what came; what is predicted now. @param {{prediction: any, job: any}} props */
function Prediction({ prediction, job }) {
  const then = prediction.decided;
  const ended = job.state !== "pending" && job.state !== "running";
  const last = (job.attempts ?? []).at(-1);
  const ran_s = job.state === "succeeded" ? (last?.run_s ?? (last?.end_s ? last.end_s - last.start_s : null)) : null;
  return html`<${Panel} title="Predicted runtime">
    ${then && html`<p>When it was placed: <strong class="num">${duration(then.median_s)}</strong> <span class="num">(${interval(then.low_s, then.high_s)})</span> on ${then.gpu_model}${then.basis ? `, from ${words(then.basis)}` : ""}.
      ${ran_s !== null && html` It ran <strong class="num">${duration(ran_s)}</strong>${typeof then.low_s === "number" ? (ran_s >= then.low_s && ran_s <= then.high_s ? ", inside the interval" : ", outside the interval") : ""}.`}</p>`}
    ${!then && job.state !== "pending" && html`<p class="quiet">What was predicted when it was placed is not recorded.</p>`}
    ${prediction.now?.length > 0 && html`<p class="quiet">${ended ? "What the next job like it is expected to take, after all that ended since:" : "Expected now:"}</p><${Scroll} label="Predictions by GPU model"><table class="compact">
      <thead><tr><th scope="col">On</th><th scope="col" class="number">Median</th><th scope="col" class="number">80 % interval</th><th scope="col">From</th></tr></thead>
      <tbody>${prediction.now.map((/** @type {any} */ each) => html`<tr key=${each.gpu_model}><th scope="row">${each.gpu_model}</th><td class="number num">${duration(each.median_s)}</td><td class="number num">${interval(each.low_s, each.high_s)}</td><td>${words(each.basis)}</td></tr>`)}</tbody></table><//>`}
    ${prediction.evidence?.length > 0 && html`<p>Rests on ${prediction.evidence.slice(0, 5).map((/** @type {any} */ each, /** @type {number} */ index) => html`${index ? ", " : ""}<a href=${jobPath(each.job_id)}>${each.job_id}</a> <span class="num quiet">(${each.similarity?.toFixed(2) ?? DASH}) ${duration(each.runtime_s)}</span>`)}${prediction.evidence.length > 5 ? ` and ${prediction.evidence.length - 5} more` : ""}.</p>`}
  <//>`;
}

/** @param {{job: any}} props */
function Needs({ job }) {
  return html`<${Panel} title="What it asked for">
    <${Facts} rows=${[
      ["User", job.user],
      ["Type", words(job.type)],
      ["Application", visible(job.application)],
      ["GPUs", count(job.gpu_count)],
      ["GPU models", (job.gpu_models ?? []).join(", ")],
      ["Most nodes", job.max_node_count || ""],
      ["GPU memory", job.gpu_memory_mib ? mib(job.gpu_memory_mib) : ""],
      ["CPU cores", job.cpu_cores ? count(job.cpu_cores) : ""],
      ["Memory", job.memory_mib ? mib(job.memory_mib) : ""],
      ["Priority", typeof job.priority === "number" ? job.priority.toFixed(2) : ""],
      ["Time limit", job.time_limit_s ? duration(job.time_limit_s) : ""],
      ["Begin time", job.begin_time_s ? clusterTime(job.begin_time_s) : ""],
      ["After", job.after?.length ? html`${job.after.map((/** @type {any} */ each, /** @type {number} */ index) => html`${index ? ", " : ""}<a href=${each.states ? arrayPath(each.id) : jobPath(each.id)}>${each.id}</a>${each.condition === "ok" ? "" : `:${each.condition}`}`)}` : ""],
      ["Preemptible", job.preemptible ? "yes" : ""],
      ["Shares a GPU", job.shareable ? "yes" : ""],
      ["Exclusive", job.exclusive ? "yes" : ""],
      ["Only on", (job.only_on ?? []).map(visible).join(", ")],
      ["Not on", (job.not_on ?? []).map(visible).join(", ")],
      ["Labels", Object.entries(job.labels ?? {}).map(([name, value]) => `${visible(name)}=${visible(String(value))}`).join(", ")],
    ]} />
    ${job.command_line && html`<h3>The same from a terminal</h3><${Copyable} label="Command line" text=${job.command_line} />`}
  <//>`;
}

/** @param {{id: string}} props */
export default function Job({ id }) {
  useTitle(id);
  const view = useView(keyOf("job", { id }));
  const clock_s = useView("head").data?.time_s ?? null;
  const [asking, setAsking] = useState(false);
  const [acted, setActed] = useState({ error: "", busy: "" });
  const request = useRef("");
  const shown = useRef(true);
  useEffect(() => () => void (shown.current = false), []);
  const state = view.data?.state;
  const open = state === undefined || state === "pending" || state === "running";
  const answer = useAnswer(`/api/jobs/${encodeURIComponent(id)}`, open ? 4 : 0);
  // The explanation is asked for anew when the job has changed, and not because its state has come.
  const known = useRef("");
  useEffect(() => {
    if (state === undefined) return;
    const now = `${state} ${view.data?.reason ?? ""}`;
    if (known.current && known.current !== now) answer.again();
    known.current = now;
  }, [state, view.data?.reason]);
  const job = view.data ?? answer.data?.job;
  if (!job && answer.error) return html`<h1>${id}</h1><${Notice} level="bad" role="alert">${answer.error.message}<//><p><a href="/queue">To the queue</a></p>`;
  if (!job) return html`<h1>${id}</h1><${Skeleton} what="The job" rows=${6} />`;
  const more = answer.data;
  const now_s = clock_s ?? more?.now_s ?? null;
  const cancellable = (job.state === "pending" || job.state === "running") && may("cancel") && job.may_cancel !== false;
  /** What can be undone is done without a question. @param {string} name @param {string} what a job or an array */
  const act = async (name, what) => {
    setActed({ error: "", busy: name });
    try {
      await post(`/api/actions/${name}`, { job_id: what });
      setActed({ error: "", busy: "" });
      answer.again();
    } catch (problem) {
      setActed({ error: /** @type {Error} */ (problem).message, busy: "" });
    }
  };
  const again = async () => {
    setActed({ error: "", busy: "requeue" });
    request.current ||= newRequestId();
    try {
      const made = await post("/api/actions/requeue", { job_id: id, request_id: request.current });
      if (shown.current) navigate(jobPath(made.job_id));
    } catch (problem) {
      setActed({ error: /** @type {Error} */ (problem).message, busy: "" });
    }
  };
  const asked = job.asked ?? [];
  return html`
    <div class="title">
      <h1>${id} <bdi class="quiet name">${visible(job.name)}</bdi></h1>
      <${JobState} state=${job.state} />
      ${job.state === "pending" && job.reason && html`<span class="quiet">${words(job.reason)}</span>`}
      ${job.state === "pending" && asked.length > 0 && html`<span class="quiet">${asked.join(", ")} asked for</span>`}
      ${job.cancel_requested && job.state !== "cancelled" && html`<span class="quiet">cancellation was asked for</span>`}
      <div class="tools">
        ${more?.decision_id && has("decisions") && html`<a class="button" href=${decisionPath(more.decision_id)}>Decision</a>`}
        ${may("hold") && job.may_hold && html`<button type="button" disabled=${acted.busy !== ""} onClick=${() => act("hold", id)}>Hold</button>`}
        ${may("release") && job.may_release && html`<button type="button" disabled=${acted.busy !== ""} onClick=${() => act("release", id)}>Release</button>`}
        ${may("requeue") && job.may_requeue && html`<button type="button" disabled=${acted.busy !== ""} onClick=${again}>Submit again</button>`}
        ${cancellable && html`<button type="button" class="danger" onClick=${() => setAsking(true)}>Cancel job</button>`}
      </div>
    </div>
    ${asking && html`<${Confirm} title=${`Cancel ${id}?`} act="Cancel job" danger=${true} onClose=${() => setAsking(false)} onAct=${() => post("/api/actions/cancel", { job_id: id })}>
      <p>${job.state === "running" ? "Its program is ended; what it has not saved is lost." : "It leaves the queue."} This can't be undone.</p><//>`}
    ${acted.error && html`<${Notice} level="bad" role="alert">${acted.error}<//>`}
    ${job.state === "pending" && html`<${Panel} title="Why it waits" view=${view}>
      ${more?.waiting
        ? html`<${Waiting} waiting=${more.waiting} job=${job} now_s=${now_s} />`
        : answer.error || more
          ? html`<p class="sentence">${visible(job.message) || words(job.reason)}</p><${WaitsFor} job=${job} now_s=${now_s} />${answer.error && html`<${Notice} level="warn">${answer.error.message}<//>`}`
          : html`<${Skeleton} what="The explanation" />`}
    <//>`}
    ${job.array && html`<${ArrayPart} job=${job} act=${act} />`}
    <${Panel} title=${job.state === "pending" ? "So far" : job.state === "running" ? "Where it runs" : "Where it ran"} view=${view}>
      ${job.state !== "pending" && job.message && html`<p class="sentence">${visible(job.message)}</p>`}
      ${job.state !== "pending" && html`<${Facts} rows=${[["Waited", duration(waited(job, now_s))], ["GPUs", job.gpu_ids?.length ? html`<${GpuLinks} ids=${job.gpu_ids} />` : ""], ["Model", job.gpu_model], ["Done", typeof job.remaining_ratio === "number" && job.remaining_ratio < 1 ? percent(1 - job.remaining_ratio) : ""]]} />`}
      <${Timeline} job=${job} now_s=${now_s} />
      <${Attempts} attempts=${job.attempts} now_s=${now_s} />
    <//>
    ${more?.prediction && html`<${Prediction} prediction=${more.prediction} job=${job} />`}
    ${job.has_logs && html`<${Log} id=${id} running=${job.state === "running"} />`}
    <${Needs} job=${job} />`;
}
