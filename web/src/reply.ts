// Applies the chunks of a streamed answer to its message.
import type { Chunk, LogprobEntry } from "./api";
import type { Ending, Message, Token } from "./conversation";

export class Reply {
  private readonly sent = performance.now();
  private first: number | undefined; // ms, of the first chunk with content
  private last = 0;
  private pieces = 0;
  private usage: Chunk["usage"];
  private decoder = new TextDecoder();

  constructor(private readonly m: Message) {}

  add(chunk: Chunk) {
    if (chunk.model) this.m.model = chunk.model;
    if (chunk.usage) this.usage = chunk.usage;
    const choice = chunk.choices?.[0];
    if (choice) {
      const delta = choice.delta ?? {};
      const reasoning = delta.reasoning_content ?? delta.reasoning ?? "";
      if (reasoning) this.m.reasoning = (this.m.reasoning ?? "") + reasoning;
      if (delta.content) this.m.content += delta.content;
      for (const call of delta.tool_calls ?? []) this.addCall(call);
      const tokens = choice.logprobs?.content ?? [];
      for (const entry of tokens) this.addToken(entry);
      if (delta.content || reasoning || delta.tool_calls || tokens.length > 0) this.count(Math.max(1, tokens.length));
      if (choice.finish_reason) this.m.ending = endingOf(choice.finish_reason);
    }
    this.measure();
  }

  end(how: Ending) {
    this.m.ending ??= how;
    this.measure();
  }

  private count(n: number) {
    const now = performance.now();
    this.first ??= now;
    this.last = now;
    this.pieces += n;
  }

  private addCall(call: { index?: number; id?: string; function?: { name?: string; arguments?: string } }) {
    const calls = (this.m.toolCalls ??= []);
    const at = Math.min(call.index ?? calls.length, calls.length);
    const known = (calls[at] ??= { id: call.id ?? "", name: "", arguments: "" });
    known.name += call.function?.name ?? "";
    known.arguments += call.function?.arguments ?? "";
  }

  // A token may be part of a character: its bytes are kept until the rest arrives.
  private addToken(entry: LogprobEntry & { top_logprobs?: LogprobEntry[] }) {
    const text = entry.bytes ? this.decoder.decode(new Uint8Array(entry.bytes), { stream: true }) : entry.token;
    const top = (entry.top_logprobs ?? []).map((t) => ({ text: t.token, logprob: t.logprob }));
    (this.m.tokens ??= []).push({ text, logprob: entry.logprob, top } satisfies Token);
  }

  private measure() {
    if (this.first === undefined) return;
    const tokens = this.usage?.completion_tokens ?? this.pieces;
    const seconds = (this.last - this.first) / 1000;
    this.m.timing = {
      firstToken: (this.first - this.sent) / 1000,
      perSecond: tokens > 1 && seconds > 0 ? (tokens - 1) / seconds : undefined,
      tokens,
      exact: this.usage != null,
      promptTokens: this.usage?.prompt_tokens,
      cachedTokens: this.usage?.prompt_tokens_details?.cached_tokens,
    };
  }
}

function endingOf(reason: string): Ending {
  return reason === "length" || reason === "tool_calls" ? reason : "stop";
}
