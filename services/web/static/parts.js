// @ts-check
// Pieces that several screens draw: states, panels, figures, badges, dialogs. Everything by text nodes.
import { useEffect, useLayoutEffect, useRef, useState } from "./vendor/hooks.js";
import { html } from "./html.js";
import { DASH, duration, words } from "./format.js";

/** @type {Record<string, [string, string]>} a sign beside each word, because colour alone tells nothing to many */
const SIGNS = {
  live: ["●", "live"],
  connecting: ["◌", "connecting"],
  stale: ["◐", "stale"],
  away: ["▲", "away"],
  refused: ["■", "refused"],
};

/** Draws itself anew each second, for ages. */
export function useSecond() {
  const [, again] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => again((/** @type {number} */ round) => round + 1), 1_000);
    return () => clearInterval(timer);
  }, []);
}

/** @param {{since_ms: number | null}} props */
function Age({ since_ms }) {
  useSecond();
  if (!since_ms) return null;
  // It stands in live regions: a figure that changes each second would be read out each second.
  return html`<span class="num" aria-hidden="true"> ${duration(Math.max(0, Math.round((Date.now() - since_ms) / 1000)))}</span>`;
}

/** @param {{state: import("./live.js").State, since_ms?: number | null, text?: string}} props */
export function StateMark({ state, since_ms = null, text = "" }) {
  const [sign, word] = SIGNS[state] ?? ["", state];
  return html`<span class=${`state state-${state}`} title=${text}>
    <span aria-hidden="true">${sign}</span> ${word}${state === "live" ? null : html`<${Age} since_ms=${since_ms} />`}
  </span>`;
}

/**
 * A part of a screen with its heading. Figures that are not live are greyed, and the state stands beside the heading.
 * @param {{title: string, view?: import("./live.js").View, tools?: any, children?: any, level?: number, class?: string}} props
 */
export function Panel({ title, view, tools, children, class: name = "" }) {
  const old = view && (view.state === "away" || view.state === "stale");
  return html`<section class=${`panel ${name} ${old ? "old" : ""}`} aria-label=${title}>
    <header class="panel-head">
      <h2>${title}</h2>
      ${view && view.state !== "live" && view.state !== "connecting" && html`<${StateMark} ...${view} />`}
      <div class="tools">${tools}</div>
    </header>
    ${view && view.state === "refused" ? html`<${Notice} level="bad">${view.text}<//>` : children}
  </section>`;
}

/** Grey bars where figures will stand: never zeros. @param {{rows?: number, what: string}} props */
export function Skeleton({ rows = 3, what }) {
  return html`<div class="skeleton" role="status">
    <span class="visually-hidden">${what} is being loaded</span>
    ${Array.from({ length: rows }, (_, index) => html`<span key=${index} aria-hidden="true" class="bone"></span>`)}
  </div>`;
}

const NOTICE_SIGNS = { bad: "■", warn: "▲", good: "✓", info: "i" };

/** @param {{level?: "bad" | "warn" | "good" | "info", children?: any, role?: string}} props */
export function Notice({ level = "info", children, role }) {
  return html`<p class=${`notice notice-${level}`} role=${role}>
    <span class="sign" aria-hidden="true">${NOTICE_SIGNS[level]}</span><span>${children}</span>
  </p>`;
}

/** What stands where a list is empty. @param {{children?: any}} props */
export const Empty = ({ children }) => html`<p class="empty">${children}</p>`;

/**
 * A question's answer: skeleton, error with a button, or the content.
 * @param {{answer: {data: any, error: any, loading: boolean, again: () => void}, what: string, children: (data: any) => any, rows?: number}} props
 */
export function Answered({ answer, what, children, rows = 4 }) {
  const { data, error, again } = answer;
  // An error is looked at before "loading", so that no skeleton shines for ever.
  const problem = error && html`<${Notice} level="bad" role="alert">${error.message}
    ${" "}<button type="button" onClick=${again}>Ask again</button><//>`;
  if (data === null) return problem || html`<${Skeleton} rows=${rows} what=${what} />`;
  return html`${problem}${children(data)}`;
}

/** @param {{label: string, value: any, note?: any, children?: any, level?: string, href?: string}} props */
export function Figure({ label, value, note, children, level = "", href }) {
  const name = `figure ${level ? `level-${level}` : ""}`;
  const unknown = value === null || value === undefined || value === DASH;
  return html`<div class=${name}>
    <dt>${href ? html`<a href=${href}>${label}</a>` : label}</dt>
    <dd class=${unknown ? "num unknown" : "num"}>${unknown ? DASH : value}</dd>
    ${(note || children) && html`<dd class="note">${note}${children}</dd>`}
  </div>`;
}

/** @type {Record<string, string>} */
const JOB_SIGNS = {
  pending: "◷", running: "▶", succeeded: "✓", failed: "✗", cancelled: "⊘", preempted: "⏏", lost: "!",
};

/** @param {{state: string}} props */
export function JobState({ state }) {
  return html`<span class=${`job-state job-${state}`}><span aria-hidden="true">${JOB_SIGNS[state] ?? "?"}</span> ${state === "pending" ? "waiting" : words(state)}</span>`;
}

/** A horizontal bar of parts of a whole. @param {{ratio: number, label: string, tone?: string}} props */
export function Meter({ ratio, label, tone = "accent" }) {
  const width = `${Math.min(1, Math.max(0, ratio)) * 100}%`;
  return html`<div class="meter" role="img" aria-label=${label}><span class=${`fill tone-${tone}`} style=${{ width }}></span></div>`;
}

/**
 * Parts of a number as one bar, with a legend that says the same in words.
 * @param {{parts: {name: string, value: number, tone: string, href?: string}[], label: string}} props
 */
export function Parts({ parts, label }) {
  const total = parts.reduce((sum, part) => sum + part.value, 0);
  if (!total) return null;
  return html`<div class="parts">
    <div class="parts-bar" aria-hidden="true">
      ${parts.map((part) => html`<span key=${part.name} class=${`tone-${part.tone}`} style=${{ width: `${(part.value / total) * 100}%` }}></span>`)}
    </div>
    <ul class="legend" aria-label=${label}>
      ${parts.map((part) => html`<li key=${part.name}>
        <span class=${`swatch tone-${part.tone}`} aria-hidden="true"></span>
        ${part.href ? html`<a href=${part.href}>${part.name}</a>` : part.name} <span class="num">${part.value.toLocaleString("en")}</span>
      </li>`)}
    </ul>
  </div>`;
}

/**
 * A question before an action. Escape and "Back" close it; the browser keeps the focus inside and gives it back.
 * @param {{title: string, act: string, danger?: boolean, typed?: string, onAct: () => Promise<void>, onClose: () => void, children?: any}} props
 *   `typed`: a text that must be typed before the action can be taken
 */
export function Confirm({ title, act, danger = false, typed = "", onAct, onClose, children }) {
  const dialog = useRef(/** @type {HTMLDialogElement | null} */ (null));
  const [text, setText] = useState("");
  const [error, setError] = useState("");
  const [busy, setBusy] = useState(false);
  useLayoutEffect(() => {
    const before = /** @type {HTMLElement | null} */ (document.activeElement);
    dialog.current?.showModal();
    return () => before?.isConnected ? before.focus() : undefined;
  }, []);
  /** @param {Event} event */
  const submit = async (event) => {
    event.preventDefault();
    setBusy(true);
    setError("");
    try {
      await onAct();
      onClose();
    } catch (problem) {
      setError(problem instanceof Error ? problem.message : String(problem));
      setBusy(false);
    }
  };
  // What an action under way comes to is told here: the dialog stays until then. A browser asks only once before it closes one.
  const keep = (/** @type {Event} */ event) => busy && event.preventDefault();
  const closed = () => (busy ? dialog.current?.showModal() : onClose());
  return html`<dialog ref=${dialog} onCancel=${keep} onClose=${closed} aria-labelledby="confirm-title">
    <form method="dialog" onSubmit=${submit}>
      <h2 id="confirm-title">${title}</h2>
      ${children}
      ${typed && html`<label class="field">Type <code>${typed}</code> to confirm
        <input type="text" autocomplete="off" value=${text} onInput=${(/** @type {any} */ event) => setText(event.target.value)} /></label>`}
      ${error && html`<${Notice} level="bad" role="alert">${error}<//>`}
      <div class="buttons">
        <button type="button" disabled=${busy} onClick=${onClose}>Back</button>
        <button type="submit" class=${danger ? "danger" : "primary"} disabled=${busy || (typed !== "" && text !== typed)}>${act}</button>
      </div>
    </form>
  </dialog>`;
}

/**
 * What a screen reader is told of something that one has asked for, once: a text that changes each second would never let it speak.
 * @param {{topic: string, text: string | null}} props `topic`: what was asked; `text`: null while there is no answer to it
 */
export function Told({ topic, text }) {
  const [told, setTold] = useState({ topic, text: "" });
  useEffect(() => {
    if (told.topic !== topic && text !== null) setTold({ topic, text });
  }, [topic, text]);
  return html`<span class="visually-hidden" role="status">${told.text}</span>`;
}

/** Rows of names and values. @param {{rows: [string, any][]}} props */
export function Facts({ rows }) {
  return html`<dl class="facts">
    ${rows.filter(([, value]) => value !== null && value !== undefined && value !== "" && value !== false).map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd class="num">${value}</dd></div>`)}
  </dl>`;
}

/** A text with a button that copies it. @param {{text: string, label: string}} props */
export function Copyable({ text, label }) {
  const [copied, setCopied] = useState("");
  const copy = async () => {
    const done = await navigator.clipboard.writeText(text).then(() => "Copied", () => "Not allowed");
    setCopied(done);
    setTimeout(() => setCopied(""), 1_500);
  };
  return html`<div class="copyable"><code tabindex="0" role="group" aria-label=${label}>${text}</code>
    ${navigator.clipboard && html`<button type="button" onClick=${copy}>${copied || "Copy"}</button>`}</div>`;
}

/** A wide table in a box that scrolls by itself, reachable by keyboard. @param {{label: string, children?: any}} props */
export function Scroll({ label, children }) {
  return html`<div class="scroll" role="region" aria-label=${`${label}, table`} tabindex="0">${children}</div>`;
}

/**
 * One of a few, as buttons. @param {{label: string, value: string, options: [string, string][], onChange: (value: string) => void}} props
 */
export function Choice({ label, value, options, onChange }) {
  return html`<div class="choice" role="group" aria-label=${label}>
    ${options.map(([name, text]) => html`<button key=${name} type="button" aria-pressed=${name === value ? "true" : "false"} onClick=${() => onChange(name)}>${text}</button>`)}
  </div>`;
}
