// The client of the server: OpenAI's routes on the page's own origin, and /metrics.

export class ServerError extends Error {
  constructor(
    message: string,
    readonly status: number,
    readonly code: string | undefined,
  ) {
    super(message);
  }
}

export interface ModelInfo {
  id: string;
  maxTokens: number | undefined;
}

async function errorOf(response: Response): Promise<ServerError> {
  const text = await response.text().catch(() => "");
  try {
    const e = JSON.parse(text).error;
    if (typeof e?.message === "string") return new ServerError(e.message, response.status, e.code ?? undefined);
  } catch {
    // not JSON: perhaps a proxy
  }
  return new ServerError(`the server answered ${response.status} ${response.statusText}`.trim(), response.status, undefined);
}

export class Api {
  constructor(private readonly key: () => string) {}

  private async ask(path: string, init: RequestInit = {}): Promise<Response> {
    const headers = new Headers(init.headers);
    if (this.key()) headers.set("Authorization", `Bearer ${this.key()}`);
    let response: Response;
    try {
      response = await fetch(path, { ...init, headers, cache: "no-store" });
    } catch (e) {
      if (init.signal?.aborted) throw e;
      throw new ServerError("the server cannot be reached: is it still running?", 0, "unreachable");
    }
    if (!response.ok) throw await errorOf(response);
    return response;
  }

  async models(): Promise<ModelInfo[]> {
    const list = await (await this.ask("v1/models")).json();
    return (list.data ?? []).map((m: { id: string; max_model_len?: number }) => ({ id: String(m.id), maxTokens: m.max_model_len }));
  }

  async metrics(): Promise<string> {
    return (await this.ask("metrics")).text();
  }

  // The chunks of one streamed answer, as they arrive.
  async *chat(body: object, signal: AbortSignal): AsyncGenerator<Chunk> {
    const init = { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), signal };
    const response = await this.ask("v1/chat/completions", init);
    if (!response.body) throw new ServerError("the server's answer has no body", response.status, undefined);
    let complete = false;
    for await (const data of events(response.body)) {
      if (data === "[DONE]") {
        complete = true;
        break;
      }
      const chunk = JSON.parse(data);
      if (chunk.error) throw new ServerError(String(chunk.error.message ?? "the server failed"), 500, chunk.error.code ?? undefined);
      yield chunk as Chunk;
    }
    if (!complete) throw new ServerError("the connection ended before the answer did", 0, "cut");
  }
}

export interface LogprobEntry {
  token: string;
  logprob: number;
  bytes?: number[] | null;
}

export interface Chunk {
  model?: string;
  choices?: {
    delta?: {
      content?: string | null;
      reasoning_content?: string | null;
      reasoning?: string | null;
      tool_calls?: { index?: number; id?: string; function?: { name?: string; arguments?: string } }[];
    };
    logprobs?: { content?: (LogprobEntry & { top_logprobs?: LogprobEntry[] })[] | null } | null;
    finish_reason?: string | null;
  }[];
  usage?: { prompt_tokens: number; completion_tokens: number; prompt_tokens_details?: { cached_tokens?: number } } | null;
}

// Server-sent events: the data of each, lines joined.
export async function* events(body: ReadableStream<Uint8Array>): AsyncGenerator<string> {
  const reader = body.getReader(),
    decoder = new TextDecoder();
  let rest = "",
    data: string[] = [];
  try {
    for (;;) {
      const { done, value } = await reader.read();
      rest += done ? decoder.decode() : decoder.decode(value, { stream: true });
      const lines = rest.split(/\r\n|\n|\r(?!$)/);
      rest = lines.pop()!;
      for (const line of lines) {
        if (line.startsWith("data:")) data.push(line.slice(line[5] === " " ? 6 : 5));
        else if (line === "" && data.length > 0) {
          yield data.join("\n");
          data = [];
        }
      }
      if (done) break;
    }
    if (data.length > 0) yield data.join("\n");
  } finally {
    reader.cancel().catch(() => {}); // leaving early closes the connection, which cancels the request
  }
}
