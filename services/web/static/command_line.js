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
 * @property {number} max_node_count
 * @property {number} cpu_cores
 * @property {number} memory_mib 0: the default, 4 GiB a core
 * @property {number} gpu_memory_mib
 * @property {number | null} time_limit_s
 * @property {{gpu_model: string, runtime_s: number} | null} expected_runtime
 * @property {{restart_s: number, lost_s: number} | null} preemptible
 * @property {boolean} shareable
 * @property {string[]} argv
 * @property {string} image
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

/** @param {JobForm} job */
export function commandLine(job) {
  const words = ["adlro", "submit"];
  if (job.job_type) words.push("--type", job.job_type);
  if (job.name) words.push("--name", job.name);
  if (job.application) words.push("--application", job.application);
  if (job.priority !== 0.5) words.push("--priority", String(job.priority));
  if (job.gpu_count !== 1) words.push("--gpus", String(job.gpu_count));
  if (job.max_node_count) words.push("--max-nodes", String(job.max_node_count));
  for (const model of job.gpu_models) words.push("--gpu-model", model);
  if (job.cpu_cores !== 1) words.push("--cores", String(job.cpu_cores));
  if (job.memory_mib) words.push("--memory", `${job.memory_mib}MiB`);
  if (job.gpu_memory_mib) words.push("--gpu-memory", `${job.gpu_memory_mib}MiB`);
  if (job.time_limit_s !== null) words.push("--time-limit", String(job.time_limit_s));
  if (job.expected_runtime) words.push("--runtime", String(job.expected_runtime.runtime_s), "--on", job.expected_runtime.gpu_model);
  if (job.preemptible) {
    words.push("--preemptible");
    if (job.preemptible.restart_s) words.push("--restart", String(job.preemptible.restart_s));
    if (job.preemptible.lost_s) words.push("--lost", String(job.preemptible.lost_s));
  }
  if (job.shareable) words.push("--shareable");
  if (job.image) words.push("--image", job.image);
  if (job.argv.length) words.push("--", ...job.argv);
  return words.map(quote).join(" ");
}

const UNITS = { s: 1, m: 60, h: 3_600, d: 86_400 };

/** "90", "10m", "1h30m" in seconds; null: empty; NaN: not a time. @param {string} text */
export function secondsOf(text) {
  const plain = text.trim().replaceAll(/\s/g, "").toLowerCase();
  if (!plain) return null;
  if (/^\d+(\.\d+)?$/.test(plain)) return Number(plain);
  if (!/^(\d+(\.\d+)?[smhd])+$/.test(plain)) return Number.NaN;
  return [...plain.matchAll(/(\d+(?:\.\d+)?)([smhd])/g)].reduce((sum, [, number, unit]) => sum + Number(number) * UNITS[/** @type {keyof typeof UNITS} */ (unit)], 0);
}

/** "16GiB", "500MiB", "15000" (MiB); 0: empty; NaN: not a size. @param {string} text */
export function mibOf(text) {
  const plain = text.trim().replaceAll(/[\s,]/g, "").toLowerCase();
  if (!plain) return 0;
  const found = /^(\d+(?:\.\d+)?)(m|mib|g|gib|t|tib)?$/.exec(plain);
  if (!found) return Number.NaN;
  const scale = { g: 1_024, t: 1_048_576, m: 1 }[found[2]?.[0] ?? "m"] ?? 1;
  return Math.round(Number(found[1]) * scale);
}
