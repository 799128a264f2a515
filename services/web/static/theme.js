// @ts-check
// Light or dark: the system's choice, or the user's, which localStorage keeps.

const KEY = "adlro-theme";

/** @typedef {"system" | "light" | "dark"} Theme */

/** @returns {Theme} */
export function theme() {
  const chosen = document.documentElement.dataset.theme;
  return chosen === "light" || chosen === "dark" ? chosen : "system";
}

/** @param {Theme} chosen */
export function setTheme(chosen) {
  if (chosen === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = chosen;
  try {
    if (chosen === "system") localStorage.removeItem(KEY);
    else localStorage.setItem(KEY, chosen);
  } catch {
    // Storage may be forbidden: the choice then lasts as long as the tab.
  }
  dispatchEvent(new Event("adlro-theme"));
}

/**
 * Calls `listener` when colours change: by the switch, or by the system. Drawings on a canvas need it.
 * @param {() => void} listener
 * @returns {() => void} ends it
 */
export function onTheme(listener) {
  const system = matchMedia("(prefers-color-scheme: dark)");
  addEventListener("adlro-theme", listener);
  system.addEventListener("change", listener);
  return () => {
    removeEventListener("adlro-theme", listener);
    system.removeEventListener("change", listener);
  };
}

/**
 * The value of a custom property of the style sheet, such as "--ink".
 * @param {string} name
 */
export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/**
 * The same as a pixel of a little-endian RGBA buffer. The property must be written as #rrggbb.
 * @param {string} name
 */
export function pixel(name) {
  const text = colour(name);
  const value = Number.parseInt(text.slice(1), 16);
  return ((255 << 24) | ((value & 255) << 16) | (value & 0xff00) | (value >> 16)) >>> 0;
}
