// @ts-check
// The map of nodes and GPUs: one button a GPU, in boxes of nodes, by model. Drawn without Preact: at 1,024 GPUs and two
// frames a second only cells whose sixteenth or state changed are touched. Where buttons have no text, their colours are
// painted on one canvas behind them: a browser takes ten times as long to draw a thousand buttons anew.
import { count, percent, plural, words } from "./format.js";
import { colour, onTheme } from "./theme.js";

const STATES = ["idle", "allocated", "shared", "lost", "drained, idle", "drained, allocated"];
const DRIFT = 16;
const NOT_REPORTED = 255;
/** The state of a GPU that its viewer may not know: a submitter sees where his own jobs run. */
export const HIDDEN = 255;
const BUCKETS = 16;
const UNREPORTED_BUCKET = BUCKETS;
const PLAIN_BUCKET = BUCKETS + 1;
const NAMES_AT_ONCE = 128;
const NAMES_EVERY_MS = 450;
/** With at most so many GPUs each button has room for its number, and its own colour. */
const FEW_GPUS = 64;

/** @param {number} byte 0..254 @returns {number} 0..15 */
export function bucketOf(byte) {
  return Math.min(BUCKETS - 1, Math.floor((byte * BUCKETS) / 255));
}

/** @param {number} byte of the plane "state" */
export const drifted = (byte) => byte !== HIDDEN && (byte & DRIFT) !== 0;

/** @param {number} byte of the plane "state" */
export function stateText(byte) {
  return byte === HIDDEN ? "not shown to you" : (STATES[byte & 15] ?? "unknown") + (drifted(byte) ? ", drift flagged" : "");
}

/** @param {number | undefined} byte of a metric's plane */
export function byteText(byte) {
  return byte === undefined || byte === NOT_REPORTED ? "not reported" : percent(byte / 254);
}

export class Heatmap {
  /**
   * @param {HTMLElement} box
   * @param {(index: number) => void} onPick a GPU was opened
   * @param {(index: number | null) => void} onLook a GPU is pointed at, or has the focus
   */
  constructor(box, onPick, onLook) {
    this.box = box;
    /** @type {any} */
    this.data = null;
    this.metric = "";
    /** @type {HTMLButtonElement[]} by GPU */
    this.cells = [];
    /** @type {number[]} GPUs in the order of the map */
    this.order = [];
    /** @type {number[]} of each GPU: its position in `order` */
    this.position = [];
    /** @type {Set<number>} GPUs whose button has an older name than its colour */
    this.unnamed = new Set();
    /** @type {any} a timer; 0: none */
    this.naming = 0;
    /** @type {Int32Array} of each GPU: what its button shows */
    this.shown = new Int32Array(0);
    /** @type {Paint | null} the colours, where buttons have no text */
    this.paint = null;
    const size = new ResizeObserver(() => this.paint?.again());
    size.observe(box);
    const endTheme = onTheme(() => this.paint?.again());
    this.end = () => {
      size.disconnect();
      endTheme();
      clearTimeout(this.naming);
    };
    box.onclick = (event) => {
      const index = this.#indexOf(event.target);
      if (index !== null) onPick(index);
    };
    box.onpointerover = (event) => onLook(this.#indexOf(event.target));
    box.onfocus = null;
    box.addEventListener("focusin", (event) => {
      const index = this.#indexOf(event.target);
      if (index === null) return;
      this.#enter(index);
      if (this.unnamed.has(index)) this.#name(index);
      onLook(index);
    });
    box.onkeydown = (event) => this.#key(event);
  }

  /** @param {any} data of the topic `gpus` @param {string} metric a plane's name */
  draw(data, metric) {
    // Each whole state brings new arrays, of the same GPUs: whose button has the focus keeps it.
    const same = this.data && ["gpus", "node", "nodes", "model", "models"].every((name) => alike(data[name], this.data[name]));
    this.data = data;
    if (!same) this.#layOut();
    const anew = !same || metric !== this.metric;
    this.metric = metric;
    const states = data.planes.state;
    const values = metric === "state" ? null : data.planes[metric];
    for (let index = 0; index < this.cells.length; index += 1) {
      const state = states ? states[index] : 0;
      const byte = values ? values[index] : NOT_REPORTED;
      const bucket = values ? (byte === NOT_REPORTED ? UNREPORTED_BUCKET : bucketOf(byte)) : PLAIN_BUCKET;
      const code = (bucket << 8) | state;
      if (!anew && this.shown[index] === code) continue;
      this.shown[index] = code;
      const level = state === HIDDEN ? "hidden-state" : bucket === UNREPORTED_BUCKET ? "none" : this.paint ? "painted" : bucket === PLAIN_BUCKET ? "plain" : `b${bucket}`;
      const name = `cell ${level} s${state & 15}${drifted(state) ? " drift" : ""}`;
      if (this.cells[index].className !== name) this.cells[index].className = name;
      this.paint?.set(index, state === HIDDEN ? UNREPORTED_BUCKET : bucket, state & 15);
      this.unnamed.add(index);
    }
    this.paint?.flush();
    if (anew) this.#nameAll();
    else this.#nameLater();
  }

  /** Names for screen readers; a thousand of them are written when the browser has time. @param {number} index */
  #name(index) {
    const { gpus, planes } = this.data;
    const text = this.metric === "state" ? "" : `, ${words(this.metric)} ${byteText(planes[this.metric]?.[index])}`;
    this.cells[index].setAttribute("aria-label", `${gpus[index]}: ${stateText(planes.state?.[index] ?? 0)}${text}`);
    this.unnamed.delete(index);
  }

  #nameAll() {
    for (const index of [...this.unnamed]) this.#name(index);
  }

  /** At 1,024 GPUs and two frames a second a name is at most some seconds older than its colour. */
  #nameLater() {
    if (!this.unnamed.size || this.naming) return;
    this.naming = setTimeout(() => {
      this.naming = 0;
      let most = NAMES_AT_ONCE;
      for (const index of this.unnamed) {
        if (most-- <= 0) break;
        this.#name(index);
      }
      this.#nameLater();
    }, NAMES_EVERY_MS);
  }

  #layOut() {
    const { gpus, models, model, nodes, node } = this.data;
    const size = gpus.length <= FEW_GPUS ? "large" : gpus.length <= 256 ? "middle" : "small";
    this.box.className = `heatmap ${size}`;
    this.cells = [];
    this.order = [];
    this.unnamed.clear();
    this.shown = new Int32Array(gpus.length).fill(-1);
    const parts = models.map((/** @type {string} */ name, /** @type {number} */ which) => {
      const mine = [...gpus.keys()].filter((index) => model[index] === which);
      const part = element("section", "model");
      part.setAttribute("aria-label", name);
      const head = element("h3", "", name);
      head.append(element("span", "quiet num", ` ${plural(mine.length, "GPU")}`));
      const boxes = element("div", "nodes");
      /** @type {Map<number, HTMLElement>} */
      const byNode = new Map();
      for (const index of mine) {
        let cells = byNode.get(node[index]);
        if (!cells) {
          const name_of_node = nodes[node[index]];
          const around = element("div", "node");
          around.setAttribute("role", "group");
          around.setAttribute("aria-label", `node ${name_of_node}`);
          cells = element("div", "cells");
          const label = element("span", "node-name", name_of_node);
          label.title = name_of_node;
          around.append(label, cells);
          boxes.append(around);
          byNode.set(node[index], cells);
        }
        const cell = document.createElement("button");
        cell.type = "button";
        cell.tabIndex = -1;
        cell.dataset.index = String(index);
        if (size === "large") cell.textContent = String(gpus[index]).split("/").at(-1) ?? "";
        cells.append(cell);
        this.cells[index] = cell;
      }
      for (const cells of byNode.values()) {
        for (const cell of cells.children) this.order.push(Number(/** @type {HTMLElement} */ (cell).dataset.index));
      }
      part.append(head, boxes);
      return part;
    });
    this.paint = size === "large" ? null : new Paint(this.box, this.cells);
    this.box.replaceChildren(...(this.paint ? [this.paint.canvas] : []), ...parts);
    this.position = [];
    this.order.forEach((index, at) => {
      this.position[index] = at;
    });
    if (this.order.length) this.cells[this.order[0]].tabIndex = 0;
  }

  /** @param {EventTarget | null} target */
  #indexOf(target) {
    const text = target instanceof Element ? target.closest("button")?.dataset.index : undefined;
    return text === undefined ? null : Number(text);
  }

  /** One stop for Tab; arrows go on from there. @param {number} index */
  #enter(index) {
    for (const cell of this.box.querySelectorAll('button[tabindex="0"]')) /** @type {HTMLElement} */ (cell).tabIndex = -1;
    this.cells[index].tabIndex = 0;
  }

  /** @param {KeyboardEvent} event */
  #key(event) {
    const index = this.#indexOf(event.target);
    if (index === null || event.ctrlKey || event.metaKey || event.altKey) return;
    const at = this.position[index];
    const last = this.order.length - 1;
    /** @type {number | undefined} */
    let next;
    if (event.key === "ArrowRight") next = at + 1;
    else if (event.key === "ArrowLeft") next = at - 1;
    else if (event.key === "ArrowDown" || event.key === "ArrowUp") next = this.#beside(at, event.key === "ArrowDown" ? 1 : -1);
    else if (event.key === "Home") next = 0;
    else if (event.key === "End") next = last;
    if (next === undefined) return;
    event.preventDefault();
    this.cells[this.order[Math.min(last, Math.max(0, next))]].focus();
  }

  /** The same place in the next node. @param {number} at @param {number} step */
  #beside(at, step) {
    const node = this.data.node[this.order[at]];
    let other = at;
    while (other >= 0 && other < this.order.length && this.data.node[this.order[other]] === node) other += step;
    return other;
  }
}

/** Colours of buttons without text, on a canvas behind them. */
class Paint {
  /** @param {HTMLElement} box @param {HTMLButtonElement[]} cells by GPU */
  constructor(box, cells) {
    this.box = box;
    this.cells = cells;
    this.canvas = document.createElement("canvas");
    this.canvas.className = "paint";
    this.canvas.setAttribute("aria-hidden", "true");
    /** @type {Uint8Array} of each GPU: its place in `inks` */
    this.ink = new Uint8Array(cells.length);
    /** @type {number[]} GPUs to be painted */
    this.changed = [];
    /** @type {string[]} a colour a bucket, then that of a taken GPU; empty: to be read from the style sheet */
    this.inks = [];
    /** @type {{x: number, y: number, width: number, height: number}[]} of each GPU, device pixels; empty: to be measured */
    this.places = [];
  }

  /** @param {number} index @param {number} bucket @param {number} state */
  set(index, bucket, state) {
    const taken = state === 1 || state === 2 || state === 5;
    this.ink[index] = state === 3 ? UNREPORTED_BUCKET : bucket === PLAIN_BUCKET ? (taken ? PLAIN_BUCKET : 0) : bucket;
    this.changed.push(index);
  }

  /** All anew: other colours, or another size. */
  again() {
    this.inks = [];
    this.places = [];
    this.flush();
  }

  /** Paints what has changed. */
  flush() {
    const context = this.canvas.getContext("2d");
    if (!context || !this.canvas.isConnected || !this.box.clientWidth) return;
    const all = !this.places.length || !this.inks.length;
    if (!this.places.length) this.#measure();
    if (!this.inks.length) this.#mix();
    for (const index of all ? this.ink.keys() : this.changed) {
      const { x, y, width, height } = this.places[index];
      context.clearRect(x, y, width, height);
      const ink = this.inks[this.ink[index]];
      if (!ink) continue;
      context.fillStyle = ink;
      context.fillRect(x, y, width, height);
    }
    this.changed = [];
  }

  #measure() {
    const scale = Math.min(2, devicePixelRatio || 1);
    const around = this.box.getBoundingClientRect();
    Object.assign(this.canvas, { width: Math.round(around.width * scale), height: Math.round(around.height * scale) });
    this.places = this.cells.map((cell) => {
      const place = cell.getBoundingClientRect();
      // Within the border, whose corners are round.
      const [x, y] = [Math.round((place.left - around.left + 1) * scale), Math.round((place.top - around.top + 1) * scale)];
      return { x, y, width: Math.round((place.width - 2) * scale), height: Math.round((place.height - 2) * scale) };
    });
  }

  #mix() {
    const sample = document.createElement("span");
    this.box.append(sample);
    this.inks = Array.from({ length: BUCKETS }, (_, bucket) => {
      sample.className = `cell b${bucket}`;
      return getComputedStyle(sample).backgroundColor;
    });
    sample.remove();
    this.inks[PLAIN_BUCKET] = colour("--tone-1");
  }
}

/** @param {any[]} one @param {any[]} other */
const alike = (one, other) => one === other || (one.length === other.length && one.every((value, index) => value === other[index]));

/** @param {string} name @param {string} [className] @param {string} [text] */
function element(name, className = "", text = "") {
  const made = document.createElement(name);
  if (className) made.className = className;
  made.textContent = text;
  return made;
}

/** What the map shows, as a sentence for screen readers and as the panel's foot. @param {any} data @param {string} metric */
export function summary(data, metric) {
  const states = data.planes.state ?? new Uint8Array();
  /** @type {number[]} */
  const numbers = [0, 0, 0, 0, 0, 0];
  let hidden = 0;
  for (const byte of states) {
    if (byte === HIDDEN) hidden += 1;
    else numbers[byte & 15] += 1;
  }
  const parts = STATES.map((name, index) => (numbers[index] ? `${count(numbers[index])} ${name}` : "")).filter(Boolean);
  if (hidden) parts.push(`${count(hidden)} not shown to you`);
  const plane = metric === "state" ? null : data.planes[metric];
  if (plane) {
    let sum = 0;
    let reported = 0;
    for (const byte of plane) {
      if (byte === NOT_REPORTED) continue;
      sum += byte;
      reported += 1;
    }
    parts.push(reported ? `mean ${words(metric)} ${percent(sum / reported / 254)} of ${plural(reported, "GPU")} that report` : `no GPU reports ${words(metric)}`);
  }
  return parts.join(" · ");
}
