// A client of Holdfast's bridge for browsers and Node.js, without dependencies.
//
//   import { Client } from "./holdfast.js";
//
//   const client = new Client("wss://host/ws", { token });
//   const session = client.join("release-42");
//   await session.send("fix the tests");                 // resolves with the offset once it is stored
//   for await (const message of session) {               // replay and live alike, each once and in order
//     if (message.type === "stream_chunk") show(message.payload.text);
//     if (message.type === "question") await session.answer(message.payload.question_id, true);
//     if (message.type === "gap") session.reload();       // messages are missing: take a snapshot and go on
//   }
//
// Invariant: this file does the I/O and decides nothing. What to do is decided in `machine.js`.

import { HoldfastError, Machine, Outbox, SCHEDULES, fault } from "./machine.js";

export { HoldfastError, SCHEDULES };

const CONNECT_TIMEOUT_S = 10;
/** Messages that wait for a slow application, until no more are taken from the server. */
const MOST_WAITING = 1000;
/** A command is about what happens now. Later it is not sent any more. */
const COMMAND_EXPIRES_S = 30;
/** Several signs of waking up (visible, online, shown again) come together. */
const WAKE_EVERY_S = 1;

const systemClock = { monotonic: () => performance.now() / 1000, wall: () => Date.now() / 1000 };

/** A random id: `crypto.randomUUID`, which pages without TLS do not have, from `crypto.getRandomValues`, which they have. */
export function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  bytes[6] = (bytes[6] & 0x0f) | 0x40;
  bytes[8] = (bytes[8] & 0x3f) | 0x80;
  const hex = [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  return [hex.slice(0, 8), hex.slice(8, 12), hex.slice(12, 16), hex.slice(16, 20), hex.slice(20)].join("-");
}

/**
 * An outbox that survives a reload: each message is written to a Web Storage (`localStorage`) before it is sent, and removed when the
 * server has it. Throws if the storage is full.
 */
class StoredOutbox extends Outbox {
  constructor(storage, name, limits) {
    super(limits);
    this.storage = storage;
    this.prefix = `holdfast.outbox.${name}.`;
    this.places = new Map();
    this.next = 1;
    for (const key of this.#keys()) {
      const message = readJson(storage.getItem(key));
      if (typeof message?.id !== "string" || typeof message.frame !== "string") continue;
      super.add(message);
      this.places.set(message.id, key);
      this.next = Number(key.slice(this.prefix.length)) + 1;
    }
  }

  add(message) {
    if (this.has(message.id)) return;
    this.requireRoom(message);
    // A password is written nowhere. If the page is closed before it is sent, it is asked for again.
    if (message.isSecret) return super.add(message);
    // The number in the key keeps the order.
    const key = this.prefix + String(this.next++).padStart(10, "0");
    try {
      this.storage.setItem(key, JSON.stringify(message));
    } catch (error) {
      const why = `The message cannot be kept until it is sent: ${error.message}`;
      throw new HoldfastError(fault("SYS_RESOURCE_EXHAUSTED", why, { messages: this.count, bytes: this.size }));
    }
    this.places.set(message.id, key);
    return super.add(message);
  }

  remove(id) {
    const message = super.remove(id);
    if (this.places.has(id)) this.storage.removeItem(this.places.get(id));
    this.places.delete(id);
    return message;
  }

  #keys() {
    const keys = [];
    for (let place = 0; place < this.storage.length; place += 1) keys.push(this.storage.key(place));
    return keys.filter((key) => key.startsWith(this.prefix)).sort();
  }
}

function readJson(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

/** A connection to a bridge that comes back by itself. Events: `status`, `online`, `message`, `outbox`. */
export class Client extends EventTarget {
  #machine;
  #options;
  #clock;
  #socket = null;
  #timers = new Set();
  #timer = null;
  #wokeAt = -Infinity;
  #sessions = new Map();
  #sends = new Map();
  #requests = new Map();
  #listeners = [];
  #isTokenStale = false;
  #shown = "disconnected";
  #failure = null;

  constructor(url, options = {}) {
    super();
    this.url = String(url);
    this.#options = { connectTimeout: CONNECT_TIMEOUT_S, WebSocket: globalThis.WebSocket, newId, ...options };
    if (!this.#options.WebSocket) {
      const why = 'This platform has no WebSocket: give one with the option WebSocket, such as the one of the package "ws"';
      throw new HoldfastError(fault("CONFIG_OPTION_INVALID", why));
    }
    this.#clock = options.clock ?? systemClock;
    const { schedule = "default", token = "", clientId = this.#options.newId() } = options;
    this.#machine = new Machine({
      token: typeof token === "string" ? token : "",
      clock: this.#clock,
      random: options.random ?? Math.random,
      newId: this.#options.newId,
      clientId,
      clientVersion: options.clientVersion ?? "",
      platform: options.platform ?? (typeof document === "undefined" ? "node" : "browser"),
      schedule: typeof schedule === "string" ? SCHEDULES[schedule] : schedule,
      outbox: options.storage ? new StoredOutbox(options.storage, clientId, options.outbox) : new Outbox(options.outbox),
      acceptPublic: options.acceptPublic ?? false,
      answerTimeout: options.answerTimeout,
    });
    if (options.connect !== false) this.connect();
  }

  get status() {
    return this.#machine.status;
  }

  /** Why it is not connected: `{code, message, context}`; null if it is, or nothing failed. */
  get fault() {
    return this.#machine.fault;
  }

  get clientId() {
    return this.#machine.clientId;
  }

  /**
   * What is not acknowledged yet, in the order of sending: `{id, session_id, type, payload, expires_at, fault}`. One with a `fault` is held
   * and not sent, because the server does not take it: `discard(id)` takes it out.
   */
  get pending() {
    const { held } = this.#machine.outbox;
    return [...this.#machine.outbox].map(({ id, session_id, frame, expires_at }) => {
      const { type, payload } = JSON.parse(frame);
      return { id, session_id, type, payload, expires_at, fault: held.get(id) ?? null };
    });
  }

  connect() {
    this.#listen();
    this.#failure = null;
    this.#perform(this.#machine.connect());
  }

  /** End, and do not connect again. What is not acknowledged stays in the outbox. */
  close() {
    for (const forget of this.#listeners.splice(0)) forget();
    this.#perform(this.#machine.disconnect());
    this.#failAll(fault("CONN_WEBSOCKET_CLOSED", "The client was closed"));
  }

  /** Use another token from the next connection on. */
  set token(token) {
    this.#options.token = token;
    if (typeof token === "string") this.#machine.token = token;
  }

  /** Find out at once whether the connection still works, or connect now. In browsers this happens by itself. */
  wake() {
    const now = this.#clock.monotonic();
    if (now - this.#wokeAt < WAKE_EVERY_S) return;
    this.#wokeAt = now;
    this.#perform(this.#machine.wokeUp());
  }

  /** Join a session, now or as soon as the client is connected. `create`: make it if it does not exist. */
  join(id, { role, after, history, create = null } = {}) {
    const creation = create === true ? {} : create || null;
    const effects = this.#machine.join(id, { role, after: after ?? null, history, creation });
    const session = new Session(id, {
      send: (type, payload, options) => this.#send(id, type, payload, options),
      reload: () => this.#perform(this.#machine.reload(id)),
      taken: (position) => this.#perform(this.#machine.taken(id, position)),
      holdBack: () => this.#machine.holdBack(id),
      catchUp: () => this.#perform(this.#machine.catchUp(id)),
      leave: () => this.#leave(id),
      failure: () => this.#failure,
      most: this.#options.maxWaiting ?? MOST_WAITING,
    });
    this.#sessions.set(id, session);
    this.#perform(effects);
    return session;
  }

  /** Return the sessions that this client may see. */
  sessions() {
    return this.#list({});
  }

  /** Return those that the server has in use: what each does (`turn`), and how many `questions` wait in it. Short, so it may be asked often. */
  sessionsInUse() {
    return this.#list({ in_use: true });
  }

  async #list(wanted) {
    const found = [];
    let after = "";
    for (;;) {
      const { sessions = [], next = "" } = (await this.request("session_list", after ? { ...wanted, after } : wanted)).payload;
      found.push(...sessions);
      if (next <= after) return found;
      after = next;
    }
  }

  /** Send a message that is not kept, and return its answer. Rejects if the client is not connected, or no answer comes in time. */
  request(type, payload) {
    let id;
    let effects;
    try {
      [id, effects] = this.#machine.ask(type, payload);
    } catch (error) {
      return Promise.reject(error);
    }
    if (effects.length === 0) return Promise.reject(new HoldfastError(this.fault ?? fault("CONN_WEBSOCKET_CLOSED", "Not connected")));
    const timeout_s = this.#machine.answerTimeout;
    return new Promise((resolve, reject) => {
      const limit = this.#later(timeout_s, () => {
        this.#requests.delete(id);
        const text = `The server did not answer ${type} within ${timeout_s} s`;
        reject(new HoldfastError(fault("CONN_HEARTBEAT_LOST", text, { timeout_s })));
      });
      this.#requests.set(id, { resolve, reject, limit });
      this.#perform(effects);
    });
  }

  /** Take a message out of the outbox. Return whether it was there. One that was sent may be stored already. */
  discard(id) {
    const wasThere = this.#machine.outbox.remove(id) !== null;
    if (!wasThere) return false;
    this.#settleSend(id, fault("SYS_CANCELLED", "The message was discarded"));
    // Those after it may have waited for its place.
    this.#perform(this.#machine.flush());
    return true;
  }

  // --- sending ---

  #send(session, type, payload, { expires = null, isSecret = false, onQueued = null } = {}) {
    let message;
    let effects;
    try {
      const expiresAt = expires === null ? null : this.#clock.wall() + expires;
      message = { ...this.#machine.compose(session, type, payload, { expiresAt }), isSecret };
      effects = this.#machine.submit(message);
    } catch (error) {
      return Promise.reject(error);
    }
    onQueued?.(message.id);
    return new Promise((resolve, reject) => {
      this.#sends.set(message.id, { resolve, reject });
      this.#emit("outbox");
      this.#perform(effects);
    });
  }

  #settleSend(id, found, result) {
    const send = this.#sends.get(id);
    this.#sends.delete(id);
    this.#emit("outbox");
    if (found) send?.reject(new HoldfastError(found));
    else send?.resolve(result?.offset ?? null);
  }

  #leave(id) {
    const session = this.#sessions.get(id);
    this.#sessions.delete(id);
    this.#perform(this.#machine.leave(id));
    session?.end(null);
  }

  // --- what the machine wants ---

  #perform(effects) {
    for (const effect of effects) this.#act[effect.effect](effect);
    if (this.status !== this.#shown) {
      this.#shown = this.status;
      this.#emit("status");
    }
    this.#arm();
  }

  #act = {
    connect: ({ attempt, delay }) => this.#plan(attempt, delay),
    send: ({ frame }) => this.#transmit(frame),
    drop: ({ code }) => this.#drop(code),
    deliver: ({ message }) => this.#deliver(message),
    acked: ({ message, result }) => {
      if (result.status !== "rejected") return this.#settleSend(message.id, null, result);
      const error = result.error ?? {};
      return this.#settleSend(message.id, fault(error.code ?? "SYS_UNKNOWN", error.message, error.details));
    },
    held: ({ message, fault: found }) => {
      // The caller who waits learns it, and can make it shorter. One that nobody waits for stays, and is shown as pending.
      if (!this.#sends.has(message.id)) return this.#emit("outbox");
      this.#machine.outbox.remove(message.id);
      return this.#settleSend(message.id, found);
    },
    expired: ({ message }) =>
      this.#settleSend(message.id, fault("SESS_INTERACTION_EXPIRED", "The message was not sent before it expired")),
    gap: ({ session_id, gap }) => this.#sessions.get(session_id)?.push({ type: "gap", session_id, payload: gap }),
    online: ({ ack }) => this.#emit("online", ack),
    joined: ({ session_id, payload }) => this.#sessions.get(session_id)?.push({ type: "joined", session_id, payload }),
    not_joined: ({ session_id, fault: found }) => this.#notJoined(session_id, found),
    token_needed: () => (this.#isTokenStale = true),
    failed: ({ fault: found }) => this.#failAll(found),
  };

  #plan(attempt, delay) {
    this.#forget();
    this.nextAttempt = { attempt, at: this.#clock.wall() + delay };
    this.#emit("attempt");
    this.#later(delay, () => this.#open());
  }

  async #open() {
    const socket = { closed: false };
    this.#socket = socket;
    const isCurrent = () => this.#socket === socket && !socket.closed;
    // Fetching a token takes time, too.
    const limit = this.#later(this.#options.connectTimeout, () => isCurrent() && this.#connectFailed(fault("CONN_TIMEOUT")));
    if (!(await this.#haveToken(isCurrent))) return;
    try {
      socket.ws = new this.#options.WebSocket(this.url);
    } catch (error) {
      // An address that is none: every attempt would fail the same way.
      const found = { ...fault("CONN_UNREACHABLE", `${this.url} is not an address of a bridge: ${error.message}`), retryable: false };
      this.#perform(this.#machine.connectFailed(found));
      return;
    }
    socket.ws.onopen = () => {
      if (!isCurrent()) return socket.ws.close();
      this.#cancel(limit);
      socket.isOpen = true;
      return this.#perform(this.#machine.opened());
    };
    socket.ws.onmessage = ({ data }) => {
      if (isCurrent() && typeof data === "string") this.#perform(this.#machine.received(data));
    };
    const unreachable = () => this.#connectFailed(fault("CONN_UNREACHABLE", `No bridge answers at ${this.url}`));
    // Nobody tells why. After the error of an attempt no `close` follows in Node.js 20: the error is all that is heard of it. After the error
    // of an open connection one follows everywhere.
    socket.ws.onerror = () => isCurrent() && !socket.isOpen && unreachable();
    socket.ws.onclose = ({ code, reason }) => {
      if (!isCurrent()) return;
      if (!socket.isOpen) return unreachable();
      this.#socket = null;
      return this.#perform(this.#machine.closed(code || 1006, reason ?? ""));
    };
  }

  /** A token may be a function, so that a new one is fetched when the old one has expired. */
  async #haveToken(isCurrent) {
    const { token } = this.#options;
    if (typeof token !== "function") return true;
    try {
      const found = await token({ isExpired: this.#isTokenStale });
      if (!isCurrent()) return false;
      this.#machine.token = found;
      this.#isTokenStale = false;
      return true;
    } catch (error) {
      if (!isCurrent()) return false;
      this.#connectFailed(error instanceof HoldfastError ? error.fault : fault("AUTH_FAILED", `No token: ${error.message}`));
      return false;
    }
  }

  #connectFailed(found) {
    this.#forget();
    this.#perform(this.#machine.connectFailed(found));
  }

  #transmit(frame) {
    const ws = this.#socket?.ws;
    // What cannot be sent now is sent again after the connection is back.
    if (ws && ws.readyState === 1) ws.send(frame);
  }

  #drop(code) {
    this.#forget(code);
  }

  /** Forget the socket and the attempts: nothing of them reaches the machine any more. */
  #forget(code = 1000) {
    this.#clearTimers();
    for (const { reject } of this.#requests.values()) reject(new HoldfastError(this.fault ?? fault("CONN_WEBSOCKET_CLOSED")));
    this.#requests.clear();
    const socket = this.#socket;
    this.#socket = null;
    if (!socket) return;
    socket.closed = true;
    try {
      // A browser allows 1000 and 3000 to 4999 only.
      socket.ws?.close(code === 1000 || code >= 3000 ? code : 1000);
    } catch {
      // It was closed already.
    }
  }

  #deliver(message) {
    const waiting = this.#requests.get(message.re) ?? (message.type === "error" ? this.#requests.get(message.id) : undefined);
    if (waiting) {
      this.#cancel(waiting.limit);
      this.#requests.delete(message.re);
      this.#requests.delete(message.id);
      const { code, message: text, details } = message.payload;
      if (message.type === "error") return waiting.reject(new HoldfastError(fault(code, text, details)));
      return waiting.resolve(message);
    }
    const session = this.#sessions.get(message.session_id || message.payload.session_id);
    if (session) return session.push(message);
    return this.#emit("message", message);
  }

  #notJoined(id, found) {
    const session = this.#sessions.get(id);
    this.#sessions.delete(id);
    // The caller learns it, so these messages are not sent at some later time.
    for (const message of [...this.#machine.outbox]) {
      if (message.session_id !== id) continue;
      this.#machine.outbox.remove(message.id);
      this.#settleSend(message.id, found);
    }
    session?.end(found);
  }

  /** What waits learns that the client has given up. Messages stay in the outbox, and are sent if `connect` is called again. */
  #failAll(found) {
    this.#forget();
    this.#failure = found;
    for (const { reject } of this.#sends.values()) reject(new HoldfastError(found));
    this.#sends.clear();
    for (const session of this.#sessions.values()) session.fail(found);
    this.#emit("failed", found);
  }

  // --- time ---

  #later(seconds, run) {
    const timer = setTimeout(() => {
      this.#timers.delete(timer);
      run();
    }, Math.max(0, seconds) * 1000);
    this.#timers.add(timer);
    return timer;
  }

  #cancel(timer) {
    clearTimeout(timer);
    this.#timers.delete(timer);
  }

  #clearTimers() {
    for (const timer of this.#timers) clearTimeout(timer);
    this.#timers.clear();
  }

  #arm() {
    clearTimeout(this.#timer);
    const at = this.#machine.nextAt;
    if (at === null) return;
    const wall = this.#clock.wall();
    const wait = Math.max(0, at - this.#clock.monotonic());
    // A timer of a browser overflows after 24 days.
    this.#timer = setTimeout(() => this.#tick(wall + wait), Math.min(wait * 1000, 2 ** 31 - 1));
  }

  #tick(expectedWall) {
    // The monotonic clock of some browsers stands still while the device sleeps. The wall clock shows the sleep.
    if (this.#clock.wall() - expectedWall > 30) this.wake();
    this.#perform(this.#machine.tick());
  }

  // --- events ---

  #emit(type, detail = null) {
    const event = new Event(type);
    event.detail = detail;
    this.dispatchEvent(event);
  }

  #listen() {
    if (this.#listeners.length || typeof document === "undefined") return;
    const on = (target, type, run) => {
      target.addEventListener(type, run);
      this.#listeners.push(() => target.removeEventListener(type, run));
    };
    on(document, "visibilitychange", () => document.visibilityState === "visible" && this.wake());
    on(globalThis, "online", () => this.wake());
    on(globalThis, "pageshow", ({ persisted }) => persisted && this.wake());
    // The sockets of a device without a network are dead, but a browser does not say so. Ask at once.
    on(globalThis, "offline", () => this.#machine.status === "connected" && this.wake());
  }
}

/** A session that the client has joined. Iterate over it for its messages. */
export class Session {
  #queue = [];
  #waiting = [];
  #end = null;
  #isHeldBack = false;
  #unfinished = null;
  /** The questions that came and are open, by id: what each asks exactly, and about which call. */
  #asked = new Map();
  /** The number of the turn that runs, or of the last one, as far as anything has come; null: nobody said it yet. */
  #turn = null;
  #isInTurn = false;
  #do;

  constructor(id, actions) {
    this.id = id;
    /** The position of the last message that the application has finished with. Keep it, and give it to `join` as `after`. */
    this.position = null;
    this.#do = actions;
  }

  /** Send a text to the agent. Resolves with its offset in the log once it is stored. `expires`: seconds. */
  send(text, options) {
    return this.#do.send("session_message", { content: text }, options);
  }

  /** Answer a question. Resolves once the answer is stored; rejects if somebody else was first. */
  answer(questionId, value, { outcome = "accepted", reason = "", ...options } = {}) {
    const shown = this.#asked.get(questionId)?.arguments_hash;
    const bound = shown ? { arguments_hash: shown } : {};
    return this.#do.send("answer", { question_id: questionId, ...bound, value, outcome, reason }, options);
  }

  /** Answer an `approval_required`, given as its payload or as the id of its call. The answer counts only for what that message shows. */
  approve(call, isApproved, { reason = "", ...options } = {}) {
    const decision = isApproved ? "approved" : "rejected";
    const found = typeof call === "object" ? call : [...this.#asked.values()].findLast((each) => each.tool_call_id === call);
    const { tool_call_id = call, question_id = "", arguments_hash = "" } = found ?? {};
    const bound = question_id ? { question_id, arguments_hash } : {};
    return this.#do.send("approval_response", { tool_call_id, ...bound, decision, reason }, options);
  }

  /** Do something about an operation that waits: "retry_now", "fall_back" or "cancel". `run` is in its `recovery` message. */
  command(run, command) {
    return this.#do.send("command", { run, command }, { expires: COMMAND_EXPIRES_S });
  }

  /** Stop the turn that runs as far as this client knows, or that comes next if none runs. Rejects if that turn does not run any more. */
  stop() {
    // A client that holds messages back does not know which turn runs.
    const turn = this.#isHeldBack || this.#turn === null ? {} : { turn: this.#isInTurn ? this.#turn : this.#turn + 1 };
    return this.#do.send("stop", turn, { expires: COMMAND_EXPIRES_S });
  }

  /** Give the session another title, for everybody. Its id stays. */
  rename(title) {
    return this.#do.send("session_rename", { title }, { expires: COMMAND_EXPIRES_S });
  }

  /** Close the session for good, and stop what its agent does. Its log stays. */
  close() {
    return this.#do.send("session_close", {}, { expires: COMMAND_EXPIRES_S });
  }

  /** After a gap: ask for a snapshot. It arrives as a message, and the session goes on from it. */
  reload() {
    this.#do.reload();
  }

  leave() {
    this.#do.leave();
  }

  [Symbol.asyncIterator]() {
    return this;
  }

  /** Return the next message. Asking for it says that the application has finished with the one before. */
  next() {
    this.#finish();
    if (this.#queue.length > 0) {
      const message = this.#queue.shift();
      this.#unfinished = message;
      if (this.#isHeldBack && this.#queue.length <= this.#do.most / 10) {
        this.#isHeldBack = false;
        this.#do.catchUp();
      }
      return Promise.resolve({ value: message, done: false });
    }
    const found = this.#end ? this.#end.fault : this.#do.failure();
    if (found) return Promise.reject(new HoldfastError(found));
    if (this.#end) return Promise.resolve({ value: undefined, done: true });
    return new Promise((resolve, reject) => this.#waiting.push({ resolve, reject }));
  }

  /** `break` out of a loop keeps the session: a later loop goes on. */
  return() {
    this.#finish();
    return Promise.resolve({ value: undefined, done: true });
  }

  // --- for the client ---

  push(message) {
    this.#know(message);
    const waiting = this.#waiting.shift();
    if (waiting) {
      this.#unfinished = message;
      waiting.resolve({ value: message, done: false });
      return;
    }
    this.#queue.push(message);
    if (!this.#isHeldBack && this.#queue.length >= this.#do.most) {
      this.#isHeldBack = true;
      this.#do.holdBack();
    }
  }

  #know({ type, payload }) {
    if (type === "question" || type === "approval_required") this.#asked.set(payload.question_id, payload);
    if (type === "question_closed" || type === "approval_resolved") this.#asked.delete(payload.question_id);
    if (type === "session_state") [this.#turn, this.#isInTurn] = [payload.turn_number ?? null, Boolean(payload.in_flight)];
    if (type === "snapshot") [this.#turn, this.#isInTurn] = [payload.state?.turn ?? null, Boolean(payload.state?.in_flight)];
    // The messages between are missing.
    if (type === "gap") this.#turn = null;
    if (type === "session_event" && /^turn_(started|ended)$/.test(payload.event) && Number.isInteger(payload.turn))
      [this.#turn, this.#isInTurn] = [payload.turn, payload.event === "turn_started"];
    const state = type === "session_state" ? payload : type === "snapshot" ? payload.state : null;
    if (!state) return;
    const open = [...(state.pending_approvals ?? []), ...(state.pending_questions ?? [])];
    this.#asked = new Map(open.map((each) => [each.question_id, each]));
  }

  /** The client has given up. If it connects again, the session goes on. */
  fail(found) {
    for (const { reject } of this.#waiting.splice(0)) reject(new HoldfastError(found));
  }

  end(found) {
    this.#end = { fault: found };
    for (const { resolve, reject } of this.#waiting.splice(0)) {
      if (found) reject(new HoldfastError(found));
      else resolve({ value: undefined, done: true });
    }
  }

  #finish() {
    const message = this.#unfinished;
    this.#unfinished = null;
    if (message?.offset) {
      this.position = { epoch: message.epoch, offset: message.offset, id: message.id };
      this.#do.taken(this.position);
    } else if (message?.type === "snapshot") {
      this.position = { epoch: message.payload.epoch, offset: message.payload.offset };
    }
  }
}
