// @ts-check
// The tab's title, which tells screen readers and histories where one is.
import { useEffect } from "./vendor/hooks.js";

/** @param {string} text */
export function useTitle(text) {
  useEffect(() => {
    document.title = text ? `${text} · ADLRO` : "ADLRO";
  }, [text]);
}
