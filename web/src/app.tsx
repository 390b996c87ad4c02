// The frame: header, list of conversations, the current view, and global keys.
import { render } from "preact";
import { useEffect, useState } from "preact/hooks";
import { Chat } from "./chat";
import { pathOf } from "./conversation";
import { Dashboard } from "./dashboard";
import { Page, type View } from "./page";
import { HelpDialog, SettingsSheet, Sidebar } from "./panels";
import { IconButton, PageContext, useChanges, usePage, Wheel } from "./ui";

type Panel = "settings" | "help" | undefined;

function Banner({ onKey }: { onKey: () => void }) {
  const { server } = usePage();
  if (server.kind === "asking" || server.kind === "ready") return null;
  return (
    <div class={`banner ${server.kind}`} role="status">
      {server.kind === "loading" && <Wheel turns />}
      <span>{server.sentence}</span>
      {server.kind === "locked" && (
        <button type="button" class="plain" onClick={onKey}>
          Enter the key
        </button>
      )}
    </div>
  );
}

function ModelName() {
  const page = usePage();
  if (page.models.length < 2)
    return (
      <span class="model" title="The model that is served">
        {page.model?.id ?? ""}
      </span>
    );
  return (
    <select class="model" aria-label="Model" value={page.model?.id} onChange={(e) => page.set("model", e.currentTarget.value)}>
      {page.models.map((m) => (
        <option key={m.id}>{m.id}</option>
      ))}
    </select>
  );
}

function Header({ side, onSide, onPanel }: { side: boolean; onSide: () => void; onPanel: (p: Panel) => void }) {
  const page = usePage();
  const tab = (view: View, label: string) => (
    <button type="button" aria-current={page.view === view ? "page" : undefined} onClick={() => page.show(view)}>
      {label}
    </button>
  );
  return (
    <header class="top">
      <IconButton icon="menu" label="Conversations" expanded={side} onClick={onSide} />
      <span class="brand">
        <Wheel turns={page.running.size > 0} />
        <span>millrace</span>
      </span>
      <ModelName />
      <nav class="tabs" aria-label="Views">
        {tab("chat", "Chat")}
        {tab("dashboard", "Dashboard")}
      </nav>
      <span class="tools">
        <IconButton icon="sun" class="theme" label="Light or dark" onClick={() => page.toggleTheme()} />
        <IconButton icon="help" label="Keys" onClick={() => onPanel("help")} />
        <IconButton icon="sliders" label="Settings" onClick={() => onPanel("settings")} />
      </span>
    </header>
  );
}

function useKeys(page: Page, onPanel: (p: Panel) => void) {
  useEffect(() => {
    const key = (e: KeyboardEvent) => {
      if (document.querySelector("dialog[open]") || e.isComposing) return;
      const control = e.ctrlKey || e.metaKey;
      const actions: Record<string, (() => void) | undefined> = {
        ".": () => page.show(page.view === "chat" ? "dashboard" : "chat"),
        ",": () => onPanel("settings"),
        "/": () => onPanel("help"),
        "shift+o": () => page.begin(),
        "shift+l": () => page.toggleTheme(),
        "shift+enter": () => {
          const last = pathOf(page.current).at(-1);
          if (last?.role === "assistant") page.regenerate(last);
        },
      };
      const action = control
        ? actions[(e.shiftKey && e.key.length > 0 && !"/.,".includes(e.key) ? "shift+" : "") + e.key.toLowerCase()]
        : undefined;
      if (e.key === "Escape" && page.busy) page.stop();
      if (!action) return;
      e.preventDefault();
      action();
    };
    document.addEventListener("keydown", key);
    return () => document.removeEventListener("keydown", key);
  }, [page]);
}

const wide = () => matchMedia("(min-width: 900px)").matches;

function App({ page }: { page: Page }) {
  useChanges(page);
  const [side, setSide] = useState(wide());
  const [panel, setPanel] = useState<Panel>();
  useKeys(page, setPanel);
  const close = () => setPanel(undefined);
  useEffect(() => {
    const name = page.view === "dashboard" ? "Dashboard" : page.current.title;
    document.title = name ? `${name} – millrace` : "millrace";
  });
  const leaveSide = () => wide() || setSide(false);
  const target = page.view === "chat" ? "message" : "main";
  const skip = (e: Event) => {
    e.preventDefault(); // the fragment is used by the router
    document.getElementById(target)?.focus();
  };
  return (
    <PageContext.Provider value={page}>
      <a class="skip" href={`#${target}`} onClick={skip}>
        Skip to the {target === "message" ? "message box" : "numbers"}
      </a>
      <div class={side ? "frame with-side" : "frame"}>
        <Header side={side} onSide={() => setSide(!side)} onPanel={setPanel} />
        {side && <Sidebar onChosen={leaveSide} />}
        {side && <div class="shade" onClick={() => setSide(false)} />}
        <div class="view">
          <Banner onKey={() => setPanel("settings")} />
          {page.view === "chat" ? <Chat onSystem={() => setPanel("settings")} /> : <Dashboard />}
        </div>
        <div class="notice" role="status">
          {page.notice && <p>{page.notice}</p>}
        </div>
      </div>
      {panel === "settings" && <SettingsSheet onClose={close} />}
      {panel === "help" && <HelpDialog onClose={close} />}
    </PageContext.Provider>
  );
}

const page = new Page(); // sets the theme before anything is drawn
document.addEventListener("DOMContentLoaded", () => {
  render(<App page={page} />, document.getElementById("app")!);
  void page.start();
});
