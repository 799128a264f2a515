// @ts-check
// What a topic's frames become: a snapshot replaces, a delta changes. Pure: no socket, no drawing.

/** @type {Record<string, string[]>} the services without which a topic's figures are old */
const SOURCES = {
  // Waits and failures are of ingest's jobs; without the orchestrator nobody knows who decides, nor what it has not heard of.
  head: ["ingest", "orchestrator"],
  // What runs where is known by ingest's jobs. Drained nodes are the orchestrator's last word: they stay drained without it.
  gpus: ["ingest", "decompose", "cluster"],
  gpu: ["ingest", "decompose", "cluster"],
  queue: ["ingest"],
  job: ["ingest"],
  decisions: ["orchestrator"],
};

/** @param {string} key */
export function topicOf(key) {
  const end = key.indexOf("?");
  return end < 0 ? key : key.slice(0, end);
}

/** @param {string} key @returns {string[]} */
export function sourcesOf(key) {
  return SOURCES[topicOf(key)] ?? [];
}

/**
 * The topic's data after a frame; always a new object, so that who compares references sees the change.
 * @param {string} key
 * @param {any} before null for a snapshot
 * @param {any} data the header's
 * @param {Uint8Array} body
 */
export function merge(key, before, data, body) {
  switch (topicOf(key)) {
    case "gpus":
      return mergeGpus(before, data, body);
    case "queue":
      return before === null ? data : mergeQueue(before, data);
    case "decisions":
      return before === null ? data : mergeDecisions(before, data, key);
    default:
      return before === null ? data : { ...before, ...data };
  }
}

/**
 * @param {any} before @param {any} data @param {Uint8Array} body
 * @returns {any} as in the frame, but `planes` is {name: one byte a GPU}, and `changed` names those of this frame
 */
function mergeGpus(before, data, body) {
  const size = (data.gpus ?? before.gpus).length;
  const names = data.planes ?? [];
  if (body.length < names.length * size) throw new RangeError("a frame of planes is too short");
  /** @type {Record<string, Uint8Array>} */
  const planes = { ...before?.planes };
  names.forEach((/** @type {string} */ name, /** @type {number} */ index) => {
    planes[name] = body.subarray(index * size, (index + 1) * size);
  });
  const jobs = before === null ? (data.jobs ?? {}) : { ...before.jobs, ...data.jobs };
  return { ...before, ...data, planes, jobs, changed: names };
}

/** @param {any} before @param {any} data */
function mergeQueue(before, data) {
  const rows = [...before.rows];
  for (const [offset, row] of Object.entries(data.rows ?? {})) rows[Number(offset)] = row;
  return { ...before, ...data, rows };
}

/** @param {any} before @param {any} data @param {string} key */
function mergeDecisions(before, data, key) {
  const limit = Number(new URLSearchParams(key.split("?")[1] ?? "").get("count") ?? 50);
  return { ...before, ...data, new: undefined, rows: [...(data.new ?? []), ...before.rows].slice(0, limit) };
}
