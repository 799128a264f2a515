// @ts-check
// Submit: a form that says what fits now, and shows the equal command line.
import { useEffect, useRef, useState } from "../vendor/hooks.js";
import { get, post } from "../api.js";
import { commandLine, mibOf, secondsOf, split } from "../command_line.js";
import { count, plural } from "../format.js";
import { html } from "../html.js";
import { Copyable, Notice, Panel, Told } from "../parts.js";
import { jobPath, navigate } from "../router.js";
import { may } from "../session.js";
import { useTitle } from "../title.js";

const EMPTY = {
  name: "", job_type: "machine_learning", application: "", priority: "0.5", gpus: "1", gpu_models: /** @type {string[]} */ ([]), max_nodes: "",
  cores: "1", memory: "", gpu_memory: "", time_limit: "", runtime: "", on: "", preemptible: false, shareable: false, program: "", image: "",
};
/** @typedef {typeof EMPTY} Form */
const DEFAULT_PRIORITY = 0.5;

/** @type {Record<string, string>} the fields' labels, for what is said beside the form */
const LABELS = {
  job_type: "Type", priority: "Priority", gpus: "GPUs", gpu_memory: "GPU memory", cores: "CPU cores", memory: "Main memory", max_nodes: "Most nodes",
  time_limit: "Time limit", runtime: "Expected runtime", on: "On GPU model", shareable: "Sharing",
};

/** @type {Record<string, keyof Form>} fields of a JobSpec that have another name in the form */
const FIELDS = {
  gpu_count: "gpus", gpu_memory_mib: "gpu_memory", cpu_cores: "cores", memory_mib: "memory", max_node_count: "max_nodes", time_limit_s: "time_limit",
  runtime_s: "runtime", gpu_model: "on", argv: "program", container: "image",
};

/** The form's field that a service blames, such as "job.gpu_count"; "" for none of them. @param {string} field */
function fieldOf(field) {
  const name = field.replaceAll(/\[\d+\]/g, "").split(".").map((part) => FIELDS[part] ?? part).reverse().find((part) => part in EMPTY);
  return name ?? "";
}

/** By which a submission that is repeated, because its answer was lost, is the same job. */
function newRequestId() {
  const bytes = crypto.getRandomValues(new Uint8Array(16)); // randomUUID is there over TLS alone
  return `page-${[...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("")}`;
}

/** The job of the form, and what is wrong with it by field. @param {Form} form */
function read(form) {
  /** @type {Record<string, string>} */
  const wrong = {};
  const whole = (/** @type {"gpus" | "cores" | "max_nodes"} */ name, /** @type {number} */ least, /** @type {number} */ most, /** @type {number} */ empty) => {
    const value = form[name].trim() ? Number(form[name]) : empty;
    if (!Number.isInteger(value) || value < least || value > most) wrong[name] = `a whole number from ${least} to ${most}`;
    return value;
  };
  const size = (/** @type {"memory" | "gpu_memory"} */ name) => {
    const value = mibOf(form[name]);
    if (Number.isNaN(value)) wrong[name] = "a size, such as 16GiB";
    return value;
  };
  const time = (/** @type {"time_limit" | "runtime"} */ name) => {
    const value = secondsOf(form[name]);
    if (Number.isNaN(value) || value === 0) wrong[name] = "a time, such as 90, 10m or 1h30m";
    return value;
  };
  const priority = form.priority.trim() ? Number(form.priority) : DEFAULT_PRIORITY;
  if (!(priority >= 0 && priority <= 1)) wrong.priority = "from 0 to 1";
  const runtime_s = time("runtime");
  if (runtime_s !== null && !form.on) wrong.on = "the GPU model that the runtime is meant for";
  const argv = split(form.program);
  if (!argv.length && !form.image.trim() && !form.job_type) wrong.job_type = "a job without a program needs a type";
  const job = {
    name: form.name.trim(), job_type: form.job_type, application: form.application.trim(), priority,
    gpu_count: whole("gpus", 1, 1_024, 1), gpu_models: form.gpu_models, max_node_count: whole("max_nodes", 0, 1_024, 0),
    cpu_cores: whole("cores", 0, 4_096, 1), memory_mib: size("memory"), gpu_memory_mib: size("gpu_memory"), time_limit_s: time("time_limit"),
    expected_runtime: runtime_s === null ? null : { gpu_model: form.on, runtime_s },
    preemptible: form.preemptible ? { restart_s: 0, lost_s: 0 } : null, shareable: form.shareable, argv, image: form.image.trim(),
  };
  if (job.shareable && job.gpu_count > 1) wrong.shareable = "only for jobs of one GPU";
  return { job, wrong };
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
  const { job, wrong } = read(form);
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
      const text_ = JSON.stringify(job);
      if (request.current.job !== text_) request.current = { job: text_, id: newRequestId() };
      const answer = await post("/api/actions/submit", { job, request_id: request.current.id });
      // Who has left this screen meanwhile is not taken away from where he is.
      if (shown.current) navigate(answer.job_id ? jobPath(answer.job_id) : "/queue");
    } catch (problem_) {
      const refused = /** @type {any} */ (problem_);
      setError({ text: refused.message, field: fieldOf(refused.field ?? "") });
      setBusy(false);
      focusWrong();
    }
  };
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
        </fieldset>
        <fieldset><legend>What it needs</legend>
          ${text("gpus", "GPUs", { class: "narrow" })}
          ${text("gpu_memory", "GPU memory", { placeholder: "any", hint: "of each GPU", class: "narrow" })}
          ${text("cores", "CPU cores", { hint: "with each GPU", class: "narrow" })}
          ${text("memory", "Main memory", { placeholder: "4 GiB a core", hint: "with each GPU", class: "narrow" })}
          ${text("max_nodes", "Most nodes", { placeholder: "any", class: "narrow" })}
          ${text("time_limit", "Time limit", { placeholder: "none", class: "narrow" })}
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
        <fieldset><legend>Beside other jobs</legend>
          <label class="check"><input type="checkbox" checked=${form.preemptible} onChange=${(/** @type {any} */ event) => change({ preemptible: event.target.checked })} /> it may be stopped and go on later (it keeps checkpoints)</label>
          <label class="check"><input type="checkbox" checked=${form.shareable} aria-invalid=${problem("shareable") ? "true" : undefined} onChange=${(/** @type {any} */ event) => change({ shareable: event.target.checked })} /> it may share its GPU with one other job
            ${problem("shareable") && html` <span class="hint wrong">${problem("shareable")}</span>`}</label>
        </fieldset>
        <fieldset><legend>The program (real clusters)</legend>
          ${text("program", "Command", { placeholder: "python train.py --epochs 3", class: "wide" })}
          ${text("image", "Container image", { placeholder: "none", class: "wide" })}
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
            : html`<${Copyable} label="Command line" text=${commandLine(job)} />`}
        <//>
      </div>
    </div>`;
}
