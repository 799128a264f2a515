// @ts-check
// Figures as text, with their units. An unknown figure is a dash, never a zero.

export const DASH = "–";
const NARROW = "\u202f"; // between a figure and its unit; does not break

/** @param {unknown} value @returns {value is number} */
const known = (value) => typeof value === "number" && Number.isFinite(value);

/** By number of digits: a browser takes tens of microseconds to make one. @type {Intl.NumberFormat[]} */
const FORMATS = [];

/** @param {number | null | undefined} value @param {number} [digits] */
export function count(value, digits = 0) {
  if (!known(value)) return DASH;
  FORMATS[digits] ??= new Intl.NumberFormat("en", { maximumFractionDigits: digits, minimumFractionDigits: digits });
  return FORMATS[digits].format(value);
}

/** @param {number | null | undefined} ratio 0 to 1 */
export function percent(ratio, digits = 0) {
  return known(ratio) ? `${(ratio * 100).toFixed(digits)}${NARROW}%` : DASH;
}

/** @param {number} value */
const two = (value) => String(value).padStart(2, "0");

/** A length of time: "3.4 s", "4 m 12 s", "2 h 05 m", "1 d 02 h". @param {number | null | undefined} seconds @returns {string} */
export function duration(seconds) {
  if (!known(seconds)) return DASH;
  if (seconds < 0) return `−${duration(-seconds)}`;
  if (seconds < 0.9995 && seconds > 0) return `${seconds < 0.01 ? Number((seconds * 1000).toFixed(1)) : Math.round(seconds * 1000)}${NARROW}ms`;
  if (seconds < 9.95) return `${Number(seconds.toFixed(1))}${NARROW}s`;
  const whole = Math.round(seconds);
  if (whole < 60) return `${whole}${NARROW}s`;
  if (whole < 3600) return `${Math.floor(whole / 60)}${NARROW}m ${two(whole % 60)}${NARROW}s`;
  if (whole < 86400) return `${Math.floor(whole / 3600)}${NARROW}h ${two(Math.floor((whole % 3600) / 60))}${NARROW}m`;
  return `${Math.floor(whole / 86400)}${NARROW}d ${two(Math.floor((whole % 86400) / 3600))}${NARROW}h`;
}

/** A moment of the cluster's clock: "1 d 02:14:07". @param {number | null | undefined} seconds */
export function clusterTime(seconds) {
  if (!known(seconds)) return DASH;
  const whole = Math.floor(Math.max(0, seconds));
  const days = Math.floor(whole / 86400);
  const text = `${two(Math.floor((whole % 86400) / 3600))}:${two(Math.floor((whole % 3600) / 60))}:${two(whole % 60)}`;
  return days ? `${days}${NARROW}d ${text}` : text;
}

/** A moment of the wall's clock. @param {number | null | undefined} unix_s */
export function wallTime(unix_s) {
  return known(unix_s) ? new Date(unix_s * 1000).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "short" }) : DASH;
}

/** @param {number | null | undefined} value in MiB */
export function mib(value) {
  if (!known(value)) return DASH;
  if (value >= 1024 && value % 1024 === 0) return `${count(value / 1024)}${NARROW}GiB`;
  return `${count(value)}${NARROW}MiB`;
}

/** @param {number | null | undefined} value @param {string} unit @param {number} [digits] */
export function withUnit(value, unit, digits = 0) {
  return known(value) ? `${count(value, digits)}${NARROW}${unit}` : DASH;
}

/** @param {number | null | undefined} low_s @param {number | null | undefined} high_s */
export function interval(low_s, high_s) {
  return known(low_s) && known(high_s) ? `${duration(low_s)} to ${duration(high_s)}` : DASH;
}

/** @param {number} value @param {string} one @param {string} [many] */
export function plural(value, one, many = `${one}s`) {
  return `${count(value)} ${value === 1 ? one : many}`;
}

/**
 * A text of somebody else's with the characters that nobody sees, or that turn the line round, written out.
 * @param {string | null | undefined} text
 */
export function visible(text) {
  return (text ?? "").replace(/[\p{Cc}\p{Cf}\p{Co}\p{Zl}\p{Zp}]/gu, (hidden) => `⟨U+${hidden.codePointAt(0)?.toString(16).toUpperCase().padStart(4, "0")}⟩`);
}

/** @type {Record<string, string>} */
const WORDS = {
  mean_jct_s: "mean JCT, s",
  p95_jct_s: "95th percentile of JCT, s",
  max_wait_s: "longest wait, s",
  submitted: "just submitted",
  begin_time: "waits for its begin time",
  resources: "GPUs are busy",
  policy: "policy holds it",
  launching: "launching",
  no_fitting_gpu: "no GPU fits",
  cluster_unavailable: "cluster away",
  nodes_drained: "nodes drained",
  launch_refused: "launch refused",
  gang_nodes: "too few free GPUs together",
  reserved: "GPUs reserved for another job",
  no_fitting_nodes: "no nodes fit",
  held: "held",
  dependency: "waits for other jobs",
  array_limit: "limit of its array",
  quota: "quota of its user",
  machine_learning: "machine learning",
  data_processing: "data processing",
  out_of_range: "out of range",
  memory_used: "memory",
  utilization: "utilization",
};

/** A name of the contract as words. @param {string | null | undefined} name */
export function words(name) {
  if (!name) return DASH;
  return WORDS[name] ?? name.replaceAll("_", " ");
}

/** @type {Record<string, string>} */
const BASES = {
  policy: "the policy's own choice",
  margin: "too close to the base's choice",
  overdue: "a job had waited too long",
  out_of_range: "figures out of the range of training",
  failed: "the network failed",
  late: "the network was too late",
  missing: "no network for this cluster",
};

/** Why a decision was taken as it was. @param {string | null | undefined} name */
export function basis(name) {
  return name ? BASES[name] ?? words(name) : DASH;
}
