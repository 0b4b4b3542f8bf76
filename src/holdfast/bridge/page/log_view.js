// The messages of a session as a list on the page.
//
// Invariant: what an agent, a tool or a person wrote becomes text nodes, never markup. What an agent says is read as Markdown (`markdown.js`).

import { Markdown } from "./markdown.js";

/** Make an element: `make("p", "quiet", "text", child)`. Strings become text nodes. */
export function make(tag, className = "", ...children) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  element.append(...children);
  return element;
}

export function button(text, className, run) {
  const made = make("button", className, text);
  made.type = "button";
  made.addEventListener("click", run);
  return made;
}

const HIDDEN = /[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}\p{Zs}\p{Default_Ignorable_Code_Point}\u2800⟨⟩]/gu;

/**
 * Return a text as a person reads it who decides about it: every character that cannot be seen, or that moves others, becomes a mark. Line
 * breaks, tabs and spaces stay. The same as `holdfast.faults.visible`, and compared with it.
 */
export function visible(text) {
  return text.replace(HIDDEN, (each) => (" \n\t".includes(each) ? each : `⟨U+${each.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`));
}

/** Return the arguments of a tool to be read: a single text as it is, such as a command. */
export function readable(params, exact = "") {
  // A number that JavaScript rounds must not be shown so: then the server sends the text of the arguments.
  if (exact) return exact;
  const values = Object.values(params);
  return values.length === 1 && typeof values[0] === "string" ? values[0] : JSON.stringify(params, null, 2);
}

/** Return the arguments of a tool in one line. */
function brief(params, exact = "") {
  const values = Object.values(params ?? {});
  const first = values.find((value) => typeof value === "string") ?? (values.length ? exact || JSON.stringify(params) : "");
  return first.slice(0, 200).replace(/\s+/g, " ");
}

const COMMANDS = { retry_now: "Retry now", fall_back: "Use the fallback", cancel: "Cancel" };
const MARKS = { running: ["…", "running"], done: ["✓", "done"], failed: ["✗", "failed"] };
const BADGES = { pending: "·", validating: "…", passed: "✓", corrected: "✎", failed: "✗", skipped: "–" };
const FINISH = { length: "The answer was cut: it reached its longest length.", error: "The answer ended with an error." };

export class LogView {
  /** now: the clock of the server, in milliseconds since 1970. */
  constructor(list, { announce, command, now = Date.now }) {
    this.list = list;
    this.announce = announce;
    this.command = command;
    this.now = now;
    this.clear();
  }

  clear() {
    this.list.replaceChildren();
    clearTimeout(this.counting);
    this.counting = null;
    this.waits = new Map();
    this.day = "";
    this.streams = new Map();
    this.tools = new Map();
    this.recoveries = new Map();
    this.asked = new Map();
    this.checks = new Map();
  }

  /** Show a message. Return whether it is one that this list shows. */
  show(message) {
    const take = Object.hasOwn(this.#take, message.type) ? this.#take[message.type] : null;
    if (take === null) return false;
    this.#newDay(message.timestamp);
    take(message.payload, message);
    return true;
  }

  note(text, className = "note") {
    this.#add(make("li", className, text));
  }

  /** A stream or a tool that was cut off by a gap or by a crash does not end by itself. */
  settle() {
    for (const stream of this.streams.values()) {
      stream.text.end();
      stream.element.removeAttribute("aria-busy");
    }
    // Nothing waits any more that a command could be for.
    for (const item of this.recoveries.values()) item.className = "recovery over";
    for (const each of this.list.querySelectorAll(".recovery .buttons, .recovery .countdown")) each.remove();
    this.waits.clear();
  }

  #take = {
    user_message: (payload, { timestamp }) => {
      this.#add(make("li", "message user", make("span", "hidden", "You: "), payload.content));
      this.#add(make("li", "meta mine", ...timeOf(timestamp)));
    },
    stream_start: (payload) => this.#stream(payload.stream_id, payload.model, false),
    stream_chunk: (payload) => (this.streams.get(payload.stream_id) ?? this.#stream(payload.stream_id, "", true)).text.append(payload.text),
    stream_end: (payload, { timestamp }) => this.#ended(payload, timestamp),
    tool_call: (payload, { timestamp }) => this.#tool(payload, timestamp),
    tool_result: (payload) => {
      const took = typeof payload.duration_ms === "number" ? seconds(payload.duration_ms) : "";
      const shown = this.#toolEnded(payload, payload.success ? "done" : "failed", payload.content || payload.error?.message || "", took);
      if (payload.cut) shown.inside.append(make("p", "end", `${payload.cut} characters more are not shown.`));
    },
    tool_error: (payload) => this.#toolEnded(payload, "failed", `${payload.code}: ${payload.message}`),
    recovery: (payload) => (payload.event?.type === "hook" ? this.#check(payload.event) : this.#recovery(payload)),
    // An open question stands above the message field. Here is what became of it.
    approval_required: (payload) => void this.asked.set(payload.tool_call_id, visible(`${payload.tool} ${brief(payload.params, payload.arguments)}`)),
    question: (payload) => void this.asked.set(payload.question_id, payload.prompt),
    approval_resolved: (payload) => this.#decided(payload),
    question_closed: (payload) => this.#closed(payload.outcome === "accepted" ? "answered" : payload.outcome, payload.by, this.asked.get(payload.question_id)),
    notification: (payload) => this.note(sentences(payload.title, payload.body), payload.priority === "high" ? "note problem" : "note"),
    claude_event: (payload) => this.#hook(payload),
  };

  #add(item) {
    this.list.append(item);
    return item;
  }

  /** Say which day it is before the first message of another day than the one before. */
  #newDay(timestamp) {
    const at = new Date(timestamp ?? NaN);
    if (Number.isNaN(at.getTime())) return;
    const day = at.toLocaleDateString([], { weekday: "long", day: "numeric", month: "long", year: "numeric" });
    const isToday = at.toDateString() === new Date().toDateString();
    if (day !== this.day && !(isToday && this.day === "")) this.#add(make("li", "day", day));
    this.day = day;
  }

  #stream(id, model, isCut) {
    const text = new Markdown(isCut ? "text cut" : "text");
    const element = make("li", "message agent", make("span", "hidden", "Agent: "), text.element);
    if (model) element.title = model;
    element.setAttribute("aria-busy", "true");
    const stream = { text, element };
    this.streams.set(id, stream);
    this.#add(element);
    return stream;
  }

  #ended({ stream_id, finish_reason, usage, usd }, timestamp) {
    const stream = this.streams.get(stream_id);
    if (!stream) return;
    this.streams.delete(stream_id);
    stream.text.end();
    stream.element.removeAttribute("aria-busy");
    if (FINISH[finish_reason]) {
      stream.element.classList.add("failed");
      stream.element.append(make("p", "end", FINISH[finish_reason]));
    }
    const { text } = stream.text;
    if (text.trim() === "" && !FINISH[finish_reason]) return stream.element.remove();
    // Between the tools the agent goes on. The time is that of the whole answer.
    if (finish_reason !== "tool_call") stream.element.append(make("p", "meta", ...timeOf(timestamp), ...costOf(usage, usd)));
    return this.announce(`Agent: ${text.slice(0, 300)}`);
  }

  #tool({ tool_call_id, tool, params = {}, arguments: exact, description = "" }, timestamp) {
    const mark = make("span", "mark");
    const took = make("span", "took");
    const summary = make("summary", "", mark, make("span", "name", tool), make("span", "brief", description || brief(params, exact)), took);
    summary.title = timeText(timestamp);
    const inside = make("div", "inside");
    if (Object.keys(params).length) inside.append(make("h3", "", "Arguments"), code(readable(params, exact)));
    const details = make("details", "tool", summary, inside);
    const item = this.#add(make("li", "", details));
    const shown = { item, details, mark, took, inside };
    this.tools.set(tool_call_id, shown);
    markAs(shown, "running");
    return shown;
  }

  #toolEnded(payload, state, output, took = "") {
    const shown = this.tools.get(payload.tool_call_id) ?? this.#tool(payload);
    markAs(shown, state);
    if (took) shown.took.textContent = took;
    if (output) shown.inside.append(make("h3", "", state === "failed" ? "Error" : "Result"), code(output));
    if (state === "failed") this.announce(`The tool ${payload.tool} failed`);
    return shown;
  }

  #recovery({ line, reason = "", run, can = [], until = "" }) {
    const before = run ? this.recoveries.get(run) : null;
    const item = before ?? make("li", "recovery");
    item.className = can.length ? "recovery" : "recovery over";
    const buttons = can.filter((each) => COMMANDS[each]).map((each) => button(COMMANDS[each], "", () => this.#commanded(item, run, each)));
    const countdown = make("span", "countdown");
    const text = make("p", "line", make("span", "what", line), ...(reason ? [" ", make("span", "reason", reason)] : []), " ", countdown);
    item.replaceChildren(text, ...(buttons.length ? [make("span", "buttons", ...buttons)] : []));
    this.waits.delete(item);
    // A command for it means that it waits. In a log that is read later it does not wait any more when its time is over.
    if (can.length && Date.parse(until)) this.waits.set(item, { countdown, until: Date.parse(until) });
    if (run) this.recoveries.set(run, item);
    if (!before) this.#add(item);
    if (can.length) this.announce([line, reason].filter(Boolean).join(". "));
    this.#count();
  }

  /** A validator's badge stands below the call that it looks at; one about the whole answer has a line of its own. */
  #check({ call = "", validator = "", badge = "", message = "" }) {
    if (!BADGES[badge]) return;
    const key = JSON.stringify([call, validator]);
    // The next answer is looked at anew.
    const before = call || badge !== "pending" ? this.checks.get(key) : null;
    const shown = before ?? make("span", "");
    const mark = make("span", "mark", BADGES[badge]);
    mark.setAttribute("aria-hidden", "true");
    shown.className = `check ${badge}`;
    shown.replaceChildren(mark, ` ${validator} ${badge}`, ...(message ? [`: ${message.slice(0, 300)}`] : []));
    this.checks.set(key, shown);
    if (!before) this.#checksOf(call).append(shown);
    if (badge === "failed" || badge === "corrected") this.announce(`${validator} ${badge}${message ? `: ${message}` : ""}`);
  }

  #checksOf(call) {
    const item = this.tools.get(call)?.item ?? this.#add(make("li", ""));
    const line = item.querySelector(".checks") ?? make("p", "checks");
    item.append(line);
    return line;
  }

  /** Show for each retry how long it still waits, now and every second. */
  #count() {
    clearTimeout(this.counting);
    for (const [item, { countdown, until }] of this.waits) {
      const left = Math.ceil((until - this.now()) / 1000);
      countdown.textContent = left > 0 ? waitText(left, until) : "Now.";
      if (left <= 0) this.waits.delete(item);
    }
    if (this.waits.size) this.counting = setTimeout(() => this.#count(), 1000);
  }

  async #commanded(item, run, command) {
    for (const each of item.querySelectorAll("button")) each.disabled = true;
    try {
      await this.command(run, command);
    } catch (error) {
      item.append(make("span", "end", error.message));
      for (const each of item.querySelectorAll("button")) each.disabled = false;
    }
  }

  /** A call that is shown already has the decision in its line. */
  #decided({ tool_call_id, decision, by }) {
    const shown = this.tools.get(tool_call_id);
    if (!shown) return this.#closed(decision, by, this.asked.get(tool_call_id));
    const text = `${sentence(decision)}${by ? ` by ${by}` : ""}`;
    shown.item.append(make("p", "decided", text));
    return this.announce(text);
  }

  /** What the hook of a command-line agent said: the event, the tool, and what it is about. */
  #hook({ event, data = {} }) {
    const tool = data.tool ?? data.tool_name;
    const about = tool ? brief(data.params ?? data.tool_input ?? {}) : (data.message ?? data.prompt ?? data.reason ?? "");
    const item = make("li", "note hook", event);
    if (typeof tool === "string") item.append(" ", make("code", "", tool));
    if (about) item.append(" ", make("span", "brief", String(about).slice(0, 200)));
    this.#add(item);
  }

  #closed(outcome, by, about) {
    const text = `${sentence(outcome)}${by ? ` by ${by}` : ""}`;
    this.note(about ? `${text}: ${about.trim()}` : text);
    this.announce(text);
  }
}

function markAs(shown, state) {
  const [mark, name] = MARKS[state];
  shown.item.className = state;
  shown.mark.replaceChildren(make("span", "", mark), make("span", "hidden", ` ${name}: `));
  shown.mark.firstChild.setAttribute("aria-hidden", "true");
}

export function code(text) {
  const made = make("pre", "", make("code", "", text));
  // So that it can be scrolled with the keyboard.
  made.tabIndex = 0;
  return made;
}

function seconds(ms) {
  return ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(1)} s`;
}

/** Return the time of a message as people read it; empty if it has none. */
function timeText(timestamp) {
  const at = new Date(timestamp ?? NaN);
  return Number.isNaN(at.getTime()) ? "" : at.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
}

function timeOf(timestamp) {
  const text = timeText(timestamp);
  if (!text) return [];
  const time = make("time", "", text);
  time.dateTime = timestamp;
  time.title = new Date(timestamp).toLocaleString();
  return [time];
}

/** Return a title and a text as one line. A title may be a sentence, which needs no colon. */
function sentences(title, body) {
  return [title, body].filter(Boolean).join(/[.!?…]$/.test(title ?? "") ? " " : ": ");
}

/** Return what an answer took and cost, as far as the server knows it. */
function costOf(usage, usd) {
  const found = [];
  const input = (usage?.input ?? 0) + (usage?.cached ?? 0) + (usage?.written ?? 0) + (usage?.written_hour ?? 0);
  if (input || usage?.output) found.push(`${input.toLocaleString()} tokens in, ${(usage.output ?? 0).toLocaleString()} out`);
  if (typeof usd === "number") found.push(usd > 0 && usd < 0.01 ? `$${usd.toPrecision(2)}` : `$${usd.toFixed(2)}`);
  return found.map((each) => ` · ${each}`);
}

/** Return how long a retry waits: for a wait of more than a minute the time of day says more. */
function waitText(left, until) {
  return left > 60 ? `Next attempt at ${timeText(until)}.` : `Next attempt in ${left} s.`;
}

function sentence(text) {
  const plain = String(text || "closed").replaceAll("_", " ");
  return plain[0].toUpperCase() + plain.slice(1);
}
