// Draws the plots of an evaluation's page with plotly, from DATA. Each plot is drawn when it comes near the screen, and
// again when the system changes between light and dark.
"use strict";

const HUES = ["#3b78c4", "#e0862a", "#3f9c5a", "#c8413b", "#8a63c9", "#9a6a4f", "#d470b0", "#7d858f", "#a9a52b", "#2aa5b5"];
const DASHES = ["solid", "dash", "dot"];
const SYMBOLS = ["circle", "square", "diamond", "triangle-up", "x", "cross", "star"];

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const narrow = () => window.innerWidth < 600;

function lineOf(policy) {
  const number = DATA.policies.indexOf(policy);
  return {
    line: { color: HUES[number % HUES.length], dash: DASHES[Math.floor(number / HUES.length) % DASHES.length], width: 2 },
    marker: { symbol: SYMBOLS[number % SYMBOLS.length], size: 7, color: HUES[number % HUES.length] },
  };
}

function axis(title, more) {
  const plain = { title: { text: title, standoff: 8 }, gridcolor: css("--line"), zerolinecolor: css("--line"), linecolor: css("--line"), automargin: true };
  return Object.assign(plain, more);
}

function layout(title, x, y, more) {
  return Object.assign({
    title: title ? { text: title, font: { size: 14 }, x: 0, xref: "paper", xanchor: "left" } : undefined,
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { color: css("--ink"), family: "system-ui, sans-serif", size: 12 },
    margin: { l: 50, r: 10, t: title ? 36 : 8, b: 44 },
    xaxis: x, yaxis: y,
    legend: { orientation: "h", y: -0.2, yanchor: "top", font: { size: 11 } },
    modebar: { bgcolor: "rgba(0,0,0,0)", color: css("--line"), activecolor: css("--dim") },
    hoverlabel: { bgcolor: css("--raised"), bordercolor: css("--line"), font: { color: css("--ink") } },
  }, more);
}

const atLoad = (load) => (load === null ? "" : ` at load ${load}`);

function againstLoad(values, of, interval, title, y, more) {
  const traces = DATA.policies.map((policy) => {
    const points = values.filter((each) => each.policy === policy);
    const known = points.every((each) => each[interval][0] !== null); // one list has no interval
    return {
      name: policy, x: points.map((each) => each.load), y: points.map((each) => each[of]), mode: "lines+markers", ...lineOf(policy),
      error_y: {
        type: "data", symmetric: false, thickness: 1, width: 2, visible: known,
        array: points.map((each) => each[interval][1] - each[of]), arrayminus: points.map((each) => each[of] - each[interval][0]),
      },
      hovertemplate: `<b>${policy}</b><br>load %{x}: %{y:.3~f}<extra></extra>`,
    };
  }).filter((trace) => trace.x.length);
  const loads = [...new Set(values.map((each) => each.load))];
  const x = axis("load", loads.every((load) => load !== null) ? { tickvals: loads } : {});
  return [traces, layout(title, x, y, more)];
}

const DRAW = {
  load: (scenario) => againstLoad(scenario.rows, "mean_jct_s", "mean_jct_s_ci95", "Mean JCT", axis("seconds", { rangemode: "tozero" })),
  // What counts is the distance from 1, so 1 has a line, and the axis begins where the figures do.
  ratio: (scenario) => againstLoad(scenario.paired, "jct_ratio", "jct_ratio_ci95", "Mean JCT against fcfs (1: as good)", axis("ratio"), {
    shapes: [{ type: "line", xref: "paper", x0: 0, x1: 1, y0: 1, y1: 1, layer: "below", line: { color: css("--dim"), width: 1.5 } }],
  }),
  distribution: (scenario, number) => {
    const { load, curves } = scenario.distributions[number];
    const traces = curves.map((curve) => ({
      name: curve.policy, x: curve.jct, y: curve.share, mode: "lines", line: { ...lineOf(curve.policy).line, width: 1.8 },
      hovertemplate: `<b>${curve.policy}</b><br>%{y:.1%} within %{x:.3~g} s<extra></extra>`,
    }));
    const x = axis("JCT in s (log)", { type: "log", dtick: 1 });
    return [traces, layout(`${scenario.name}${atLoad(load)}`, x, axis("share of jobs", { tickformat: ".0%", range: [0, 1.01] }))];
  },
  gantt: (scenario, number) => {
    const { episodes, gpus, gpuNames } = scenario.episodes;
    const episode = episodes[number];
    const colors = [0, 1, 2].map((type) => css(`--t${type}`));
    const bars = (keep, name, marker) => {
      const runs = episode.gpu.map((_, i) => i).filter(keep);
      return {
        name, type: "bar", orientation: "h", y: runs.map((i) => episode.gpu[i]), base: runs.map((i) => episode.start[i]),
        x: runs.map((i) => episode.end[i] - episode.start[i]), customdata: runs.map((i) => [gpus[episode.gpu[i]], episode.end[i]]),
        marker, width: 0.86, showlegend: false,
        hovertemplate: `%{customdata[0]}<br>${name}<br>%{base:.1f} to %{customdata[1]:.1f} s<extra></extra>`,
      };
    };
    const first = Math.min(...episode.type, 1) >= 1 ? 1 : 0; // job types count from 1 in the contracts
    const traces = DATA.jobTypes.map((name, i) =>
      bars((run) => episode.completed[run] && episode.type[run] - first === i, name, { color: colors[i], line: { color: css("--paper"), width: 0.7 } }));
    traces.push(bars((run) => !episode.completed[run], "lost with its GPU", { color: "rgba(0,0,0,0)", line: { color: css("--lost"), width: 2 } }));
    const y = axis("", { autorange: "reversed", showgrid: false, zeroline: false, tickfont: { size: 9 } });
    Object.assign(y, gpuNames ? { tickvals: gpus.map((_, i) => i), ticktext: gpus } : {});
    const end = Math.max(...episodes.map((each) => Math.max(...each.end)));
    return [traces, layout("", axis("s since the first submission", { range: [0, end], zeroline: false }), y, { barmode: "overlay", margin: { l: 50, r: 10, t: 4, b: 40 } })];
  },
  heat: (scenario, number) => {
    const { episodes, gpus, gpuNames } = scenario.episodes;
    const busy = episodes[number].busy;
    const bins = busy[0].length;
    const trace = {
      type: "heatmap", z: busy, x: busy[0].map((_, i) => (100 * (i + 0.5)) / bins), y: gpus.map((_, i) => i), zmin: 0, zmax: 1,
      colorscale: [[0, css("--raised")], [1, css("--t0")]], xgap: 0, ygap: 1, customdata: busy.map((row, g) => row.map(() => gpus[g])),
      colorbar: { thickness: 8, tickformat: ".0%", outlinewidth: 0, tickvals: [0, 0.5, 1], tickfont: { size: 9 } },
      hovertemplate: "%{customdata}<br>%{z:.0%} busy at %{x:.0f} % of the makespan<extra></extra>",
    };
    const y = axis("", { autorange: "reversed", showgrid: false, tickfont: { size: 9 } });
    Object.assign(y, gpuNames ? { tickvals: gpus.map((_, i) => i), ticktext: gpus } : {});
    return [[trace], layout("", axis("% of the makespan", { showgrid: false }), y, { margin: { l: 50, r: 10, t: 2, b: 38 } })];
  },
};

function draw(element) {
  const scenario = DATA.scenarios[Number(element.dataset.scenario)];
  const [traces, shape] = DRAW[element.dataset.plot](scenario, Number(element.dataset.case || 0));
  // With a finger, a plot that zooms would catch the page's scrolling.
  if (narrow()) shape.dragmode = false;
  element.dataset.drawn = "yes";
  Plotly.react(element, traces, shape, { responsive: true, displaylogo: false, displayModeBar: narrow() || element.closest("figure") ? false : "hover" });
}

const near = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    if (entry.isIntersecting && !entry.target.dataset.drawn) draw(entry.target);
  }
}, { rootMargin: "600px" });
const plots = [...document.querySelectorAll(".plot")];
plots.forEach((element) => near.observe(element));
const again = () => plots.filter((element) => element.dataset.drawn).forEach(draw);
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
window.addEventListener("beforeprint", () => plots.forEach(draw));
