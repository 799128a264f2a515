// @ts-check
// The one place that ties htm's templates to Preact: `html` makes virtual nodes, and texts become text nodes.
import { h } from "./vendor/preact.js";
import htm from "./vendor/htm.js";

/**
 * Preact writes an empty text anew at each drawing, and the browser then paints what is around it: it is left out.
 * @param {any} type @param {any} props @param {...any} children
 */
function node(type, props, ...children) {
  return h(type, props, ...children.map((each) => (each === "" ? null : each)));
}

/** @type {(strings: TemplateStringsArray, ...values: any[]) => any} */
export const html = htm.bind(/** @type {any} */ (node));
