// User settings. An empty field is not sent: the server's default applies.

export interface Field {
  name: keyof Settings & keyof Body;
  label: string;
  hint: string;
  min?: number;
  max?: number;
  step: number;
}

// As in requests.
interface Body {
  temperature: number;
  top_p: number;
  top_k: number;
  min_p: number;
  max_tokens: number;
  seed: number;
  repetition_penalty: number;
  frequency_penalty: number;
  presence_penalty: number;
}

export interface Settings {
  model: string;
  system: string; // of new conversations
  temperature: string;
  top_p: string;
  top_k: string;
  min_p: string;
  max_tokens: string;
  seed: string;
  repetition_penalty: string;
  frequency_penalty: string;
  presence_penalty: string;
  stop: string; // one a line
  tools: string; // JSON
  logprobs: boolean;
  theme: "auto" | "light" | "dark";
}

// Less random than the API's defaults, the model's plain distribution.
export const defaults: Settings = {
  model: "",
  system: "",
  temperature: "0.7",
  top_p: "",
  top_k: "",
  min_p: "0.05",
  max_tokens: "",
  seed: "",
  repetition_penalty: "",
  frequency_penalty: "",
  presence_penalty: "",
  stop: "",
  tools: "",
  logprobs: false,
  theme: "auto",
};

export const fields: Field[] = [
  { name: "temperature", label: "Temperature", hint: "0 always takes the likeliest token", min: 0, max: 100, step: 0.1 },
  { name: "max_tokens", label: "Longest answer", hint: "tokens", min: 1, step: 1 },
  { name: "top_p", label: "Top p", hint: "the likeliest tokens that together have this probability", min: 0, max: 1, step: 0.05 },
  { name: "top_k", label: "Top k", hint: "the k likeliest tokens; 0 takes all", min: -1, step: 1 },
  { name: "min_p", label: "Min p", hint: "share of the likeliest token's probability", min: 0, max: 1, step: 0.01 },
  { name: "seed", label: "Seed", hint: "the same seed gives the same answer", step: 1 },
  { name: "repetition_penalty", label: "Repetition penalty", hint: "1 is none", min: 0, step: 0.05 },
  { name: "frequency_penalty", label: "Frequency penalty", hint: "for each time a token was used", min: -2, max: 2, step: 0.1 },
  { name: "presence_penalty", label: "Presence penalty", hint: "for tokens that were used", min: -2, max: 2, step: 0.1 },
];

export function parseTools(text: string): object[] {
  if (!text.trim()) return [];
  let tools: unknown;
  try {
    tools = JSON.parse(text);
  } catch (e) {
    throw new Error(`the tools are no JSON: ${(e as Error).message}`);
  }
  if (!Array.isArray(tools)) throw new Error("the tools must be a list");
  return tools;
}

// The server validates ranges and types; its errors name the field.
export function requestFields(s: Settings): Record<string, unknown> {
  const body: Record<string, unknown> = {};
  for (const { name } of fields) if (s[name].trim() !== "") body[name] = Number(s[name]);
  const stop = s.stop.split("\n").filter((line) => line !== "");
  if (stop.length > 0) body.stop = stop;
  const tools = parseTools(s.tools);
  if (tools.length > 0) body.tools = tools;
  if (s.logprobs) Object.assign(body, { logprobs: true, top_logprobs: 5 });
  return body;
}

const key = "millrace.settings";

export function loadSettings(): Settings {
  const out = { ...defaults };
  try {
    const stored = JSON.parse(localStorage.getItem(key) ?? "{}");
    for (const name of Object.keys(defaults) as (keyof Settings)[])
      if (typeof stored[name] === typeof defaults[name]) (out[name] as unknown) = stored[name];
  } catch {
    // storage is blocked or invalid: use the defaults
  }
  return out;
}

export function saveSettings(s: Settings) {
  try {
    localStorage.setItem(key, JSON.stringify(s));
  } catch {
    // kept until the page closes
  }
}
