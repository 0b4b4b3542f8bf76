// The questions that wait for a person, as cards above the message field.
//
// Invariant: a card stays until the server says that its question is closed, so two people never see different things. A password
// is kept nowhere: not in the outbox of this browser, not in a field that the browser remembers.

import { button, code, make, readable, visible } from "./log_view.js";

/** An answer that could not be sent in this time is not applied later, when nobody expects it. */
const ANSWER_EXPIRES_S = 120;
/** The most characters of arguments that are shown without being opened. */
const SHOWN = 2000;
/** A card that has just come, or moved, takes no click for so long: it may be meant for what stood there before. */
const HELD_MS = 700;

export class QuestionView {
  constructor(place, { session, announce }) {
    this.place = place;
    this.session = session;
    this.announce = announce;
    this.cards = new Map();
  }

  clear() {
    this.cards.clear();
    this.place.replaceChildren();
  }

  /** Show or close a question. Return whether the message is about one. */
  take({ type, payload }) {
    switch (type) {
      case "question":
        this.show(`q:${payload.question_id}`, payload);
        return true;
      case "approval_required":
        this.show(keyOf(payload), payload);
        return true;
      case "question_closed":
        this.close(`q:${payload.question_id}`);
        return true;
      case "approval_resolved":
        this.close(keyOf(payload));
        return true;
      default:
        return false;
    }
  }

  /** After joining, the server says which questions are open. Others are closed. */
  only(questions = [], approvals = []) {
    const open = new Map([
      ...questions.map((each) => [`q:${each.question_id}`, each]),
      ...approvals.map((each) => [keyOf(each), each]),
    ]);
    for (const key of [...this.cards.keys()]) if (!open.has(key)) this.close(key);
    for (const [key, question] of open) this.show(key, question);
  }

  show(key, question) {
    if (this.cards.has(key)) return;
    const card = make("section", `question ${question.risk_level ?? ""}`);
    const title = make("h2", "", titleOf(question));
    const until = expiry(question.expires_at);
    if (until) title.append(make("span", "until", until));
    title.id = `question-${this.cards.size}-${Date.now()}`;
    card.setAttribute("role", "group");
    card.setAttribute("aria-labelledby", title.id);
    const params = question.tool && Object.keys(question.params ?? {}).length ? visible(readable(question.params, question.arguments)) : "";
    // The sentence about a call has its arguments once more, and perhaps not whole.
    const prompt = params ? "" : visible(question.prompt || question.description || "");
    card.append(title);
    if (prompt) card.append(make("p", "prompt", prompt));
    const controls = this.#controls(question, card);
    // Nobody may agree to what was not shown.
    if (!params && question.cut) {
      card.append(make("p", "problem", "The question is not whole: it is too long for a message."));
      for (const each of controls.querySelectorAll(".primary")) each.disabled = true;
    }
    if (params) card.append(params.length > SHOWN || question.cut ? this.#folded(params, question, controls) : code(params));
    card.append(controls);
    this.cards.set(key, card);
    this.place.append(card);
    hold(card);
    this.announce(`${titleOf(question)}: ${prompt}`);
  }

  /** Arguments that do not fit are opened before the call can be approved. */
  #folded(params, { cut = false }, controls) {
    const approve = controls.querySelector(".primary");
    const why = cut
      ? "The arguments are too long to be shown whole, so the call cannot be approved here."
      : `The arguments have ${params.length} characters. Open them to approve the call.`;
    const details = make("details", "arguments", make("summary", "", why), code(params));
    approve.disabled = true;
    details.addEventListener("toggle", () => (approve.disabled = !details.open || cut), { once: true });
    return details;
  }

  close(key) {
    this.cards.get(key)?.remove();
    if (this.cards.delete(key)) this.cards.forEach(hold);
  }

  #controls(question, card) {
    const answer = (value, options) => this.#answer(card, () => this.session().answer(question.question_id, value, options));
    const buttons = (...made) => make("div", "buttons", ...made);
    if (question.tool_call_id) {
      const decide = (isApproved) => this.#answer(card, () => this.session().approve(question, isApproved, { expires: ANSWER_EXPIRES_S }));
      return buttons(button("Approve", "primary", () => decide(true)), button("Reject", "danger", () => decide(false)));
    }
    const expires = ANSWER_EXPIRES_S;
    switch (question.kind) {
      case "Approve":
        return buttons(
          button("Approve", "primary", () => answer(true, { expires })),
          button("Reject", "danger", () => answer(false, { outcome: "rejected", expires })),
        );
      case "Confirm":
        return buttons(button("Yes", "primary", () => answer(true, { expires })), button("No", "", () => answer(false, { expires })));
      case "Select":
        return buttons(...(question.choices ?? []).map((choice) => button(visible(choice), "", () => answer(choice, { expires }))));
      case "Auth.DeviceCode":
        return make("div", "", ...deviceCode(question), buttons(button("I have entered the code", "primary", () => answer(true, { expires }))));
      default:
        return this.#field(question, (value, isSecret) => answer(value, { expires, isSecret }));
    }
  }

  #field(question, answer) {
    const isSecret = question.kind === "Auth.Password";
    const input = make("input");
    input.type = isSecret ? "password" : "text";
    input.autocomplete = isSecret ? "one-time-code" : "off";
    input.required = true;
    input.setAttribute("aria-label", question.prompt || "Answer");
    const submit = make("button", "primary", "Answer");
    const form = make("form", "", make("div", "row", input, submit));
    if (isSecret) form.append(make("p", "quiet", "It goes to the process that asks, and is stored nowhere."));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      answer(input.value, isSecret);
      if (isSecret) input.value = "";
    });
    return form;
  }

  async #answer(card, send) {
    // One that is disabled waits for something else, and stays so.
    const controls = [...card.querySelectorAll("button, input")].filter((each) => !each.disabled);
    card.querySelector(".problem")?.remove();
    for (const each of controls) each.disabled = true;
    card.setAttribute("aria-busy", "true");
    try {
      await send();
    } catch (error) {
      // Somebody else may have been first; then the card is closed by the server's message.
      const problem = make("p", "problem", error.message);
      problem.setAttribute("role", "alert");
      card.append(problem);
      for (const each of controls) each.disabled = false;
    } finally {
      card.removeAttribute("aria-busy");
    }
  }
}

function hold(card) {
  const held = [...card.querySelectorAll("button:enabled")];
  for (const each of held) each.disabled = true;
  setTimeout(() => held.forEach((each) => (each.disabled = false)), HELD_MS);
}

/** A question has an id of its own. Older servers name the call only. */
function keyOf({ question_id, tool_call_id }) {
  return question_id ? `q:${question_id}` : `t:${tool_call_id}`;
}

function titleOf({ tool: named, kind, risk_level }) {
  const tool = visible(named ?? "");
  if (tool) return risk_level && risk_level !== "medium" ? `Approve ${tool}? · ${risk_level} risk` : `Approve ${tool}?`;
  return { "Approve": "Approval", "Confirm": "Please confirm", "Select": "Please choose", "Auth.DeviceCode": "Sign in", "Auth.Password": "Password" }[kind] ?? "Question";
}

function expiry(stamp) {
  const at = stamp ? new Date(stamp) : null;
  if (at === null || Number.isNaN(at.getTime())) return "";
  return `until ${at.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" })}`;
}

function deviceCode({ url, user_code }) {
  const made = [];
  let address = null;
  try {
    address = new URL(url);
  } catch {
    // It is shown as text.
  }
  // A link of another kind, such as javascript:, is never made.
  if (address && ["https:", "http:"].includes(address.protocol)) {
    const link = make("a", "", address.href);
    link.href = address.href;
    link.target = "_blank";
    link.rel = "noopener noreferrer";
    made.push(make("p", "prompt", "Open ", link, " and enter:"));
  } else if (url) made.push(make("p", "prompt", visible(url)));
  if (user_code) made.push(make("p", "prompt", make("span", "code", visible(user_code))));
  return made;
}
