// An answer's tokens, coloured by probability; alternatives on hover or by the arrow keys.
import { useRef, useState } from "preact/hooks";
import type { Token } from "./conversation";

const percent = (logprob: number) => {
  const p = 100 * Math.exp(logprob);
  return p >= 99.95 ? "100 %" : p >= 10 ? `${p.toFixed(0)} %` : p >= 0.1 ? `${p.toFixed(1)} %` : "< 0.1 %";
};

// 0: certain … 7: under 2 %. Steps of half a nat at first, wider later.
const shadeOf = (logprob: number) => [0.05, 0.2, 0.5, 1, 1.7, 2.6, 4].findIndex((bound) => -logprob < bound);
const shadeClass = (logprob: number) => `p${shadeOf(logprob) < 0 ? 7 : shadeOf(logprob)}`;

const visible = (text: string) => (text === "" ? "∅" : text.replace(/\n/g, "⏎").replace(/ /g, "␣").replace(/\t/g, "⇥"));

function Alternatives({ token }: { token: Token }) {
  const rows = token.top.some((t) => t.text === token.text) ? token.top : [token, ...token.top];
  return (
    <div class="alternatives" role="status">
      {rows.map((t, i) => (
        <div key={i} class={t.text === token.text ? "row taken" : "row"}>
          <code>{visible(t.text)}</code>
          <svg viewBox="0 0 100 4" preserveAspectRatio="none" aria-hidden="true">
            <rect width={100 * Math.exp(t.logprob)} height="4" rx="1" />
          </svg>
          <span>{percent(t.logprob)}</span>
        </div>
      ))}
    </div>
  );
}

export function Tokens({ tokens }: { tokens: Token[] }) {
  const [at, setAt] = useState(-1);
  const box = useRef<HTMLDivElement>(null);
  const move = (e: KeyboardEvent) => {
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 10, ArrowUp: -10 }[e.key];
    if (step === undefined) return;
    e.preventDefault();
    const next = Math.max(0, Math.min(tokens.length - 1, at + step));
    setAt(next);
    box.current!.querySelectorAll("span.token")[next]?.scrollIntoView({ block: "nearest" });
  };
  const hover = (e: Event) => {
    const index = (e.target as HTMLElement).dataset.i;
    if (index !== undefined) setAt(Number(index));
  };
  return (
    <div class="probabilities">
      <div
        ref={box}
        class="tokens"
        tabIndex={0}
        role="group"
        aria-label="Tokens by probability; arrow keys go from one to the next"
        onKeyDown={move}
        onMouseOver={hover}
        onClick={hover}
      >
        {tokens.map((t, i) => (
          <span key={i} data-i={i} class={`token ${shadeClass(t.logprob)}${i === at ? " at" : ""}`}>
            {t.text === "" ? "·" : t.text}
          </span>
        ))}
      </div>
      <div class="beside">
        {at >= 0 && tokens[at] ? (
          <Alternatives token={tokens[at]} />
        ) : (
          <p class="hint">Point at a token to see what else it could have been.</p>
        )}
        <div class="scale" aria-hidden="true">
          <span>sure</span>
          {Array.from({ length: 8 }, (_, i) => (
            <i key={i} class={`p${i}`} />
          ))}
          <span>surprised</span>
        </div>
      </div>
    </div>
  );
}
