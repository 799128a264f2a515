// @ts-check
// The Gantt's labels and its axis, over the pixels of the bars.
import { clusterTime } from "../format.js";
import { colour } from "../theme.js";

export const LABELS_PX = 92;
export const AXIS_PX = 22;

/** Labels and the axis over the pixels. @param {CanvasRenderingContext2D} context @param {{from_s: number, to_s: number}} range @param {import("./rows.js").Rows} rows @param {number} top @param {{width: number, height: number}} size @param {number} scale */
export function texts(context, range, rows, top, size, scale) {
  context.save();
  context.scale(scale, scale);
  context.font = `11px ${getComputedStyle(document.body).fontFamily}`;
  context.textBaseline = "middle";
  const [ink, quiet, panel, line] = [colour("--ink"), colour("--ink-2"), colour("--panel"), colour("--line")];
  for (const row of rows.list) {
    const y = row.top - top + AXIS_PX;
    if (y + row.height < 0 || y > size.height) continue;
    if (row.kind === "gpu" && row.height < 11) continue;
    context.fillStyle = row.kind === "node" ? ink : quiet;
    const text = row.kind === "node" ? `${row.open ? "▾" : "▸"} ${row.label}` : `  ${row.label.split("/").at(-1)}`;
    context.fillText(text, 4, y + row.height / 2, LABELS_PX - 8);
  }
  context.fillStyle = panel;
  context.fillRect(0, 0, size.width, AXIS_PX);
  context.fillStyle = quiet;
  const marks = Math.max(2, Math.floor((size.width - LABELS_PX) / 110));
  const step = niceStep((range.to_s - range.from_s) / marks);
  for (let time_s = Math.ceil(range.from_s / step) * step; time_s < range.to_s; time_s += step) {
    const x = LABELS_PX + ((time_s - range.from_s) / (range.to_s - range.from_s)) * (size.width - LABELS_PX);
    if (time_s >= 0 && x + 60 < size.width) context.fillText(clusterTime(time_s), x + 3, AXIS_PX / 2);
    context.fillRect(Math.round(x), AXIS_PX - 6, 1, 6);
  }
  context.fillStyle = line;
  context.fillRect(0, AXIS_PX - 1, size.width, 1);
  context.restore();
}

/** @param {number} least_s */
function niceStep(least_s) {
  return [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 14_400, 21_600, 43_200, 86_400].find((step) => step >= least_s) ?? Math.ceil(least_s / 86_400) * 86_400;
}
