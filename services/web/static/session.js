// @ts-check
// Who looks at this page, and the tab's one live connection; with the hooks that screens read both by.
import { useLayoutEffect, useRef, useState } from "./vendor/hooks.js";
import { get, post, Refused } from "./api.js";
import { Live } from "./live.js";

/**
 * @typedef {object} Me
 * @property {string} user
 * @property {string[]} roles
 * @property {boolean} users_known a users' file is there, so there is a login
 * @property {string[]} actions
 * @property {string[]} screens those with a source of data
 * @property {string} [clock]
 * @property {string} [grafana_url]
 */

/** `renewed`: the server has newer files than this tab. @type {{me: Me | null, asked: boolean, error: string, login: boolean, renewed: boolean}} */
export const session = { me: null, asked: false, error: "", login: false, renewed: false };
/** @type {Set<() => void>} */
const listeners = new Set();

export const live = new Live({ judge: async () => ((await whoAmI()) ? "again" : session.login ? "login" : "again") });

function tell() {
  for (const listener of [...listeners]) listener();
}

/** A server that takes the question and never answers would keep the page from asking again. */
const LONGEST_WAIT_MS = 15_000;

/** Asks who looks; true if somebody may. */
export async function whoAmI() {
  try {
    session.me = await get("/api/me", AbortSignal.timeout(LONGEST_WAIT_MS));
    Object.assign(session, { asked: true, error: "", login: false });
  } catch (error) {
    const refused = error instanceof Refused ? error : new Refused(0, String(error));
    session.error = refused.message;
    if (refused.status === 401) Object.assign(session, { me: null, asked: true, login: true });
    else if (refused.status) session.asked = true;
  }
  tell();
  return session.me !== null && !session.error;
}

/** Files have the digest of all of them in their address: where this one is gone, there are newer ones. */
async function lookForRenewal() {
  const answer = await fetch(import.meta.url, { method: "HEAD", cache: "no-store" }).catch(() => null);
  if (answer?.status !== 404) return;
  session.renewed = true;
  tell();
}

/** Screens and actions depend on what the services can do: asked again when one of them, or this page's server, is back. */
let watching = false;
function watch() {
  watching = true;
  document.addEventListener("visibilitychange", () => live.setHidden(document.hidden));
  live.setHidden(document.hidden); // a tab may be opened out of sight
  let known = "";
  live.onState(() => {
    const answering = Object.keys(live.sources).filter((name) => live.sources[name].state === "live");
    const now = `${live.hello?.epoch} ${answering.sort().join(" ")}`;
    if (live.state !== "live" || now === known) return;
    if (known) void whoAmI();
    if (known && !known.startsWith(`${live.hello?.epoch} `)) void lookForRenewal();
    known = now;
  });
}

/** First steps of the page: who am I, then the socket; again every 2 s while nobody answers. */
export async function begin() {
  if (!watching) watch();
  if (await whoAmI()) live.start();
  else if (!session.login) setTimeout(begin, 2_000);
}

/** @param {string} token */
export async function login(token) {
  await post("/login", { token });
  live.stop();
  if (await whoAmI()) live.start();
}

export async function logout() {
  await post("/logout");
  live.stop();
  await whoAmI();
}

/** @param {string} action */
export const may = (action) => session.me?.actions.includes(action) ?? false;

/** @param {string} screen */
export const has = (screen) => session.me?.screens?.includes(screen) ?? false;

/** Whether he sees the whole cluster, or only his own jobs. */
export const seesAll = () => has("decisions") || has("policies");

export function useSession() {
  const [, again] = useState(0);
  // With the drawing, not after it: an answer that came between the two would never be shown.
  useLayoutEffect(() => {
    const listener = () => again((/** @type {number} */ round) => round + 1);
    listeners.add(listener);
    return () => void listeners.delete(listener);
  }, []);
  return session;
}

/** The connection's and the sources' state. */
export function useConnection() {
  const [, again] = useState(0);
  useLayoutEffect(() => live.onState(() => again((/** @type {number} */ round) => round + 1)), []);
  return live;
}

/**
 * A live topic's view, drawn anew after each frame.
 * @param {string} key "" asks for nothing
 * @returns {import("./live.js").View}
 */
export function useView(key) {
  const [, again] = useState(0);
  // Before the frame is drawn: who chose another order waits for it.
  useLayoutEffect(() => {
    if (!key) return undefined;
    const end = live.subscribe(key, () => again((/** @type {number} */ round) => round + 1));
    again((/** @type {number} */ round) => round + 1);
    return end;
  }, [key]);
  return live.view(key);
}

/**
 * The same, but the last key's data stay until the new one's are there: for windows that move.
 * @param {string} key
 */
export function useMovingView(key) {
  const view = useView(key);
  const last = useRef(/** @type {any} */ (null));
  if (view.data !== null) last.current = view.data;
  return view.data === null && view.state === "connecting" ? { ...view, data: last.current, moving: last.current !== null } : { ...view, moving: false };
}
