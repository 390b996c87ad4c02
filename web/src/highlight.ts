// Syntax highlighting without a grammar per language: comments, strings, numbers, and common keywords.

export type Shade = "comment" | "string" | "number" | "word" | "call" | "";

const hashComments =
  /^(py|python|sh|bash|zsh|shell|console|rb|ruby|yaml|yml|toml|make|makefile|dockerfile|cmake|perl|pl|r|jl|julia|ini|conf|elixir|nix)$/;
const dashComments = /^(sql|lua|haskell|hs|elm|ada)$/;
const noColours = /^(text|txt|plain|plaintext|markdown|md|csv|log|output|diff)$/;

const words = new Set(
  (
    "abstract and as assert async await auto bool boolean break byte case catch char class const constexpr continue def default del delete do double " +
    "elif else elsif end enum except export extends extern false False final finally float fn for from func function go goto if impl implements import " +
    "in inline instanceof int interface is lambda let long loop match mod module mut namespace new nil None not null nullptr operator or override package " +
    "pass private protected pub public raise ref return self short signed sizeof static string struct super switch template then this throw trait true " +
    "True try type typedef typename typeof undefined union unsafe unsigned use using var virtual void volatile where while with yield " +
    "SELECT FROM WHERE INSERT INTO VALUES UPDATE SET DELETE CREATE TABLE JOIN LEFT RIGHT INNER ON GROUP BY ORDER LIMIT AND OR NOT NULL AS " +
    "echo fi done esac export local sudo"
  ).split(" "),
);

function patternFor(language: string): RegExp {
  const line = hashComments.test(language)
    ? "#[^\\n]*"
    : dashComments.test(language)
      ? "--[^\\n]*"
      : "\\/\\/[^\\n]*|\\/\\*[^]*?(?:\\*\\/|$)|<!--[^]*?(?:-->|$)";
  const string = `"""[^]*?(?:"""|$)|"(?:[^"\\\\\\n]|\\\\.)*"?|'(?:[^'\\\\\\n]|\\\\.){0,200}'|\`(?:[^\`\\\\]|\\\\.)*\`?`;
  return new RegExp(`(${line})|(${string})|(\\b\\d[\\w.]*)|([A-Za-z_$][\\w$]*)(?=([ ]?\\()?)|[^]`, "g");
}

export function highlight(text: string, language: string): [Shade, string][] {
  const out: [Shade, string][] = [];
  const add = (shade: Shade, piece: string) => {
    const last = out[out.length - 1];
    if (last && last[0] === shade) last[1] += piece;
    else out.push([shade, piece]);
  };
  const name = language.toLowerCase();
  if (noColours.test(name) || text.length > 50_000) return [["", text]];
  for (const m of text.matchAll(patternFor(name))) {
    if (m[1] !== undefined) add("comment", m[0]);
    else if (m[2] !== undefined) add("string", m[0]);
    else if (m[3] !== undefined) add("number", m[0]);
    else if (m[4] !== undefined) add(words.has(m[0]) ? "word" : m[5] !== undefined ? "call" : "", m[0]);
    else add("", m[0]);
  }
  return out;
}
