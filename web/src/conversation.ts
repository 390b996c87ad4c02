// A conversation is a tree: an edited question or a second answer is a sibling, and `chosen` says which one is shown.

export interface ToolCall {
  id: string;
  name: string;
  arguments: string; // JSON, as written by the model
}

export interface Alternative {
  text: string;
  logprob: number;
}

export interface Token extends Alternative {
  top: Alternative[];
}

export interface Timing {
  firstToken: number; // seconds since the request was sent
  perSecond: number | undefined; // undefined: too few tokens
  tokens: number;
  exact: boolean; // false: counted by chunks, without usage from the server
  promptTokens: number | undefined;
  cachedTokens: number | undefined;
}

export type Role = "user" | "assistant" | "tool";
export type Ending = "stop" | "length" | "tool_calls" | "stopped" | "cut";

export interface Message {
  id: string;
  parent: string | null;
  role: Role;
  content: string;
  created: number; // ms since 1970
  reasoning?: string; // if the server separates it; <think> stays in the content
  toolCalls?: ToolCall[];
  toolCallId?: string; // of a tool's result
  model?: string;
  ending?: Ending; // none: still being written
  error?: string;
  timing?: Timing;
  tokens?: Token[];
}

export interface Conversation {
  id: string;
  title: string;
  system: string;
  created: number;
  updated: number;
  messages: Record<string, Message>;
  chosen: Record<string, string>; // by parent ("" for the first message): the child that is shown
}

export const newId = () =>
  crypto.randomUUID?.() ?? Array.from(crypto.getRandomValues(new Uint32Array(4)), (x) => x.toString(16).padStart(8, "0")).join("");

export function newConversation(system: string): Conversation {
  const now = Date.now();
  return { id: newId(), title: "", system, created: now, updated: now, messages: {}, chosen: {} };
}

// In order of creation.
export function childrenOf(c: Conversation, parent: string | null): Message[] {
  return Object.values(c.messages).filter((m) => m.parent === parent);
}

// The shown path: from the first message along the chosen children.
export function pathOf(c: Conversation): Message[] {
  const children = new Map<string | null, Message[]>();
  for (const m of Object.values(c.messages)) children.set(m.parent, [...(children.get(m.parent) ?? []), m]);
  const path: Message[] = [];
  for (let parent: string | null = null; ; ) {
    const siblings = children.get(parent);
    if (!siblings) return path;
    const next: Message = siblings.find((m) => m.id === c.chosen[parent ?? ""]) ?? siblings[siblings.length - 1];
    path.push(next);
    parent = next.id;
  }
}

export function addMessage(c: Conversation, parent: string | null, role: Role, content: string): Message {
  const m: Message = { id: newId(), parent, role, content, created: Date.now() };
  c.messages[m.id] = m;
  c.chosen[parent ?? ""] = m.id;
  if (!c.title && role === "user") c.title = titleOf(content);
  return m;
}

export function choose(c: Conversation, m: Message) {
  c.chosen[m.parent ?? ""] = m.id;
}

export function removeMessage(c: Conversation, m: Message) {
  for (const child of childrenOf(c, m.id)) removeMessage(c, child);
  delete c.messages[m.id];
  delete c.chosen[m.id];
  if (c.chosen[m.parent ?? ""] === m.id) delete c.chosen[m.parent ?? ""];
}

export function titleOf(text: string): string {
  const line = text.trim().split("\n")[0].replace(/\s+/g, " ");
  return line.length <= 60 ? line : line.slice(0, 58).replace(/\s+\S*$/, "") + "…";
}

export interface Parts {
  reasoning: string;
  answer: string;
  thinking: boolean; // still reasoning
}

// Reasoning is in its own field, or between <think> and </think>; the opening tag is missing if the template wrote it.
export function partsOf(m: Pick<Message, "content" | "reasoning" | "ending">): Parts {
  if (m.reasoning) return { reasoning: m.reasoning, answer: m.content.trimStart(), thinking: m.content === "" && !m.ending };
  const begin = /^\s*<think>/.exec(m.content);
  const end = m.content.indexOf("</think>");
  if (begin && end < 0) return { reasoning: m.content.slice(begin[0].length).trim(), answer: "", thinking: !m.ending };
  if (end < 0) return { reasoning: "", answer: m.content, thinking: false };
  return {
    reasoning: m.content.slice(begin?.[0].length ?? 0, end).trim(),
    answer: m.content.slice(end + "</think>".length).trimStart(),
    thinking: false,
  };
}

// The messages of a request: the system prompt and the path, without reasoning and empty answers.
export function requestMessages(c: Conversation, path: Message[]): object[] {
  const out: object[] = c.system.trim() ? [{ role: "system", content: c.system }] : [];
  for (const m of path) {
    if (m.role === "tool") out.push({ role: "tool", tool_call_id: m.toolCallId, content: m.content });
    else if (m.role === "user") out.push({ role: "user", content: m.content });
    else if (m.content || m.toolCalls?.length) {
      const calls = m.toolCalls?.map((t) => ({ id: t.id, type: "function", function: { name: t.name, arguments: t.arguments } }));
      out.push({ role: "assistant", content: partsOf(m).answer, ...(calls?.length ? { tool_calls: calls } : {}) });
    }
  }
  return out;
}

// ---- files

export const fileKind = "millrace-conversations";

export function exportText(conversations: Conversation[]): string {
  return JSON.stringify({ kind: fileKind, version: 1, conversations }, null, 1);
}

const isObject = (x: unknown): x is Record<string, unknown> => typeof x === "object" && x !== null && !Array.isArray(x);
const isId = (x: string) => /^[0-9a-f-]{8,64}$/i.test(x);
const textOr = (x: unknown, otherwise: string) => (typeof x === "string" ? x : otherwise);
const numberOr = <T>(x: unknown, otherwise: T) => (typeof x === "number" && Number.isFinite(x) ? x : otherwise);

function readAlternative(x: unknown): Alternative {
  const o = isObject(x) ? x : {};
  return { text: textOr(o.text, ""), logprob: numberOr(o.logprob, 0) };
}

function readTiming(t: Record<string, unknown>): Timing {
  return {
    firstToken: numberOr(t.firstToken, 0),
    perSecond: numberOr(t.perSecond, undefined),
    tokens: numberOr(t.tokens, 0),
    exact: t.exact === true,
    promptTokens: numberOr(t.promptTokens, undefined),
    cachedTokens: numberOr(t.cachedTokens, undefined),
  };
}

// Only known fields, each with its type: an imported file cannot put anything else into the page.
function readMessage(id: string, x: unknown, where: string): Message {
  if (!isObject(x)) throw new Error(`${where}: a message is no object`);
  const role = x.role;
  if (role !== "user" && role !== "assistant" && role !== "tool")
    throw new Error(`${where}: a message has the role ${JSON.stringify(role)}`);
  const m: Message = {
    id,
    parent: typeof x.parent === "string" ? x.parent : null,
    role,
    content: textOr(x.content, ""),
    created: numberOr(x.created, Date.now()),
  };
  if (typeof x.reasoning === "string") m.reasoning = x.reasoning;
  if (typeof x.toolCallId === "string") m.toolCallId = x.toolCallId;
  if (typeof x.model === "string") m.model = x.model;
  if (typeof x.error === "string") m.error = x.error;
  const endings: unknown[] = ["stop", "length", "tool_calls", "stopped", "cut"];
  m.ending = endings.includes(x.ending) ? (x.ending as Ending) : "cut"; // nothing is streaming into it any more
  if (Array.isArray(x.toolCalls))
    m.toolCalls = x.toolCalls
      .filter(isObject)
      .map((t) => ({ id: textOr(t.id, ""), name: textOr(t.name, ""), arguments: textOr(t.arguments, "") }));
  if (isObject(x.timing)) m.timing = readTiming(x.timing);
  if (Array.isArray(x.tokens))
    m.tokens = x.tokens
      .filter(isObject)
      .map((t) => ({ ...readAlternative(t), top: (Array.isArray(t.top) ? t.top : []).map(readAlternative) }));
  return m;
}

function readConversation(x: unknown, index: number): Conversation {
  const where = `conversation ${index + 1}`;
  if (!isObject(x) || !isObject(x.messages)) throw new Error(`${where} has no messages`);
  const now = Date.now();
  const c = newConversation(textOr(x.system, ""));
  c.id = textOr(x.id, c.id);
  c.title = textOr(x.title, "");
  c.created = numberOr(x.created, now);
  c.updated = numberOr(x.updated, now);
  for (const [id, m] of Object.entries(x.messages)) {
    if (!isId(id)) throw new Error(`${where}: a message has the id ${JSON.stringify(id)}`);
    c.messages[id] = readMessage(id, m, where);
  }
  for (const m of Object.values(c.messages)) checkAncestors(c, m, where);
  if (isObject(x.chosen))
    for (const [parent, child] of Object.entries(x.chosen))
      if (typeof child === "string" && (parent === "" || isId(parent))) c.chosen[parent] = child;
  return c;
}

function checkAncestors(c: Conversation, m: Message, where: string) {
  const seen = new Set<string>();
  for (let at: Message | undefined = m; at?.parent != null; at = c.messages[at.parent]) {
    if (seen.has(at.id) || !Object.hasOwn(c.messages, at.parent)) throw new Error(`${where}: its messages are no tree`);
    seen.add(at.id);
  }
}

export function readExport(text: string): Conversation[] {
  let file: unknown;
  try {
    file = JSON.parse(text);
  } catch {
    throw new Error("the file is no JSON");
  }
  if (!isObject(file) || file.kind !== fileKind || !Array.isArray(file.conversations))
    throw new Error("the file holds no conversations of this page");
  return file.conversations.map(readConversation);
}

export const readStored = (x: unknown) => readConversation(x, 0);
