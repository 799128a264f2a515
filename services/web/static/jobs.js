// @ts-check
// What several screens work out from a job's record.

/**
 * How long a job waited, or has waited by now.
 * @param {any} job
 * @param {number | null} now_s of the cluster's clock
 * @returns {number | null}
 */
export function waited(job, now_s) {
  if (typeof job.wait_s === "number") return job.wait_s;
  if (job.state !== "pending" || typeof job.submit_s !== "number" || now_s === null) return null;
  return Math.max(0, now_s - job.submit_s);
}
