// @ts-check
// Who looks at this page, and the tab's one live connection; with the hooks that screens read both by.
import { useEffect, useRef, useState } from "./vendor/hooks.js";
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

/** @type {{me: Me | null, asked: boolean, error: string, login: boolean}} */
export const session = { me: null, asked: false, error: "", login: false };
/** @type {Set<() => void>} */
const listeners = new Set();

export const live = new Live({ judge: async () => ((await whoAmI()) ? "again" : session.login ? "login" : "again") });

function tell() {
  for (const listener of [...listeners]) listener();
}

/** Asks who looks; true if somebody may. */
export async function whoAmI() {
  try {
    session.me = await get("/api/me");
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

/** First steps of the page: who am I, then the socket; again every 2 s while nobody answers. */
export async function begin() {
  document.addEventListener("visibilitychange", () => live.setHidden(document.hidden));
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

export function useSession() {
  const [, again] = useState(0);
  useEffect(() => {
    const listener = () => again((/** @type {number} */ round) => round + 1);
    listeners.add(listener);
    return () => void listeners.delete(listener);
  }, []);
  return session;
}

/** The connection's and the sources' state. */
export function useConnection() {
  const [, again] = useState(0);
  useEffect(() => live.onState(() => again((/** @type {number} */ round) => round + 1)), []);
  return live;
}

/**
 * A live topic's view, drawn anew after each frame.
 * @param {string} key "" asks for nothing
 * @returns {import("./live.js").View}
 */
export function useView(key) {
  const [, again] = useState(0);
  useEffect(() => {
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
