// Panels: the list of conversations, the settings, the keyboard shortcuts.
import { useRef, useState } from "preact/hooks";
import { exportText, type Conversation } from "./conversation";
import { defaults, fields, parseTools } from "./settings";
import { Dialog, IconButton, saveFile, usePage, Wheel } from "./ui";

// ---- conversations

function Entry({ c, onChosen }: { c: Conversation; onChosen: () => void }) {
  const page = usePage();
  const [renaming, setRenaming] = useState(false);
  const here = page.current.id === c.id && page.view === "chat";
  const rename = (e: { currentTarget: HTMLInputElement }) => {
    setRenaming(false);
    page.rename(c, e.currentTarget.value);
  };
  if (renaming)
    return (
      <li>
        <input
          class="rename"
          aria-label="Title"
          value={c.title}
          ref={(x) => x?.focus()}
          onBlur={rename}
          onKeyDown={(e) => {
            if (e.key === "Enter") e.currentTarget.blur();
            if (e.key === "Escape") setRenaming(false);
          }}
        />
      </li>
    );
  const open = () => {
    page.open(c);
    onChosen();
  };
  return (
    <li class={here ? "here" : undefined}>
      <button type="button" class="title" aria-current={here ? "page" : undefined} onClick={open} onDblClick={() => setRenaming(true)}>
        {page.running.has(c.id) && <Wheel turns />}
        {c.title || "New conversation"}
      </button>
      <IconButton icon="pencil" label={`Rename ${c.title}`} onClick={() => setRenaming(true)} />
      <IconButton icon="save" label={`Export ${c.title}`} onClick={() => saveFile("conversation.json", exportText([c]))} />
      <IconButton
        icon="trash"
        label={`Delete ${c.title}`}
        onClick={() => confirm(`Delete “${c.title}”? It cannot be brought back.`) && page.remove(c)}
      />
    </li>
  );
}

function ages(conversations: Conversation[]): [string, Conversation[]][] {
  const midnight = new Date().setHours(0, 0, 0, 0),
    day = 86_400_000;
  const groups: [string, Conversation[]][] = [
    ["Today", []],
    ["Yesterday", []],
    ["This week", []],
    ["Earlier", []],
  ];
  for (const c of conversations) {
    const at = c.updated >= midnight ? 0 : c.updated >= midnight - day ? 1 : c.updated >= midnight - 7 * day ? 2 : 3;
    groups[at][1].push(c);
  }
  return groups.filter(([, list]) => list.length > 0);
}

export function Sidebar({ onChosen }: { onChosen: () => void }) {
  const page = usePage();
  const [wanted, setWanted] = useState("");
  const needle = wanted.trim().toLowerCase();
  const holds = (c: Conversation) =>
    c.title.toLowerCase().includes(needle) || Object.values(c.messages).some((m) => m.content.toLowerCase().includes(needle));
  const shown = needle ? page.conversations.filter(holds) : page.conversations;
  const begin = () => {
    page.begin();
    onChosen();
  };
  return (
    <nav class="sidebar" aria-label="Conversations">
      <button type="button" class="new" onClick={begin}>
        <span aria-hidden="true">+</span> New conversation
      </button>
      {page.conversations.length > 5 && (
        <input
          type="search"
          placeholder="Search"
          aria-label="Search conversations"
          value={wanted}
          onInput={(e) => setWanted(e.currentTarget.value)}
        />
      )}
      <div class="list">
        {ages(shown).map(([age, list]) => (
          <section key={age}>
            <h2>{age}</h2>
            <ul>
              {list.map((c) => (
                <Entry key={c.id} c={c} onChosen={onChosen} />
              ))}
            </ul>
          </section>
        ))}
        {shown.length === 0 && <p class="hint">{needle ? "Nothing found." : "Conversations are kept in this browser alone."}</p>}
      </div>
    </nav>
  );
}

// ---- settings

function ToolsField() {
  const page = usePage();
  const { tools } = page.settings;
  let wrong = "";
  try {
    parseTools(tools);
  } catch (e) {
    wrong = (e as Error).message;
  }
  return (
    <label>
      Tools <small>a JSON list of functions, as OpenAI's API has them</small>
      <textarea
        rows={3}
        class="mono"
        spellcheck={false}
        value={tools}
        aria-invalid={wrong !== ""}
        onInput={(e) => page.set("tools", e.currentTarget.value)}
      />
      {wrong && (
        <small class="wrong" role="alert">
          {wrong}
        </small>
      )}
    </label>
  );
}

function DataButtons() {
  const page = usePage();
  const file = useRef<HTMLInputElement>(null);
  const load = async () => {
    const chosen = file.current!.files?.[0];
    if (!chosen) return;
    try {
      page.import(await chosen.text());
    } catch (e) {
      page.say(`Nothing was imported: ${(e as Error).message}.`);
    }
    if (file.current) file.current.value = ""; // null: the settings were closed while the file was read
  };
  const removeAll = () => {
    if (confirm("Delete every conversation? They cannot be brought back.")) for (const c of [...page.conversations]) page.remove(c);
  };
  return (
    <div class="row">
      <input ref={file} type="file" accept="application/json,.json" hidden onChange={() => void load()} />
      <button
        type="button"
        class="plain"
        disabled={page.conversations.length === 0}
        onClick={() => saveFile("conversations.json", exportText(page.conversations))}
      >
        Export all
      </button>
      <button type="button" class="plain" onClick={() => file.current!.click()}>
        Import…
      </button>
      <button type="button" class="plain danger" disabled={page.conversations.length === 0} onClick={removeAll}>
        Delete all
      </button>
    </div>
  );
}

export function SettingsSheet({ onClose }: { onClose: () => void }) {
  const page = usePage();
  const { settings: s } = page;
  const reset = () => {
    for (const { name } of fields) page.set(name, defaults[name]);
    page.set("stop", "");
  };
  return (
    <Dialog title="Settings" class="sheet" onClose={onClose}>
      <section>
        <h3>This conversation</h3>
        <label>
          System prompt
          <textarea
            rows={3}
            value={page.current.system}
            placeholder="You are a patient teacher…"
            onInput={(e) => page.setSystem(e.currentTarget.value)}
          />
        </label>
      </section>
      <section>
        <h3>
          Sampling{" "}
          <button type="button" class="link" onClick={reset}>
            reset
          </button>
        </h3>
        <p class="hint">An empty field leaves the choice to the server.</p>
        <div class="grid">
          {fields.map((f) => (
            <label key={f.name} title={f.hint}>
              {f.label}
              <input
                type="number"
                inputMode="decimal"
                min={f.min}
                max={f.max}
                step={f.step}
                value={s[f.name]}
                placeholder="default"
                onInput={(e) => page.set(f.name, e.currentTarget.value)}
              />
            </label>
          ))}
        </div>
        <label>
          Stop <small>texts that end the answer, one a line</small>
          <textarea rows={2} class="mono" value={s.stop} onInput={(e) => page.set("stop", e.currentTarget.value)} />
        </label>
      </section>
      <section>
        <h3>Answers</h3>
        <label class="switch">
          <input type="checkbox" checked={s.logprobs} onChange={(e) => page.set("logprobs", e.currentTarget.checked)} /> Keep the
          probability of every token
        </label>
        <ToolsField />
      </section>
      <form onSubmit={(e) => e.preventDefault()}>
        <h3>Access</h3>
        <label>
          API key <small>kept until this tab is closed</small>
          <input
            type="password"
            autocomplete="off"
            data-first={page.server.kind === "locked" || undefined}
            value={page.key}
            onChange={(e) => (page.key = e.currentTarget.value.trim())}
          />
        </label>
      </form>
      <section>
        <h3>Appearance</h3>
        <div class="segments" role="radiogroup" aria-label="Theme">
          {(["auto", "light", "dark"] as const).map((t) => (
            <label key={t}>
              <input type="radio" name="theme" checked={s.theme === t} onChange={() => page.set("theme", t)} />
              <span>{{ auto: "Like the system", light: "Light", dark: "Dark" }[t]}</span>
            </label>
          ))}
        </div>
      </section>
      <section>
        <h3>Conversations</h3>
        <DataButtons />
      </section>
    </Dialog>
  );
}

// ---- keys

const keys: [string[], string][] = [
  [["Enter"], "Send the message"],
  [["Shift", "Enter"], "Begin a new line"],
  [["Esc"], "Stop the answer, or close what is open"],
  [["↑"], "In an empty box: edit the last message"],
  [["Ctrl", "Shift", "Enter"], "Another answer to the last message"],
  [["Ctrl", "Shift", "O"], "New conversation"],
  [["Ctrl", "."], "Chat or dashboard"],
  [["Ctrl", ","], "Settings"],
  [["Ctrl", "Shift", "L"], "Light or dark"],
  [["Ctrl", "/"], "This list"],
];

export function HelpDialog({ onClose }: { onClose: () => void }) {
  return (
    <Dialog title="Keys" class="help" onClose={onClose}>
      <dl>
        {keys.map(([combination, what]) => (
          <div key={what}>
            <dt>
              {combination.map((k, i) => (
                <kbd key={i}>{k}</kbd>
              ))}
            </dt>
            <dd>{what}</dd>
          </div>
        ))}
      </dl>
      <p class="hint">
        On a Mac, Command does what Ctrl does. The API of this server is at <code>/v1</code>, its numbers at <code>/metrics</code>.
      </p>
    </Dialog>
  );
}
