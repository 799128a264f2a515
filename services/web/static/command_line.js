// @ts-check
// A job of the form as the equal command line: `adlro submit ...`, with the options that differ from their defaults.

/**
 * @typedef {object} JobForm the fields of a JobSpec that the form has, and a program's words
 * @property {string} name
 * @property {string} job_type
 * @property {string} application
 * @property {number} priority
 * @property {number} gpu_count
 * @property {string[]} gpu_models
 * @property {boolean} exclusive
 * @property {string[]} excluded_node_ids
 * @property {string[]} node_ids
 * @property {number} max_node_count
 * @property {number} cpu_cores
 * @property {number} memory_mib 0: the default, 4 GiB a core
 * @property {number} gpu_memory_mib
 * @property {number | null} time_limit_s
 * @property {{gpu_model: string, runtime_s: number} | null} expected_runtime
 * @property {{restart_s: number, lost_s: number, grace_s: number | null} | null} preemptible
 * @property {boolean} shareable
 * @property {string[]} argv
 * @property {string} image
 * @property {Record<string, string>} labels
 * @property {string[]} after such as "job-17:any"
 * @property {boolean} held
 * @property {string} workdir
 * @property {number | null} stop_grace_s
 * @property {number} log_limit_mib 0: the default
 */

/** A word as a POSIX shell reads it. @param {string} word */
export function quote(word) {
  return /^[A-Za-z0-9_@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'"'"'`)}'`;
}

/**
 * Words of a command as a shell splits them: blanks, quotes, and backslashes; no variables.
 * @param {string} text
 * @returns {string[]}
 */
export function split(text) {
  /** @type {string[]} */
  const words = [];
  let word = "";
  let open = false;
  let mark = "";
  for (let at = 0; at < text.length; at += 1) {
    const sign = text[at];
    if (mark) {
      if (sign === mark) mark = "";
      else if (sign === "\\" && mark === '"' && '"\\'.includes(text[at + 1])) word += text[(at += 1)];
      else word += sign;
    } else if (sign === "'" || sign === '"') {
      mark = sign;
      open = true;
    } else if (sign === "\\" && at + 1 < text.length) {
      word += text[(at += 1)];
      open = true;
    } else if (/\s/.test(sign)) {
      if (open) words.push(word);
      word = "";
      open = false;
    } else {
      word += sign;
      open = true;
    }
  }
  return open ? [...words, word] : words;
}

/** @param {JobForm} job @param {{begin: string, array: string}} written what the command takes as it was written */
export function commandLine(job, { begin, array }) {
  const words = ["adlro", "submit"];
  if (job.job_type) words.push("--type", job.job_type);
  if (job.name) words.push("--name", job.name);
  if (job.application) words.push("--application", job.application);
  if (job.priority !== 0.5) words.push("--priority", String(job.priority));
  for (const [name, value] of Object.entries(job.labels)) words.push("--label", `${name}=${value}`);
  if (job.gpu_count !== 1) words.push("--gpus", String(job.gpu_count));
  if (job.max_node_count) words.push("--max-nodes", String(job.max_node_count));
  for (const model of job.gpu_models) words.push("--gpu-model", model);
  if (job.exclusive) words.push("--exclusive");
  if (job.excluded_node_ids.length) words.push("--exclude", job.excluded_node_ids.join(","));
  if (job.node_ids.length) words.push("--nodelist", job.node_ids.join(","));
  if (job.cpu_cores !== 1) words.push("--cores", String(job.cpu_cores));
  if (job.memory_mib) words.push("--memory", `${job.memory_mib}MiB`);
  if (job.gpu_memory_mib) words.push("--gpu-memory", `${job.gpu_memory_mib}MiB`);
  if (job.time_limit_s !== null) words.push("--time-limit", String(job.time_limit_s));
  if (begin) words.push("--begin", begin);
  for (const each of job.after) words.push("--after", each);
  if (job.held) words.push("--hold");
  if (array) words.push("--array", array);
  if (job.expected_runtime) words.push("--runtime", String(job.expected_runtime.runtime_s), "--on", job.expected_runtime.gpu_model);
  if (job.preemptible) {
    words.push("--preemptible");
    if (job.preemptible.restart_s) words.push("--restart", String(job.preemptible.restart_s));
    if (job.preemptible.lost_s) words.push("--lost", String(job.preemptible.lost_s));
    if (job.preemptible.grace_s !== null) words.push("--preempt-grace", String(job.preemptible.grace_s));
  }
  if (job.shareable) words.push("--shareable");
  if (job.image) words.push("--image", job.image);
  if (job.workdir) words.push("--workdir", job.workdir);
  if (job.stop_grace_s !== null) words.push("--stop-grace", String(job.stop_grace_s));
  if (job.log_limit_mib) words.push("--log-limit", `${job.log_limit_mib}MiB`);
  if (job.argv.length) words.push("--", ...job.argv);
  return words.map(quote).join(" ");
}

/** Seconds of the units, the larger ones first. @type {[RegExp, number][]} */
const UNITS = [[/^w$/, 604_800], [/^d$/, 86_400], [/^(h|hr)$/, 3_600], [/^(m|min)$/, 60], [/^(s|sec)$/, 1], [/^ms$/, 0.001]];

/** "1h30m" in seconds: units from the larger to the smaller, and a fraction only in the last. @param {string} asked */
function sumOfUnits(asked) {
  let sum = 0;
  let least = -1;
  let rest = asked;
  while (rest) {
    const part = /^(\d+(?:\.\d+)?|\.\d+)\s*([a-z]+)\s*/.exec(rest);
    const unit = part ? UNITS.findIndex(([name]) => name.test(part[2])) : -1;
    if (!part || unit <= least) return Number.NaN;
    rest = rest.slice(part[0].length);
    if (part[1].includes(".") && rest) return Number.NaN;
    sum += Number(part[1]) * UNITS[unit][1];
    least = unit;
  }
  return sum;
}

/** "MM:SS", "HH:MM:SS", "D-HH", "D-HH:MM", "D-HH:MM:SS" in seconds, as Slurm reads them. @param {string} asked */
function clockOf(asked) {
  const withDays = /^(\d+)-(\d{1,2})(?::(\d{1,2}))?(?::(\d{1,2}))?$/.exec(asked);
  const without = /^(?:(\d+):)?(\d+):(\d{1,2})$/.exec(asked);
  if (!withDays && !without) return Number.NaN;
  const [days, hours, minutes, seconds] = withDays ? withDays.slice(1).map((text) => Number(text ?? 0)) : [0, ...(without ?? []).slice(1).map((text) => Number(text ?? 0))];
  // The first figure has no upper end: 90:00 is an hour and a half.
  if (seconds >= 60 || (minutes >= 60 && (withDays || without?.[1] !== undefined)) || (hours >= 24 && withDays)) return Number.NaN;
  return days * 86_400 + hours * 3_600 + minutes * 60 + seconds;
}

/** "90", "10m", "1h30m", "01:00:00", "1-12:00:00" in seconds; null: empty; NaN: not a time. @param {string} text */
export function secondsOf(text) {
  const asked = text.trim().toLowerCase();
  if (!asked) return null;
  if (/^(\d+(\.\d+)?|\.\d+)$/.test(asked)) return Number(asked);
  return /[:-]/.test(asked) ? clockOf(asked) : sumOfUnits(asked);
}

/** "16GiB", "16GB", "500MiB", "15000" (MiB) as MiB, rounded up; 0: empty; NaN: not a size. @param {string} text */
export function mibOf(text) {
  const plain = text.trim().replaceAll(/[\s,]/g, "").toLowerCase();
  if (!plain) return 0;
  const found = /^(\d+(?:\.\d+)?|\.\d+)(?:(b)|([kmgt])(i|ib|b)?)?$/.exec(plain);
  if (!found) return Number.NaN;
  const power = found[2] ? 0 : "bkmgt".indexOf(found[3] ?? "m");
  return Math.ceil((Number(found[1]) * (found[4] === "b" ? 1_000 : 1_024) ** power) / 1_024 ** 2);
}

/**
 * When a job begins, as `adlro submit --begin` reads it: "now+1h", "16:00" (over today: tomorrow), "2026-11-28T08:00", or
 * a time of the cluster's clock, "3600s".
 * @param {string} text
 * @param {Date} [now]
 * @returns {{time_s: number} | {from_now_s: number} | {unix_s: number} | null | undefined} null: empty; undefined: no time
 */
export function beginOf(text, now = new Date()) {
  const asked = text.trim().toLowerCase().replaceAll(/\s+/g, " ");
  if (!asked) return null;
  if (asked === "now") return { from_now_s: 0 };
  const from = /^now ?([+-]) ?(.+)$/.exec(asked);
  if (from) {
    const seconds = secondsOf(from[2]);
    return seconds === null || Number.isNaN(seconds) ? undefined : { from_now_s: from[1] === "-" ? -seconds : seconds };
  }
  const ofDay = /^(\d{1,2}):(\d{2})(?::(\d{2}))?$/.exec(asked);
  if (ofDay) {
    const [hour, minute, second] = ofDay.slice(1).map((each) => Number(each ?? 0));
    if (hour > 23 || minute > 59 || second > 59) return undefined;
    const unix_s = new Date(now.getFullYear(), now.getMonth(), now.getDate(), hour, minute, second).getTime() / 1_000;
    return { unix_s: unix_s < now.getTime() / 1_000 ? unix_s + 86_400 : unix_s };
  }
  const date = /^(\d{4})-(\d{2})-(\d{2})(?:[t ](\d{2}:\d{2}(?::\d{2}(?:\.\d+)?)?)(z|[+-]\d{2}:\d{2})?)?$/.exec(asked);
  if (date) {
    const [year, month, day] = date.slice(1, 4).map(Number);
    const unix_s = new Date(`${date[1]}-${date[2]}-${date[3]}T${date[4] ?? "00:00"}${(date[5] ?? "").toUpperCase()}`).getTime() / 1_000;
    // Browsers take the 31st of February for a day in March.
    return Number.isNaN(unix_s) || new Date(year, month - 1, day).getDate() !== day ? undefined : { unix_s };
  }
  const time_s = secondsOf(asked);
  return time_s === null || Number.isNaN(time_s) ? undefined : { time_s };
}

/** @type {Record<string, string>} how the job that is waited for must have ended */
const CONDITIONS = { ok: "ok", any: "any", fail: "fail", afterok: "ok", afterany: "any", afternotok: "fail" };

/** "17, array-20:any" as texts of one form: "job-17", "array-20:any"; null: it is something else. @param {string} text */
export function afterOf(text) {
  const found = [];
  for (const part of text.trim() ? text.split(",") : []) {
    const [, kind, number, word = "ok"] = /^(?:(job|array)-)?([1-9]\d{0,17})(?::([a-z]+))?$/i.exec(part.trim()) ?? [];
    const condition = CONDITIONS[word.toLowerCase()];
    if (!number || !condition) return null;
    found.push(`${(kind ?? "job").toLowerCase()}-${number}${condition === "ok" ? "" : `:${condition}`}`);
  }
  return found;
}

const MOST_INDEXES = 10_000;

/** How many jobs an array such as "0-99%10" has, and how many of them at once (0: any number); null: it is none. @param {string} text */
export function arrayOf(text) {
  const [, wanted = "", most] = /^([^%]*)(?:%(\d+))?$/.exec(text.trim()) ?? [];
  const indexes = new Set();
  for (const part of wanted.split(",")) {
    const found = /^(\d{1,10})(?:-(\d{1,10})(?::(\d{1,10}))?)?$/.exec(part.trim());
    if (!found) return null;
    const [first, last, step] = [Number(found[1]), Number(found[2] ?? found[1]), Number(found[3] ?? 1)];
    if (last < first || !step || last > 1e9 || (last - first) / step >= MOST_INDEXES) return null;
    for (let index = first; index <= last; index += step) indexes.add(index);
  }
  const at_once = Number(most ?? 0);
  if (indexes.size > MOST_INDEXES || (most !== undefined && !(at_once > 0 && at_once <= MOST_INDEXES))) return null;
  return { count: indexes.size, at_once };
}

/** Labels of "team=vision stage='first try'"; null: they are none. @param {string} text */
export function labelsOf(text) {
  const pairs = split(text).map((word) => /^([^=]+)=(.*)$/s.exec(word));
  return pairs.includes(null) ? null : Object.fromEntries(pairs.map((pair) => [pair?.[1], pair?.[2]]));
}
