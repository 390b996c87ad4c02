// The conversation and the message box.
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { partsOf, pathOf, type Message } from "./conversation";
import { spokenBlocks } from "./markdown_view";
import { MessageView } from "./message";
import { GrowingText, Icon, memo, usePage, Wheel } from "./ui";

const ideas = [
  "Explain what limits the speed of a language model",
  "Write a limerick about a water wheel",
  "Give me three names for a grey cat",
  "Write a function that reverses a string",
];

// Announces blocks of the newest answer to screen readers, each once it is complete.
function Announcer({ m }: { m: Message | undefined }) {
  const writing = m?.role === "assistant" && m.ending === undefined;
  const [seen, setSeen] = useState<string>(); // the answer whose streaming was seen
  useEffect(() => {
    if (writing) setSeen(m.id);
  }, [writing, m?.id]);
  let lines: string[] = [];
  if (m && seen === m.id) {
    lines = spokenBlocks(partsOf(m).answer);
    if (writing) lines = lines.slice(0, -1);
    else
      lines.push(
        m.error
          ? ""
          : m.ending === "length"
            ? "The answer was cut: it reached its longest length."
            : m.ending === "stopped"
              ? "Stopped."
              : "The answer is complete.",
      );
  }
  return (
    <div class="hidden" aria-live="polite" aria-relevant="additions">
      {lines.map((line, i) => (
        <p key={i}>{line}</p>
      ))}
    </div>
  );
}

// Scrolls with the end while the reader is there, and stops when they scroll up.
function useFollowing(path: Message[], id: string) {
  const box = useRef<HTMLDivElement>(null);
  const follows = useRef(true);
  const onScroll = () => {
    const b = box.current!;
    follows.current = b.scrollHeight - b.scrollTop - b.clientHeight < 60;
  };
  useLayoutEffect(() => {
    follows.current = true;
  }, [id, path.length]);
  useLayoutEffect(() => {
    const b = box.current;
    if (b && follows.current) b.scrollTop = b.scrollHeight;
  });
  return { box, onScroll };
}

function Welcome() {
  const page = usePage();
  return (
    <div class="welcome">
      <Wheel />
      <h1>What shall we talk about?</h1>
      <p>
        {page.model ? (
          <>
            You are talking to <strong>{page.model.id}</strong>, on this machine's own time.
          </>
        ) : (
          " "
        )}
      </p>
      <ul>
        {ideas.map((idea) => (
          <li key={idea}>
            <button type="button" disabled={!page.model} onClick={() => page.send(idea)}>
              {idea}
            </button>
          </li>
        ))}
      </ul>
    </div>
  );
}

function Composer() {
  const page = usePage();
  const { id } = page.current;
  const text = page.drafts.get(id) ?? "";
  const [, again] = useState(0);
  const setText = (draft: string) => {
    page.drafts.set(id, draft);
    again((n) => n + 1);
  };
  const area = useRef<HTMLTextAreaElement>(null);
  useEffect(() => area.current!.focus({ preventScroll: true }), [id]);
  const send = () => {
    const text = area.current!.value; // the state may be a rendering behind what was typed
    if (!text.trim() || page.busy || !page.model) return;
    setText("");
    page.send(text);
  };
  const key = (e: KeyboardEvent) => {
    if (e.key === "Enter" && !e.shiftKey && !e.ctrlKey && !e.metaKey && !e.isComposing) {
      e.preventDefault();
      send();
    } else if (e.key === "ArrowUp" && text === "") {
      const edits = document.querySelectorAll<HTMLButtonElement>(".message.user .edit");
      if (edits.length === 0) return;
      e.preventDefault();
      edits[edits.length - 1].click();
    }
  };
  const submit = (e: Event) => {
    e.preventDefault();
    send();
  };
  return (
    <form class="composer" onSubmit={submit}>
      <div class="box">
        <GrowingText
          id="message"
          areaRef={area}
          rows={1}
          value={text}
          aria-label="Message"
          placeholder={page.model ? `Message ${page.model.id}` : "Message"}
          onInput={(e) => setText(e.currentTarget.value)}
          onKeyDown={key}
        />
        {page.busy ? (
          <button type="button" class="send stop" aria-label="Stop" title="Stop (Esc)" onClick={() => page.stop()}>
            <span />
          </button>
        ) : (
          <button type="submit" class="send" aria-label="Send" title="Send (Enter)" disabled={!text.trim() || !page.model}>
            <Icon name="send" />
          </button>
        )}
      </div>
      <p class="hint">
        <kbd>Enter</kbd> sends, <kbd>Shift</kbd>+<kbd>Enter</kbd> begins a new line. Models make mistakes.
      </p>
    </form>
  );
}

// A complete message is rendered again only if its siblings or the surrounding state changed.
const Shown = memo(
  ({ m, last }: { m: Message; last: boolean; mark: string }) => <MessageView m={m} last={last} />,
  ({ m, last, mark }) => (m.ending === undefined && m.role === "assistant" ? {} : `${m.id} ${m.ending} ${m.error} ${last} ${mark}`),
);

export function Chat({ onSystem }: { onSystem: () => void }) {
  const page = usePage();
  const c = page.current;
  const path = pathOf(c);
  const { box, onScroll } = useFollowing(path, c.id);
  const mark = `${page.busy} ${Object.keys(c.messages).length}`;
  return (
    <main class="chat" id="main">
      {path.length > 0 && <h1 class="hidden">{c.title}</h1>}
      <div class="scroller" ref={box} onScroll={onScroll} tabIndex={0} role="region" aria-label="Conversation">
        {c.system && (
          <button type="button" class="system" title="Change the system prompt" onClick={onSystem}>
            <span>System</span> {c.system}
          </button>
        )}
        {path.length === 0 ? (
          <Welcome />
        ) : (
          <div class="messages">
            {path.map((m, i) => (
              <Shown key={m.id} m={m} last={i === path.length - 1} mark={mark} />
            ))}
          </div>
        )}
      </div>
      <Composer />
      <Announcer m={path.at(-1)} />
    </main>
  );
}
