// @ts-check
// A count over time that goes on: each value stays until the next; the last point stands at the present moment.

export class Steps {
  /** @param {{time_s: number[], count: (number | null)[]}} given */
  constructor({ time_s, count }) {
    this.time_s = [...time_s];
    this.count = [...count];
  }

  /**
   * What the count is now; forgets what was before `from_s`, but for the value that held then.
   * @param {number} time_s @param {number | null | undefined} value null: not known, and the last one goes on
   * @param {number} from_s
   */
  push(time_s, value, from_s) {
    const { time_s: times, count } = this;
    const last = times.length - 1;
    const next = value ?? count[last] ?? null;
    if (last >= 0 && time_s <= times[last]) return;
    if (last >= 1 && next === count[last] && next === count[last - 1]) times[last] = time_s;
    else {
      times.push(time_s);
      count.push(next);
    }
    let gone = 0;
    while (gone + 1 < times.length && times[gone + 1] <= from_s) gone += 1;
    if (gone) {
      times.splice(0, gone);
      count.splice(0, gone);
    }
    if (times[0] < from_s) times[0] = from_s;
  }
}
