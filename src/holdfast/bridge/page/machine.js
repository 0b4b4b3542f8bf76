// The client's side of the bridge over all its connections, as a machine: what happens goes in, effects come out.
//
//   for (const effect of machine.received(frame)) {
//     switch (effect.effect) {
//       case "connect": …   // wait effect.delay seconds, then connect; report `opened` or `connectFailed`
//       case "send": …      // send effect.frame
//       case "drop": …      // close the socket and forget it: nothing of it may reach the machine any more
//       case "deliver": …   // effect.message is for the application, each once and in order
//       …                   // acked, expired, gap, online, joined, not_joined, token_needed, failed
//     }
//   }
//
// Invariant: the application gets each message of a session once and in order, or a gap that says what is missing. What it sends is
// stored once by the server, or it learns why not. This is the same machine as `holdfast.wire.client` in Python; one table of cases
// and random scripts run through both.
//
// All times are seconds. `clock.monotonic()` never goes back; `clock.wall()` is the time of day.

export const PROTOCOL = [1, 2];

/** The warning of a connection over the public internet. */
export const PUBLIC_WARNING = "DIRECT_PUBLIC_CONNECTION";
export const PUBLIC_REASON =
  "the bridge is reached over the public internet without a tunnel. If its user accepts that, connect with acceptPublic: true";

// --- faults ---

const MESSAGES = {
  CONN_HEARTBEAT_LOST: "No heartbeat answer",
  CONN_REFUSED: "Connection refused",
  CONN_TIMEOUT: "Connection attempt timed out",
  CONN_WEBSOCKET_CLOSED: "WebSocket connection closed unexpectedly",
};

/** A failure as a value: a code of Holdfast's catalog, a sentence, and facts. */
export function fault(code, message = "", context = {}) {
  return { code, message: message || MESSAGES[code] || code, context };
}

/** The error that this module throws and rejects with. */
export class HoldfastError extends Error {
  constructor(found) {
    super(found.message);
    this.name = "HoldfastError";
    this.fault = found;
    this.code = found.code;
  }
}

function faultOf(type, payload) {
  if (!isObject(payload) || typeof payload.code !== "string" || typeof payload.message !== "string") {
    // A message without them still says that something failed.
    return fault("PROTO_INVALID_MESSAGE", `The server sent ${type} without its code or message`);
  }
  const { currentPhase, ...details } = isObject(payload.details) ? payload.details : {};
  const context = currentPhase === undefined ? details : { ...details, phase: currentPhase };
  if (Array.isArray(payload.violations)) context.violations = payload.violations;
  const found = { ...fault(payload.code, payload.message, context), retryable: payload.recoverable === true };
  if (typeof payload.retry_after_ms === "number") found.retryAfter = payload.retry_after_ms / 1000;
  return found;
}

function invalid(what, expected, got) {
  return new HoldfastError(fault("CONFIG_OPTION_INVALID", `${what}: expected ${expected}, got ${got}`));
}

function isObject(value) {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

// --- the envelope ---

const TYPE = /^[a-z_]+$/;
const ID = /^[A-Za-z0-9_.:-]{1,64}$/;
const TIMESTAMP =
  /^(\d{4})-(\d{2})-(\d{2})T(?:[01]\d|2[0-3]):[0-5]\d:(?:[0-5]\d|60)(?:[.,]\d{1,9})?(?:Z|[+-](?:[01]\d|2[0-3]):?[0-5]\d)$/;

function isTimestamp(text) {
  const found = typeof text === "string" ? TIMESTAMP.exec(text) : null;
  if (found === null) return false;
  const [year, month, day] = found.slice(1).map(Number);
  // The last day of the month: day 0 of the next one. A year below 100 would be read as 19xx.
  return year > 0 && month >= 1 && month <= 12 && day >= 1 && day <= new Date(Date.UTC(2000 + (year % 400), month, 0)).getUTCDate();
}

function isOffset(value) {
  return Number.isSafeInteger(value) && value >= 0;
}

function parse(frame) {
  try {
    return typeof frame === "string" ? JSON.parse(frame) : frame;
  } catch {
    return undefined;
  }
}

/** Return the message of a frame, or null if it is none. */
export function read(frame) {
  const found = parse(frame);
  if (!isObject(found)) return null;
  const { type, id, timestamp, payload, session_id = "", epoch = "", offset = 0, re = "" } = found;
  const isText = (value) => value === null || typeof value === "string";
  const isMessage =
    typeof type === "string" && TYPE.test(type) && typeof id === "string" && ID.test(id) && isTimestamp(timestamp) &&
    isObject(payload) && isText(session_id) && isText(epoch) && isText(re) && (offset === null || offset === "" || isOffset(offset));
  if (!isMessage) return null;
  return { type, id, timestamp, payload, session_id: session_id ?? "", epoch: epoch ?? "", offset: offset || 0, re: re ?? "" };
}

/** Return a time as messages carry it. */
export function stamp(wall) {
  // Rounded to microseconds and then cut, as Python does it.
  return new Date(Math.floor(Math.round(wall * 1e6) / 1e3)).toISOString();
}

const MAX_DEPTH = 64;

/** Return JSON that a server reads. It cannot say which message was wrong if it cannot read it, so the message would be sent for ever. */
function readable(value) {
  const frame = JSON.stringify(value);
  const why = unreadable(JSON.parse(frame), 1);
  if (why !== null) throw invalid("message", ...why);
  return frame;
}

/** Return what was expected in place of something that no server reads, and what is there; null: there is nothing of this kind. */
function unreadable(value, depth) {
  if (typeof value === "string") return /\p{Surrogate}/u.test(value) ? ["a text that UTF-8 has an encoding for", "one with half a character"] : null;
  if (typeof value === "number") {
    // Larger ones are written with an exponent.
    const isLong = Number.isInteger(value) && (value >= 2 ** 64 || value < -(2 ** 63)) && Math.abs(value) < 1e21;
    return isLong ? ["whole numbers of at most 64 bits", value] : null;
  }
  if (value === null || typeof value !== "object") return null;
  if (depth > MAX_DEPTH) return [`JSON that is nested ${MAX_DEPTH} deep at most`, "deeper JSON"];
  for (const [key, each] of Object.entries(value)) {
    const why = unreadable(key, depth) ?? unreadable(each, depth + 1);
    if (why !== null) return why;
  }
  return null;
}

// --- close codes ---

export const CloseCode = Object.freeze({ BYE: 1000, NO_HEARTBEAT: 4003, TOKEN_EXPIRED: 4005, AUTH_TIMEOUT: 4502, LIMIT: 4504, TOO_BIG: 1009, TRY_LATER: 1013 });

/** The standard codes that say that a message could not be read: the client is wrong, or bytes were lost on the way. */
const UNREADABLE = new Set([1002, 1003, 1007, 1009]);

/** Whether a client connects again after a close code. The range decides, so that newer codes are understood. */
export function reconnects(code) {
  if (code === CloseCode.AUTH_TIMEOUT || code === CloseCode.LIMIT) return true;
  if (code >= 4000) return code < 4500;
  return code !== CloseCode.BYE && !UNREADABLE.has(code);
}

// --- when to connect again ---

/** The delays between attempts to connect. After the list the last delay repeats, until `attempts` or `grace` is reached. */
export const SCHEDULES = Object.freeze({
  default: { delays: [1, 2, 5, 10, 30], jitter: 0.2, attempts: null, grace: 300, factor: 1, cap: 30, waitsFirst: true, message: "" },
  bridge: { delays: [1, 2, 5, 10, 30], jitter: 0, attempts: 5, grace: null, factor: 1, cap: 30, waitsFirst: true, message: "" },
  linear: {
    delays: [1, 2, 3, 4, 5], jitter: 0, attempts: 5, grace: null, factor: 1, cap: 30, waitsFirst: false, message: "Max retries exceeded",
  },
});
const CONNECT_TIMEOUT = { ...SCHEDULES.default, delays: [1, 2, 5, 10], factor: 2, cap: 60 };

function delayOf(schedule, attempt) {
  const { delays, factor, cap, waitsFirst } = schedule;
  const place = waitsFirst ? attempt - 1 : attempt - 2;
  if (place < 0) return 0;
  if (place < delays.length) return delays[place];
  const last = delays[delays.length - 1];
  return Math.min(Math.max(cap, last), last * factor ** (place - delays.length + 1));
}

class Reconnect {
  constructor(schedule, lostAt) {
    this.schedule = schedule;
    this.attempts = 0;
    this.lostAt = lostAt;
    this.timeouts = 0;
  }

  /** Return `{attempt, delay, address}`, or `{exhausted: fault}`. */
  next(now, random, { isAwake, timedOut }) {
    const { attempts, grace, jitter, message } = this.schedule;
    const isOver = attempts !== null && this.attempts >= attempts;
    const isGivenUp = attempts === null && grace !== null && now - this.lostAt >= grace;
    if (isOver || isGivenUp) {
      const text = message || `Reconnection failed after ${this.attempts} attempts`;
      return { exhausted: fault("CONN_RECONNECT_EXHAUSTED", text, { attempts: this.attempts }) };
    }
    this.attempts += 1;
    this.timeouts = timedOut ? this.timeouts + 1 : 0;
    const address = this.timeouts === 2 ? "cached" : "resolve";
    if (isAwake) return { attempt: this.attempts, delay: 0, address };
    const delay = timedOut ? delayOf(CONNECT_TIMEOUT, this.timeouts) : delayOf(this.schedule, this.attempts);
    return { attempt: this.attempts, delay: delay * (1 + jitter * (2 * random() - 1)), address };
  }
}

// --- whether the other side is still there ---

const HEARTBEAT_S = 15;
const HEARTBEAT_TIMEOUT_S = 10;
const WAKE_S = 3;

class Heartbeat {
  constructor(now, interval, timeout) {
    this.interval = interval;
    this.timeout = timeout;
    this.pinged = false;
    this.nextAt = now + interval;
  }

  received(now) {
    this.pinged = false;
    this.nextAt = now + this.interval;
  }

  check(now) {
    if (now < this.nextAt) return null;
    // Silence while this side itself did not run is not held against the other side.
    if (now - this.nextAt > 2 * this.interval) return this.wake(now);
    if (this.pinged) return "dead";
    this.pinged = true;
    this.nextAt = now + this.timeout;
    return "ping";
  }

  wake(now) {
    this.pinged = true;
    this.nextAt = now + Math.min(WAKE_S, this.timeout);
    return "ping";
  }
}

// --- what is sent and not acknowledged yet ---

/** Return the first value of a map; null: it is empty. */
const first = (map) => (map.size ? map.values().next().value : null);

const encoder = new TextEncoder();
const bytesOf = (text) => encoder.encode(text).length;

/** The messages of a client that wait for their acknowledgement: `{id, session_id, frame, expires_at}`. */
export class Outbox {
  constructor({ maxCount = 1000, maxBytes = 10_000_000, window = 32 } = {}) {
    this.maxCount = maxCount;
    this.maxBytes = maxBytes;
    this.window = window;
    this.size = 0;
    this.messages = new Map();
    // When each message was sent that is not acknowledged, in the order of sending.
    this.sent = new Map();
    this.expiries = new Map();
    // The most bytes that the server takes as one message; null: it did not say yet.
    this.maxFrame = null;
    // The messages that are not sent, because the server does not take them, and why.
    this.held = new Map();
  }

  /** Whether a message waits for the server. */
  get waits() {
    return this.messages.size > this.held.size;
  }

  /** Return why the server would not take a message of this size; null if it would, or nobody knows. */
  tooLarge(frame) {
    const size = bytesOf(frame);
    const limit = this.maxFrame;
    if (limit === null || size <= limit) return null;
    const text = `The message has ${size} bytes, and the server takes ${limit} at most: make it shorter, or send it in parts`;
    return fault("PROTO_MESSAGE_TOO_LARGE", text, { limit, size });
  }

  /** The server said how much it takes. Return the messages that are held from now on; one that fits now is not held any more. */
  limited(maxFrame) {
    this.maxFrame = maxFrame;
    const found = [];
    for (const message of this.messages.values()) {
      const why = this.tooLarge(message.frame);
      const held = this.held.get(message.id);
      // One that something on the way does not take has no size that is known to fit.
      if (why === null && held?.context.limit !== undefined) this.held.delete(message.id);
      else if (why !== null && held === undefined) {
        this.held.set(message.id, why);
        found.push(message);
      }
    }
    return found;
  }

  /** Hold the largest message that was sent and not acknowledged, and return it; null if there is none. */
  holdLargest(why) {
    let largest = null;
    for (const id of this.sent.keys()) {
      const message = this.messages.get(id);
      if (largest === null || bytesOf(message.frame) > bytesOf(largest.frame)) largest = message;
    }
    if (largest === null) return null;
    this.sent.delete(largest.id);
    this.held.set(largest.id, why);
    return largest;
  }

  get count() {
    return this.messages.size;
  }

  [Symbol.iterator]() {
    return this.messages.values();
  }

  has(id) {
    return this.messages.has(id);
  }

  add(message) {
    if (this.messages.has(message.id)) return;
    this.requireRoom(message);
    this.messages.set(message.id, message);
    this.size += bytesOf(message.frame);
    if (message.expires_at !== null) this.expiries.set(message.id, message.expires_at);
  }

  requireRoom(message) {
    const why = this.tooLarge(message.frame);
    if (why !== null) throw new HoldfastError(why);
    const bytes = bytesOf(message.frame);
    if (this.count >= this.maxCount || this.size + bytes > this.maxBytes) {
      const text =
        `The outbox is full: ${this.count} messages (${this.size} bytes) wait for the server to acknowledge them. ` +
        "Send this one again when the connection is back";
      throw new HoldfastError(fault("SYS_RESOURCE_EXHAUSTED", text, { messages: this.count, bytes: this.size }));
    }
  }

  toSend(joined, now) {
    const chosen = [];
    for (const message of this.messages.values()) {
      if (this.sent.size >= this.window) break;
      if (!this.sent.has(message.id) && !this.held.has(message.id) && joined.has(message.session_id)) {
        this.sent.set(message.id, now);
        chosen.push(message);
      }
    }
    return chosen;
  }

  acked(results) {
    const found = [];
    for (const result of results) {
      const message = this.remove(result.id);
      if (message) found.push({ effect: "acked", message, result });
    }
    return found;
  }

  disconnected() {
    this.sent.clear();
  }

  get sentAt() {
    return first(this.sent);
  }

  get nextExpiry() {
    let first = null;
    for (const [id, at] of this.expiries) if (!this.sent.has(id) && (first === null || at < first)) first = at;
    return first;
  }

  expired(wall) {
    // What is sent may be stored already.
    const over = [...this.expiries].filter(([id, at]) => at <= wall && !this.sent.has(id));
    return over.map(([id]) => this.remove(id));
  }

  remove(id) {
    const message = this.messages.get(id);
    if (message === undefined) return null;
    this.messages.delete(id);
    this.sent.delete(id);
    this.expiries.delete(id);
    this.held.delete(id);
    this.size -= bytesOf(message.frame);
    return message;
  }
}

// --- the machine ---

// How long a server may take to acknowledge a message, or to let a client in.
const ANSWER_TIMEOUT_S = 30;
// How often in a row the server may find the client's messages unreadable, with the same code and reason, before the client is to blame.
const MOST_UNREADABLE = 3;
const ACK_EVERY = 64;
const ACK_WITHIN_S = 2;

class Membership {
  constructor(role, position, history, creation) {
    this.role = role;
    this.position = position;
    this.history = history;
    this.creation = creation;
    this.token = "";
    this.isJoined = false;
    // The application has more than it can take. Nothing is delivered, and later it goes on at its position.
    this.isHeldBack = false;
    // What it needs before it can go on: a decision about a "gap", or the "snapshot" that was asked for.
    this.lacks = "";
    this.taken = null;
    this.acked = 0;
    this.ackAt = null;
  }

  get takes() {
    return this.isJoined && !this.lacks && !this.isHeldBack;
  }

  /** Whether the server has sent up to this offset, and not all of it arrived. */
  isBehind(offset) {
    return this.takes && this.position !== null && Number.isInteger(offset) && offset > this.position.offset;
  }
}

const OFF = new Set(["disconnected", "error"]);

export class Machine {
  constructor({ token, clock, random, newId, clientId, clientVersion = "", platform = "javascript", schedule, outbox, acceptPublic = false, answerTimeout = ANSWER_TIMEOUT_S }) {
    this.token = token;
    this.status = "disconnected";
    this.clientId = clientId;
    this.outbox = outbox ?? new Outbox();
    this.fault = null;
    this.clock = clock;
    this.random = random;
    this.newId = newId;
    this.about = { client_version: clientVersion, platform };
    this.schedule = { ...SCHEDULES.default, ...schedule };
    this.acceptPublic = acceptPublic;
    this.awaitsConsent = false;
    this.reconnect = null;
    this.heartbeat = null;
    this.beats = [HEARTBEAT_S, HEARTBEAT_TIMEOUT_S];
    this.sessions = new Map();
    this.joins = new Map();
    this.answerTimeout = answerTimeout;
    // When requests were sent without whose answers it cannot go on, in the order of sending: `auth`, consent, joins.
    this.asked = new Map();
    // When it was noticed last that this side was asleep. Time before that is not held against the server.
    this.awakeAt = 0;
    /** Seconds that the clock of the server is ahead of the client's. The clock of a phone may be hours off. */
    this.ahead = 0;
    // Whether the server has let it in since `connect`.
    this.wasAccepted = false;
    // The code and reason of the last close because of a message that the server could not read; null: there was progress since.
    this.misreadAs = null;
    // How often that close came in a row.
    this.misreads = 0;
    this.take = {
      connection_ack: (message) => this.#accepted(message),
      connection_error: (message) => this.#ends(message),
      acknowledgment_accepted: () => this.#acknowledged(),
      heartbeat_ping: (message) => this.#pinged(message),
      heartbeat_pong: (message) => this.#compare(message),
      session_joined: (message) => this.#joined(message),
      replay_buffer: (message) => this.#replayed(message),
      gap: (message) => this.#foundGap(message.session_id || String(message.payload.session_id ?? ""), message.payload),
      snapshot: (message) => this.#snapshot(message),
      ack: (message) => this.#acked(message),
      error: (message) => this.#error(message),
    };
  }

  // --- what the application wants ---

  connect() {
    if (!OFF.has(this.status)) return [];
    this.status = "connecting";
    this.fault = null;
    this.reconnect = null;
    this.wasAccepted = false;
    this.misreadAs = null;
    return [{ effect: "connect", attempt: 1, delay: 0, address: "resolve" }];
  }

  disconnect() {
    const was = this.status;
    this.status = "disconnected";
    this.#lost();
    return was === "disconnected" ? [] : [drop()];
  }

  /** Join a session, now or as soon as the client is connected. With `creation` it is made first if it does not exist. */
  join(session, { role = "controller", after = null, history = "tail", creation = null } = {}) {
    if (this.sessions.has(session)) throw invalid("session", "a session that is not joined yet", `'${session}'`);
    readable([session, creation]);
    this.sessions.set(session, new Membership(role, after, history, creation));
    return this.#mayJoin ? [this.#join(session)] : [];
  }

  leave(session) {
    const found = this.sessions.get(session);
    this.sessions.delete(session);
    return found?.isJoined ? [this.#message("session_leave", { session_id: session })] : [];
  }

  /** Put a message into the outbox, and send it if that is possible now. Return its id and the effects. */
  send(session, type, payload, { expiresAt = null } = {}) {
    const message = this.compose(session, type, payload, { expiresAt });
    return [message.id, this.submit(message)];
  }

  /** Return a message that can be kept before it is handed to `submit`. Throws if the outbox is full. */
  compose(session, type, payload, { expiresAt = null } = {}) {
    if (!this.sessions.has(session)) throw invalid("session", "a session that was joined", `'${session}'`);
    const content = { ...payload, session_id: session };
    if (expiresAt !== null) {
      if (Number.isNaN(new Date(expiresAt * 1e3).getTime())) throw invalid("expires", "a time that a calendar has", expiresAt);
      content.expires_at = stamp(expiresAt);
    }
    const envelope = this.#envelope(type, content);
    const message = { id: envelope.id, session_id: session, frame: readable(envelope), expires_at: expiresAt };
    this.outbox.requireRoom(message);
    return message;
  }

  submit(message) {
    this.outbox.add(message);
    return this.flush();
  }

  /** Send something that is not kept, if the client is connected. Throws if it is too large for the server. Return its id: the answer has it as `re`, an error as `id`. */
  ask(type, payload) {
    const message = this.#envelope(type, payload);
    const frame = readable(message);
    const why = this.outbox.tooLarge(frame);
    if (why !== null) throw new HoldfastError(why);
    return [message.id, this.status === "connected" ? [{ effect: "send", frame }] : []];
  }

  /** Ask for a snapshot of a session, now or as soon as the client is connected. The client goes on at its position. */
  reload(session) {
    const found = this.sessions.get(session);
    if (found === undefined) throw invalid("session", "a session that was joined", `'${session}'`);
    found.lacks = "snapshot";
    found.isHeldBack = false;
    return this.#mayJoin ? [this.#join(session)] : [];
  }

  /** Deliver nothing of a session until `catchUp`: the application has more than it can take. Nothing is lost by that. */
  holdBack(session) {
    const found = this.sessions.get(session);
    if (found !== undefined) found.isHeldBack = true;
  }

  catchUp(session) {
    const found = this.sessions.get(session);
    if (found === undefined || !found.isHeldBack) return [];
    found.isHeldBack = false;
    if (!found.isJoined || found.lacks) return [];
    found.isJoined = false;
    return [this.#join(session)];
  }

  /** The application has finished with a message. The server hears of it soon, for those who want to know who has seen what. */
  taken(session, position) {
    const found = this.sessions.get(session);
    if (found === undefined) return [];
    found.taken = position;
    if (found.isJoined && (!found.acked || position.offset - found.acked >= ACK_EVERY)) return this.#ack(session, found);
    found.ackAt ??= this.clock.monotonic() + ACK_WITHIN_S;
    return [];
  }

  position(session) {
    return this.sessions.get(session)?.position ?? null;
  }

  // --- what happens to the connection ---

  opened() {
    if (OFF.has(this.status)) return [drop()];
    const [interval, timeout] = this.beats;
    this.heartbeat = new Heartbeat(this.clock.monotonic(), interval, timeout);
    // A token, or an object with a ticket in place of it.
    const shown = typeof this.token === "string" ? { token: this.token } : this.token;
    return [this.#request("auth", { ...shown, client_id: this.clientId, protocol: PROTOCOL, ...this.about })];
  }

  connectFailed(found) {
    if (OFF.has(this.status)) return [];
    // An address that is no bridge would fail the same way again.
    if (found.retryable === false) return this.#giveUp(found);
    return this.#again(found, { timedOut: found.code === "CONN_TIMEOUT" });
  }

  closed(code, reason = "") {
    if (OFF.has(this.status)) return [];
    const found = this.fault ?? fault("CONN_WEBSOCKET_CLOSED", "", { close_code: code, reason });
    if (UNREADABLE.has(code) && this.wasAccepted) return this.#misread(found, code, reason);
    if (!reconnects(code)) return this.#giveUp(found);
    const needed = code === CloseCode.TOKEN_EXPIRED ? [{ effect: "token_needed", fault: found }] : [];
    return [...needed, ...this.#again(found)];
  }

  /** Connect again: bytes were lost on the way. If the same happens again and again, a message of this client is to blame. */
  #misread(found, code, reason) {
    const close = reason ? `${code} (${reason})` : `${code}`;
    this.misreads = this.misreadAs === close ? this.misreads + 1 : 1;
    this.misreadAs = close;
    if (this.misreads < MOST_UNREADABLE) return this.#again(found);
    const held = code === CloseCode.TOO_BIG ? this.#holdLargest() : null;
    if (held !== null) {
      this.misreadAs = null;
      return [held, ...this.#again(found)];
    }
    const text =
      `The server closed the connection ${this.misreads} times in a row with code ${close} and acknowledged nothing between. ` +
      "A message in the outbox may be too large or wrong";
    return this.#giveUp(fault("CONN_WEBSOCKET_CLOSED", text, { close_code: code, reason, times: this.misreads }));
  }

  /** Hold the message that is most likely to be too large: something on the way takes less than the server says. */
  #holdLargest() {
    const text = `The server closed the connection ${this.misreads} times in a row because of a message that is too large for it, and this is the largest`;
    const why = fault("PROTO_MESSAGE_TOO_LARGE", text);
    const message = this.outbox.holdLargest(why);
    return message === null ? null : { effect: "held", message, fault: why };
  }

  /** Something came while no message waits for the server. While one waits, only its acknowledgement shows that it can be read. */
  #isAlive() {
    if (!this.outbox.waits) this.misreadAs = null;
  }

  /** The device woke up, or is online again: find out at once whether the connection still works. */
  wokeUp() {
    if (this.status === "connected" && this.heartbeat !== null) {
      this.heartbeat.wake(this.clock.monotonic());
      return [this.#message("heartbeat_ping", {})];
    }
    if (this.status !== "reconnecting") return [];
    // Somebody is there again. The attempts that failed while nobody was do not count.
    this.reconnect = null;
    return this.#again(this.fault, { isAwake: true });
  }

  /** When to call `tick` next, by the monotonic clock; null: not before something else happens. */
  get nextAt() {
    const times = [...this.sessions.values()].filter((found) => found.ackAt !== null && found.isJoined).map((found) => found.ackAt);
    if (this.heartbeat !== null) times.push(this.heartbeat.nextAt);
    if (this.#answerBy !== null) times.push(this.#answerBy);
    const expiresAt = this.outbox.nextExpiry;
    if (expiresAt !== null) times.push(this.clock.monotonic() + Math.max(0, expiresAt - this.clock.wall()));
    return times.length ? Math.min(...times) : null;
  }

  tick() {
    const effects = this.#expire();
    const now = this.clock.monotonic();
    for (const [session, found] of this.sessions) {
      if (found.ackAt !== null && found.ackAt <= now && found.isJoined) effects.push(...this.#ack(session, found));
    }
    if (this.#isUnanswered(now)) {
      const timeout_s = this.answerTimeout;
      const found = fault("CONN_HEARTBEAT_LOST", `The server did not answer a message within ${timeout_s} s`, { timeout_s });
      return [...effects, drop(CloseCode.NO_HEARTBEAT), ...this.#again(found)];
    }
    const beat = this.heartbeat === null ? null : this.heartbeat.check(now);
    if (beat === "ping") effects.push(this.#message("heartbeat_ping", {}));
    if (beat === "dead") {
      const found = fault("CONN_HEARTBEAT_LOST", "", { timeout_s: this.beats[1] });
      effects.push(drop(CloseCode.NO_HEARTBEAT), ...this.#again(found));
    }
    return effects;
  }

  /** When the server must have answered the oldest message that it has not answered yet. */
  get #answerBy() {
    if (this.heartbeat === null) return null;
    const times = [first(this.asked), this.outbox.sentAt].filter((each) => each !== null);
    return times.length ? Math.max(Math.min(...times), this.awakeAt) + this.answerTimeout : null;
  }

  #isUnanswered(now) {
    const answerBy = this.#answerBy;
    if (answerBy === null || now < answerBy) return false;
    if (now - answerBy <= 2 * this.beats[0]) return true;
    // This side was asleep. The answer may be here, unread.
    this.awakeAt = now;
    return false;
  }

  // --- what comes from the server ---

  /** Take a frame. One that cannot be read is skipped: its offset is then missing, and that is noticed. */
  received(frame) {
    if (this.heartbeat === null) return [];
    this.heartbeat.received(this.clock.monotonic());
    const message = read(frame);
    if (message === null) return this.#unreadable(frame);
    if (message.offset) return this.#inOrder(message);
    // An answer names its request as `re`, or has its id.
    this.asked.delete(message.re);
    this.asked.delete(message.id);
    // `Object.hasOwn`: a message of type "constructor" is not one that the machine takes.
    return Object.hasOwn(this.take, message.type) ? this.take[message.type](message) : [deliver(message)];
  }

  /** An error about something that the server could not read has no id. */
  #unreadable(frame) {
    const document = parse(frame);
    if (isObject(document) && document.type === "connection_error") this.fault = faultOf("connection_error", document.payload);
    return [];
  }

  #accepted({ payload }) {
    this.status = "connected";
    this.fault = null;
    this.wasAccepted = true;
    this.asked.clear();
    const interval = payload.heartbeat_interval_ms;
    if (Number.isInteger(interval) && interval > 0) this.beats = [interval / 1000, this.beats[1]];
    const { server_time: serverTime } = payload;
    this.ahead = isTimestamp(serverTime) ? Date.parse(serverTime) / 1000 - this.clock.wall() : 0;
    this.#settle();
    const online = [{ effect: "online", ack: payload }, ...this.#limited(payload.limits)];
    if (payload.connection_mode !== "direct_public") return [...online, ...this.#joinAll()];
    if (this.acceptPublic) {
      this.awaitsConsent = true;
      // Nothing may be joined before the user's consent is known.
      return [...online, this.#request("acknowledge_warning", { warning_code: PUBLIC_WARNING })];
    }
    const reason = PUBLIC_REASON;
    return [drop(), ...this.#giveUp(fault("CONN_MISCONFIGURED", `The connection's configuration is wrong: ${reason}`, { reason }))];
  }

  /** Keep the largest message that the server takes, and hold what is larger. */
  #limited(limits) {
    const most = limits?.max_frame;
    if (!Number.isInteger(most) || most <= 0) return [];
    return this.outbox.limited(most).map((message) => ({ effect: "held", message, fault: this.outbox.held.get(message.id) }));
  }

  #acknowledged() {
    this.awaitsConsent = false;
    this.asked.clear();
    return this.#joinAll();
  }

  #joinAll() {
    return [...this.sessions.keys()].map((session) => this.#join(session));
  }

  /** Forget the attempts of the last loss, once everything is as it was. Until then they go on to be counted. */
  #settle() {
    if ([...this.sessions.values()].every((found) => found.isJoined)) this.reconnect = null;
  }

  #ends(message) {
    this.fault = faultOf(message.type, message.payload);
    return [];
  }

  #pinged(message) {
    return [this.#message("heartbeat_pong", {}, message.id), ...this.#compare(message)];
  }

  /** Join again where the server has sent more than arrived. Without this, a loss would show only at the next message. */
  #compare({ payload }) {
    this.#isAlive();
    const effects = [];
    for (const [session, sent] of isObject(payload.offsets) ? Object.entries(payload.offsets) : []) {
      const found = this.sessions.get(session);
      if (found?.isBehind(sent)) {
        found.isJoined = false;
        effects.push(this.#join(session));
      }
    }
    return effects;
  }

  #error(message) {
    const session = this.joins.get(message.id);
    this.joins.delete(message.id);
    if (session !== undefined && this.sessions.has(session)) return this.#notJoined(session, faultOf("error", message.payload));
    if (!this.outbox.has(message.id)) return [deliver(message)];
    if (message.payload.code === "SESS_STORE_UNAVAILABLE") {
      // A store that is locked or starts again cannot take it just now. It goes again, with those after it, until it expires.
      return [drop(CloseCode.TRY_LATER), ...this.#again(faultOf("error", message.payload))];
    }
    return this.#settled([{ id: message.id, status: "rejected", error: message.payload }]);
  }

  #notJoined(session, found) {
    const member = this.sessions.get(session);
    const { creation } = member;
    if (creation !== null && found.code === "SESS_NOT_FOUND") return [this.#create(session, creation)];
    if (creation !== null && found.code === "SESS_ILLEGAL_TRANSITION") {
      // Somebody else has made it meanwhile.
      member.creation = null;
      return [this.#join(session)];
    }
    // The server cannot just now, or others have taken the place of a session that the client was in. It is asked again as after a loss of
    // the connection.
    const isCrowdedOut = found.code === "CONN_LIMIT" && member.position !== null;
    if (found.retryable || isCrowdedOut) return [drop(CloseCode.TRY_LATER), ...this.#again(found)];
    this.sessions.delete(session);
    this.#settle();
    return [{ effect: "not_joined", session_id: session, fault: found }];
  }

  #joined({ payload, re }) {
    this.joins.delete(re);
    const session = String(payload.session_id ?? "");
    const found = this.sessions.get(session);
    if (found === undefined) return [];
    found.isJoined = true;
    found.creation = null;
    found.acked = 0;
    found.token = String(payload.resume_token ?? "");
    this.#settle();
    const effects = [{ effect: "joined", session_id: session, payload }];
    if (payload.gap) {
      effects.push(...this.#foundGap(session, payload.gap));
    } else if (found.position === null || found.position.epoch !== payload.epoch) {
      found.position = { epoch: String(payload.epoch ?? ""), offset: Number(payload.from_offset ?? 0) };
    }
    // What was sent before the connection was lost goes first, in its order.
    return [...effects, ...this.flush()];
  }

  #replayed({ payload }) {
    const effects = [];
    for (const each of Array.isArray(payload.messages) ? payload.messages : []) {
      const missed = read(each);
      if (missed?.offset) effects.push(...this.#inOrder(missed));
    }
    return effects;
  }

  /** Deliver the next message of a session. One that came before is dropped, and one that comes too early shows a hole. */
  #inOrder(message) {
    const found = this.sessions.get(message.session_id);
    if (found === undefined || !found.takes) return [];
    const place = found.position;
    if (place === null || place.epoch !== message.epoch || message.offset > place.offset + 1) {
      // Something between was lost on the way. Join again from where the application is.
      found.isJoined = false;
      return [this.#join(message.session_id)];
    }
    if (message.offset <= place.offset) return [];
    found.position = { epoch: message.epoch, offset: message.offset, id: message.id };
    this.#isAlive();
    return [deliver(message)];
  }

  #foundGap(session, gap) {
    const found = this.sessions.get(session);
    // The application hears of a gap once, however often the client joins again before it has decided.
    if (found === undefined || found.lacks) return [];
    found.lacks = "gap";
    return [{ effect: "gap", session_id: session, gap }];
  }

  #snapshot(message) {
    const session = String(message.payload.session_id || message.session_id);
    const found = this.sessions.get(session);
    this.joins.delete(message.re);
    if (found === undefined || found.lacks !== "snapshot") return [];
    found.lacks = "";
    found.position = { epoch: String(message.payload.epoch), offset: Number(message.payload.offset) };
    return [deliver(message), this.#join(session)];
  }

  #acked({ payload }) {
    const results = payload.results ?? [];
    const fits = (each) => isObject(each) && typeof each.id === "string" && ["stored", "duplicate", "rejected"].includes(each.status);
    if (!Array.isArray(results) || !results.every(fits)) return [];
    return this.#settled(results);
  }

  /** The server has read messages of the outbox. Send the next ones. */
  #settled(results) {
    const acked = this.outbox.acked(results);
    if (acked.length) this.misreadAs = null;
    return [...acked, ...this.flush()];
  }

  // --- what is sent ---

  get #mayJoin() {
    return this.status === "connected" && !this.awaitsConsent;
  }

  #ack(session, found) {
    found.ackAt = null;
    if (found.taken === null) return [];
    found.acked = found.taken.offset;
    return [this.#message("ack", { session_id: session, epoch: found.taken.epoch, offset: found.taken.offset })];
  }

  #create(session, creation) {
    return this.#request("session_create", { session_id: session, ...creation }, session);
  }

  #join(session) {
    const found = this.sessions.get(session);
    if (found.lacks === "snapshot") {
      // It goes on at the position of the snapshot, so it joins after it has that.
      return this.#request("session_snapshot", { session_id: session }, session);
    }
    const payload = { session_id: session, role: found.role, history: found.history };
    if (found.position !== null) payload.after = found.position;
    if (found.token) payload.resume_token = found.token;
    return this.#request("session_join", payload, session);
  }

  /** Send what may be sent to the sessions that are joined. */
  flush() {
    if (this.status !== "connected" || this.outbox.count === 0) return [];
    const over = this.#expire();
    const joined = new Set([...this.sessions].filter(([, found]) => found.isJoined).map(([session]) => session));
    return [...over, ...this.outbox.toSend(joined, this.clock.monotonic()).map((message) => ({ effect: "send", frame: this.#byServerClock(message) }))];
  }

  /** Return the frame of a message. If it expires, the server judges that by its own clock. */
  #byServerClock({ frame, expires_at: expiresAt }) {
    if (expiresAt === null || !this.ahead) return frame;
    const document = JSON.parse(frame);
    document.payload.expires_at = stamp(expiresAt + this.ahead);
    return JSON.stringify(document);
  }

  #expire() {
    return this.outbox.expired(this.clock.wall()).map((message) => ({ effect: "expired", message }));
  }

  /** Send something without whose answer the client cannot go on. */
  #request(type, payload, session = null) {
    const message = this.#envelope(type, payload);
    this.asked.set(message.id, this.clock.monotonic());
    if (session !== null) this.joins.set(message.id, session);
    return { effect: "send", frame: JSON.stringify(message) };
  }

  #message(type, payload, re = "") {
    return { effect: "send", frame: JSON.stringify(this.#envelope(type, payload, re)) };
  }

  #envelope(type, payload, re = "") {
    const message = { type, id: this.newId(), timestamp: stamp(this.clock.wall()), payload };
    return re ? { ...message, re } : message;
  }

  // --- again, or not ---

  #lost() {
    this.heartbeat = null;
    this.awaitsConsent = false;
    this.joins.clear();
    this.asked.clear();
    this.outbox.disconnected();
    for (const found of this.sessions.values()) found.isJoined = false;
  }

  #again(found, { timedOut = false, isAwake = false } = {}) {
    const now = this.clock.monotonic();
    this.#lost();
    this.status = "reconnecting";
    this.fault = found;
    this.reconnect ??= new Reconnect(this.schedule, now);
    const next = this.reconnect.next(now, this.random, { timedOut, isAwake });
    return next.exhausted ? this.#giveUp(next.exhausted) : [{ effect: "connect", ...next }];
  }

  #giveUp(found) {
    this.#lost();
    this.status = "error";
    this.fault = found;
    return [{ effect: "failed", fault: found }];
  }
}

function drop(code = CloseCode.BYE) {
  return { effect: "drop", code };
}

function deliver(message) {
  return { effect: "deliver", message };
}
