// @ts-check
// Paths to screens. Every link is an ordinary `<a href>`; a click inside the page changes the screen without a reload.
import { useLayoutEffect, useState } from "./vendor/hooks.js";

/**
 * @typedef {object} Place
 * @property {string} screen
 * @property {string} id decoded, "" without one
 * @property {URLSearchParams} query
 */

const SCREENS = new Set([
  "queue", "jobs", "gpus", "gantt", "decisions", "policies", "learning", "reports", "submit", "login",
]);

/**
 * @param {string} path
 * @param {string} [search]
 * @returns {Place}
 */
export function placeOf(path, search = "") {
  const [first = "", ...rest] = path.split("/").filter(Boolean);
  const query = new URLSearchParams(search);
  if (first === "" || first === "cluster") return { screen: "cluster", id: "", query };
  let id = rest.join("/");
  try {
    id = decodeURIComponent(id);
  } catch {
    // Not an encoded text: taken as it stands.
  }
  return SCREENS.has(first) ? { screen: first, id, query } : { screen: "unknown", id: path, query };
}

/** @type {Set<() => void>} */
const listeners = new Set();

/** @param {string} href a path of this page @param {{replace?: boolean}} [how] */
export function navigate(href, { replace = false } = {}) {
  if (href === location.pathname + location.search) return;
  if (replace) history.replaceState(null, "", href);
  else history.pushState(null, "", href);
  for (const listener of [...listeners]) listener();
}

/** Takes over clicks on links of this page; called once. */
export function start() {
  addEventListener("popstate", () => {
    for (const listener of [...listeners]) listener();
  });
  document.addEventListener("click", (event) => {
    if (event.defaultPrevented || event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    const link = /** @type {Element} */ (event.target).closest?.("a[href]");
    if (!(link instanceof HTMLAnchorElement) || link.target || link.hasAttribute("download")) return;
    if (link.origin !== location.origin || /^\/(static|api|reports\/.)/.test(link.pathname)) return;
    if (link.hash && link.pathname === location.pathname) return;
    event.preventDefault();
    navigate(link.pathname + link.search);
    scrollTo(0, 0);
  });
}

/** @returns {Place} of the address bar, always current */
export function usePlace() {
  const [, again] = useState(0);
  useLayoutEffect(() => {
    const listener = () => again((/** @type {number} */ count) => count + 1);
    listeners.add(listener);
    return () => void listeners.delete(listener);
  }, []);
  return placeOf(location.pathname, location.search);
}

/**
 * Changes parameters of the present address; empty ones are left out, so equal views have equal addresses.
 * @param {Record<string, string | number | null | undefined>} changes
 * @param {{replace?: boolean}} [how]
 */
export function setQuery(changes, how = { replace: true }) {
  const query = new URLSearchParams(location.search);
  for (const [name, value] of Object.entries(changes)) {
    if (value === null || value === undefined || value === "") query.delete(name);
    else query.set(name, String(value));
  }
  query.sort();
  const text = query.toString();
  navigate(location.pathname + (text ? `?${text}` : ""), how);
}

/** @param {string} id */
export const jobPath = (id) => `/jobs/${encodeURIComponent(id)}`;
/** The jobs of an array, ended ones too. @param {string} id @param {string} [state] */
export const arrayPath = (id, state = "") => `/queue?array=${encodeURIComponent(id)}${state ? `&state=${state}` : ""}`;
/** @param {string} id */
export const gpuPath = (id) => `/gpus/${encodeURIComponent(id)}`;
/** @param {string} id */
export const decisionPath = (id) => `/decisions/${encodeURIComponent(id)}`;
