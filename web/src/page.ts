// The page's state and its operations. Components read it and call it; it notifies them of changes.
import { Api, ServerError, type ModelInfo } from "./api";
import * as tree from "./conversation";
import type { Conversation, Message } from "./conversation";
import { Reply } from "./reply";
import { loadSettings, requestFields, saveSettings, type Settings } from "./settings";
import { Store } from "./store";
import { Watcher } from "./watcher";

export type View = "chat" | "dashboard";
export type ServerState = { kind: "asking" | "ready" | "loading" | "locked" | "gone"; sentence: string };

const keyName = "millrace.key";

export class Page {
  settings = loadSettings();
  models: ModelInfo[] = [];
  server: ServerState = { kind: "asking", sentence: "" };
  conversations: Conversation[] = [];
  current: Conversation;
  view: View = "chat";
  notice = ""; // disappears by itself
  readonly api = new Api(() => this.key);
  readonly watcher = new Watcher(this.api, () => this.view === "dashboard" && this.changed());
  readonly drafts = new Map<string, string>(); // by conversation: the text in the message box
  readonly running = new Map<string, AbortController>(); // by conversation
  private store = new Store();
  private listeners = new Set<() => void>();
  private channel = typeof BroadcastChannel === "undefined" ? undefined : new BroadcastChannel("millrace");
  private noticeTimer = 0;
  private modelsTimer = 0;

  constructor() {
    this.current = tree.newConversation(this.settings.system);
    this.applyTheme();
    this.route();
    window.addEventListener("hashchange", () => this.route());
    window.addEventListener("pagehide", () => this.running.forEach((_, id) => this.keep(this.find(id)!)));
    this.channel?.addEventListener("message", (e) => void this.refresh(String(e.data)));
  }

  async start() {
    void this.findModels();
    try {
      this.conversations = await this.store.open();
    } catch {
      this.say("This browser keeps no data for the page: conversations will be gone when it is closed.");
    }
    this.route();
  }

  // The fragment says what is shown: #dashboard or a conversation's id, so that reload and back work.
  private route() {
    const name = location.hash.slice(1);
    const found = this.conversations.find((c) => c.id === name);
    this.view = name === "dashboard" ? "dashboard" : "chat";
    if (found) this.current = found;
    else if (name === "" && Object.keys(this.current.messages).length > 0) this.current = tree.newConversation(this.settings.system);
    this.changed();
  }

  private go(name: string, how: "pushState" | "replaceState" = "pushState") {
    if (location.hash.slice(1) !== name) history[how](null, "", name ? `#${name}` : location.pathname);
    this.changed();
  }

  // ---- listeners

  subscribe(listener: () => void): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  changed() {
    for (const listener of this.listeners) listener();
  }

  say(sentence: string) {
    this.notice = sentence;
    clearTimeout(this.noticeTimer);
    this.noticeTimer = window.setTimeout(() => this.say(""), 6000);
    if (!sentence) clearTimeout(this.noticeTimer);
    this.changed();
  }

  // ---- the server

  get key(): string {
    try {
      return sessionStorage.getItem(keyName) ?? "";
    } catch {
      return "";
    }
  }

  set key(key: string) {
    try {
      if (key) sessionStorage.setItem(keyName, key);
      else sessionStorage.removeItem(keyName);
    } catch {
      this.say("This browser keeps no data for the page: the key is not kept either.");
    }
    void this.findModels();
  }

  // Retries while the model is loading or the server is down.
  async findModels() {
    clearTimeout(this.modelsTimer);
    try {
      this.models = await this.api.models();
      this.server = { kind: "ready", sentence: "" };
    } catch (e) {
      const failure = e as ServerError;
      const kind = failure.status === 401 ? "locked" : failure.status === 503 ? "loading" : "gone";
      this.server = { kind, sentence: failure.message };
      clearTimeout(this.modelsTimer); // set by another call meanwhile
      if (kind !== "locked") this.modelsTimer = window.setTimeout(() => void this.findModels(), kind === "loading" ? 500 : 3000);
    }
    this.changed();
  }

  get model(): ModelInfo | undefined {
    return this.models.find((m) => m.id === this.settings.model) ?? this.models[0];
  }

  // ---- settings

  set<K extends keyof Settings>(name: K, value: Settings[K]) {
    this.settings = { ...this.settings, [name]: value };
    saveSettings(this.settings);
    if (name === "theme") this.applyTheme();
    this.changed();
  }

  applyTheme() {
    const { theme } = this.settings;
    if (theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
  }

  toggleTheme() {
    const { theme } = this.settings;
    const dark = theme === "dark" || (theme === "auto" && matchMedia("(prefers-color-scheme: dark)").matches);
    this.set("theme", dark ? "light" : "dark");
  }

  show(view: View) {
    this.view = view;
    this.go(view === "dashboard" ? view : Object.keys(this.current.messages).length > 0 ? this.current.id : "");
  }

  // ---- conversations

  private find(id: string): Conversation | undefined {
    return this.current.id === id ? this.current : this.conversations.find((c) => c.id === id);
  }

  // The conversation changed: it moves to the front and is stored.
  keep(c: Conversation, touched = true) {
    if (touched) c.updated = Date.now();
    if (touched) this.conversations = [c, ...this.conversations.filter((x) => x.id !== c.id)];
    this.store.put(c);
    this.channel?.postMessage(c.id);
  }

  // Another tab changed or deleted it.
  private async refresh(id: string) {
    if (this.running.has(id)) return;
    const stored = await this.store.get(id).catch(() => undefined);
    this.conversations = this.conversations.filter((c) => c.id !== id);
    if (stored) this.conversations = [...this.conversations, stored].sort((a, b) => b.updated - a.updated);
    if (stored && this.current.id === id) this.current = stored;
    this.changed();
  }

  open(c: Conversation) {
    this.current = c;
    this.show("chat");
  }

  begin() {
    this.open(tree.newConversation(this.settings.system));
  }

  rename(c: Conversation, title: string) {
    c.title = title.trim() || c.title;
    this.keep(c, false);
    this.changed();
  }

  remove(c: Conversation) {
    this.running.get(c.id)?.abort();
    this.conversations = this.conversations.filter((x) => x.id !== c.id);
    this.store.remove(c.id);
    this.channel?.postMessage(c.id);
    if (this.current.id === c.id) this.begin();
    this.changed();
  }

  setSystem(text: string) {
    this.current.system = text;
    if (Object.keys(this.current.messages).length > 0) this.keep(this.current, false);
    else this.settings.system = text; // for new conversations
    saveSettings(this.settings);
    this.changed();
  }

  import(text: string) {
    const found = tree.readExport(text);
    for (const c of found) {
      if (this.find(c.id)) c.id = tree.newId(); // both are kept
      this.keep(c, false);
    }
    this.conversations = [...this.conversations, ...found].sort((a, b) => b.updated - a.updated);
    if (found.length > 0) this.open(found[0]);
    this.say(found.length === 1 ? "1 conversation was imported." : `${found.length} conversations were imported.`);
  }

  // ---- messages

  get busy(): boolean {
    return this.running.has(this.current.id);
  }

  stop() {
    this.running.get(this.current.id)?.abort();
  }

  // A question at the end of the shown path.
  send(text: string) {
    const c = this.current;
    const parent = tree.pathOf(c).at(-1)?.id ?? null;
    void this.answer(c, tree.addMessage(c, parent, "user", text).id);
  }

  sendResults(call: Message, results: string[]) {
    const c = this.current;
    let parent = call.id;
    call.toolCalls!.forEach((t, i) => {
      const m = tree.addMessage(c, parent, "tool", results[i]);
      m.toolCallId = t.id;
      parent = m.id;
    });
    void this.answer(c, parent);
  }

  // An edited question becomes a sibling and is sent; an edited answer becomes a sibling only.
  edit(m: Message, text: string) {
    const c = this.current;
    const copy = tree.addMessage(c, m.parent, m.role, text);
    if (m.role === "user") return void this.answer(c, copy.id);
    copy.ending = "stop";
    this.keep(c);
    this.changed();
  }

  // Another answer as a sibling; replaces one that failed without text.
  regenerate(m: Message) {
    if (this.busy) return;
    const c = this.current;
    if (m.error && !m.content) tree.removeMessage(c, m);
    void this.answer(c, m.parent!);
  }

  choose(m: Message) {
    tree.choose(this.current, m);
    this.keep(this.current, false);
    this.changed();
  }

  private async answer(c: Conversation, parent: string) {
    if (this.running.has(c.id)) return;
    const control = new AbortController();
    this.running.set(c.id, control);
    const m = tree.addMessage(c, parent, "assistant", "");
    const reply = new Reply(m);
    const path = tree.pathOf(c).slice(0, -1);
    this.keep(c);
    if (this.current === c) this.go(c.id, "replaceState");
    const draw = this.painter(c);
    try {
      const body = {
        model: this.model?.id,
        messages: tree.requestMessages(c, path),
        stream: true,
        stream_options: { include_usage: true },
        ...requestFields(this.settings),
      };
      for await (const chunk of this.api.chat(body, control.signal)) {
        reply.add(chunk);
        draw();
      }
      reply.end("stop");
    } catch (e) {
      reply.end(control.signal.aborted ? "stopped" : "cut");
      if (!control.signal.aborted) m.error = (e as Error).message;
      if (e instanceof ServerError && (e.status === 401 || e.status === 0)) void this.findModels();
    }
    this.running.delete(c.id);
    if (this.find(c.id)) this.keep(c);
    this.changed();
  }

  // Renders at most once a frame and at most a quarter of the time, however long rendering takes; stores once a second.
  private painter(c: Conversation): () => void {
    let waiting = false,
      free = 0,
      stored = performance.now();
    return () => {
      if (waiting || !this.running.has(c.id)) return;
      waiting = true;
      const paint = () => {
        waiting = false;
        if (!this.running.has(c.id)) return;
        const begin = performance.now();
        this.changed();
        free = begin + 4 * (performance.now() - begin);
        if (begin - stored < 1000) return;
        stored = begin;
        this.keep(c);
      };
      setTimeout(() => requestAnimationFrame(paint), Math.max(0, free - performance.now()));
    };
  }
}
