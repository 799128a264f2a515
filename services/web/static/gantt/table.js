// @ts-check
// The Gantt's bars as a table: the form of it that everybody can read, and that can be saved.
import { useEffect, useMemo, useRef, useState } from "../vendor/hooks.js";
import { clusterTime, DASH, duration, plural, visible, words } from "../format.js";
import { html } from "../html.js";
import { Empty, JobState, Panel, Scroll } from "../parts.js";
import { gpuPath, jobPath } from "../router.js";
import { barsIn } from "./rows.js";

const TABLE_ROWS = 40;

/**
 * @param {object} props
 * @param {any} props.chart with bars
 * @param {{from_s: number, to_s: number, live: boolean}} props.range
 * @param {boolean} props.marked whether the range was marked; otherwise it is the view
 * @param {string} props.selected a job's id: only its bars
 * @param {() => void} props.onClear shows the bars of all jobs
 * @param {number} props.now_s
 * @param {(bars: number[]) => void} props.onSave
 */
export function BarTable({ chart, range, marked, selected, onClear, now_s, onSave }) {
  // The table follows a moment after the view stands still, and every 2 s while it runs on: not at each frame of a drag.
  const [shown, setShown] = useState(range);
  const since_ms = useRef(0);
  useEffect(() => {
    const wait_ms = range.live ? Math.max(0, since_ms.current + 2_000 - performance.now()) : 250;
    const timer = setTimeout(() => {
      since_ms.current = performance.now();
      setShown(range);
    }, wait_ms);
    return () => clearTimeout(timer);
  }, [range.from_s, range.to_s, range.live]);
  const bars = chart.bars;
  const found = useMemo(() => barsIn(chart, shown.from_s, shown.to_s, (index) => !selected || bars.job[index] === selected), [chart, shown, selected]);
  const where = marked ? "in the marked time" : "in view";
  return html`<${Panel} title=${selected ? `Bars of ${selected}${marked ? ` ${where}` : ""}` : `Bars ${where}`} tools=${html`<span class="quiet num">${found.length > TABLE_ROWS ? `the newest ${TABLE_ROWS} of ${plural(found.length, "bar")}` : plural(found.length, "bar")}</span>
      ${selected && html`<button type="button" onClick=${onClear}>Show all</button>`}
      <button type="button" onClick=${() => onSave(found)}>Save as Chrome trace</button>`}>
    ${found.length === 0
      ? html`<${Empty}>Nothing ran in this time.<//>`
      : html`<${Scroll} label=${`Bars ${where}`}><table><thead><tr><th scope="col">Job</th><th scope="col">GPU</th><th scope="col" class="number">Start</th><th scope="col" class="number">Ran</th><th scope="col" class="c-mid">User</th><th scope="col" class="c-mid">Type</th><th scope="col">Outcome</th></tr></thead>
          <tbody>${found.slice(0, TABLE_ROWS).map((index) => html`<tr key=${`${bars.job[index]} ${bars.gpu[index]} ${bars.start_s[index]}`}>
            <th scope="row">${bars.job[index] ? html`<a href=${jobPath(bars.job[index])}>${bars.job[index]}</a> <bdi class="quiet">${visible(bars.name?.[index])}</bdi>` : html`<span class="quiet">another user's job</span>`}</th>
            <td><a href=${gpuPath(chart.gpus[bars.gpu[index]])}>${chart.gpus[bars.gpu[index]]}</a></td>
            <td class="number num">${clusterTime(bars.start_s[index])}</td><td class="number num">${duration((bars.end_s[index] ?? now_s) - bars.start_s[index])}</td>
            <td class="c-mid">${bars.user[index]}</td><td class="c-mid">${words(bars.type[index])}</td><td>${bars.outcome[index] || bars.end_s[index] === null ? html`<${JobState} state=${bars.outcome[index] || "running"} />` : DASH}</td></tr>`)}</tbody></table><//>`}
  <//>`;
}
