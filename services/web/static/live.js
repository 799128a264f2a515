// @ts-check
// The live protocol's page side: one WebSocket for the tab, subscriptions, frames and their acknowledgement, deltas,
// reconnection. No drawing here. What a topic's frames become is in `topics.js`.
import { merge, sourcesOf } from "./topics.js";

/** @typedef {"connecting" | "live" | "stale" | "away" | "refused"} State */
/**
 * What a screen gets of a topic. `data` is null until the first snapshot, and stays while the service is away.
 * @typedef {object} View
 * @property {any} data
 * @property {State} state
 * @property {number | null} since_ms when the state began, in milliseconds of the wall's clock
 * @property {string} text why it is refused, or which service is away
 */
/** @typedef {{state: State, since_unix_s: number | null, error: string}} Source */
/**
 * @typedef {object} Topic
 * @property {string} key
 * @property {any} data
 * @property {number | null} rev
 * @property {number} as_of_ms until when its data were those of the server, where `rev` is null
 * @property {number | null} stale_since_ms
 * @property {string} refused
 * @property {Set<() => void>} listeners
 */

/** No frame for so long from a server that speaks at least every 2 s: the view is stale. */
const SILENCE_MS = 6_000;
/** And after so long the connection is made anew; also one that does not come about, or gets no greeting. */
const DEAD_MS = 15_000;
const FIRST_WAIT_MS = 300;
/** Frames of one tick come within this time; one of them may have to be unpacked first. */
const TOGETHER_MS = 10;
const LONGEST_WAIT_MS = 5_000;

export class Live {
  /**
   * @param {object} [parts] what a test replaces
   * @param {() => WebSocket} [parts.open]
   * @param {() => number} [parts.now] milliseconds
   * @param {() => number} [parts.random] 0 to 1
   * @param {() => Promise<"again" | "login">} [parts.judge] asked when the socket did not open: login, or once more
   */
  constructor({ open, now, random, judge } = {}) {
    this.open = open ?? (() => new WebSocket(`${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/live/v1`));
    this.now = now ?? Date.now;
    this.random = random ?? Math.random;
    this.judge = judge ?? (async () => /** @type {const} */ ("again"));
    /** @type {Map<string, Topic>} */
    this.topics = new Map();
    /** @type {Record<string, Source>} */
    this.sources = {};
    /** @type {State} */
    this.state = "connecting";
    this.since_ms = this.now();
    this.text = "";
    this.running = false;
    /** Why the server ended the connection, in its words: it is tried again all the same. */
    this.farewell = "";
    /** By how much this machine's clock is ahead of the server's. */
    this.ahead_ms = 0;
    /** @type {any} */
    this.hello = null;
    this.asleep = false;
    this.silent = false;
    /** @type {Set<Topic>} with frames that no listener has been told of */
    this.undrawn = new Set();
    this.drawing = false;
    /** @type {Set<() => void>} */
    this.listeners = new Set();
    /** @type {WebSocket | null} */
    this.socket = null;
    this.tries = 0;
    this.heard_ms = this.now();
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    this.timer = undefined;
    /** @type {ReturnType<typeof setInterval> | undefined} */
    this.watch = undefined;
  }

  start() {
    this.running = true;
    this.watch ??= setInterval(() => this.#listen(), 1_000);
    this.#connect();
  }

  /** Ends for good: after a logout. */
  stop() {
    this.running = false;
    clearTimeout(this.timer);
    clearInterval(this.watch);
    this.watch = undefined;
    this.#detach();
    for (const topic of this.topics.values()) Object.assign(topic, { data: null, rev: null });
    this.hello = null;
    this.sources = {};
    this.#become("connecting", "");
  }

  /** Tries at once, instead of after the wait, or instead of a connection that does not come about. */
  retry() {
    if (this.running && this.state !== "live") this.#connect();
  }

  /**
   * @param {string} key topic and canonical parameters
   * @param {() => void} listener called after each change of `view(key)`
   * @returns {() => void} ends the subscription
   */
  subscribe(key, listener) {
    let topic = this.topics.get(key);
    if (!topic) {
      topic = { key, data: null, rev: null, as_of_ms: this.now(), stale_since_ms: null, refused: "", listeners: new Set() };
      this.topics.set(key, topic);
      this.#send({ op: "subscribe", key });
    }
    const held = topic;
    held.listeners.add(listener);
    return () => {
      held.listeners.delete(listener);
      // A screen that only moves its listener (a key that comes back at once) keeps its subscription.
      queueMicrotask(() => {
        if (held.listeners.size || this.topics.get(key) !== held) return;
        this.topics.delete(key);
        this.#send({ op: "unsubscribe", key });
      });
    };
  }

  /** Called after each change of the connection or of a source. @param {() => void} listener */
  onState(listener) {
    this.listeners.add(listener);
    return () => void this.listeners.delete(listener);
  }

  /** @param {string} key @returns {View} */
  view(key) {
    const topic = this.topics.get(key);
    const data = topic?.data ?? null;
    if (this.state === "refused") return { data: null, state: "refused", since_ms: this.since_ms, text: this.text };
    if (topic?.refused) return { data: null, state: "refused", since_ms: null, text: topic.refused };
    if (this.state !== "live") return { data, state: data ? "away" : this.state, since_ms: this.since_ms, text: this.text };
    for (const name of sourcesOf(key)) {
      const source = this.sources[name];
      if (source?.state !== "away") continue;
      const since_ms = source.since_unix_s === null ? null : source.since_unix_s * 1000 + this.ahead_ms;
      return { data, state: "away", since_ms, text: `${name} does not answer` };
    }
    if (data === null) return { data, state: "connecting", since_ms: null, text: "" };
    // Of another process, or of the time before the tab was hidden.
    if (topic && topic.rev === null) return { data, state: "stale", since_ms: topic.as_of_ms, text: "waits for new figures" };
    if (topic?.stale_since_ms) return { data, state: "stale", since_ms: topic.stale_since_ms, text: "this tab reads too slowly" };
    if (this.silent) return { data, state: "stale", since_ms: this.heard_ms, text: "the page's server is silent" };
    return { data, state: "live", since_ms: null, text: "" };
  }

  /** A hidden tab asks for nothing; shown again, it gets snapshots. @param {boolean} hidden */
  setHidden(hidden) {
    if (hidden === this.asleep) return;
    this.asleep = hidden;
    if (!hidden) this.#forget();
    this.heard_ms = this.now();
    this.#send({ op: hidden ? "sleep" : "wake" });
    if (hidden) return;
    this.retry();
    this.#tellAll();
  }

  #connect() {
    clearTimeout(this.timer);
    // Two connections at once would write into the same topics.
    this.#detach();
    const socket = this.open();
    socket.binaryType = "arraybuffer";
    this.socket = socket;
    this.heard_ms = this.now();
    let opened = false;
    let inbox = Promise.resolve();
    /** @param {string | ArrayBuffer} data */
    const take = async (data) => {
      if (socket !== this.socket) return;
      if (typeof data === "string") this.#control(JSON.parse(data));
      else await this.#frame(data, socket);
    };
    socket.onmessage = ({ data }) => {
      if (socket !== this.socket) return;
      opened = true;
      // In order, also where one frame must be unpacked and the next not.
      inbox = inbox
        .then(() => take(data))
        .catch((error) => {
          console.warn("a frame could not be read; the connection is made anew", error);
          if (socket === this.socket) void this.#closed(true);
        });
    };
    // After its last words.
    socket.onclose = () => void inbox.then(() => (socket === this.socket ? this.#closed(opened) : undefined));
  }

  /** Nothing more is taken from the connection; a browser waits a minute for a dead one to close. */
  #detach() {
    const socket = this.socket;
    this.socket = null;
    socket?.close(1000);
  }

  /** What the topics have is not known to be the server's state any more. */
  #forget() {
    for (const topic of this.topics.values()) {
      if (topic.rev !== null) topic.as_of_ms = this.heard_ms;
      Object.assign(topic, { rev: null, stale_since_ms: null });
    }
  }

  /** The connection is over, and tried again after a while. @param {boolean} opened whether the server has said anything */
  async #closed(opened) {
    this.#detach();
    this.#forget();
    if (this.state === "refused") return;
    if (!opened && (await this.judge()) === "login") {
      if (this.running && !this.socket) this.#become("refused", "you are not logged in");
      return;
    }
    // While that was asked he may have logged out, or have asked for a new connection.
    if (!this.running || this.socket) return;
    this.#become(this.hello || this.farewell || this.tries > 1 ? "away" : "connecting", this.farewell || "the page's server does not answer");
    this.farewell = "";
    const wait_ms = Math.min(LONGEST_WAIT_MS, FIRST_WAIT_MS * 2 ** this.tries) * (0.75 + 0.5 * this.random());
    this.tries += 1;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.#connect(), wait_ms);
  }

  #listen() {
    // A hidden tab is told nothing.
    if (!this.socket || (this.state === "live" && this.asleep)) return;
    const quiet_ms = this.now() - this.heard_ms;
    if (quiet_ms > DEAD_MS) {
      void this.#closed(true);
      return;
    }
    const silent = this.state === "live" && quiet_ms > SILENCE_MS;
    if (silent !== this.silent) {
      this.silent = silent;
      this.#tellAll();
    }
  }

  /** @param {any} message */
  #control(message) {
    this.#heard();
    const topic = this.topics.get(message.key ?? "");
    switch (message.op) {
      case "hello":
        this.hello = message;
        this.#become("live", "");
        for (const key of this.topics.keys()) this.#send({ op: "subscribe", key });
        if (this.asleep) this.#send({ op: "sleep" });
        break;
      case "sources":
        for (const [name, source] of Object.entries(message)) {
          if (source && typeof source === "object") this.sources[name] = /** @type {Source} */ (source);
        }
        this.#tellAll();
        break;
      case "stale":
        if (topic) topic.stale_since_ms = typeof message.since_unix_s === "number" ? message.since_unix_s * 1000 + this.ahead_ms : this.now();
        this.#tell(topic);
        break;
      case "refused":
        if (topic) topic.refused = message.error || "refused";
        this.#tell(topic);
        break;
      case "bye":
        // "drain" and "limit" pass; who was logged out, or lost his role, must log in again.
        if (message.reason === "role" || message.reason === "logout") this.#become("refused", message.text || "your session ended");
        else this.farewell = message.text ?? "";
        break;
    }
  }

  /** @param {ArrayBuffer} buffer @param {WebSocket} socket */
  async #frame(buffer, socket) {
    const { header, body } = await unpack(buffer);
    if (socket !== this.socket) return;
    this.#heard();
    const topic = this.topics.get(header.key);
    if (!topic) return;
    if (header.kind === "delta" && (topic.rev === null || header.base !== topic.rev)) {
      topic.rev = null;
      this.#send({ op: "unsubscribe", key: topic.key });
      this.#send({ op: "subscribe", key: topic.key });
      return;
    }
    const awaited = topic.data === null;
    topic.data = merge(topic.key, header.kind === "delta" ? topic.data : null, header.data, body);
    topic.rev = header.rev;
    // Only figures show that the server serves this tab: one that greets and then ends the connection is asked ever less often.
    this.tries = 0;
    if (typeof header.data?.wall_unix_s === "number") this.ahead_ms = this.now() - header.data.wall_unix_s * 1000;
    topic.stale_since_ms = null;
    topic.refused = "";
    if (awaited) this.#tell(topic);
    else this.#tellSoon(topic);
    this.#send({ op: "ack", key: topic.key, rev: header.rev });
  }

  /** Frames of a tick come one after the other: what they change is drawn at once. @param {Topic} topic */
  #tellSoon(topic) {
    this.undrawn.add(topic);
    if (this.drawing) return;
    this.drawing = true;
    setTimeout(() => {
      this.drawing = false;
      const topics = [...this.undrawn];
      this.undrawn.clear();
      for (const each of topics) this.#tell(each);
    }, TOGETHER_MS);
  }

  #heard() {
    this.heard_ms = this.now();
    if (!this.silent) return;
    this.silent = false;
    this.#tellAll();
  }

  /** @param {State} state @param {string} text */
  #become(state, text) {
    if (state !== this.state) this.since_ms = this.now();
    this.state = state;
    this.text = text;
    this.silent = false;
    this.#tellAll();
  }

  #tellAll() {
    for (const listener of [...this.listeners]) listener();
    for (const topic of [...this.topics.values()]) this.#tell(topic);
  }

  /** @param {Topic | undefined} topic */
  #tell(topic) {
    for (const listener of [...(topic?.listeners ?? [])]) listener();
  }

  /** @param {object} message */
  #send(message) {
    if (this.hello && this.socket?.readyState === 1) this.socket.send(JSON.stringify(message));
  }
}

/**
 * A data frame: byte 0 (1: the rest is gzip), the header's length, the header, the planes.
 * @param {ArrayBuffer} buffer
 * @returns {Promise<{header: any, body: Uint8Array}>}
 */
export async function unpack(buffer) {
  const packed = new Uint8Array(buffer, 0, 1)[0] === 1;
  let rest = buffer.slice(1);
  if (packed) {
    const unpacking = new DecompressionStream("gzip");
    const writer = unpacking.writable.getWriter();
    // An error in these comes out of the stream's other end.
    writer.write(new Uint8Array(rest)).catch(() => undefined);
    writer.close().catch(() => undefined);
    rest = await new Response(unpacking.readable).arrayBuffer();
  }
  const length = new DataView(rest).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(rest, 4, length)));
  return { header, body: new Uint8Array(rest, 4 + length) };
}

/**
 * A key in the one spelling that the server takes: parameters in alphabetical order, empty ones left out.
 * @param {string} topic
 * @param {Record<string, string | number | null | undefined>} [parameters]
 */
export function keyOf(topic, parameters = {}) {
  const text = Object.entries(parameters)
    .filter(([, value]) => value !== "" && value !== null && value !== undefined)
    .sort(([one], [other]) => (one < other ? -1 : 1))
    .map(([name, value]) => `${name}=${encodeURIComponent(String(value))}`)
    .join("&");
  return text ? `${topic}?${text}` : topic;
}
