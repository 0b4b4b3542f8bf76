// The page of the bridge: signs in, lists sessions, shows one and lets you answer and send. The protocol is in `holdfast.js`.

import { Client } from "./holdfast.js";
import { claimClientId, forgetMessages, forgetToken, keepToken, keptToken } from "./keep.js";
import { LogView, button, make } from "./log_view.js";
import { HoldfastError, PUBLIC_REASON, fault } from "./machine.js";
import { QuestionView } from "./question_view.js";

const $ = (id) => document.getElementById(id);
const main = $("main");
/** A message that could not be sent for a day is not sent any more: nobody expects it then. */
const MESSAGE_EXPIRES_S = 86_400;
/** So many pixels from the end still count as the end. */
const NEAR = 80;
/** A code of `holdfast pair`: 16 letters and digits, in groups or not. */
const PAIR_CODE = /^(?:[A-HJKMNP-TV-Z0-9]{4}[- ]?){3}[A-HJKMNP-TV-Z0-9]{4}$/i;
const FORGET = $("forget").textContent;
const TICKET_WITHIN_MS = 10_000;
/** Faults after which the token is asked for again. */
const SIGN_IN_AGAIN = new Set(["AUTH_FAILED", "AUTH_INVALID_TOKEN", "AUTH_TOKEN_REVOKED", "AUTH_TOKEN_EXPIRED", "AUTH_INSUFFICIENT_SCOPE"]);

let client = null;
let session = null;
let acceptPublic = false;
let isFollowing = true;
const failed = new Map();
const drafts = new Map();

const announce = (text) => ($("announce").textContent = text);
const announceNow = (text) => ($("announce-now").textContent = text);
/** How far the clock of the server is ahead of ours, in milliseconds. */
let ahead = 0;
const log = new LogView($("log"), {
  announce,
  command: (run, command) => session.command(run, command),
  now: () => Date.now() + ahead,
});
const questions = new QuestionView($("questions"), { session: () => session, announce: announceNow });

// --- where we are ---

function view(name) {
  document.body.dataset.view = name;
  $("sign-in").hidden = name !== "sign-in";
  $("pair").hidden = name !== "pair";
  $("public").hidden = name !== "public";
  $("conversation").hidden = name !== "session";
  $("tray").hidden = name !== "session";
  $("empty").hidden = name !== "sessions";
  $("empty").textContent = "Choose a session, or start a new one.";
  $("menu").hidden = name !== "session";
  $("menu").open = false;
  showTitle();
}

function showTitle() {
  const name = session && document.body.dataset.view === "session" ? nameOf(session.id) : "";
  $("title").textContent = name || "Holdfast";
  document.title = name ? `${name} · Holdfast` : "Holdfast";
}

/** Return what the address after # says: `#session=release-42`. A token there is taken and removed at once. */
function readHash() {
  const found = new URLSearchParams(location.hash.slice(1));
  const token = found.get("token");
  if (token) {
    keepToken(token, false);
    found.delete("token");
    const rest = found.toString();
    history.replaceState(null, "", rest ? `#${rest}` : location.pathname);
  }
  return found;
}

addEventListener("hashchange", () => {
  const wanted = readHash().get("session");
  const pairing = new URLSearchParams(location.hash.slice(1)).get("pair");
  if (!client || pairing) return void start();
  if (wanted && wanted !== session?.id) enter(wanted);
  if (!wanted && session) showSessions();
});

// --- signing in ---

async function start() {
  const code = readHash().get("pair");
  if (code) return offerToPair(code);
  const token = keptToken();
  if (!token) return signIn();
  const clientId = await claimClientId();
  client = new Client(address(), { token: () => ticket(token), clientId, storage: localStorage, clientVersion: "page", acceptPublic, connect: false });
  client.addEventListener("status", showStatus);
  client.addEventListener("attempt", showStatus);
  client.addEventListener("failed", ({ detail }) => gaveUp(detail));
  client.addEventListener("online", ({ detail }) => online(detail));
  client.addEventListener("outbox", showPending);
  client.connect();
  const wanted = readHash().get("session");
  return wanted ? enter(wanted) : showSessions();
}

/** Return a ticket that stands for the token once, and for half a minute. The token itself is shown only in the header of this request. */
async function ticket(token) {
  const options = { method: "POST", headers: { authorization: `Bearer ${token}` }, signal: AbortSignal.timeout(TICKET_WITHIN_MS) };
  const answer = await fetch(new URL("tickets", document.baseURI), options).catch((error) => {
    throw new HoldfastError(fault("CONN_UNREACHABLE", `No bridge answers at ${address()}: ${error.message}`));
  });
  const body = await answer.json().catch(() => ({}));
  if (answer.ok && body.ticket) return { ticket: body.ticket };
  const found = fault(body.code ?? "CONN_UNREACHABLE", body.message ?? `The bridge answered ${answer.status}`);
  // Too many requests, or a server that is about to start: another attempt may get one.
  const retryable = answer.status === 408 || answer.status === 429 || answer.status >= 500;
  throw new HoldfastError({ ...found, retryable });
}

function address() {
  const url = new URL("ws", document.baseURI);
  url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
  return url.href;
}

function signIn(why = "") {
  end();
  view("sign-in");
  $("sign-in-why").hidden = !why;
  $("sign-in-why").textContent = why;
  $("token").focus();
}

function end() {
  client?.close();
  client = null;
  session = null;
  log.clear();
  questions.clear();
  showStatus();
}

$("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const given = $("token").value.trim();
  $("token").value = "";
  if (PAIR_CODE.test(given)) return offerToPair(given);
  keepToken(given, $("remember").checked);
  return start();
});

$("forget").addEventListener("click", () => {
  const sure = client?.pending.length ? `Forget, and discard what is not sent (${client.pending.length})` : FORGET;
  const isSure = sure === FORGET || sure === $("forget").textContent;
  $("forget").textContent = isSure ? FORGET : sure;
  if (!isSure) return;
  forgetToken();
  signIn();
  forgetMessages();
  failed.clear();
  drafts.clear();
  $("text").value = "";
});

$("accept-public").addEventListener("click", () => {
  acceptPublic = true;
  end();
  start();
});

function online(ack) {
  ahead = Date.parse(ack.server_time) - Date.now() || 0;
  showList(ack.active_sessions ?? []);
  refreshList();
}

function gaveUp(fault) {
  if (SIGN_IN_AGAIN.has(fault.code)) {
    forgetToken();
    signIn(fault.message);
  } else if (fault.context?.reason === PUBLIC_REASON) view("public");
  else showStatus();
}

// --- pairing ---

let pairCode = "";

function offerToPair(code) {
  end();
  pairCode = code;
  $("pair-pin").hidden = !readHash().has("pin");
  $("pair-why").hidden = true;
  // A code works once, so it does not stay in the address.
  history.replaceState(null, "", location.pathname);
  const mobile = navigator.userAgentData?.mobile ?? /Mobi/.test(navigator.userAgent);
  $("device").value = mobile ? "Phone" : "Browser";
  view("pair");
  $("device").focus();
}

$("pair-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const submit = $("pair-form").querySelector("button");
  submit.disabled = true;
  try {
    keepToken(await pair(pairCode, $("device").value.trim()), true);
    start();
  } catch (error) {
    $("pair-why").hidden = false;
    $("pair-why").textContent = error.message;
  } finally {
    submit.disabled = false;
  }
});

/** Return the token of this device for a one-time code. */
async function pair(code, name) {
  const headers = { "content-type": "application/json" };
  const answer = await fetch(new URL("pair", document.baseURI), { method: "POST", headers, body: JSON.stringify({ code, name }) });
  const body = await answer.json().catch(() => ({}));
  if (!answer.ok || !body.token) throw new Error(body.message ?? `The bridge answered ${answer.status}`);
  return body.token;
}

// --- the connection ---

let countdown = null;

function showStatus() {
  clearTimeout(countdown);
  const status = client?.status ?? "disconnected";
  const [text, again] = statusText(status);
  if ($("status-text").textContent !== text) $("status-text").textContent = text;
  $("status").dataset.status = status;
  $("status").title = client?.fault?.message ?? "";
  showBanner(status, again);
  showPending();
  if (again) countdown = setTimeout(showStatus, 1000);
}

/** Return what the bar says, and whether it counts down. */
function statusText(status) {
  const wait = Math.ceil((client?.nextAttempt?.at ?? 0) - Date.now() / 1000);
  switch (status) {
    case "connected":
      return ["Connected", false];
    case "connecting":
      return ["Connecting…", false];
    case "reconnecting":
      return [navigator.onLine ? "Reconnecting…" : "Offline", wait > 0];
    case "error":
      return [client.fault?.code === "CONN_SUPERSEDED" ? "Open elsewhere" : "No connection", false];
    default:
      return ["Not connected", false];
  }
}

/** What was lost, and when it is tried again. A loss of a second is not worth a banner. */
function showBanner(status, again) {
  const { attempt = 0, at = 0 } = client?.nextAttempt ?? {};
  const isLost = status === "error" || (status === "reconnecting" && (attempt > 1 || !navigator.onLine));
  $("banner").hidden = !isLost || document.body.dataset.view === "public";
  $("banner").classList.toggle("error", status === "error");
  if (!isLost) return;
  const why = navigator.onLine ? (client.fault?.message ?? "The connection was lost") : "This device is offline";
  const wait = Math.ceil(at - Date.now() / 1000);
  $("banner-text").textContent = again && wait > 0 ? `${why}. Next attempt in ${wait} s.` : `${why}.`;
}

$("connect-now").addEventListener("click", connectNow);

function connectNow() {
  if (client?.status === "error") client.connect();
  else client?.wake();
}

// The client has given up, and now somebody looks at the page again.
const lookAgain = () => {
  if (client?.status === "error" && client.fault?.code === "CONN_RECONNECT_EXHAUSTED") client.connect();
};
document.addEventListener("visibilitychange", () => document.visibilityState === "visible" && lookAgain());
addEventListener("online", lookAgain);
addEventListener("offline", showStatus);

// --- the list of sessions ---

function showSessions() {
  leave();
  if (location.hash) history.replaceState(null, "", location.pathname);
  view("sessions");
  refreshList();
}

async function refreshList() {
  try {
    showList(await client.sessions());
    lookSoon();
  } catch {
    // The list comes again with the connection.
  }
}

let listed = [];
let shownList = "";
/** How often the page asks what the agents do, while somebody looks at it. */
const LOOK_EVERY_MS = 5000;
const LOOK_SOON_MS = 200;
let looking = null;

/** Find out soon what the sessions in use do. Several reasons for it come together. */
function lookSoon() {
  clearTimeout(looking);
  looking = setTimeout(look, LOOK_SOON_MS);
}

/** Ask what the sessions in use do, and which questions wait. It is a short answer, whatever else the store holds. */
async function look() {
  clearTimeout(looking);
  looking = null;
  const of = client;
  try {
    if (document.visibilityState === "visible" && client?.status === "connected") takeInUse(await client.sessionsInUse());
  } catch {
    // The next look follows.
  }
  if (client && client === of) {
    clearTimeout(looking);
    looking = setTimeout(look, LOOK_EVERY_MS);
  }
}

function takeInUse(found) {
  const inUse = new Map(found.map((each) => [each.session_id, each]));
  const known = new Set(listed.map((each) => each.session_id));
  // A session that somebody else has made is not listed yet.
  if (found.some((each) => !known.has(each.session_id))) return void refreshList();
  return showList(
    listed.map((each) => {
      const { turn, questions = 0, status = each.status, title = each.title } = inUse.get(each.session_id) ?? {};
      return { ...each, turn, questions, status, title };
    }),
  );
}

function nameOf(id) {
  return listed.find((each) => each.session_id === id)?.title || id;
}

/** Return what stands beside a session, and how much it matters: who waits for a person comes first. */
function doing({ status = "", turn, questions = 0 }) {
  if (turn === "requires_action") return [questions > 1 ? `${questions} questions` : "Needs you", "needs-you", 0];
  if (turn === "running") return ["Working", "works", 1];
  const texts = { created: "New", active: "", paused: "Paused", resumable: "Paused", closed: "Closed", error: "Failed" };
  return [texts[status] ?? status, status, 2];
}

function showList(found) {
  listed = found;
  const waiting = new Map();
  for (const { session_id } of client?.pending ?? []) waiting.set(session_id, (waiting.get(session_id) ?? 0) + 1);
  // Messages of a tab that was closed may be for a session that is not opened yet. They are sent when it is.
  const unlisted = [...waiting.keys()].filter((id) => !found.some((each) => each.session_id === id)).map((id) => ({ session_id: id }));
  const entries = sorted([...found, ...unlisted].filter(isWanted));
  showTitle();
  $("search-row").hidden = found.length === 0;
  $("no-sessions").hidden = entries.length > 0;
  $("no-sessions").textContent = found.length ? "No session fits." : "No sessions yet. Give one a name and start it.";
  const now = JSON.stringify([entries, [...waiting], session?.id]);
  // A list that is made anew takes the focus away from whoever is in it.
  if (now === shownList) return;
  shownList = now;
  const focused = document.activeElement?.dataset?.session;
  const items = entries.map((each) => {
    const { session_id, title = "" } = each;
    const entry = button("", "", () => (location.hash = `session=${encodeURIComponent(session_id)}`));
    entry.dataset.session = session_id;
    entry.title = title ? `${title} (${session_id})` : session_id;
    entry.append(make("span", "name", title || session_id));
    if (waiting.has(session_id)) entry.append(make("span", "waiting", `${waiting.get(session_id)} not sent`));
    const [text, kind] = doing(each);
    if (text) entry.append(make("span", `state ${kind}`, text));
    if (session_id === session?.id) entry.setAttribute("aria-current", "true");
    return make("li", "", entry);
  });
  $("sessions").replaceChildren(...items);
  if (focused) document.querySelector(`#sessions [data-session="${CSS.escape(focused)}"]`)?.focus();
}

/** What is closed is found by searching only: nobody can go on with it. */
function isWanted({ session_id, title = "", agent = "", status }) {
  const wanted = $("search").value.trim().toLowerCase();
  if (!wanted) return status !== "closed" || session_id === session?.id;
  return [session_id, title, agent].some((each) => each.toLowerCase().includes(wanted));
}

/** What waits for a person comes first, then what works, then what was used last. */
function sorted(entries) {
  const key = (each) => [doing(each)[2], -(Date.parse(each.last_at) || 0), each.session_id];
  return entries.map((each) => [key(each), each]).sort(([one], [other]) => one.map((part, place) => Number(part > other[place]) - Number(part < other[place])).find(Boolean) ?? 0).map(([, each]) => each);
}

$("search").addEventListener("input", () => showList(listed));

$("new-session").addEventListener("submit", (event) => {
  event.preventDefault();
  const name = $("new-name").value.trim() || `session-${new Date().toISOString().slice(0, 16).replace(/[-:T]/g, "")}`;
  $("new-name").value = "";
  enter(name, true);
  history.pushState(null, "", `#session=${encodeURIComponent(name)}`);
});

$("back").addEventListener("click", showSessions);

// --- one session ---

function leave() {
  if (!session) return;
  drafts.set(session.id, $("text").value);
  session.leave();
  session = null;
}

function enter(id, create = false, history_ = "tail") {
  leave();
  log.clear();
  questions.clear();
  isFollowing = true;
  $("list-note").hidden = true;
  $("earlier").hidden = true;
  $("working").hidden = true;
  session = client.join(id, { create, history: history_ });
  delete $("log").dataset.loaded;
  $("text").value = drafts.get(id) ?? "";
  view("session");
  grow();
  // On a phone the keyboard would cover half of the conversation.
  if (matchMedia("(pointer: fine)").matches) text.focus();
  showPending();
  read(session);
}

/** Take the messages of a session until another one is opened. */
async function read(joined) {
  while (session === joined) {
    try {
      for await (const message of joined) {
        if (session !== joined) return;
        take(message);
      }
      return;
    } catch (error) {
      if (session !== joined) return;
      if (client.status !== "error" && client.status !== "disconnected") return void notJoined(error);
      // The client has given up. It goes on with this session if it connects again.
      await new Promise((resolve) => client.addEventListener("status", resolve, { once: true }));
    }
  }
}

function notJoined(error) {
  const { id } = session;
  session = null;
  showSessions();
  $("list-note").hidden = false;
  $("list-note").textContent = error.code === "SESS_NOT_FOUND" ? `There is no session “${id}”.` : error.message;
}

const TAKE = {
  joined: ({ payload }) => {
    $("earlier").hidden = payload.from_offset === 0 || log.list.childElementCount > 0;
    $("composer").classList.toggle("closed", payload.role === "observer");
    $("menu").hidden = payload.role === "observer";
    refreshList();
  },
  session_state: ({ payload }) => {
    $("log").dataset.loaded = "true";
    questions.only(payload.pending_questions, payload.pending_approvals);
    $("working").hidden = payload.turn === "idle";
    if (payload.turn === "idle") log.settle();
  },
  session_event: ({ payload }) => {
    if (payload.event === "turn_started") $("working").hidden = false;
    if (payload.event === "turn_ended") $("working").hidden = true;
    if (payload.event === "turn_ended" && payload.outcome === "failed") log.note("The turn failed.", "note problem");
    if (payload.event === "turn_ended") log.settle();
    if (payload.event === "session_renamed") renamed(payload);
    if (payload.event === "session_closed") closed("The session is closed.");
    if (payload.event === "session_error") closed("The session has ended with an error.");
    lookSoon();
  },
  question: () => lookSoon(),
  question_closed: () => lookSoon(),
  approval_required: () => lookSoon(),
  approval_resolved: () => lookSoon(),
  gap: () => {
    log.settle();
    log.note("Some messages are too old to be shown here.");
    session.reload();
  },
  snapshot: ({ payload }) => questions.only(payload.state?.pending_questions, payload.state?.pending_approvals),
  error: ({ payload }) => log.note(payload.message, "note problem"),
};

function take(message) {
  TAKE[message.type]?.(message);
  questions.take(message);
  $("working-text").textContent = questions.cards.size ? "The agent waits for your answer" : "The agent is working";
  if (message.type === "user_message" && message.payload.message_id) forgetPending(message.payload.message_id);
  const isShown = log.show(message);
  // While it follows, the observer below scrolls: once for each picture, and not for each of a thousand messages.
  if (isShown && !isFollowing) $("jump").hidden = false;
}

$("show-earlier").addEventListener("click", () => enter(session.id, false, "full"));
$("stop").addEventListener("click", () => session.stop().catch((error) => log.note(error.message, "note problem")));

// --- its title, and its end ---

function dialog(name, opener, submit) {
  const shown = $(`${name}-dialog`);
  const form = $(`${name}-form`);
  const problem = form.querySelector(".problem");
  $(opener).addEventListener("click", () => {
    $("menu").open = false;
    problem.hidden = true;
    $("new-title").value = listed.find((each) => each.session_id === session.id)?.title ?? "";
    $("rename-id").textContent = session.id;
    shown.showModal();
  });
  form.querySelector(".cancel").addEventListener("click", () => shown.close());
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const [button_] = form.querySelectorAll("button[type=submit]");
    button_.disabled = true;
    try {
      await submit();
      shown.close();
    } catch (error) {
      problem.hidden = false;
      problem.textContent = error.message;
    } finally {
      button_.disabled = false;
    }
  });
}

dialog("rename", "rename", () => session.rename($("new-title").value.trim()));
dialog("close", "close-session", () => session.close());

// A menu that stays open covers the conversation.
addEventListener("click", ({ target }) => $("menu").contains(target) || ($("menu").open = false));
addEventListener("keydown", ({ key }) => key === "Escape" && ($("menu").open = false));

function renamed({ title = "", by = "" }) {
  showList(listed.map((each) => (each.session_id === session.id ? { ...each, title } : each)));
  log.note(`${title ? `Renamed to “${title}”` : "The title was removed"}${by ? ` by ${by}` : ""}`);
}

function closed(why) {
  log.note(why);
  refreshList();
  $("composer").classList.add("closed");
  $("menu").hidden = true;
}

// --- following the end ---

let lastTop = 0;

function toEnd() {
  main.scrollTop = main.scrollHeight;
  lastTop = main.scrollTop;
  $("jump").hidden = true;
}

main.addEventListener("scroll", () => {
  const isAtEnd = main.scrollHeight - main.scrollTop - main.clientHeight < NEAR;
  if (isAtEnd) isFollowing = true;
  // The list also grows by itself. Only who scrolls up wants to stay there.
  else if (main.scrollTop < lastTop) isFollowing = false;
  lastTop = main.scrollTop;
  if (isFollowing) $("jump").hidden = true;
}, { passive: true });

$("jump").addEventListener("click", () => {
  isFollowing = true;
  toEnd();
});

// The keyboard of a phone, or a question, makes the window shorter, and items that become visible get their real height.
const resized = new ResizeObserver(() => isFollowing && toEnd());
resized.observe(main);
resized.observe($("conversation"));

// --- sending ---

const text = $("text");

function grow() {
  text.style.height = "auto";
  text.style.height = `${Math.min(text.scrollHeight + 2, innerHeight * 0.4)}px`;
}

text.addEventListener("input", grow);
text.addEventListener("keydown", (event) => {
  // On a phone Enter begins a new line, and the button sends.
  const sends = event.key === "Enter" && !event.shiftKey && !event.isComposing && matchMedia("(pointer: fine)").matches;
  if (!sends) return;
  event.preventDefault();
  $("composer").requestSubmit();
});

$("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  // What was pasted may begin or end with half a character, which no server reads.
  const content = text.value.trim().replace(/\p{Surrogate}/gu, "\ufffd");
  if (!content || !session) return;
  text.value = "";
  grow();
  isFollowing = true;
  send(content);
  text.focus();
});

async function send(content) {
  const to = session;
  let id = null;
  try {
    await to.send(content, { expires: MESSAGE_EXPIRES_S, onQueued: (queued) => (id = queued) });
  } catch (error) {
    if (error.code === "SYS_CANCELLED") return;
    // One that is still in the outbox is sent when the connection is back.
    if (!client?.pending.some((each) => each.id === id)) failed.set(id ?? content, { session_id: to.id, content, why: error.message });
  }
  showPending();
}

function forgetPending(id) {
  document.querySelector(`#pending [data-id="${CSS.escape(id)}"]`)?.remove();
}

/** Show what is not stored yet: what waits, and what was rejected. */
function showPending() {
  showList(listed);
  if (!session) return;
  const waiting = (client?.pending ?? []).filter((each) => each.session_id === session.id && each.type === "session_message");
  const state = client?.status === "connected" ? "Sending…" : "Waits for the connection";
  const items = waiting.map(({ id, payload, fault: held }) => {
    const item = bubble(id, payload.content, held ? `Not sent: ${held.message}` : state, button("Discard", "plain", () => client.discard(id)));
    item.classList.toggle("lost", Boolean(held));
    return item;
  });
  for (const [id, { session_id, content, why }] of failed) {
    if (session_id !== session.id) continue;
    const drop = () => failed.delete(id) && showPending();
    const again = button("Try again", "plain", () => drop() && send(content));
    const item = bubble(id, content, `Not sent: ${why}`, again, button("Discard", "plain", drop));
    item.classList.add("lost");
    items.push(item);
  }
  $("pending").replaceChildren(...items);
  if (items.length && isFollowing) toEnd();
}

function bubble(id, content, state, ...actions) {
  const item = make("li", "message user", make("div", "bubble", content), make("div", "sending", state, ...actions));
  item.dataset.id = id;
  return item;
}

start();
