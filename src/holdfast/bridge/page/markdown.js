// Markdown, as models write it, made into elements while it grows.
//
// Invariant: a text becomes elements of TAGS with text nodes in them, and nothing else. HTML in a text is text. The only attribute that a text
// decides is the address of a link, which is http:, https: or mailto:. How a text is cut into pieces on its way does not change the result.
//
// A block, once another one follows it, never changes. So only the last block is read again when text comes. The time is linear in the
// length of a line: nothing here looks back more than once.
//
// It reads: headings, paragraphs (line breaks stay), lists with tasks, quotes, code, tables, rules; code, strong, emphasis, deleted text, links and
// bare addresses inside of lines. It does not read: headings that are underlined, links that are defined elsewhere, HTML, images (they become links).

const TAGS = new Set([
  ...["p", "h3", "h4", "h5", "h6", "ul", "ol", "li", "blockquote", "pre", "code", "hr", "div", "span"],
  ...["table", "thead", "tbody", "tr", "th", "td", "strong", "em", "del", "a"],
]);
/** Blocks in blocks, and emphasis in emphasis, as deep as this. What is deeper is text. */
const DEEPEST = 8;
/** Addresses and titles of links that are longer are text. */
const LONGEST_ADDRESS = 2000;
/** Of the time between two pictures, reading a long block again may take so much: one part of this many. */
const SHARE = 5;

// --- the element ---

/** A text that grows, as an element: `const shown = new Markdown(); shown.append("**Hel"); shown.append("lo**"); shown.end();` */
export class Markdown {
  #rest = "";
  #kept = 0;
  #timer = null;
  #took = 0;
  #parts = [];

  constructor(className = "text") {
    this.element = document.createElement("div");
    this.element.className = className;
  }

  /** The text as it came. */
  get text() {
    return this.#parts.join("");
  }

  append(text) {
    this.#parts.push(text);
    this.#rest += text;
    // Several pieces come between two pictures, and one that takes long must not fill all the time.
    this.#timer ??= setTimeout(() => this.#show(), this.#took * SHARE);
  }

  /** No more text comes: show all of it now. */
  end() {
    this.#show();
  }

  #show() {
    clearTimeout(this.#timer);
    this.#timer = null;
    const started = performance.now();
    // A line that is not whole yet may still belong to the block before it.
    const whole = blocks(linesOf(this.#rest.slice(0, this.#rest.lastIndexOf("\n") + 1)));
    if (whole.length > 1) {
      const last = whole.pop();
      this.#put(whole);
      this.#kept += whole.length;
      this.#rest = this.#rest.split("\n").slice(last.at).join("\n");
    }
    this.#put(blocks(linesOf(this.#rest)));
    this.#took = performance.now() - started;
  }

  #put(found) {
    put(this.element, found.map((each) => each.tree), this.element.childNodes[this.#kept] ?? null);
  }
}

/**
 * Make the nodes from `there` on those of the trees. What is the same already is not touched, so that what somebody has selected stays so.
 */
function put(parent, trees, there) {
  for (const tree of trees) {
    if (there && isLike(there, tree)) {
      if (typeof tree !== "string") put(there, tree.children, there.firstChild);
      else if (there.data !== tree) there.data = tree;
      there = there.nextSibling;
    } else parent.insertBefore(made(tree), there);
  }
  while (there) {
    const next = there.nextSibling;
    there.remove();
    there = next;
  }
}

function isLike(node, tree) {
  if (typeof tree === "string") return node.nodeType === Node.TEXT_NODE;
  if (node.nodeType !== Node.ELEMENT_NODE || node.localName !== tree.tag) return false;
  return ["class", "href", "start"].every((name) => (node.getAttribute(name) ?? "") === (tree[name] ?? ""));
}

function made(tree) {
  if (typeof tree === "string") return document.createTextNode(tree);
  if (!TAGS.has(tree.tag)) throw new Error(`no element is made of <${tree.tag}>`);
  const element = document.createElement(tree.tag);
  if (tree.class) element.className = tree.class;
  if (tree.start) element.setAttribute("start", tree.start);
  if (tree.href && safeAddress(tree.href)) {
    element.href = tree.href;
    element.title = tree.href;
    element.target = "_blank";
    element.rel = "noopener noreferrer nofollow";
  }
  // So that what is wider than the screen can be scrolled with the keyboard.
  if (tree.tag === "pre" || tree.class === "wide") element.tabIndex = 0;
  put(element, tree.children, null);
  return element;
}

const tree = (tag, children = [], more = {}) => ({ tag, children, ...more });

/** Return an address as it may stand in a link; empty if a link to it could do more than open a page or write a mail. */
export function safeAddress(text) {
  let url;
  try {
    url = new URL(text);
  } catch {
    return "";
  }
  // A name before an @ looks like the host that is asked.
  const isPlain = !url.username && !url.password;
  return isPlain && ["http:", "https:", "mailto:"].includes(url.protocol) ? url.href : "";
}

// --- blocks ---

const BLANK = /^[ \t]*$/;
const QUOTE = /^ {0,3}> ?/;
const FENCE = /^( {0,3})(`{3,}|~{3,})(.*)$/;
const HEADING = /^ {0,3}(#{1,6})(?=[ \t]|$)/;
const RULE = /^ {0,3}([-*_])(?:[ \t]*\1){2,}[ \t]*$/;
const ITEM = /^( {0,3})(?:([-*+])|(\d{1,9})([.)]))(?:([ \t]+)(?=\S)|[ \t]*$)/;
const INDENTED = /^(?: {4}|\t)/;
const DELIMITER = /^:?-+:?$/;

function linesOf(text) {
  return text.split("\n").map((line) => (line.endsWith("\r") ? line.slice(0, -1) : line));
}

/** Return the blocks of some lines: where each begins, and what it is made into. */
function blocks(lines, depth = 0) {
  const found = [];
  let at = 0;
  while (at < lines.length) {
    if (BLANK.test(lines[at])) {
      at += 1;
      continue;
    }
    const read = READERS.find((each) => each.begins(lines, at) && (depth < DEEPEST || !each.isNested)) ?? PARAGRAPH;
    const [block, next] = read.read(lines, at, depth);
    found.push({ at, tree: block });
    at = next;
  }
  return found;
}

const nested = (lines, depth) => blocks(lines, depth + 1).map((each) => each.tree);

function fence(line) {
  const found = FENCE.exec(line);
  // ``` with a ` behind it is code inside of a line.
  return found && !(found[2][0] === "`" && found[3].includes("`")) ? found : null;
}

const CODE = {
  begins: (lines, at) => fence(lines[at]) !== null,
  read(lines, at) {
    const [, indent, mark] = fence(lines[at]);
    const inside = [];
    let next = at + 1;
    for (; next < lines.length; next += 1) {
      const line = lines[next].trim();
      if (line.length >= mark.length && line === mark[0].repeat(line.length) && !INDENTED.test(lines[next])) break;
      inside.push(lines[next].slice(Math.min(indent.length, indentOf(lines[next]))));
    }
    // The line that is still empty is no line of the code yet.
    const isOpen = next === lines.length;
    if (isOpen && inside.at(-1) === "") inside.pop();
    return [codeOf(inside), next + 1];
  },
};

const INDENTED_CODE = {
  begins: (lines, at) => INDENTED.test(lines[at]),
  read(lines, at) {
    let next = at;
    let end = at;
    for (; next < lines.length && (INDENTED.test(lines[next]) || BLANK.test(lines[next])); next += 1) {
      if (!BLANK.test(lines[next])) end = next + 1;
    }
    return [codeOf(lines.slice(at, end).map((line) => line.replace(INDENTED, ""))), end];
  },
};

function codeOf(lines) {
  const text = lines.length ? `${lines.join("\n")}\n` : "";
  return tree("pre", [tree("code", text ? [text] : [])]);
}

const HEADINGS = {
  begins: (lines, at) => HEADING.test(lines[at]),
  read(lines, at) {
    const [start, marks] = HEADING.exec(lines[at]);
    let text = lines[at].slice(start.length).trim();
    let end = text.length;
    while (text[end - 1] === "#") end -= 1;
    if (end === 0 || /[ \t]/.test(text[end - 1])) text = text.slice(0, end).trimEnd();
    // The page has the first two levels itself.
    return [tree(`h${Math.min(6, marks.length + 2)}`, inline(text)), at + 1];
  },
};

const RULES = { begins: (lines, at) => RULE.test(lines[at]), read: (lines, at) => [tree("hr"), at + 1] };

const QUOTES = {
  isNested: true,
  begins: (lines, at) => QUOTE.test(lines[at]),
  read(lines, at, depth) {
    let next = at;
    while (next < lines.length && QUOTE.test(lines[next])) next += 1;
    return [tree("blockquote", nested(lines.slice(at, next).map((line) => line.replace(QUOTE, "")), depth)), next];
  },
};

const LISTS = {
  isNested: true,
  begins: (lines, at) => ITEM.test(lines[at]) && !RULE.test(lines[at]),
  read(lines, at, depth) {
    const kind = kindOf(lines[at]);
    const items = [];
    let next = at;
    let isLoose = false;
    while (next < lines.length && LISTS.begins(lines, next) && kindOf(lines[next]) === kind) {
      const [inside, end] = itemOf(lines, next);
      // A blank line between items sets them apart.
      isLoose ||= items.length > 0 && BLANK.test(lines[next - 1]);
      items.push(inside);
      next = end;
      while (next < lines.length && BLANK.test(lines[next])) next += 1;
    }
    // Blank lines at the end are not of the list.
    while (BLANK.test(lines[next - 1])) next -= 1;
    const number = ITEM.exec(lines[at])[3];
    const children = items.map((inside) => tree("li", itemChildren(inside, isLoose, depth)));
    return [number === undefined ? tree("ul", children) : tree("ol", children, number === "1" ? {} : { start: String(Number(number)) }), next];
  },
};

function kindOf(line) {
  const [, , bullet, , delimiter] = ITEM.exec(line);
  return bullet ?? delimiter;
}

/** Return the lines of an item without their indentation, and where it ends. */
function itemOf(lines, at) {
  const [start, indent, bullet = "", digits = "", delimiter = "", space = ""] = ITEM.exec(lines[at]);
  // More than four spaces begin indented code. Models indent by two where they should by three.
  const width = indent.length + bullet.length + digits.length + delimiter.length + (space.length > 4 ? 1 : Math.max(1, space.length));
  const least = Math.min(width, indent.length + 2);
  const inside = [lines[at].slice(Math.min(width, start.length || width))];
  let next = at + 1;
  for (; next < lines.length; next += 1) {
    const line = lines[next];
    const isLazy = () => !BLANK.test(lines[next - 1]) && !READERS.some((each) => each.begins(lines, next));
    if (!BLANK.test(line) && indentOf(line) < least && !isLazy()) break;
    inside.push(line.slice(Math.min(width, indentOf(line))));
  }
  while (BLANK.test(inside.at(-1)) && inside.length > 1) {
    inside.pop();
    next -= 1;
  }
  return [inside, next];
}

function itemChildren(lines, isLoose, depth) {
  const task = /^\[([ xX])\][ \t]+/.exec(lines[0]);
  const rest = task ? [lines[0].slice(task[0].length), ...lines.slice(1)] : lines;
  const found = nested(rest, depth);
  const mark = task ? [task[1] === " " ? "☐ " : "☑ "] : [];
  if (found[0]?.tag !== "p") return [...mark, ...found];
  const first = [...mark, ...found[0].children];
  return isLoose ? [tree("p", first), ...found.slice(1)] : [...first, ...found.slice(1)];
}

function indentOf(line) {
  let width = 0;
  while (line[width] === " " || line[width] === "\t") width += 1;
  return width;
}

const TABLES = {
  begins: (lines, at) => alignmentsOf(lines, at) !== null,
  read(lines, at) {
    const alignments = alignmentsOf(lines, at);
    const row = (line, tag) => {
      const cells = cellsOf(line);
      while (cells.length < alignments.length) cells.push("");
      return tree("tr", cells.map((cell, place) => tree(tag, inline(cell), alignments[place] ? { class: alignments[place] } : {})));
    };
    let next = at + 2;
    const rows = [];
    while (next < lines.length && !BLANK.test(lines[next]) && !READERS.some((each) => each !== TABLES && each.begins(lines, next))) {
      rows.push(row(lines[next], "td"));
      next += 1;
    }
    const table = tree("table", [tree("thead", [row(lines[at], "th")]), tree("tbody", rows)]);
    return [tree("div", [table], { class: "wide" }), next];
  },
};

/** Return how the columns of a table stand whose first line this is; null if it is none. */
function alignmentsOf(lines, at) {
  if (!lines[at].includes("|") || at + 1 >= lines.length || !/^[ \t|:-]+$/.test(lines[at + 1])) return null;
  const marks = cellsOf(lines[at + 1]);
  if (marks.length !== cellsOf(lines[at]).length || !marks.every((mark) => DELIMITER.test(mark))) return null;
  return marks.map((mark) => ["", "left", "right", "center"][Number(mark.startsWith(":")) + 2 * Number(mark.endsWith(":"))]);
}

function cellsOf(line) {
  const text = line.trim();
  const cells = [""];
  for (let place = text.startsWith("|") ? 1 : 0; place < text.length; place += 1) {
    if (text[place] === "\\" && text[place + 1] === "|") {
      cells[cells.length - 1] += "|";
      place += 1;
    } else if (text[place] !== "|") cells[cells.length - 1] += text[place];
    else if (place < text.length - 1) cells.push("");
  }
  return cells.map((cell) => cell.trim());
}

const PARAGRAPH = {
  read(lines, at) {
    let next = at + 1;
    while (next < lines.length && !BLANK.test(lines[next]) && !interrupts(lines, next)) next += 1;
    return [tree("p", inline(lines.slice(at, next).map((line) => line.trim()).join("\n"))), next];
  },
};

/** Whether a line ends the paragraph before it. A number in the middle of a sentence does not begin a list. */
function interrupts(lines, at) {
  const found = READERS.find((each) => each !== INDENTED_CODE && each.begins(lines, at));
  if (found !== LISTS) return found !== undefined;
  const [, , bullet, digits, , space] = ITEM.exec(lines[at]);
  return space !== undefined && (bullet !== undefined || digits === "1");
}

const READERS = [CODE, HEADINGS, RULES, QUOTES, LISTS, TABLES, INDENTED_CODE];

// --- inside of lines ---

const SPECIAL = /[\\`*_~[!<&]|https?:\/\//g;
const ENTITIES = { "&amp;": "&", "&lt;": "<", "&gt;": ">", "&quot;": '"', "&#39;": "'", "&nbsp;": "\u00a0" };
const PUNCTUATION = /[!-/:-@[-`{-~]/;
const AROUND = /[\s\p{P}\p{S}]/u;
/** Between words of these scripts there are no spaces. */
const UNSPACED = /[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}\p{Script=Hangul}]/u;
/** What stands in the parentheses of a link: an address, and perhaps a title. */
const TARGET = /^\s*(?:<([^<>\n]*)>|([^\s<]\S*)?)(?:\s+(?:"[^"]*"|'[^']*'))?\s*$/;

/** Return the nodes of a text. */
function inline(text, isInLink = false) {
  return new Line(text, isInLink).read();
}

class Line {
  constructor(text, isInLink) {
    this.text = text;
    this.isInLink = isInLink;
    /** What is open: emphasis that may be closed later. The first one is the line itself. */
    this.open = [{ mark: "", size: 0, children: [] }];
    this.brackets = pairsOf(text, "[", "]");
    this.parentheses = pairsOf(text, "(", ")");
    this.lastTicks = new Map([...text.matchAll(/`+/g)].map((found) => [found[0].length, found.index]));
  }

  read() {
    let at = 0;
    while (at < this.text.length) {
      SPECIAL.lastIndex = at;
      const found = SPECIAL.exec(this.text);
      if (found === null) break;
      this.add(this.text.slice(at, found.index));
      at = this.special(found.index);
    }
    this.add(this.text.slice(at));
    this.settle(1);
    return this.open[0].children;
  }

  add(node) {
    const { children } = this.open.at(-1);
    if (typeof node !== "string") children.push(node);
    else if (typeof children.at(-1) === "string") children[children.length - 1] += node;
    else if (node) children.push(node);
  }

  /** What was opened and not closed, from this one on, is text. */
  settle(from) {
    const unclosed = this.open.splice(from);
    for (const { mark, size, children } of unclosed) {
      this.add(mark.repeat(size));
      for (const child of children) this.add(child);
    }
  }

  /** Take what begins at a place. Return where it ends. */
  special(at) {
    const { text } = this;
    switch (text[at]) {
      case "\\":
        return PUNCTUATION.test(text[at + 1] ?? "") ? this.plain(at + 1, 1) : this.plain(at, 1);
      case "`":
        return this.code(at);
      case "!":
        return text[at + 1] === "[" && !this.isInLink ? (this.link(at + 1) ?? this.plain(at, 1)) : this.plain(at, 1);
      case "[":
        return (this.isInLink ? null : this.link(at)) ?? this.plain(at, 1);
      case "<":
        return this.angle(at);
      case "&":
        return this.entity(at);
      case "h":
        return this.bare(at);
      default:
        return this.emphasis(at);
    }
  }

  plain(at, length) {
    this.add(this.text.slice(at, at + length));
    return at + length;
  }

  code(at) {
    let size = 1;
    while (this.text[at + size] === "`") size += 1;
    if ((this.lastTicks.get(size) ?? -1) <= at) return this.plain(at, size);
    const ticks = /`+/g;
    ticks.lastIndex = at + size;
    for (let found = ticks.exec(this.text); found; found = ticks.exec(this.text)) {
      if (found[0].length !== size) continue;
      const inside = this.text.slice(at + size, found.index).replace(/\n/g, " ");
      this.add(tree("code", [/^ .* $/.test(inside) && inside.trim() ? inside.slice(1, -1) : inside]));
      return found.index + size;
    }
    return this.plain(at, size);
  }

  link(at) {
    const close = this.brackets.get(at);
    if (close === undefined || this.text[close + 1] !== "(") return null;
    const end = this.parentheses.get(close + 1) ?? Infinity;
    const target = end - close < LONGEST_ADDRESS ? TARGET.exec(this.text.slice(close + 2, end)) : null;
    if (target === null) return null;
    const address = target[1] ?? target[2] ?? "";
    const label = inline(this.text.slice(at + 1, close), true);
    const href = safeAddress(address);
    if (href) this.add(tree("a", shownLabel(label, href), { href }));
    else {
      // A file of the project, or something that must not be opened: a person reads where it leads.
      for (const each of label) this.add(each);
      if (address && textOf(label) !== address) this.add(` (${address})`);
    }
    return end + 1;
  }

  angle(at) {
    const rest = this.text.slice(at, at + LONGEST_ADDRESS);
    const breaks = /^<br ?\/?>/i.exec(rest);
    if (breaks) {
      this.add("\n");
      return at + breaks[0].length;
    }
    const found = /^<((?:https?:\/\/|mailto:)[^\s<>]+)>/.exec(rest);
    const href = found && !this.isInLink ? safeAddress(found[1]) : "";
    if (!href) return this.plain(at, 1);
    this.add(tree("a", [found[1].replace(/^mailto:/, "")], { href }));
    return at + found[0].length;
  }

  entity(at) {
    const [found] = /^&[a-z#0-9]{2,4};/.exec(this.text.slice(at, at + 8)) ?? [];
    if (!Object.hasOwn(ENTITIES, found ?? "")) return this.plain(at, 1);
    this.add(ENTITIES[found]);
    return at + found.length;
  }

  bare(at) {
    const [found] = /^https?:\/\/[^\s<>"`\\|]*/.exec(this.text.slice(at, at + LONGEST_ADDRESS));
    const address = withoutEnd(found);
    const href = this.isInLink || /\w/.test(this.text[at - 1] ?? "") ? "" : safeAddress(address);
    if (!href) return this.plain(at, 4);
    this.add(tree("a", [address], { href }));
    return at + address.length;
  }

  emphasis(at) {
    const { text } = this;
    const mark = text[at];
    let end = at;
    while (text[end] === mark) end += 1;
    let left = end - at;
    const before = text[at - 1] ?? " ";
    const after = text[end] ?? " ";
    const opensHere = /\S/.test(after) && (!AROUND.test(after) || AROUND.test(before) || UNSPACED.test(before));
    const closesHere = /\S/.test(before) && (!AROUND.test(before) || AROUND.test(after) || UNSPACED.test(after));
    const isWithin = mark === "_" && !AROUND.test(before) && !AROUND.test(after);
    if (left > 3 || isWithin || (mark === "~" && left !== 2)) return this.plain(at, left);
    while (left > 0 && closesHere) {
      const place = this.open.findLastIndex((each) => each.mark === mark && each.size <= left);
      if (place < 0) break;
      this.settle(place + 1);
      const { size, children } = this.open.pop();
      this.add(tree(mark === "~" ? "del" : size === 2 ? "strong" : "em", children));
      left -= size;
    }
    const sizes = { 1: [1], 2: [2], 3: [1, 2] }[left] ?? [];
    if (!opensHere || this.open.length + sizes.length > DEEPEST) this.add(mark.repeat(left));
    else for (const size of sizes) this.open.push({ mark, size, children: [] });
    return end;
  }
}

/** Return where each opening sign has its closing one. */
function pairsOf(text, opening, closing) {
  const found = new Map();
  const open = [];
  for (let at = 0; at < text.length; at += 1) {
    if (text[at] === "\\") at += 1;
    else if (text[at] === opening) open.push(at);
    else if (text[at] === closing && open.length) found.set(open.pop(), at);
  }
  return found;
}

/** Return an address without what ends the sentence around it. */
function withoutEnd(found) {
  let unopened = found.split(")").length - found.split("(").length;
  let end = found.length;
  for (; end > 0; end -= 1) {
    const last = found[end - 1];
    if (last === ")" && unopened <= 0) break;
    if (last === ")") unopened -= 1;
    else if (!/[.,:;!?'*_~\]}]/.test(last)) break;
  }
  return found.slice(0, end);
}

/** Return the label of a link, with its host if the label looks like an address of another one. */
function shownLabel(label, href) {
  const text = textOf(label).trim();
  const { host } = new URL(href);
  const isOther = host && text.length < 300 && /^\S+\.\S+$/.test(text) && !text.toLowerCase().includes(host);
  if (text === "") return [href];
  return isOther ? [...label, ` (${host})`] : label;
}

function textOf(children) {
  return children.map((each) => (typeof each === "string" ? each : textOf(each.children))).join("");
}
