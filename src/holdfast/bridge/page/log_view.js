// The messages of a session as a list on the page.
//
// Invariant: what an agent, a tool or a person wrote becomes text nodes, never markup.

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

/** Shows a text that grows. Blocks between lines of ``` are shown as code. What is there already is not touched again. */
export class GrowingText {
  constructor(className = "text") {
    this.element = make("div", className);
    this.#open(false);
  }

  append(text) {
    // Only the last line may still change what it is.
    const lines = (this.line + text).split("\n");
    const last = lines.pop();
    for (const line of lines) this.#whole(line);
    this.line = last;
    this.tail.data = last;
  }

  /** No more text comes: the last line is whole, too. */
  end() {
    const last = this.line;
    this.line = "";
    if (last) this.#whole(last);
    this.#trim();
  }

  #whole(line) {
    this.tail.data = "";
    if (line.trimStart().startsWith("```")) {
      this.#trim();
      this.#open(!this.isCode);
    } else if (this.isCode) this.tail.before(`${line}\n`);
    // No empty lines at the beginning of a block, where its margin is.
    else if (line.trim() || this.tail.previousSibling) this.tail.before(...inline(line), "\n");
  }

  /** Remove line breaks at the end of a block. */
  #trim() {
    let last = this.tail.previousSibling;
    while (last?.nodeType === Node.TEXT_NODE && last.data.trim() === "") {
      last.remove();
      last = this.tail.previousSibling;
    }
  }

  #open(isCode) {
    this.isCode = isCode;
    this.line = "";
    this.tail = document.createTextNode("");
    const block = make(isCode ? "code" : "span", "", this.tail);
    if (isCode) {
      const frame = make("pre", "", block);
      frame.tabIndex = 0;
      this.element.append(frame);
    } else this.element.append(block);
  }

  get text() {
    return this.element.textContent;
  }
}

/** Return the nodes of a line: `code` and **strong** parts, and headings. */
function inline(line) {
  const heading = /^#{1,6} +(.*)$/.exec(line);
  if (heading) return [make("strong", "", heading[1])];
  return line.split(/(`[^`]+`|\*\*[^*]+\*\*)/).filter(Boolean).map((part) => {
    if (part.length > 2 && part.startsWith("`") && part.endsWith("`")) return make("code", "", part.slice(1, -1));
    if (part.length > 4 && part.startsWith("**") && part.endsWith("**")) return make("strong", "", part.slice(2, -2));
    return part;
  });
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
export function readable(params) {
  const values = Object.values(params);
  return values.length === 1 && typeof values[0] === "string" ? values[0] : JSON.stringify(params, null, 2);
}

/** Return the arguments of a tool in one line. */
function brief(params) {
  const values = Object.values(params ?? {});
  const first = values.find((value) => typeof value === "string") ?? (values.length ? JSON.stringify(params) : "");
  return first.slice(0, 200).replace(/\s+/g, " ");
}

const COMMANDS = { retry_now: "Retry now", fall_back: "Use the fallback", cancel: "Cancel" };
const MARKS = { running: ["…", "running"], done: ["✓", "done"], failed: ["✗", "failed"] };
const FINISH = { length: "The answer was cut: it reached its longest length.", error: "The answer ended with an error." };

export class LogView {
  constructor(list, { announce, command }) {
    this.list = list;
    this.announce = announce;
    this.command = command;
    this.clear();
  }

  clear() {
    this.list.replaceChildren();
    this.streams = new Map();
    this.tools = new Map();
    this.recoveries = new Map();
    this.asked = new Map();
  }

  /** Show a message. Return whether it is one that this list shows. */
  show(message) {
    const take = Object.hasOwn(this.#take, message.type) ? this.#take[message.type] : null;
    if (take === null) return false;
    take(message.payload, message);
    return true;
  }

  note(text, className = "note") {
    this.#add(make("li", className, text));
  }

  /** A stream or a tool that was cut off by a gap or by a crash does not end by itself. */
  settle() {
    for (const stream of this.streams.values()) stream.element.removeAttribute("aria-busy");
  }

  #take = {
    user_message: (payload) => this.#add(make("li", "message user", make("span", "hidden", "You: "), payload.content)),
    stream_start: (payload) => this.#stream(payload.stream_id, payload.model, false),
    stream_chunk: (payload) => (this.streams.get(payload.stream_id) ?? this.#stream(payload.stream_id, "", true)).text.append(payload.text),
    stream_end: (payload) => this.#ended(payload),
    tool_call: (payload) => this.#tool(payload),
    tool_result: (payload) => {
      const took = typeof payload.duration_ms === "number" ? seconds(payload.duration_ms) : "";
      const shown = this.#toolEnded(payload, payload.success ? "done" : "failed", payload.content || payload.error?.message || "", took);
      if (payload.cut) shown.inside.append(make("p", "end", `${payload.cut} characters more are not shown.`));
    },
    tool_error: (payload) => this.#toolEnded(payload, "failed", `${payload.code}: ${payload.message}`),
    recovery: (payload) => this.#recovery(payload),
    // An open question stands above the message field. Here is what became of it.
    approval_required: (payload) => void this.asked.set(payload.tool_call_id, visible(`${payload.tool} ${brief(payload.params)}`)),
    question: (payload) => void this.asked.set(payload.question_id, payload.prompt),
    approval_resolved: (payload) => this.#closed(payload.decision, payload.by, this.asked.get(payload.tool_call_id)),
    question_closed: (payload) => this.#closed(payload.outcome === "accepted" ? "answered" : payload.outcome, payload.by, this.asked.get(payload.question_id)),
    notification: (payload) => this.note([payload.title, payload.body].filter(Boolean).join(": ")),
    claude_event: (payload) => this.note([payload.event, payload.data?.tool_name ?? payload.data?.message].filter(Boolean).join(": ")),
  };

  #add(item) {
    this.list.append(item);
    return item;
  }

  #stream(id, model, isCut) {
    const text = new GrowingText(isCut ? "text cut" : "text");
    const element = make("li", "message agent", make("span", "hidden", "Agent: "), text.element);
    if (model) element.title = model;
    element.setAttribute("aria-busy", "true");
    const stream = { text, element };
    this.streams.set(id, stream);
    this.#add(element);
    return stream;
  }

  #ended({ stream_id, finish_reason }) {
    const stream = this.streams.get(stream_id);
    if (!stream) return;
    this.streams.delete(stream_id);
    stream.text.end();
    stream.element.removeAttribute("aria-busy");
    if (FINISH[finish_reason]) {
      stream.element.classList.add("failed");
      stream.element.append(make("p", "end", FINISH[finish_reason]));
    }
    if (stream.text.text.trim() === "" && !FINISH[finish_reason]) stream.element.remove();
    else this.announce(`Agent: ${stream.text.text.slice(0, 300)}`);
  }

  #tool({ tool_call_id, tool, params = {}, description = "" }) {
    const mark = make("span", "mark");
    const took = make("span", "took");
    const summary = make("summary", "", mark, make("span", "name", tool), make("span", "brief", description || brief(params)), took);
    const inside = make("div", "inside");
    if (Object.keys(params).length) inside.append(make("h3", "", "Arguments"), code(readable(params)));
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

  #recovery({ line, run, can = [] }) {
    const before = run ? this.recoveries.get(run) : null;
    const item = before ?? make("li", "recovery");
    item.className = can.length ? "recovery" : "recovery over";
    const buttons = can.filter((each) => COMMANDS[each]).map((each) => button(COMMANDS[each], "", () => this.#commanded(item, run, each)));
    item.replaceChildren(make("span", "line", line), ...buttons);
    if (run) this.recoveries.set(run, item);
    if (!before) this.#add(item);
    if (can.length) this.announce(line);
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

function sentence(text) {
  const plain = String(text || "closed").replaceAll("_", " ");
  return plain[0].toUpperCase() + plain.slice(1);
}
