// @ts-check
// Bars as a Chrome trace, which Perfetto and chrome://tracing open: a process for each node, a thread for each GPU.

/**
 * @param {import("./rows.js").Chart} chart
 * @param {number[]} indices bars
 * @returns {string} JSON
 */
export function chromeTrace(chart, indices) {
  const bars = /** @type {import("./rows.js").Bars} */ (chart.bars);
  /** @type {object[]} */
  const events = [];
  const gpus = [...new Set(indices.map((index) => bars.gpu[index]))].sort((one, other) => one - other);
  for (const node of new Set(gpus.map((gpu) => chart.node[gpu]))) events.push({ ph: "M", name: "process_name", pid: node, args: { name: chart.nodes[node] } });
  for (const gpu of gpus) events.push({ ph: "M", name: "thread_name", pid: chart.node[gpu], tid: gpu, args: { name: chart.gpus[gpu] } });
  for (const index of indices) {
    const start_s = bars.start_s[index];
    const end_s = bars.end_s[index] ?? chart.now_s;
    events.push({
      ph: "X", cat: bars.type[index] ?? "", name: `${bars.job[index]} ${bars.name[index] ?? ""}`.trim(), pid: chart.node[bars.gpu[index]], tid: bars.gpu[index],
      ts: Math.round(start_s * 1e6), dur: Math.max(0, Math.round((end_s - start_s) * 1e6)),
      args: { job: bars.job[index], user: bars.user[index], outcome: bars.outcome[index] },
    });
  }
  return JSON.stringify({ displayTimeUnit: "ms", traceEvents: events });
}
