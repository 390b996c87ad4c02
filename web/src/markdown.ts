// Markdown to a tree of plain data (CommonMark's common part, GitHub's tables, strikethrough and bare links).
// HTML is not interpreted: tags stay text, and a link keeps its address only if its scheme is safe.
// Answers may be hostile or huge, so depth is bounded and no pattern backtracks over more than a line.

export type Inline =
  | string
  | { kind: "strong" | "em" | "del"; children: Inline[]; depth: number }
  | { kind: "link"; href: string; children: Inline[]; depth: number }
  | { kind: "code"; text: string }
  | { kind: "break" };

export type Align = "left" | "center" | "right" | undefined;

export type Block =
  | { kind: "paragraph"; text: string }
  | { kind: "heading"; level: number; text: string }
  | { kind: "code"; language: string; text: string }
  | { kind: "quote"; blocks: Block[] }
  | { kind: "list"; start: number | undefined; loose: boolean; items: ListItem[] } // start: undefined for bullets
  | { kind: "table"; align: Align[]; head: string[]; rows: string[][] }
  | { kind: "rule" };

export interface ListItem {
  checked: boolean | undefined; // undefined: not a task
  blocks: Block[];
}

export interface TopBlock {
  source: string; // equal sources give equal blocks, so rendered ones are reused
  block: Block;
}

const maxDepth = 16; // of lists and quotes
const maxInlineDepth = 24;

// ---- blocks

// A model may write anything: none of these patterns may try a run of equal characters at every length.
const fence = /^( {0,3})(`{3,}(?!`)|~{3,}(?!~))([^`]*)$/;
const heading = /^ {0,3}(#{1,6})(?:[ \t]+(.*))?$/;
const rule = /^ {0,3}(?:(?:-[ \t]*){3,}|(?:\*[ \t]*){3,}|(?:_[ \t]*){3,})$/;
const quote = /^ {0,3}> ?/;
const marker = /^( {0,3})([-*+]|\d{1,9}[.)])(?:( {1,4})(?=\S)|[ \t]*$|( +))/;
const maxColumns = 200;

const indentOf = (line: string) => line.length - line.trimStart().length;
const isBlank = (line: string) => line.trim() === "";

function splitRow(line: string): string[] {
  const cells: string[] = [];
  let cell = "";
  const text = line.trim();
  for (let i = text[0] === "|" ? 1 : 0; i < text.length; i++) {
    if (text[i] === "\\" && text[i + 1] === "|") cell += text[++i];
    else if (text[i] !== "|") cell += text[i];
    else {
      cells.push(cell.trim());
      cell = "";
    }
  }
  if (cell.trim() !== "" || text.at(-1) !== "|") cells.push(cell.trim());
  return cells;
}

function isDelimiterRow(line: string): boolean {
  const cells = splitRow(line);
  return cells.length > 0 && cells.every((cell) => /^:?-+:?$/.test(cell));
}

function alignOf(cell: string): Align {
  const left = cell.startsWith(":"),
    right = cell.endsWith(":");
  return left && right ? "center" : right ? "right" : left ? "left" : undefined;
}

class BlockParser {
  private at = 0;

  constructor(
    private readonly lines: string[],
    private readonly depth: number,
  ) {}

  all(): { block: Block; first: number; end: number }[] {
    const out = [];
    while (this.at < this.lines.length) {
      if (isBlank(this.lines[this.at])) {
        this.at++;
        continue;
      }
      const first = this.at;
      const block = this.next();
      out.push({ block, first, end: this.at });
    }
    return out;
  }

  private next(): Block {
    const line = this.lines[this.at];
    return this.fenced(line) ?? this.title(line) ?? this.indented(line) ?? this.nested(line) ?? this.table(line) ?? this.paragraph();
  }

  private fenced(line: string): Block | undefined {
    const open = fence.exec(line);
    if (!open) return;
    const [, indent, ticks, info] = open;
    const text: string[] = [];
    for (this.at++; this.at < this.lines.length; this.at++) {
      const inner = this.lines[this.at],
        bare = inner.trim();
      if (bare.length >= ticks.length && indentOf(inner) < 4 && bare === ticks[0].repeat(bare.length)) {
        this.at++;
        break;
      }
      text.push(inner.slice(Math.min(indent.length, indentOf(inner))));
    }
    return { kind: "code", language: info.trim().split(/\s/)[0] ?? "", text: text.join("\n") };
  }

  private title(line: string): Block | undefined {
    const found = heading.exec(line);
    if (found) {
      this.at++;
      const text = (found[2] ?? "")
        .trim()
        .replace(/(^|[ \t])#+$/, "")
        .trim();
      return { kind: "heading", level: found[1].length, text };
    }
    if (!rule.test(line)) return;
    this.at++;
    return { kind: "rule" };
  }

  private indented(line: string): Block | undefined {
    if (indentOf(line) < 4) return;
    const text: string[] = [];
    while (this.at < this.lines.length && (isBlank(this.lines[this.at]) || indentOf(this.lines[this.at]) >= 4))
      text.push(this.lines[this.at++].slice(4));
    while (isBlank(text[text.length - 1])) text.pop();
    return { kind: "code", language: "", text: text.join("\n") };
  }

  private nested(line: string): Block | undefined {
    if (this.depth >= maxDepth) return;
    if (quote.test(line)) {
      const inner: string[] = [];
      for (; this.at < this.lines.length && quote.test(this.lines[this.at]); this.at++) inner.push(this.lines[this.at].replace(quote, ""));
      return { kind: "quote", blocks: blocksOf(inner, this.depth + 1) };
    }
    return marker.test(line) ? this.list() : undefined;
  }

  // Items of one list: the same bullet, or numbers with the same delimiter.
  private list(): Block {
    const kindOf = (m: RegExpExecArray) => m[2].slice(-1);
    const head = marker.exec(this.lines[this.at])!;
    const kind = kindOf(head);
    const items: ListItem[] = [];
    let loose = false;
    while (this.at < this.lines.length) {
      const found = marker.exec(this.lines[this.at]);
      if (!found || kindOf(found) !== kind || rule.test(this.lines[this.at])) break;
      const { lines, gap } = this.item(found);
      const task = /^\[([ xX])\][ \t]+/.exec(lines[0]);
      if (task) lines[0] = lines[0].slice(task[0].length);
      items.push({ checked: task ? task[1] !== " " : undefined, blocks: blocksOf(lines, this.depth + 1) });
      const more = this.at < this.lines.length ? marker.exec(this.lines[this.at]) : null;
      if (gap && more && kindOf(more) === kind) loose = true;
    }
    return { kind: "list", start: /\d/.test(head[2]) ? parseInt(head[2], 10) : undefined, loose, items };
  }

  // The lines of one item without their indent. Models indent nested items by two as often as by the marker's width.
  private item(found: RegExpExecArray): { lines: string[]; gap: boolean } {
    const width = found[1].length + found[2].length + (found[3]?.length ?? 1);
    const enough = Math.min(width, found[1].length + 2);
    const lines = [this.lines[this.at++].slice(width)];
    for (; this.at < this.lines.length; this.at++) {
      const line = this.lines[this.at];
      if (isBlank(line)) {
        lines.push("");
        continue;
      }
      const after = lines[lines.length - 1] === "" && lines.length > 1;
      if (indentOf(line) >= enough) lines.push(line.slice(Math.min(width, indentOf(line))));
      else if (!after && !interrupts(line) && !marker.test(line))
        lines.push(line.trimStart()); // lazy continuation
      else break;
    }
    const n = lines.length;
    while (lines.length > 1 && lines[lines.length - 1] === "") lines.pop();
    return { lines, gap: lines.length < n };
  }

  private table(line: string): Block | undefined {
    const below = this.lines[this.at + 1];
    if (!line.includes("|") || below === undefined || !isDelimiterRow(below)) return;
    const head = splitRow(line),
      align = splitRow(below).map(alignOf);
    if (head.length !== align.length || head.length > maxColumns) return;
    const rows: string[][] = [];
    for (this.at += 2; this.at < this.lines.length; this.at++) {
      const row = this.lines[this.at];
      if (isBlank(row) || !row.includes("|")) break;
      const cells = splitRow(row).slice(0, head.length);
      while (cells.length < head.length) cells.push("");
      rows.push(cells);
    }
    return { kind: "table", align, head, rows };
  }

  private paragraph(): Block {
    const lines = [this.lines[this.at++].trimStart()];
    for (; this.at < this.lines.length; this.at++) {
      const line = this.lines[this.at];
      const under = /^ {0,3}(=+|-+)[ \t]*$/.exec(line);
      if (under) {
        this.at++;
        return { kind: "heading", level: under[1][0] === "=" ? 1 : 2, text: lines.join("\n").trim() };
      }
      const item = marker.exec(line);
      if (isBlank(line) || interrupts(line) || (item && this.depth < maxDepth && !/^(?!1\b)\d/.test(item[2]) && line.trim() !== item[2]))
        break;
      if (line.includes("|") && isDelimiterRow(this.lines[this.at + 1] ?? "")) break;
      lines.push(line.trimStart());
    }
    return { kind: "paragraph", text: lines.join("\n").trimEnd() };
  }
}

const interrupts = (line: string) => fence.test(line) || heading.test(line) || rule.test(line) || quote.test(line);

const linesOf = (text: string) => text.replace(/\r\n?/g, "\n").replace(/\t/g, "    ").split("\n");

function blocksOf(lines: string[], depth: number): Block[] {
  return new BlockParser(lines, depth).all().map((b) => b.block);
}

export function parseMarkdown(text: string): TopBlock[] {
  const lines = linesOf(text);
  return new BlockParser(lines, 0).all().map(({ block, first, end }) => ({ block, source: lines.slice(first, end).join("\n") }));
}

// ---- inlines

const schemes = /^(?:https?:\/\/|mailto:)/i;
// The address if it is safe to click. Browsers drop control characters and spaces in a scheme, so these are rejected first.
export function safeHref(address: string): string | undefined {
  return !/[\u0000-\u0020\u007f]/.test(address) && schemes.test(address) ? address : undefined;
}

interface Piece {
  inline: Inline;
  run?: { char: string; count: number; length: number; opens: boolean; closes: boolean }; // a run of emphasis markers
  bracket?: boolean; // "[" or "![" that may open a link
}

const punctuation = /[\p{P}\p{S}]/u;
const escapable = /[!-/:-@[-`{-~]/;
const target = /\([ \n]*(?:(?:<([^<>\n]*)>|((?:[^\s()<>]|\([^\s()<>]*\))+))(?:[ \n]+(?:"[^"]*"|'[^']*'))?[ \n]*)?\)/y;
const angled = /<(https?:\/\/[^\s<>]*|[\w.+-]{1,64}@[\w.-]{1,255})>/iy;
const bare = /https?:\/\/[^\s<>"'`/?#][^\s<>"'`]*/iy;
const lineBreak = /<br[ ]?\/?>/iy;

const depthOf = (children: Inline[]) =>
  1 + children.reduce((most, c) => (typeof c === "object" && "depth" in c ? Math.max(most, c.depth) : most), 0);

// Trailing punctuation belongs to the sentence, and so does a bracket opened before the address.
function endOfAddress(text: string): number {
  let extra = 0; // unmatched closing brackets
  for (const c of text) extra += c === ")" ? 1 : c === "(" ? -1 : 0;
  let end = text.length;
  for (; end > 0; end--) {
    const c = text[end - 1];
    if (c === ")" && extra > 0) extra--;
    else if (!"?!.,:;*_~]".includes(c)) break;
  }
  return end;
}

class InlineParser {
  private at = 0;
  private pieces: Piece[] = [];
  private brackets: number[] = []; // indices of pieces
  private unclosedTicks = new Set<number>();

  constructor(private readonly text: string) {}

  parse(): Inline[] {
    while (this.at < this.text.length) this.step();
    return collapse(this.pieces, 0);
  }

  private match(pattern: RegExp): RegExpExecArray | null {
    pattern.lastIndex = this.at;
    return pattern.exec(this.text);
  }

  private push(inline: Inline) {
    const last = this.pieces[this.pieces.length - 1];
    if (typeof inline === "string" && last && typeof last.inline === "string" && !last.run && !last.bracket) last.inline += inline;
    else this.pieces.push({ inline });
  }

  private step() {
    const c = this.text[this.at];
    if (c === "\\") return this.escape();
    if (c === "`") return this.ticks();
    if (c === "\n") return this.newline();
    if (c === "*" || c === "_" || c === "~") return this.marks(c);
    if (c === "[" || (c === "!" && this.text[this.at + 1] === "[")) return this.openBracket(c === "!" ? "![" : "[");
    if (c === "]") return this.closeBracket();
    if (c === "<" && this.angle()) return;
    if ((c === "h" || c === "H") && this.bareLink()) return;
    const rest = /[^\\`\n*_~[\]!<hH]+/y;
    const plain = this.match(rest)?.[0] ?? c;
    this.at += plain.length;
    this.push(plain);
  }

  private escape() {
    const next = this.text[this.at + 1] ?? "";
    if (next === "\n") this.push({ kind: "break" });
    else this.push(escapable.test(next) ? next : "\\" + next);
    this.at += 1 + next.length;
  }

  private newline() {
    const last = this.pieces[this.pieces.length - 1];
    if (last && typeof last.inline === "string" && !last.run) last.inline = last.inline.trimEnd();
    this.at++;
    this.push({ kind: "break" }); // a model's line breaks are intended
  }

  private ticks() {
    const run = this.match(/`+/y)![0];
    const begin = this.at + run.length;
    if (!this.unclosedTicks.has(run.length)) {
      const closer = new RegExp(`(?<!\`)\`{${run.length}}(?!\`)`, "g");
      closer.lastIndex = begin;
      const close = closer.exec(this.text);
      if (close) {
        const inner = this.text.slice(begin, close.index).replace(/\n/g, " ");
        this.push({ kind: "code", text: /^ .* $/.test(inner) && inner.trim() ? inner.slice(1, -1) : inner });
        this.at = close.index + run.length;
        return;
      }
      this.unclosedTicks.add(run.length);
    }
    this.push(run);
    this.at = begin;
  }

  private marks(char: string) {
    const length = this.match(char === "*" ? /\*+/y : char === "_" ? /_+/y : /~+/y)![0].length;
    const before = this.text[this.at - 1] ?? " ",
      after = this.text[this.at + length] ?? " ";
    this.at += length;
    const run = char.repeat(length);
    if (char === "~" && length !== 2) return this.push(run);
    const space = (s: string) => /\s/.test(s),
      mark = (s: string) => punctuation.test(s);
    const left = !space(after) && (!mark(after) || space(before) || mark(before));
    const right = !space(before) && (!mark(before) || space(after) || mark(after));
    const opens = left && (char !== "_" || !right || mark(before));
    const closes = right && (char !== "_" || !left || mark(after));
    this.pieces.push({ inline: run, run: { char, count: length, length, opens, closes } });
  }

  private openBracket(mark: string) {
    this.brackets.push(this.pieces.length);
    this.pieces.push({ inline: mark, bracket: true });
    this.at += mark.length;
  }

  // An image becomes a link: nothing is loaded without a click.
  private closeBracket() {
    this.at++;
    const open = this.brackets.pop();
    const found = open === undefined ? null : this.match(target);
    if (open === undefined || !found) return this.push("]");
    const children = collapse(this.pieces.slice(open + 1), 0);
    const depth = depthOf(children);
    const href = safeHref(found[1] ?? found[2] ?? "");
    this.at += found[0].length;
    this.pieces.length = open;
    if (href && depth <= maxInlineDepth)
      this.pieces.push({ inline: { kind: "link", href, children: children.length ? children : [href], depth } });
    else for (const inline of children) this.pieces.push({ inline }); // the text without the address
    this.brackets.length = 0; // links do not nest
  }

  private angle(): boolean {
    const br = this.match(lineBreak);
    const found = br ?? this.match(angled);
    if (!found) return false;
    this.at += found[0].length;
    if (br) this.push({ kind: "break" });
    else this.link(found[1].includes("://") ? found[1] : "mailto:" + found[1], found[1]);
    return true;
  }

  private bareLink(): boolean {
    if (/\w/.test(this.text[this.at - 1] ?? " ")) return false;
    const found = this.match(bare)?.[0];
    if (!found) return false;
    const address = found.slice(0, endOfAddress(found));
    if (!/^https?:\/\/[^/?#]/i.test(address)) return false;
    this.at += address.length;
    this.link(address, address);
    return true;
  }

  private link(address: string, words: string) {
    const href = safeHref(address);
    this.pieces.push({ inline: href ? { kind: "link", href, children: [words], depth: 1 } : words });
  }
}

// CommonMark's "process emphasis": each closing run is matched with the nearest opening run of its kind.
function collapse(pieces: Piece[], from: number): Inline[] {
  const floor = new Map<string, number>(); // no opener below, by kind of closer
  for (let i = from; i < pieces.length; i++) {
    const closer = pieces[i].run;
    if (!closer?.closes || closer.count === 0) continue;
    const key = closer.char + (closer.opens ? "o" : "") + (closer.length % 3);
    let open = i - 1;
    const lowest = Math.max(from, floor.get(key) ?? from);
    for (; open >= lowest; open--) {
      const o = pieces[open].run;
      if (!o?.opens || o.char !== closer.char || o.count === 0) continue;
      const odd = (o.closes || closer.opens) && (o.length + closer.length) % 3 === 0 && (o.length % 3 !== 0 || closer.length % 3 !== 0);
      if (!odd) break;
    }
    if (open < lowest) {
      floor.set(key, i);
      continue;
    }
    const opener = pieces[open].run!;
    const children = pieces
      .slice(open + 1, i)
      .map((p) => p.inline)
      .filter((x) => x !== "");
    const depth = depthOf(children);
    if (depth > maxInlineDepth) {
      closer.count = 0;
      continue;
    }
    const used = closer.char === "~" || (opener.count >= 2 && closer.count >= 2) ? 2 : 1;
    const kind = closer.char === "~" ? "del" : used === 2 ? "strong" : "em";
    for (const end of [pieces[open], pieces[i]]) {
      end.run!.count -= used;
      end.inline = end.run!.char.repeat(end.run!.count);
    }
    pieces.splice(open + 1, i - open - 1, { inline: { kind, children: merged(children), depth } });
    i = open + 1; // the rest of the closer, if any
    for (const [k, at] of floor) if (at > open) floor.set(k, open + 1);
  }
  return merged(pieces.slice(from).map((p) => p.inline));
}

// Joins adjacent texts and drops empty ones.
function merged(inlines: Inline[]): Inline[] {
  const out: Inline[] = [];
  for (const x of inlines) {
    if (x === "") continue;
    if (typeof x === "string" && typeof out[out.length - 1] === "string") out[out.length - 1] += x;
    else out.push(x);
  }
  return out;
}

export function parseInline(text: string): Inline[] {
  return new InlineParser(text).parse();
}
