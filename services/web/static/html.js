// @ts-check
// The one place that ties htm's templates to Preact: `html` makes virtual nodes, and texts become text nodes.
import { h } from "./vendor/preact.js";
import htm from "./vendor/htm.js";

/** @type {(strings: TemplateStringsArray, ...values: any[]) => any} */
export const html = htm.bind(/** @type {any} */ (h));
