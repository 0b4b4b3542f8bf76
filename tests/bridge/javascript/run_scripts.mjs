// Runs scripts through the machine of the JavaScript client, and prints what it did: one line of JSON in, one out.
// The Python test runs the same scripts through `holdfast.wire.client` and compares.

import { createInterface } from "node:readline";
import { Machine, Outbox, SCHEDULES, fault } from "../../../src/holdfast/bridge/page/machine.js";

const FAULTS = { CONN_TIMEOUT: true, CONN_REFUSED: true, CONN_TLS_HANDSHAKE_FAILED: false };

function make(options) {
  const clock = { at: 0, offset: 1735689600, monotonic: () => clock.at, wall: () => clock.offset + clock.at };
  const draws = options.random ?? [0.5];
  let drawn = 0;
  let made = 0;
  const machine = new Machine({
    token: "token",
    clock,
    random: () => draws[drawn++ % draws.length],
    newId: () => `00000000-0000-0000-0000-${(++made).toString(16).padStart(12, "0")}`,
    clientId: "phone",
    platform: "test",
    schedule: SCHEDULES[options.schedule ?? "default"],
    outbox: new Outbox({ maxCount: options.max_count ?? 1000, window: options.window ?? 32 }),
    acceptPublic: options.accept_public ?? false,
  });
  return { machine, clock };
}

const DO = {
  connect: (machine) => machine.connect(),
  disconnect: (machine) => machine.disconnect(),
  join: (machine, { session, ...options }) => machine.join(session, options),
  leave: (machine, { session }) => machine.leave(session),
  send: (machine, { session, text, expires }, clock) =>
    machine.send(session, "session_message", { content: text }, { expiresAt: expires === undefined ? null : clock.wall() + expires })[1],
  discard: (machine, { place }) => {
    const found = [...machine.outbox][place];
    if (found) machine.outbox.remove(found.id);
    return machine.flush();
  },
  ask: (machine, { type, payload }) => machine.ask(type, payload)[1],
  reload: (machine, { session }) => machine.reload(session),
  hold_back: (machine, { session }) => machine.holdBack(session) ?? [],
  catch_up: (machine, { session }) => machine.catchUp(session),
  taken: (machine, { session }) => (machine.position(session) ? machine.taken(session, machine.position(session)) : []),
  opened: (machine) => machine.opened(),
  connect_failed: (machine, { code }) => machine.connectFailed({ ...fault(code, "No connection"), retryable: FAULTS[code] }),
  closed: (machine, { code, reason }) => machine.closed(code, reason ?? ""),
  woke_up: (machine) => machine.wokeUp(),
  tick: (machine) => machine.tick(),
  received: (machine, { frame }) => machine.received(typeof frame === "string" ? frame : JSON.stringify(frame)),
  advance: (machine, { seconds }, clock) => ((clock.at += seconds), []),
  jump: (machine, { seconds }, clock) => ((clock.offset += seconds), []),
};

const shortFault = ({ code, message, context }) => ({ code, message, context });

function shown(effect) {
  switch (effect.effect) {
    case "send":
      return { effect: "send", frame: JSON.parse(effect.frame) };
    case "deliver":
      return { effect: "deliver", message: Object.fromEntries(Object.entries(effect.message).filter(([, value]) => value !== "" && value !== 0)) };
    case "acked":
      return { effect: "acked", id: effect.message.id, result: effect.result };
    case "expired":
      return { effect: "expired", id: effect.message.id };
    case "held":
      return { effect: "held", id: effect.message.id, fault: shortFault(effect.fault) };
    case "not_joined":
    case "token_needed":
    case "failed":
      return { ...effect, fault: shortFault(effect.fault) };
    default:
      return effect;
  }
}

function run({ options = {}, steps }) {
  const { machine, clock } = make(options);
  return steps.map(({ do: name, ...args }) => {
    delete args.effects;
    delete args.status;
    delete args.raised;
    try {
      const effects = DO[name](machine, args, clock).map(shown);
      const positions = Object.fromEntries([...machine.sessions].map(([session, { position }]) => [session, position]));
      return { effects, status: machine.status, next_at: machine.nextAt, fault: machine.fault?.code ?? null, positions, waiting: machine.outbox.count, held: [...machine.outbox.held.keys()] };
    } catch (error) {
      if (error.code === undefined) throw error;
      return { raised: error.code };
    }
  });
}

for await (const line of createInterface({ input: process.stdin })) console.log(JSON.stringify(run(JSON.parse(line))));
