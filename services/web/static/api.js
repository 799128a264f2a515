// @ts-check
// Questions that are not live, and actions: JSON over HTTP, with errors as sentences.
import { useCallback, useEffect, useRef, useState } from "./vendor/hooks.js";

/** An answer that is not a success: its sentence, and the field that it blames. */
export class Refused extends Error {
  /** @param {number} status 0: no answer @param {string} text @param {string} [field] */
  constructor(status, text, field = "") {
    super(text);
    this.status = status;
    this.field = field;
  }
}

/** @param {string} path @param {RequestInit} [init] @returns {Promise<any>} */
async function ask(path, init) {
  let answer;
  try {
    answer = await fetch(path, { credentials: "same-origin", cache: "no-store", ...init });
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new Refused(0, "The page's server does not answer.");
  }
  if (answer.status === 204) return {};
  const type = answer.headers.get("content-type") ?? "";
  const content = type.startsWith("application/json") ? await answer.json() : {};
  if (answer.ok) return content;
  throw new Refused(answer.status, content.error || `The page's server answered ${answer.status}.`, content.field ?? "");
}

/** @param {string} path @param {AbortSignal} [signal] */
export const get = (path, signal) => ask(path, { signal });

/** @param {string} path @param {object} [content] */
export const post = (path, content = {}) =>
  ask(path, { method: "POST", headers: { "content-type": "application/json", "x-adlro": "1" }, body: JSON.stringify(content) });

/** By which a submission that is repeated, because its answer was lost, is the same job. */
export function newRequestId() {
  const bytes = crypto.getRandomValues(new Uint8Array(16)); // randomUUID is there over TLS alone
  return `page-${[...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("")}`;
}

/** A question that was asked so long ago is given up for a new one. */
const LONGEST_WAIT_MS = 60_000;

/**
 * The answer to a GET; `data` of the last success stays while it is asked again. An answer that takes longer than
 * `every_s` is waited for; only another path, or `again`, gives it up.
 * @param {string | null} path null: nothing is asked
 * @param {number} [every_s] asks again so often while the tab is shown; 0: never
 * @returns {{data: any, error: Refused | null, loading: boolean, again: () => void}}
 */
export function useAnswer(path, every_s = 0) {
  const [answer, setAnswer] = useState(/** @type {{path: string | null, data: any, error: Refused | null}} */ ({ path: null, data: null, error: null }));
  const [round, setRound] = useState(0);
  const asked_ms = useRef(/** @type {number | null} */ (null)); // when the question began that has no answer yet
  useEffect(() => {
    if (path === null) return undefined;
    const abort = new AbortController();
    asked_ms.current = Date.now();
    get(path, abort.signal).then(
      (data) => {
        if (abort.signal.aborted) return;
        asked_ms.current = null;
        setAnswer({ path, data, error: null });
      },
      (error) => {
        if (abort.signal.aborted) return;
        asked_ms.current = null;
        const refused = error instanceof Refused ? error : new Refused(0, String(error));
        setAnswer((before) => ({ path, data: before.path === path ? before.data : null, error: refused }));
      },
    );
    return () => abort.abort();
  }, [path, round]);
  useEffect(() => {
    if (!every_s || path === null) return undefined;
    const timer = setInterval(() => {
      if (document.hidden || (asked_ms.current !== null && Date.now() - asked_ms.current < LONGEST_WAIT_MS)) return;
      setRound((before) => before + 1);
    }, every_s * 1000);
    return () => clearInterval(timer);
  }, [path, every_s]);
  const again = useCallback(() => setRound((before) => before + 1), []);
  const mine = answer.path === path;
  return { data: mine ? answer.data : null, error: mine ? answer.error : null, loading: path !== null && !mine, again };
}
