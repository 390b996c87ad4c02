// Small shared components.
import { Component, createContext, type ComponentChildren, type TextareaHTMLAttributes, type VNode } from "preact";
import { useContext, useEffect, useLayoutEffect, useReducer, useRef, useState } from "preact/hooks";
import type { Page } from "./page";

export const PageContext = createContext<Page>(undefined as unknown as Page);
export const usePage = () => useContext(PageContext);

// Re-renders the component when the page's state changes. Subscribes before the first frame is drawn: an effect runs after it,
// and the server or the store may have answered by then.
export function useChanges(page: Page) {
  const [, again] = useReducer((n: number, _: void) => n + 1, 0);
  useLayoutEffect(() => page.subscribe(() => again()), [page]);
}

// A component that is re-rendered only if `key` changes.
export function memo<P extends object>(view: (props: P) => VNode | null, key: (props: P) => unknown) {
  return class extends Component<P> {
    private drawn: unknown = key(this.props as P);
    shouldComponentUpdate(next: P) {
      const now = key(next);
      if (now === this.drawn) return false;
      this.drawn = now;
      return true;
    }
    render() {
      return view(this.props as P);
    }
  };
}

const paths = {
  menu: "M4 7h16M4 12h16M4 17h10",
  plus: "M12 5v14M5 12h14",
  send: "M12 19V5M6 11l6-6 6 6",
  copy: "M9 9h10v11H9zM5 15V4h10",
  check: "M5 13l4 4L19 7",
  again: "M20 11a8 8 0 1 0-2.3 6.3M20 5v6h-6",
  pencil: "M4 20h4L19 9l-4-4L4 16zM13 7l4 4",
  trash: "M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13",
  left: "M14 6l-6 6 6 6",
  right: "M10 6l6 6-6 6",
  sliders: "M4 8h10M18 8h2M4 16h2M10 16h10M16 5.8v4.4M8 13.8v4.4",
  help: "M9.5 9.5a2.5 2.5 0 1 1 3.6 2.2c-.8.4-1.1.9-1.1 1.8M12 17h.01M12 3a9 9 0 1 1 0 18 9 9 0 0 1 0-18z",
  sun: "M12 8a4 4 0 1 1 0 8 4 4 0 0 1 0-8zM12 2v2M12 20v2M2 12h2M20 12h2M5 5l1.4 1.4M17.6 17.6L19 19M5 19l1.4-1.4M17.6 6.4L19 5",
  moon: "M20 14A8.5 8.5 0 0 1 10 4a8.5 8.5 0 1 0 10 10z",
  save: "M12 4v11M7 11l5 5 5-5M5 20h14",
  shades: "M4 6h5v5H4zM10 6h10v5H10zM4 13h9v5H4zM14 13h6v5h-6z",
  close: "M6 6l12 12M18 6L6 18",
  tool: "M14 6a4 4 0 0 1 5-1l-3 3 2 2 3-3a4 4 0 0 1-6 5l-7 8-3-3 8-7a4 4 0 0 1 1-4z",
  chevron: "M9 6l6 6-6 6",
};

export type IconName = keyof typeof paths;

export function Icon({ name }: { name: IconName }) {
  return (
    <svg class="icon" viewBox="0 0 24 24" aria-hidden="true">
      <path d={paths[name]} />
    </svg>
  );
}

// The mill wheel: the logo, and the busy indicator when it turns.
export function Wheel({ turns = false }: { turns?: boolean }) {
  const paddles = Array.from({ length: 8 }, (_, i) => <path key={i} d="M12 3.8l1.3-2.6" transform={`rotate(${45 * i} 12 10)`} />);
  return (
    <svg class={turns ? "wheel turns" : "wheel"} viewBox="0 0 24 24" aria-hidden="true">
      <g class="turning">
        <circle cx="12" cy="10" r="6.2" />
        <path d="M12 3.8v12.4M5.8 10h12.4" />
        {paddles}
        <circle cx="12" cy="10" r="1.6" class="hub" />
      </g>
      <path class="water" d="M1 21.4c1.8-1.8 3.7-1.8 5.5 0s3.7 1.8 5.5 0 3.7-1.8 5.5 0 3.7 1.8 5.5 0" />
    </svg>
  );
}

interface ButtonProps {
  icon: IconName;
  label: string;
  onClick: (e: MouseEvent) => void;
  pressed?: boolean;
  disabled?: boolean;
  class?: string;
  expanded?: boolean;
}

export function IconButton({ icon, label, onClick, pressed, disabled, expanded, ...rest }: ButtonProps) {
  return (
    <button
      type="button"
      class={`icon-button ${rest.class ?? ""}`}
      aria-label={label}
      title={label}
      aria-pressed={pressed}
      aria-expanded={expanded}
      disabled={disabled}
      onClick={onClick}
    >
      <Icon name={icon} />
    </button>
  );
}

export function CopyButton({ text, label }: { text: () => string; label: string }) {
  const [copied, setCopied] = useState(false);
  const copy = async () => {
    await copyText(text());
    setCopied(true);
    setTimeout(() => setCopied(false), 1500);
  };
  return <IconButton icon={copied ? "check" : "copy"} label={copied ? "Copied" : label} onClick={() => void copy()} />;
}

// The clipboard API is not available over plain HTTP from another machine.
async function copyText(text: string) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = document.createElement("textarea");
    area.value = text;
    (document.querySelector("dialog[open]") ?? document.body).append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
}

interface DialogProps {
  title: string;
  class?: string;
  onClose: () => void;
  children: ComponentChildren;
}

// Modal: the browser traps the focus, Escape and a click outside close it, and the focus is restored.
export function Dialog({ title, onClose, children, ...rest }: DialogProps) {
  const ref = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    const before = document.activeElement as HTMLElement | null;
    ref.current!.showModal();
    (ref.current!.querySelector<HTMLElement>("[data-first]") ?? ref.current!.querySelector("h2")!).focus();
    return () => before?.focus();
  }, []);
  const outside = (e: MouseEvent) => e.target === ref.current && onClose();
  return (
    <dialog ref={ref} class={rest.class} aria-label={title} onClose={onClose} onMouseDown={outside}>
      <div class="dialog-body">
        <header>
          <h2 tabIndex={-1}>{title}</h2>
          <IconButton icon="close" label="Close" onClick={onClose} />
        </header>
        {children}
      </div>
    </dialog>
  );
}

export function saveFile(name: string, text: string) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

// A text area that grows with its text.
export function GrowingText({
  areaRef,
  ...props
}: TextareaHTMLAttributes<HTMLTextAreaElement> & { areaRef?: { current: HTMLTextAreaElement | null } }) {
  const own = useRef<HTMLTextAreaElement>(null);
  const ref = areaRef ?? own;
  useEffect(() => {
    const area = ref.current!;
    area.style.height = "auto";
    area.style.height = `${area.scrollHeight}px`;
  }, [props.value]);
  return <textarea {...props} ref={ref} />;
}
