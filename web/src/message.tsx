// One message: a question, an answer with its controls, or a tool's result.
import { useEffect, useRef, useState } from "preact/hooks";
import { childrenOf, partsOf, type Message, type Timing, type ToolCall } from "./conversation";
import { Markdown } from "./markdown_view";
import { Tokens } from "./tokens";
import { CopyButton, GrowingText, Icon, IconButton, usePage, Wheel } from "./ui";

const seconds = (s: number) => (s < 1 ? `${Math.round(1000 * s)} ms` : `${s.toFixed(s < 10 ? 2 : 1)} s`);
const rate = (r: number) => (r < 10 ? r.toFixed(1) : Math.round(r).toString());

function TimingLine({ t }: { t: Timing }) {
  const parts = [`${t.exact ? "" : "about "}${t.tokens} ${t.tokens === 1 ? "token" : "tokens"}`];
  if (t.perSecond !== undefined) parts.push(`${rate(t.perSecond)} tok/s`);
  parts.push(`first after ${seconds(t.firstToken)}`);
  if (t.cachedTokens) parts.push(`${t.cachedTokens} of ${t.promptTokens} prompt tokens cached`);
  return (
    <span class="timing">
      {parts.map((p, i) => (
        <span key={i}>{p}</span>
      ))}
    </span>
  );
}

function Siblings({ m }: { m: Message }) {
  const page = usePage();
  const all = childrenOf(page.current, m.parent);
  const at = all.findIndex((x) => x.id === m.id);
  if (all.length < 2) return null;
  const what = m.role === "user" ? "version" : "answer";
  return (
    <span class="siblings">
      <IconButton icon="left" label={`Previous ${what}`} disabled={at === 0} onClick={() => page.choose(all[at - 1])} />
      <span aria-label={`${what} ${at + 1} of ${all.length}`} role="img">
        {at + 1} / {all.length}
      </span>
      <IconButton icon="right" label={`Next ${what}`} disabled={at === all.length - 1} onClick={() => page.choose(all[at + 1])} />
    </span>
  );
}

function Editor({ m, onDone }: { m: Message; onDone: () => void }) {
  const page = usePage();
  const [text, setText] = useState(m.content);
  const area = useRef<HTMLTextAreaElement>(null);
  useEffect(() => {
    area.current!.focus();
    area.current!.setSelectionRange(text.length, text.length);
  }, []);
  const save = () => {
    const text = area.current!.value; // the state may be a rendering behind what was typed
    if (!text.trim() || page.busy) return;
    onDone();
    page.edit(m, text);
  };
  const key = (e: KeyboardEvent) => {
    if (e.key === "Escape") {
      e.stopPropagation();
      onDone();
    } else if (e.key === "Enter" && !e.shiftKey && !e.isComposing && m.role === "user") {
      e.preventDefault();
      save();
    }
  };
  return (
    <div class="editor">
      <GrowingText
        areaRef={area}
        aria-label={m.role === "user" ? "Edit your message" : "Edit the answer"}
        value={text}
        onInput={(e) => setText(e.currentTarget.value)}
        onKeyDown={key}
      />
      <div class="row">
        <p class="hint">The old one stays: arrows lead back to it.</p>
        <button type="button" class="plain" onClick={onDone}>
          Cancel
        </button>
        <button type="button" class="primary" disabled={!text.trim() || page.busy} onClick={save}>
          {m.role === "user" ? "Send" : "Save"}
        </button>
      </div>
    </div>
  );
}

function Reasoning({ text, thinking }: { text: string; thinking: boolean }) {
  return (
    <details class="reasoning">
      <summary>
        <Icon name="chevron" />
        {thinking ? "Thinking…" : "Reasoning"}
      </summary>
      <Markdown text={text} />
    </details>
  );
}

function pretty(json: string): string {
  try {
    return JSON.stringify(JSON.parse(json), null, 2);
  } catch {
    return json; // incomplete or invalid
  }
}

function Call({ call }: { call: ToolCall }) {
  return (
    <div class="call">
      <p>
        <Icon name="tool" /> calls <strong>{call.name}</strong>
      </p>
      <pre tabIndex={0} role="region" aria-label={`Arguments of ${call.name}`}>
        {pretty(call.arguments)}
      </pre>
    </div>
  );
}

// The user plays the tool and enters the functions' results.
function Results({ m }: { m: Message }) {
  const page = usePage();
  const [texts, setTexts] = useState(m.toolCalls!.map(() => ""));
  const send = (e: Event) => {
    e.preventDefault();
    page.sendResults(m, texts);
  };
  return (
    <form class="results" onSubmit={send}>
      {m.toolCalls!.map((call, i) => (
        <label key={call.id}>
          Result of {call.name}
          <GrowingText rows={1} value={texts[i]} onInput={(e) => setTexts(texts.map((t, j) => (j === i ? e.currentTarget.value : t)))} />
        </label>
      ))}
      <button type="submit" class="primary">
        Send {texts.length === 1 ? "the result" : "the results"}
      </button>
    </form>
  );
}

const marks: Partial<Record<string, string>> = {
  length: "The answer reached its longest length and was cut. “Longest answer” in the settings allows more.",
  stopped: "Stopped.",
  cut: "The answer was cut off.",
};

function Answer({ m, last }: { m: Message; last: boolean }) {
  const page = usePage();
  const [shades, setShades] = useState(false);
  const [editing, setEditing] = useState(false);
  const writing = m.ending === undefined;
  const { reasoning, answer, thinking } = partsOf(m);
  if (editing) return <Editor m={m} onDone={() => setEditing(false)} />;
  return (
    <>
      {reasoning && <Reasoning text={reasoning} thinking={thinking} />}
      {shades && m.tokens ? <Tokens tokens={m.tokens} /> : <Markdown text={answer} />}
      {m.toolCalls?.map((call) => (
        <Call key={call.id} call={call} />
      ))}
      {last && !writing && m.toolCalls?.length ? <Results m={m} /> : null}
      {m.error ? (
        <p class="failure" role="alert">
          {m.error}
        </p>
      ) : (
        !writing && marks[m.ending!] && <p class={`mark ${m.ending}`}>{marks[m.ending!]}</p>
      )}
      <footer>
        {writing ? (
          <span class="writing">
            <Wheel turns />
            {m.timing ? <TimingLine t={m.timing} /> : "Reading…"}
          </span>
        ) : null}
        {!writing && (
          <>
            <span class="actions">
              <Siblings m={m} />
              <CopyButton text={() => answer} label="Copy the answer" />
              <IconButton
                icon="again"
                label={m.error ? "Try again" : "Another answer"}
                disabled={page.busy}
                onClick={() => page.regenerate(m)}
              />
              <IconButton icon="pencil" label="Edit the answer" onClick={() => setEditing(true)} />
              {m.tokens && (
                <IconButton icon="shades" label="Probabilities as colours" pressed={shades} onClick={() => setShades(!shades)} />
              )}
            </span>
            {m.timing && <TimingLine t={m.timing} />}
          </>
        )}
      </footer>
    </>
  );
}

function Question({ m }: { m: Message }) {
  const [editing, setEditing] = useState(false);
  if (editing) return <Editor m={m} onDone={() => setEditing(false)} />;
  return (
    <>
      <div class="bubble">{m.content}</div>
      <footer>
        <span class="actions">
          <Siblings m={m} />
          <CopyButton text={() => m.content} label="Copy the message" />
          <IconButton icon="pencil" class="edit" label="Edit and ask again" onClick={() => setEditing(true)} />
        </span>
      </footer>
    </>
  );
}

function Result({ m }: { m: Message }) {
  return (
    <div class="call">
      <p>
        <Icon name="tool" /> result
      </p>
      <pre tabIndex={0} role="region" aria-label="Result of the tool">
        {pretty(m.content)}
      </pre>
    </div>
  );
}

export function MessageView({ m, last }: { m: Message; last: boolean }) {
  const who = { user: "You", assistant: m.model ?? "The model", tool: "Tool" }[m.role];
  return (
    <article class={`message ${m.role}`} aria-label={who} aria-busy={m.role === "assistant" && m.ending === undefined}>
      {m.role === "user" ? <Question m={m} /> : m.role === "tool" ? <Result m={m} /> : <Answer m={m} last={last} />}
    </article>
  );
}
