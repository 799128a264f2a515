// @ts-check
// Trainings side by side: groups of them, one axis for all, and the mean of a group. Pure arithmetic, nothing smoothed.

/**
 * An answer of /api/runs/ID: columns of the curve, a place for each score, and the settings.
 * @typedef {{id: string, columns: Record<string, (number | null)[]>, settings: Record<string, any>}} Run
 */
/** @typedef {{name: string, runs: Run[]}} Group */
/** @typedef {"recipe" | "settings" | "none"} GroupBy */

/** What two trainings of equal settings may differ in. */
const CHANCE = new Set(["seed"]);

/** @param {any} value */
const textOf = (value) => (typeof value === "string" ? value : JSON.stringify(value) ?? "–");

/** The settings in which some of these differ, in alphabetical order. @param {Run[]} runs */
export function differing(runs) {
  const all = new Set(runs.flatMap((run) => Object.keys(run.settings ?? {})));
  return [...all].filter((name) => new Set(runs.map((run) => JSON.stringify(run.settings?.[name]))).size > 1).sort();
}

/** The different values that trainings have of a setting, as texts. @param {Run[]} runs @param {string} name */
export const valuesOf = (runs, name) => [...new Set(runs.map((run) => textOf(run.settings?.[name])))];

/**
 * Groups in the order of their first trainings: of one recipe, of equal settings but for the seed, or each alone.
 * @param {Run[]} runs @param {GroupBy} by @returns {Group[]}
 */
export function groupsOf(runs, by) {
  if (by === "none") return runs.map((run) => ({ name: run.id, runs: [run] }));
  const settings = differing(runs).filter((name) => !CHANCE.has(name) && name !== "recipe");
  const recipe = (/** @type {Run} */ run) => String(run.settings?.recipe ?? "without a recipe");
  /** @type {Map<string, Group>} */
  const found = new Map();
  for (const run of runs) {
    const name = by === "recipe" ? recipe(run) : [recipe(run), ...settings.map((each) => `${each} ${textOf(run.settings?.[each])}`)].join(", ");
    const group = found.get(name) ?? { name, runs: [] };
    found.set(name, group);
    group.runs.push(run);
  }
  return [...found.values()];
}

/** The scores of a training that are numbers, by progress. @param {Run} run @param {string} metric @param {string} progress @returns {[number, number][]} */
function pointsOf(run, metric, progress) {
  /** @type {[number, number][]} */
  const points = [];
  (run.columns[progress] ?? []).forEach((step, index) => {
    const value = run.columns[metric]?.[index];
    if (typeof step === "number" && typeof value === "number") points.push([step, value]);
  });
  return points.sort(([one], [other]) => one - other);
}

/** The value at a step, on the straight line between the scores beside it. @param {[number, number][]} points @param {number} step */
function at(points, step) {
  const next = points.findIndex(([each]) => each >= step);
  const [to, high] = points[next];
  if (to === step) return high;
  const [from, low] = points[next - 1];
  return low + ((step - from) / (to - from)) * (high - low);
}

/**
 * The mean of a group, with its lowest and highest, at each step at which one of them scored; only where all of them have
 * begun and none has ended, so that a mean never changes because another training joins or leaves.
 * @param {Run[]} runs @param {string} metric @param {string} progress
 * @returns {{step: number[], mean: number[], low: number[], high: number[]}}
 */
export function meanOf(runs, metric, progress) {
  const curves = runs.map((run) => pointsOf(run, metric, progress));
  /** @type {{step: number[], mean: number[], low: number[], high: number[]}} */
  const found = { step: [], mean: [], low: [], high: [] };
  if (curves.some((points) => !points.length)) return found;
  const first = Math.max(...curves.map((points) => points[0][0]));
  const last = Math.min(...curves.map((points) => points[points.length - 1][0]));
  const steps = [...new Set(curves.flatMap((points) => points.map(([step]) => step)))].filter((step) => step >= first && step <= last);
  for (const step of steps.sort((one, other) => one - other)) {
    const values = curves.map((points) => at(points, step));
    found.step.push(step);
    found.mean.push(values.reduce((sum, value) => sum + value, 0) / values.length);
    found.low.push(Math.min(...values));
    found.high.push(Math.max(...values));
  }
  return found;
}

/** All steps at which one of them scored. @param {Run[]} runs @param {string} progress */
export const stepsOf = (runs, progress) =>
  [...new Set(runs.flatMap((run) => (run.columns[progress] ?? []).filter((step) => typeof step === "number")))].sort((one, other) => Number(one) - Number(other));

/**
 * Values at the steps of an axis: undefined where there is no score, null where a score has no figure (the line breaks).
 * @param {(number | null)[]} axis @param {(number | null)[]} steps @param {(number | null)[]} values
 * @returns {(number | null | undefined)[]}
 */
export function onAxis(axis, steps, values) {
  const place = new Map(axis.map((step, index) => [step, index]));
  /** @type {(number | null | undefined)[]} */
  const column = new Array(axis.length).fill(undefined);
  steps.forEach((step, index) => {
    const found = place.get(step);
    if (found !== undefined) column[found] = values[index] ?? null;
  });
  return column;
}
