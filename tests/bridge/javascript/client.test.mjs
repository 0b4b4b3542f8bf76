// The JavaScript client against a real bridge: node --experimental-websocket --test. The Python test starts the bridge.
// Connections are cut for real: the socket under the client is closed without its knowledge, or held so that nothing passes.

import assert from "node:assert/strict";
import { connect, createServer } from "node:net";
import { test } from "node:test";
import { Client, HoldfastError } from "../../../src/holdfast/bridge/page/holdfast.js";

const url = process.env.BRIDGE_URL;
const quick = { delays: [0.01, 0.02, 0.05], jitter: 0, attempts: null, grace: null, cap: 0.05 };
let names = 0;

/** A WebSocket whose line can be cut: nothing passes any more, and neither side is told. */
class Line extends WebSocket {
  static made = [];

  constructor(address) {
    super(address);
    Line.made.push(this);
  }

  /** The network is gone and the system notices it. */
  cut() {
    this.isCut = true;
    const told = this.onclose;
    this.onclose = null;
    super.close();
    told?.({ code: 1006, reason: "" });
  }

  /** What is sent from now on is lost; what arrives too. */
  blackHole() {
    this.isCut = true;
    this.onmessage = null;
  }

  send(frame) {
    if (!this.isCut) super.send(frame);
  }
}

function connected(options = {}) {
  const from = Line.made.length;
  const client = new Client(url, { token: "token", WebSocket: Line, schedule: quick, ...options });
  return { client, line: () => Line.made[Line.made.length - 1], made: () => Line.made.length - from };
}

const name = () => `js-${process.pid}-${++names}`;

async function until(session, type, found = []) {
  for await (const message of session) {
    found.push(message);
    if (message.type === type) return message;
  }
  throw new Error(`the session ended before ${type}`);
}

async function texts(session, count) {
  const found = [];
  for await (const message of session) {
    if (message.type === "user_message") found.push(message.payload.content);
    if (found.length === count) break;
  }
  return found;
}

const once = (client, type) => new Promise((resolve) => client.addEventListener(type, ({ detail }) => resolve(detail), { once: true }));

/** What `localStorage` does. */
class Shelf {
  #items = new Map();
  get length() { return this.#items.size; }
  key(place) { return [...this.#items.keys()][place] ?? null; }
  getItem(key) { return this.#items.get(key) ?? null; }
  setItem(key, value) { this.#items.set(key, String(value)); }
  removeItem(key) { this.#items.delete(key); }
}

test("a message is acknowledged with its offset, and arrives", async () => {
  const { client } = connected();
  const session = client.join(name(), { create: true });
  const offset = await session.send("hello");
  assert.ok(offset >= 1);
  const message = await until(session, "user_message");
  assert.equal(message.payload.content, "hello");
  assert.equal(message.offset, offset);
  client.close();
});

test("B57 what is sent while the line is down arrives once, in order, after it is back", async () => {
  const { client, line } = connected();
  const session = client.join(name(), { create: true });
  await session.send("0");
  const sent = [];
  for (let number = 1; number <= 20; number += 1) {
    if (number % 5 === 0) line().cut();
    sent.push(session.send(String(number)));
  }
  await Promise.all(sent);
  assert.deepEqual(await texts(session, 21), [...Array(21).keys()].map(String));
  assert.equal(client.pending.length, 0);
  client.close();
});

test("B58 an acknowledgement that is lost does not double the message", async () => {
  const { client, line } = connected();
  const id = name();
  const session = client.join(id, { create: true });
  await session.send("first");
  const lost = line();
  const take = lost.onmessage;
  // The server stores it; its answer never arrives.
  lost.onmessage = (event) => event.data.includes('"type":"ack"') || take(event);
  const sending = session.send("second");
  await new Promise((resolve) => setTimeout(resolve, 50));
  lost.cut();
  await sending;
  await session.send("third");
  assert.deepEqual(await texts(session, 3), ["first", "second", "third"]);
  client.close();
});

test("a half-open connection is noticed on waking up, and nothing is lost", async () => {
  const { client, line, made } = connected();
  const id = name();
  const session = client.join(id, { create: true });
  await session.send("before");
  line().blackHole();
  const sending = session.send("into the hole");
  client.wake();
  await sending;
  assert.equal(made(), 2);
  assert.deepEqual(await texts(session, 2), ["before", "into the hole"]);
  client.close();
});

test("B35 a second client goes on after the position that it kept", async () => {
  const first = connected();
  const id = name();
  const writer = first.client.join(id, { create: true });
  await writer.send("one");
  await writer.send("two");
  assert.deepEqual(await texts(writer, 2), ["one", "two"]);
  await writer.return();
  const kept = JSON.parse(JSON.stringify(writer.position));
  await writer.send("three");
  first.client.close();
  const { client } = connected();
  assert.deepEqual(await texts(client.join(id, { after: kept }), 1), ["three"]);
  client.close();
});

test("an outbox in a storage survives the program", async () => {
  const storage = new Shelf();
  const id = name();
  const first = connected({ storage, clientId: "phone-1", connect: false });
  const before = first.client.join(id, { create: true });
  before.send("kept 1").catch(() => {});
  before.send("kept 2").catch(() => {});
  before.answer("q", "secret", { isSecret: true }).catch(() => {});
  assert.equal(storage.length, 2);
  const second = connected({ storage, clientId: "phone-1" });
  assert.deepEqual(second.client.pending.map(({ payload }) => payload.content), ["kept 1", "kept 2"]);
  const session = second.client.join(id, { create: true });
  assert.deepEqual(await texts(session, 2), ["kept 1", "kept 2"]);
  while (storage.length > 0) await once(second.client, "outbox");
  second.client.close();
});

test("XB2 a message over the limit is rejected with the limit, and a kept one is held until it is discarded", async () => {
  const storage = new Shelf();
  const id = name();
  const first = connected({ storage, clientId: "phone-2", connect: false });
  first.client.join(id, { create: true }).send("x".repeat(1_000_000)).catch(() => {});
  const { client } = connected({ storage, clientId: "phone-2" });
  const session = client.join(id, { create: true });
  await session.send("short");
  await assert.rejects(session.send("y".repeat(1_000_000)), (error) => error.code === "PROTO_MESSAGE_TOO_LARGE" && error.fault.context.limit === 1_000_000);
  const [held] = client.pending;
  assert.equal(held.fault.code, "PROTO_MESSAGE_TOO_LARGE");
  assert.equal(client.discard(held.id), true);
  assert.deepEqual([client.pending.length, storage.length], [0, 0]);
  client.close();
});

test("a wrong token ends the client, and whatever waits learns why", async () => {
  const { client, made } = connected({ token: "wrong" });
  const session = client.join(name(), { create: true });
  await assert.rejects(session.send("hello"), (error) => error instanceof HoldfastError && error.code === "AUTH_FAILED");
  await assert.rejects(session.next(), { code: "AUTH_FAILED" });
  assert.equal(client.status, "error");
  assert.equal(made(), 1);
  client.close();
});

test("a token may be a function, which is asked before each connection", async () => {
  let asked = 0;
  const { client, line } = connected({ token: async () => (++asked ? "token" : "") });
  const session = client.join(name(), { create: true });
  await session.send("a");
  line().cut();
  await session.send("b");
  assert.equal(asked, 2);
  client.close();
});

test("a token that cannot be fetched now, or not soon, is fetched for the next attempt", async () => {
  let asked = 0;
  const token = async () => {
    if (++asked === 1) throw new TypeError("fetch failed");
    if (asked === 2) await new Promise(() => {});
    return "token";
  };
  const { client } = connected({ token, connectTimeout: 0.05 });
  const sent = client.join(name(), { create: true }).send("a");
  while (asked < 2 || client.status !== "reconnecting") await once(client, "attempt");
  assert.equal(client.fault.code, "CONN_TIMEOUT");
  client.wake();
  assert.ok((await sent) >= 1);
  assert.equal(asked, 3);
  client.close();
});

test("a session that does not exist is told, and its messages are not sent later", async () => {
  const { client } = connected();
  const session = client.join(name());
  await assert.rejects(session.send("hello"), { code: "SESS_NOT_FOUND" });
  await assert.rejects(session.next(), { code: "SESS_NOT_FOUND" });
  assert.equal(client.pending.length, 0);
  client.close();
});

test("a message that expires before it can be sent rejects", async () => {
  const { client } = connected({ connect: false });
  const session = client.join(name(), { create: true });
  await assert.rejects(session.send("too late", { expires: 0.02 }), { code: "SESS_INTERACTION_EXPIRED" });
  client.close();
});

test("the sessions can be listed", async () => {
  const { client } = connected();
  const id = name();
  await client.join(id, { create: true }).send("hello");
  assert.ok((await client.sessions()).some(({ session_id }) => session_id === id));
  client.close();
});

test("a request whose answer is lost rejects after the answer timeout, and the next one works", async (t) => {
  const { client, line } = connected({ answerTimeout: 0.5 });
  t.after(() => client.close());
  await client.join(name(), { create: true }).send("hello");
  const take = line().onmessage;
  line().onmessage = null;
  const late = new Promise((resolve) => setTimeout(resolve, 3000, "late"));
  await assert.rejects(Promise.race([client.request("session_list", {}), late.then(assert.fail)]), { code: "CONN_HEARTBEAT_LOST" });
  line().onmessage = take;
  assert.ok((await client.sessions()).length >= 1);
});

test("a slow application holds the client back, and still gets everything once", async () => {
  const writer = connected();
  const id = name();
  const from = writer.client.join(id, { create: true });
  await from.send("ready");
  const reader = connected({ maxWaiting: 20 });
  const session = reader.client.join(id, { history: "full" });
  const count = 200;
  // Nobody reads meanwhile.
  await Promise.all([...Array(count).keys()].map((number) => from.send(String(number))));
  const found = await texts(session, count + 1);
  assert.deepEqual(found, ["ready", ...[...Array(count).keys()].map(String)]);
  writer.client.close();
  reader.client.close();
});

test("breaking out of a loop keeps the session, and leaving it ends the loop", async () => {
  const { client } = connected();
  const session = client.join(name(), { create: true });
  await session.send("one");
  assert.deepEqual(await texts(session, 1), ["one"]);
  await session.send("two");
  assert.deepEqual(await texts(session, 1), ["two"]);
  session.leave();
  for await (const message of session) assert.notEqual(message.type, "user_message");
  client.close();
});

/** A port in front of the bridge. Each connection meets the next of `troubles`; when there is none left, it reaches the bridge. */
async function gate(troubles) {
  const { hostname, port } = new URL(url);
  const left = [...troubles];
  const ended = [];
  const server = createServer((socket) => {
    socket.on("error", () => {});
    const trouble = left.shift();
    if (trouble) {
      ended.push(new Promise((resolve) => socket.on("close", resolve)));
      return trouble(socket);
    }
    const bridge = connect(Number(port), hostname);
    bridge.on("error", () => socket.destroy());
    return socket.pipe(bridge).pipe(socket);
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  return { url: `ws://127.0.0.1:${server.address().port}/ws`, ended, close: () => server.close() };
}

const answering = (act) => (socket) => socket.once("data", () => act(socket));
const HANDSHAKES = {
  "is reset when it is accepted": (socket) => socket.resetAndDestroy(),
  "is reset after the request": answering((socket) => socket.resetAndDestroy()),
  "ends without an answer": answering((socket) => socket.end()),
  "ends in the middle of the answer": answering((socket) => socket.end("HTTP/1.1 101 Swit")),
  "is answered with an error": answering((socket) => socket.end("HTTP/1.1 503 Later\r\ncontent-length: 0\r\n\r\n")),
};

test("an attempt that fails in the handshake is noticed at once, whether or not the platform reports a close", async (t) => {
  for (const [how, trouble] of Object.entries(HANDSHAKES)) {
    const through = await gate([trouble, trouble, trouble]);
    // With the limit of an attempt as the only notice, this would take 90 s and be called a timeout.
    const client = new Client(through.url, { token: "token", schedule: quick, connectTimeout: 30 });
    t.after(() => (client.close(), through.close()));
    const faults = [];
    client.addEventListener("attempt", () => client.fault && faults.push(client.fault.code));
    const sent = client.join(name(), { create: true }).send("hello");
    const late = new Promise((resolve) => setTimeout(resolve, 3000, "late"));
    assert.ok((await Promise.race([sent, late])) >= 1, `a connection that ${how}`);
    assert.deepEqual(faults, Array(3).fill("CONN_UNREACHABLE"), `a connection that ${how}`);
  }
});

test("S0-12 an attempt that hangs is given up: its connection ends, and what it says later does not matter", async (t) => {
  let hanging;
  const through = await gate([(socket) => (hanging = socket.resume())]);
  const client = new Client(through.url, { token: "token", schedule: quick, connectTimeout: 0.05 });
  t.after(() => (client.close(), through.close()));
  const attempts = [];
  client.addEventListener("attempt", () => attempts.push(client.nextAttempt));
  const sent = client.join(name(), { create: true }).send("hello");
  while (client.status !== "reconnecting") await once(client, "attempt");
  assert.equal(client.fault.code, "CONN_TIMEOUT");
  await through.ended[0];
  hanging.destroy();
  // The schedule after a timeout begins with a second; somebody who is back does not wait for it.
  assert.deepEqual(attempts.map(({ attempt }) => attempt), [1]);
  client.wake();
  assert.ok((await sent) >= 1);
});

test("a stop names the turn that comes next if none runs", async () => {
  const { client } = connected();
  client.connect();
  const id = name();
  const session = client.join(id, { create: true });
  await until(session, "session_state");
  await assert.rejects(session.stop(), { code: "SESS_ILLEGAL_TRANSITION", message: new RegExp(`^Turn 1 of session '${id}' does not run`) });
  client.close();
});
