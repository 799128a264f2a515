// @ts-check
// Submit: a form that says what fits now, and shows the equal command line.
import { useEffect, useRef, useState } from "../vendor/hooks.js";
import { get, newRequestId, post } from "../api.js";
import { afterOf, arrayOf, beginOf, commandLine, labelsOf, mibOf, secondsOf, split } from "../command_line.js";
import { count, plural } from "../format.js";
import { html } from "../html.js";
import { Copyable, Notice, Panel, Told } from "../parts.js";
import { arrayPath, jobPath, navigate } from "../router.js";
import { may } from "../session.js";
import { useTitle } from "../title.js";

const EMPTY = {
  name: "", job_type: "machine_learning", application: "", priority: "0.5", gpus: "1", gpu_models: /** @type {string[]} */ ([]), max_nodes: "",
  cores: "1", memory: "", gpu_memory: "", time_limit: "", runtime: "", on: "", preemptible: false, restart: "", lost: "",
  grace: "", shareable: false, program: "", image: "", workdir: "", stop_grace: "", log_limit: "", labels: "", begin: "", after: "", array: "", held: false,
  exclusive: false, exclude: "", nodelist: "",
};
/** @typedef {typeof EMPTY} Form */
const DEFAULT_PRIORITY = 0.5;

/** @type {Record<string, string>} the fields' labels, for what is said beside the form */
const LABELS = {
  job_type: "Type", priority: "Priority", gpus: "GPUs", gpu_memory: "GPU memory", cores: "CPU cores", memory: "Main memory", max_nodes: "Most nodes",
  time_limit: "Time limit", runtime: "Expected runtime", on: "On GPU model", shareable: "Sharing",
  labels: "Labels", begin: "Begin", after: "After", array: "Array", restart: "Restart", lost: "Lost work", grace: "Time to stop", program: "Command",
  stop_grace: "Time to stop", log_limit: "Kept output", exclude: "Not on nodes", nodelist: "Only on nodes", exclusive: "Alone on its nodes",
};

/** @type {Record<string, keyof Form>} fields of a JobSpec that have another name in the form */
const FIELDS = {
  gpu_count: "gpus", gpu_memory_mib: "gpu_memory", cpu_cores: "cores", memory_mib: "memory", max_node_count: "max_nodes", time_limit_s: "time_limit",
  runtime_s: "runtime", gpu_model: "on", argv: "program", container: "image",
  begin_time_s: "begin", indexes: "array", max_running_count: "array", restart_s: "restart", lost_s: "lost", grace_s: "grace", stop_grace_s: "stop_grace",
  log_limit_mib: "log_limit", excluded_node_ids: "exclude", node_ids: "nodelist",
};

/** The form's field that a service blames, such as "job.gpu_count"; "" for none of them. @param {string} field */
function fieldOf(field) {
  const name = field.replaceAll(/\[\d+\]/g, "").split(".").map((part) => FIELDS[part] ?? part).reverse().find((part) => part in EMPTY);
  return name ?? "";
}

/** Names with commas or blanks between them. @param {string} text */
const names = (text) => text.split(/[\s,]+/).filter(Boolean);

/** The job of the form, and what is wrong with it by field. @param {Form} form */
function read(form) {
  /** @type {Record<string, string>} */
  const wrong = {};
  const whole = (/** @type {"gpus" | "cores" | "max_nodes"} */ name, /** @type {number} */ least, /** @type {number} */ most, /** @type {number} */ empty) => {
    const value = form[name].trim() ? Number(form[name]) : empty;
    if (!Number.isInteger(value) || value < least || value > most) wrong[name] = `a whole number from ${least} to ${most}`;
    return value;
  };
  const size = (/** @type {"memory" | "gpu_memory" | "log_limit"} */ name) => {
    const value = mibOf(form[name]);
    if (Number.isNaN(value)) wrong[name] = "a size, such as 16GiB";
    return value;
  };
  const time = (/** @type {"time_limit" | "runtime" | "restart" | "lost" | "grace" | "stop_grace"} */ name, /** @type {boolean} */ mayBeZero = false) => {
    const value = secondsOf(form[name]);
    if (Number.isNaN(value) || (value === 0 && !mayBeZero)) wrong[name] = "a time, such as 90, 10m, 1h30m or 01:00:00";
    return value;
  };
  const priority = form.priority.trim() ? Number(form.priority) : DEFAULT_PRIORITY;
  if (!(priority >= 0 && priority <= 1)) wrong.priority = "from 0 to 1";
  const runtime_s = time("runtime");
  if (runtime_s !== null && !form.on) wrong.on = "the GPU model that the runtime is meant for";
  const argv = split(form.program);
  const stop_grace_s = time("stop_grace", true);
  const log_limit_mib = size("log_limit");
  const workdir = form.workdir.trim();
  if (!argv.length && !form.image.trim() && (workdir || stop_grace_s !== null || log_limit_mib)) wrong.program = "a folder and limits of a program need one";
  const begin = beginOf(form.begin);
  if (begin === undefined) wrong.begin = "a time, such as now+1h, 16:00, 2026-11-28T08:00, or 3600s of the cluster's clock";
  const after = afterOf(form.after);
  if (after === null) wrong.after = "ids of jobs or arrays, such as job-17, array-20:any; behind the colon ok, any or fail";
  const labels = labelsOf(form.labels);
  if (labels === null) wrong.labels = "NAME=VALUE, with blanks between several";
  const array = form.array.trim();
  if (array && arrayOf(array) === null) wrong.array = "indexes, such as 0-99, 1,5,7 or 0-100:10, 10,000 at most; %10 behind them: ten at once";
  if (!argv.length && !form.image.trim() && !form.job_type) wrong.job_type = "a job without a program needs a type";
  const job = {
    name: form.name.trim(), job_type: form.job_type, application: form.application.trim(), priority,
    gpu_count: whole("gpus", 1, 1_024, 1), gpu_models: form.gpu_models, max_node_count: whole("max_nodes", 0, 1_024, 0),
    cpu_cores: whole("cores", 0, 4_096, 1), memory_mib: size("memory"), gpu_memory_mib: size("gpu_memory"), time_limit_s: time("time_limit"),
    expected_runtime: runtime_s === null ? null : { gpu_model: form.on, runtime_s },
    preemptible: form.preemptible ? { restart_s: time("restart", true) ?? 0, lost_s: time("lost", true) ?? 0, grace_s: time("grace", true) } : null,
    shareable: form.shareable, argv, image: form.image.trim(), workdir, stop_grace_s, log_limit_mib, labels: labels ?? {}, after: after ?? [], held: form.held,
    exclusive: form.exclusive, excluded_node_ids: names(form.exclude), node_ids: names(form.nodelist),
    ...(begin && ("time_s" in begin ? { begin_time_s: begin.time_s } : { begin })),
  };
  if (job.shareable && job.gpu_count > 1) wrong.shareable = "only for jobs of one GPU";
  return { job, array, wrong };
}

/** What fits now, asked a moment after the last change. @param {string} query */
function useCapacity(query) {
  const [answer, setAnswer] = useState(/** @type {{data: any, error: string, query: string}} */ ({ data: null, error: "", query: "" }));
  useEffect(() => {
    const abort = new AbortController();
    let asking = false;
    const ask = async () => {
      if (asking) return;
      asking = true;
      try {
        const data = await get(`/api/capacity?${query}`, abort.signal);
        if (!abort.signal.aborted) setAnswer({ data, error: "", query });
      } catch (error) {
        if (!abort.signal.aborted) setAnswer((before) => ({ ...before, error: /** @type {Error} */ (error).message }));
      }
      asking = false;
    };
    const first = setTimeout(ask, 200);
    const more = setInterval(() => document.hidden || ask(), 3_000);
    return () => {
      abort.abort();
      clearTimeout(first);
      clearInterval(more);
    };
  }, [query]);
  return answer;
}

export default function Submit() {
  useTitle("Submit");
  const [form, setForm] = useState(EMPTY);
  const [error, setError] = useState({ text: "", field: "" });
  const [tried, setTried] = useState(false);
  const [busy, setBusy] = useState(false);
  const top = useRef(/** @type {HTMLFormElement | null} */ (null));
  const { job, array, wrong } = read(form);
  const query = new URLSearchParams({ cpu_cores: String(job.cpu_cores || 1), gpu_count: String(job.gpu_count || 1), gpu_memory_mib: String(job.gpu_memory_mib || 0), memory_mib: String(job.memory_mib || 0) });
  for (const model of job.gpu_models) query.append("gpu_model", model);
  query.sort();
  const capacity = useCapacity(query.toString());
  const models = capacity.data?.models ?? [];
  const change = (/** @type {Partial<Form>} */ changes) => {
    setForm((before) => ({ ...before, ...changes }));
    // What a service has refused was said of the old value.
    setError((before) => (before.field in changes ? { text: "", field: "" } : before));
  };
  const problem = (/** @type {string} */ name) => (tried && wrong[name]) || (error.field === name && error.text) || "";
  const request = useRef({ job: "", id: "" });
  const shown = useRef(true);
  useEffect(() => () => void (shown.current = false), []);

  /** @param {keyof Form} name @param {string} label @param {{hint?: string, placeholder?: string, class?: string}} [more] */
  const text = (name, label, { hint = "", placeholder = "", class: extra = "" } = {}) => html`<div class=${`field ${extra}`}><label for=${`field-${name}`}>${label}</label>
    <input type="text" id=${`field-${name}`} value=${form[name]} placeholder=${placeholder || undefined} spellcheck=${false} autocomplete="off" aria-invalid=${problem(name) ? "true" : undefined}
      aria-describedby=${hint || problem(name) ? `hint-${name}` : undefined} onInput=${(/** @type {any} */ event) => change({ [name]: event.target.value })} />
    ${(hint || problem(name)) && html`<span id=${`hint-${name}`} class=${problem(name) ? "hint wrong" : "hint"}>${problem(name) || hint}</span>`}</div>`;

  const focusWrong = () => setTimeout(() => /** @type {HTMLElement | null} */ (top.current?.querySelector('[aria-invalid="true"]'))?.focus());

  /** @param {Event} event */
  const submit = async (event) => {
    event.preventDefault();
    setTried(true);
    setError({ text: "", field: "" });
    if (Object.keys(wrong).length) {
      focusWrong();
      return;
    }
    setBusy(true);
    try {
      const wanted = array ? { job, array } : { job };
      const text_ = JSON.stringify(wanted);
      if (request.current.job !== text_) request.current = { job: text_, id: newRequestId() };
      const answer = await post("/api/actions/submit", { ...wanted, request_id: request.current.id });
      // Who has left this screen meanwhile is not taken away from where he is.
      if (shown.current) navigate(answer.array_id ? arrayPath(answer.array_id) : answer.job_id ? jobPath(answer.job_id) : "/queue");
    } catch (problem_) {
      const refused = /** @type {any} */ (problem_);
      setError({ text: refused.message, field: fieldOf(refused.field ?? "") });
      setBusy(false);
      focusWrong();
    }
  };
  const told = array ? arrayOf(array) : null;
  const fits = capacity.data?.fits;
  const fitting = fits && (fits.sentence ?? `${plural(fits.gpu_count, "GPU")} ${fits.gpu_count === 1 ? "fits" : "fit"} now.`);
  if (!may("submit")) return html`<h1>Submit</h1><${Notice} level="info">Your role may not submit jobs.<//>`;
  return html`<h1>Submit a job</h1>
    <div class="columns submit">
      <form ref=${top} onSubmit=${submit} class="panel" aria-label="The job" noValidate>
        <fieldset><legend>The job</legend>
          ${text("name", "Name", { hint: "need not be unique" })}
          <div class="field"><label for="field-job_type">Type</label>
            <select id="field-job_type" value=${form.job_type} onChange=${(/** @type {any} */ event) => change({ job_type: event.target.value })} aria-invalid=${problem("job_type") ? "true" : undefined}>
              <option value="machine_learning">machine learning</option><option value="simulation">simulation</option><option value="data_processing">data processing</option><option value="">learned from the program</option>
            </select>${problem("job_type") && html`<span class="hint wrong">${problem("job_type")}</span>`}</div>
          ${text("application", "Application", { placeholder: "resnet50_fp16", hint: "improves predictions" })}
          ${text("priority", "Priority", { hint: "0 to 1, most urgent", placeholder: String(DEFAULT_PRIORITY), class: "narrow" })}
          ${text("labels", "Labels", { placeholder: "team=vision stage=test" })}
        </fieldset>
        <fieldset><legend>What it needs</legend>
          ${text("gpus", "GPUs", { class: "narrow" })}
          ${text("gpu_memory", "GPU memory", { placeholder: "any", hint: "of each GPU", class: "narrow" })}
          ${text("cores", "CPU cores", { hint: "with each GPU", class: "narrow" })}
          ${text("memory", "Main memory", { placeholder: "4 GiB a core", hint: "with each GPU", class: "narrow" })}
          ${text("max_nodes", "Most nodes", { placeholder: "any", class: "narrow" })}
          ${text("time_limit", "Time limit", { placeholder: "none", class: "narrow" })}
          ${text("exclude", "Not on nodes", { placeholder: "none", hint: "volta-0,volta-3" })}
          ${text("nodelist", "Only on nodes", { placeholder: "any" })}
          <fieldset class="inner"><legend>GPU models (none: any)</legend>
            ${models.map((/** @type {any} */ each) => html`<label key=${each.model} class="check"><input type="checkbox" checked=${form.gpu_models.includes(each.model)}
              onChange=${(/** @type {any} */ event) => change({ gpu_models: event.target.checked ? [...form.gpu_models, each.model] : form.gpu_models.filter((name) => name !== each.model) })} /> ${each.model}</label>`)}
          </fieldset>
          ${text("runtime", "Expected runtime", { placeholder: "learned", class: "narrow" })}
          <div class="field narrow"><label for="field-on">on GPU model</label>
            <select id="field-on" value=${form.on} onChange=${(/** @type {any} */ event) => change({ on: event.target.value })} aria-invalid=${problem("on") ? "true" : undefined}>
              <option value=""></option>${models.map((/** @type {any} */ each) => html`<option key=${each.model} value=${each.model}>${each.model}</option>`)}</select>
            ${problem("on") && html`<span class="hint wrong">${problem("on")}</span>`}</div>
        </fieldset>
        <fieldset><legend>When it starts</legend>
          ${text("begin", "Begin", { placeholder: "as soon as it can", hint: "now+1h, 16:00, 2026-11-28T08:00, or 3600s of the cluster's clock" })}
          ${text("after", "After", { placeholder: "no other job", hint: "job-17 (has succeeded), job-18:any (ended), array-20:fail (not all succeeded)" })}
          ${text("array", "Array", { placeholder: "one job", hint: told ? `${plural(told.count, "job")}${told.at_once ? `, ${count(told.at_once)} at once` : ""}` : "0-99%10: once for each index, ten at once" })}
          <label class="check wide"><input type="checkbox" checked=${form.held} onChange=${(/** @type {any} */ event) => change({ held: event.target.checked })} /> it is held until somebody releases it</label>
        </fieldset>
        <fieldset><legend>Beside other jobs</legend>
          <label class="check wide"><input type="checkbox" checked=${form.preemptible} onChange=${(/** @type {any} */ event) => change({ preemptible: event.target.checked })} /> it may be stopped and go on later (it keeps checkpoints)</label>
          ${form.preemptible && html`${text("restart", "Restart", { placeholder: "nothing", hint: "each start after a stop", class: "narrow" })}
            ${text("lost", "Lost work", { placeholder: "nothing", hint: "by each stop", class: "narrow" })}
            ${text("grace", "Time to stop", { placeholder: "as below", hint: "between SIGTERM and SIGKILL", class: "narrow" })}`}
          <label class="check wide"><input type="checkbox" checked=${form.exclusive} aria-invalid=${problem("exclusive") ? "true" : undefined} onChange=${(/** @type {any} */ event) => change({ exclusive: event.target.checked })} /> no other job runs on its nodes meanwhile
            ${problem("exclusive") && html` <span class="hint wrong">${problem("exclusive")}</span>`}</label>
          <label class="check wide"><input type="checkbox" checked=${form.shareable} aria-invalid=${problem("shareable") ? "true" : undefined} onChange=${(/** @type {any} */ event) => change({ shareable: event.target.checked })} /> it may share its GPU with one other job
            ${problem("shareable") && html` <span class="hint wrong">${problem("shareable")}</span>`}</label>
        </fieldset>
        <fieldset><legend>The program (real clusters)</legend>
          ${text("program", "Command", { placeholder: "python train.py --epochs 3", class: "wide" })}
          ${text("image", "Container image", { placeholder: "none", class: "wide" })}
          ${text("workdir", "Folder", { placeholder: "one of its own", hint: "where it begins" })}
          ${text("stop_grace", "Time to stop", { placeholder: "10s", hint: "between SIGTERM and SIGKILL", class: "narrow" })}
          ${text("log_limit", "Kept output", { placeholder: "256MiB", hint: "of each stream", class: "narrow" })}
        </fieldset>
        ${error.text && html`<${Notice} level="bad" role="alert">${error.text}<//>`}
        <div class="buttons"><button type="submit" class="primary" disabled=${busy}>Submit</button></div>
      </form>
      <div class="stack">
        <${Panel} title="Fits now">
          <p class="sentence">${fits ? fitting : capacity.data ? "–" : "asking …"}</p>
          <${Told} topic=${query.toString()} text=${fits && capacity.query === query.toString() ? fitting : null} />
          ${capacity.error && html`<${Notice} level="warn">${capacity.error}<//>`}
          ${models.length > 0 && html`<table class="compact"><thead><tr><th scope="col">Model</th><th scope="col" class="number">Memory, MiB</th><th scope="col" class="number">Free</th><th scope="col" class="number">All</th></tr></thead>
            <tbody>${models.map((/** @type {any} */ each) => html`<tr key=${each.model}><th scope="row">${each.model}</th><td class="number num">${count(each.memory_mib)}</td><td class="number num">${count(each.free_gpu_count)}</td><td class="number num">${count(each.gpu_count)}</td></tr>`)}</tbody></table>`}
        <//>
        <${Panel} title="The same from a terminal">
          ${Object.keys(wrong).length
            ? html`<p class="quiet">There is none yet. To be put right: ${Object.keys(wrong).map((name) => LABELS[name] ?? name).join(", ")}.</p>`
            : html`<${Copyable} label="Command line" text=${commandLine(job, { begin: form.begin.trim(), array })} />`}
        <//>
      </div>
    </div>`;
}
