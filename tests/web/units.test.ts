// The page's parts that need no browser. What markdown means is CommonMark 0.31's and GitHub's word, not ours.
import assert from "node:assert/strict";
import { test } from "node:test";
import { events } from "../../web/src/api";
import * as tree from "../../web/src/conversation";
import { highlight } from "../../web/src/highlight";
import { parseInline, parseMarkdown, safeHref, type Block, type Inline } from "../../web/src/markdown";
import { groupsOf, momentOf, parseMetrics, quantile, share } from "../../web/src/metrics";
import { Reply } from "../../web/src/reply";
import { defaults, requestFields } from "../../web/src/settings";

// ---- markdown, written the way the specification's examples are

const escape = (s: string) => s.replace(/[&<>"]/g, (c) => `&${{ "&": "amp", "<": "lt", ">": "gt", '"': "quot" }[c]};`);

function inlineHtml(x: Inline): string {
  if (typeof x === "string") return escape(x);
  if (x.kind === "break") return "\n";
  if (x.kind === "code") return `<code>${escape(x.text)}</code>`;
  const inner = x.children.map(inlineHtml).join("");
  return x.kind === "link" ? `<a href="${escape(x.href)}">${inner}</a>` : `<${x.kind}>${inner}</${x.kind}>`;
}

const inline = (text: string) => parseInline(text).map(inlineHtml).join("");

function html(b: Block): string {
  switch (b.kind) {
    case "paragraph":
      return `<p>${inline(b.text)}</p>`;
    case "heading":
      return `<h${b.level}>${inline(b.text)}</h${b.level}>`;
    case "code":
      return `<pre><code${b.language ? ` class="${b.language}"` : ""}>${escape(b.text)}</code></pre>`;
    case "quote":
      return `<blockquote>${b.blocks.map(html).join("")}</blockquote>`;
    case "rule":
      return "<hr>";
    case "table":
      return `<table>${[b.head, ...b.rows].map((row) => `<tr>${row.map((c) => `<td>${inline(c)}</td>`).join("")}</tr>`).join("")}</table>`;
    case "list": {
      const item = (i: (typeof b.items)[0]) =>
        `<li>${i.blocks.map((x) => (x.kind === "paragraph" && !b.loose ? inline(x.text) : html(x))).join("")}</li>`;
      const items = b.items.map(item).join("");
      return b.start === undefined ? `<ul>${items}</ul>` : `<ol${b.start === 1 ? "" : ` start="${b.start}"`}>${items}</ol>`;
    }
  }
}

const page = (text: string) =>
  parseMarkdown(text)
    .map((t) => html(t.block))
    .join("");

const cases: [string, string][] = [
  // emphasis: CommonMark 6.2
  ["*foo bar*", "<p><em>foo bar</em></p>"],
  ["a * foo bar*", "<p>a * foo bar*</p>"],
  ["foo*bar*", "<p>foo<em>bar</em></p>"],
  ["_foo bar_", "<p><em>foo bar</em></p>"],
  ["foo_bar_", "<p>foo_bar_</p>"],
  ["snake_case_name", "<p>snake_case_name</p>"],
  ["**foo bar**", "<p><strong>foo bar</strong></p>"],
  ["** foo bar**", "<p>** foo bar**</p>"],
  ["foo**bar**", "<p>foo<strong>bar</strong></p>"],
  ["__foo__bar__baz__", "<p><strong>foo__bar__baz</strong></p>"],
  ["*foo **bar** baz*", "<p><em>foo <strong>bar</strong> baz</em></p>"],
  ["***foo** bar*", "<p><em><strong>foo</strong> bar</em></p>"],
  ["*foo **bar***", "<p><em>foo <strong>bar</strong></em></p>"],
  ["***foo***", "<p><em><strong>foo</strong></em></p>"],
  ["*foo**bar*", "<p><em>foo**bar</em></p>"],
  ["**foo*", "<p>*<em>foo</em></p>"],
  ["*foo", "<p>*foo</p>"],
  ["2 * 3 * 4", "<p>2 * 3 * 4</p>"],
  ["~~gone~~ and ~kept~", "<p><del>gone</del> and ~kept~</p>"],
  // code spans: 6.1
  ["`foo`", "<p><code>foo</code></p>"],
  ["`` foo ` bar ``", "<p><code>foo ` bar</code></p>"],
  ["` `` `", "<p><code>``</code></p>"],
  ["*foo`*`", "<p>*foo<code>*</code></p>"],
  ["```foo``", "<p>```foo``</p>"],
  // escapes: 2.4
  ["\\*not emphasized\\*", "<p>*not emphasized*</p>"],
  ["\\\\*emphasis*", "<p>\\<em>emphasis</em></p>"],
  ["\\\u00e9", "<p>\\\u00e9</p>"],
  // links: 6.3, autolinks: 6.5 and GitHub's
  ['[link](https://e.org/uri "title")', '<p><a href="https://e.org/uri">link</a></p>'],
  ["[link](<https://e.org/b>)", '<p><a href="https://e.org/b">link</a></p>'],
  ["[link](https://e.org/foo(and(bar)))", "<p>[link](" + '<a href="https://e.org/foo(and(bar))">https://e.org/foo(and(bar))</a>)</p>'],
  ["[link](https://e.org/a(b)c)", '<p><a href="https://e.org/a(b)c">link</a></p>'],
  ["[a *b* `c`](https://e.org)", '<p><a href="https://e.org">a <em>b</em> <code>c</code></a></p>'],
  ["[link] (https://e.org)", '<p>[link] (<a href="https://e.org">https://e.org</a>)</p>'],
  ["<https://e.org/?a=1&b=2>", '<p><a href="https://e.org/?a=1&amp;b=2">https://e.org/?a=1&amp;b=2</a></p>'],
  ["<me@e.org>", '<p><a href="mailto:me@e.org">me@e.org</a></p>'],
  ["see https://e.org/a_b_c.", '<p>see <a href="https://e.org/a_b_c">https://e.org/a_b_c</a>.</p>'],
  ["(https://e.org/x(y))", '<p>(<a href="https://e.org/x(y)">https://e.org/x(y)</a>)</p>'],
  ["![alt](https://e.org/a.png)", '<p><a href="https://e.org/a.png">alt</a></p>'],
  // blocks: 4
  ["# foo", "<h1>foo</h1>"],
  ["#hashtag", "<p>#hashtag</p>"],
  ["## foo ##", "<h2>foo</h2>"],
  ["# foo#", "<h1>foo#</h1>"],
  ["Foo *bar*\n===", "<h1>Foo <em>bar</em></h1>"],
  ["Foo\n---", "<h2>Foo</h2>"],
  ["***", "<hr>"],
  ["- - -", "<hr>"],
  ["--", "<p>--</p>"],
  ["```\n<\n >\n```", "<pre><code>&lt;\n &gt;</code></pre>"],
  ["```ruby startline=3\ndef foo(x)\nend\n```", '<pre><code class="ruby">def foo(x)\nend</code></pre>'],
  ["~~~\naaa\n```\n~~~", "<pre><code>aaa\n```</code></pre>"],
  ["````\naaa\n```\n``````", "<pre><code>aaa\n```</code></pre>"],
  ["```\nopen", "<pre><code>open</code></pre>"],
  ["  ```\n  aaa\naaa\n  ```", "<pre><code>aaa\naaa</code></pre>"],
  ["    a simple\n      code", "<pre><code>a simple\n  code</code></pre>"],
  ["> # Foo\n> bar", "<blockquote><h1>Foo</h1><p>bar</p></blockquote>"],
  ["> a\n\n> b", "<blockquote><p>a</p></blockquote><blockquote><p>b</p></blockquote>"],
  // lists: 5
  ["- foo\n- bar\n+ baz", "<ul><li>foo</li><li>bar</li></ul><ul><li>baz</li></ul>"],
  ["1. foo\n2. bar", "<ol><li>foo</li><li>bar</li></ol>"],
  ["3) foo", '<ol start="3"><li>foo</li></ol>'],
  ["Foo\n- bar\n- baz", "<p>Foo</p><ul><li>bar</li><li>baz</li></ul>"],
  ["The number of windows is\n14. The number of doors is 6.", "<p>The number of windows is\n14. The number of doors is 6.</p>"],
  ["- foo\n  - bar\n    - baz", "<ul><li>foo<ul><li>bar<ul><li>baz</li></ul></li></ul></li></ul>"],
  ["- a\n\n- b", "<ul><li><p>a</p></li><li><p>b</p></li></ul>"],
  ["1. a\n\n   ```\n   code\n   ```\n2. b", "<ol><li>a<pre><code>code</code></pre></li><li>b</li></ol>"],
  ["10) foo\n    - bar", '<ol start="10"><li>foo<ul><li>bar</li></ul></li></ol>'],
  ["-one", "<p>-one</p>"],
  // tables: GitHub's
  ["| foo | bar |\n| --- | --- |\n| baz | bim |", "<table><tr><td>foo</td><td>bar</td></tr><tr><td>baz</td><td>bim</td></tr></table>"],
  ["| f\\|oo |\n| --- |\n| b `\\|` az |", "<table><tr><td>f|oo</td></tr><tr><td>b <code>|</code> az</td></tr></table>"],
  ["| abc | def |\n| --- |\n| bar |", "<p>| abc | def |\n| --- |\n| bar |</p>"],
  [
    "| abc | def |\n| --- | --- |\n| bar |\n| bar | baz | boo |",
    "<table><tr><td>abc</td><td>def</td></tr><tr><td>bar</td><td></td></tr><tr><td>bar</td><td>baz</td></tr></table>",
  ],
  ["a | b\n-|-\n1 | 2\n\nafter", "<table><tr><td>a</td><td>b</td></tr><tr><td>1</td><td>2</td></tr></table><p>after</p>"],
];

for (const [text, expected] of cases) test(`markdown ${JSON.stringify(text)}`, () => assert.equal(page(text), expected));

test("tags stay text", () => {
  assert.equal(
    page("<script>alert(1)</script> <img src=x onerror=alert(1)>"),
    "<p>&lt;script&gt;alert(1)&lt;/script&gt; &lt;img src=x onerror=alert(1)&gt;</p>",
  );
});

test("only harmless addresses", () => {
  for (const good of ["https://e.org", "HTTP://e.org", "mailto:a@e.org"]) assert.equal(safeHref(good), good);
  const bad = [
    "javascript:alert(1)",
    "JaVaScRiPt:alert(1)",
    " javascript:alert(1)",
    "java\nscript:alert(1)",
    "\u0001javascript:alert(1)",
    "data:text/html,x",
    "vbscript:x",
    "file:///etc/passwd",
    "//e.org",
    "/v1/models",
    "#",
    "",
    "blob:https://e.org/1",
    "https:e.org",
    "http:\u0000//e.org",
    "javascript://https://e.org/%0aalert(1)",
  ];
  for (const address of bad) assert.equal(safeHref(address), undefined, JSON.stringify(address));
  for (const address of bad) assert.doesNotMatch(page(`[x](${address}) [y](<${address}>) <${address}>`), /href="(?!https?:\/\/|mailto:)/i);
});

test("hostile code is coloured soon", () => {
  const n = 24_000;
  const texts = [
    "'" + "\\'".repeat(n),
    '"' + '\\"'.repeat(n),
    "`" + "\\`".repeat(n),
    "/*".repeat(n),
    "<!--".repeat(10_000),
    '"""'.repeat(n / 2),
    "'".repeat(2 * n),
    "a".repeat(2 * n),
    "1.".repeat(n),
    "a (".repeat(n / 2),
  ];
  for (const text of texts)
    for (const language of ["", "python", "sql"]) {
      const begin = process.cpuUsage();
      assert.equal(
        highlight(text, language)
          .map(([, piece]) => piece)
          .join(""),
        text,
      );
      assert.ok(process.cpuUsage(begin).user < 2e6, `${language}: ${text.slice(0, 20)}`);
    }
});

test("links and tables are what they were", () => {
  const hrefs = (text: string) => [...page(text).matchAll(/href="([^"]*)"/g)].map((m) => m[1]);
  assert.deepEqual(hrefs("[a](https://e.org/x)"), ["https://e.org/x"]);
  assert.deepEqual(hrefs('[a]( https://e.org/x_(y)z \n "title (1)" )'), ["https://e.org/x_(y)z"]);
  assert.deepEqual(hrefs("[a](<https://e.org/x>  'title')"), ["https://e.org/x"]);
  assert.deepEqual(hrefs("[a]() [b](  ) [c](x/(()) [d](e f)"), []);
  assert.deepEqual(hrefs("see https://e.org/a, (https://e.org/b) and https://?"), ["https://e.org/a", "https://e.org/b"]);
  for (const row of ["-|-", " :-: | --- ", "|---|:-|", "--|--|"]) assert.match(page(`a|b\n${row}\n1|2`), /<table/, row);
  for (const row of ["-|", "|", "", "-|x", "- -|-", "::-|-"]) assert.doesNotMatch(page(`a|b\n${row}\n1|2`), /<table/, row);
});

test("hostile texts end soon, and at a bounded depth", () => {
  const n = 40_000;
  const texts = [
    "[".repeat(n),
    "*a ".repeat(n),
    "**a".repeat(n),
    "*a_".repeat(n),
    "`".repeat(n),
    Array.from({ length: 400 }, (_, i) => "`".repeat(i)).join(" "),
    "![](".repeat(n),
    "[a](".repeat(n),
    '[a](x "'.repeat(n),
    "<".repeat(n),
    "<https://".repeat(n),
    "http://".repeat(n),
    ">".repeat(n),
    "> ".repeat(n),
    "- ".repeat(n),
    "1. ".repeat(n),
    "  ".repeat(n) + "x",
    "|".repeat(n) + "\n" + "-|".repeat(n),
    "a|b\n-|-\n" + "1|2\n".repeat(n),
    "* ".repeat(n) + "x",
    "\\".repeat(n),
    "~~a".repeat(n),
    "_".repeat(n) + "a" + "_".repeat(n),
    "a**b".repeat(n),
    "#".repeat(n),
    "- a\n".repeat(n),
    "\n".repeat(n),
    "- - - ".repeat(n) + "x",
    "-".repeat(n) + "x",
    "https://e.org/" + ")".repeat(n),
    "(".repeat(n) + ")".repeat(n),
    "[a](" + "(".repeat(n),
    "&".repeat(n),
    "\u0000".repeat(n),
    "```\n".repeat(n),
    "[a](" + " ".repeat(n),
    "[a](b" + " ".repeat(n) + "c",
    '[a](b "' + " ".repeat(n),
    "[a](<".repeat(n),
    "[a](" + "(b)".repeat(n),
    "[a](" + "b".repeat(n),
    "http:///".repeat(n),
    "http://?http://#".repeat(n),
    "https://." + ".".repeat(n),
    "~".repeat(n) + "`",
    "`".repeat(n) + " `",
    "```" + " ".repeat(n) + "`",
    "a|b\n" + " ".repeat(n) + "x",
    "a|b\n---" + " ".repeat(n) + "x",
    "a|b\n" + "-".repeat(n) + "x",
    "|".repeat(n) + "\n" + "-|".repeat(n) + "\n" + "|\n".repeat(n),
    "a\n" + "=".repeat(n) + " ".repeat(n) + "x",
    "# " + "#".repeat(n) + "x",
    "# " + " #".repeat(n) + "x",
    "- " + " ".repeat(n) + "x",
    "1. ".repeat(n) + "\n" + "   ".repeat(n),
    "<a@".repeat(n),
    "<" + "a".repeat(n) + "@",
    "*".repeat(n) + "a" + "*".repeat(n),
    "~~~\n" + "~".repeat(n),
  ];
  const depth = (x: Inline): number =>
    typeof x === "object" && "children" in x ? 1 + Math.max(0, ...x.children.slice(0, 1000).map(depth)) : 0;
  const blocks = (b: Block): number =>
    1 +
    Math.max(0, ...(b.kind === "quote" ? b.blocks : b.kind === "list" ? b.items.flatMap((i) => i.blocks).slice(0, 1000) : []).map(blocks));
  for (const text of texts) {
    const begin = process.cpuUsage();
    for (const { block } of parseMarkdown(text)) {
      assert.ok(blocks(block) < 40, text.slice(0, 20));
      if (block.kind === "paragraph") for (const x of parseInline(block.text)) assert.ok(depth(x) < 40, text.slice(0, 20));
    }
    const seconds = process.cpuUsage(begin).user / 1e6;
    assert.ok(seconds < 3, `${text.slice(0, 20)} took ${seconds} s`);
  }
});

test("colours change no letter", () => {
  for (const text of [
    "def f(x):\n  '''doc\n  return \"a\\\"b\" # c",
    "/* open",
    '"open',
    "a `b ${c} d",
    "<!-- x -->",
    "\u00e9\u{1f600} = 0x1f",
  ])
    for (const language of ["python", "c", "sql", "", "text"])
      assert.equal(
        highlight(text, language)
          .map(([, piece]) => piece)
          .join(""),
        text,
      );
  assert.deepEqual(highlight("# a comment", "python"), [["comment", "# a comment"]]);
  assert.deepEqual(highlight("return 1", "c"), [
    ["word", "return"],
    ["", " "],
    ["number", "1"],
  ]);
});

// ---- conversations

test("an edit is a branch, and both stay", () => {
  const c = tree.newConversation("Be kind.");
  const q = tree.addMessage(c, null, "user", "one");
  const a = tree.addMessage(c, q.id, "assistant", "first");
  const other = tree.addMessage(c, null, "user", "two");
  assert.deepEqual(
    tree.pathOf(c).map((m) => m.content),
    ["two"],
  );
  tree.choose(c, q);
  assert.deepEqual(
    tree.pathOf(c).map((m) => m.content),
    ["one", "first"],
  );
  tree.addMessage(c, q.id, "assistant", "second");
  assert.deepEqual(
    tree.pathOf(c).map((m) => m.content),
    ["one", "second"],
  );
  assert.deepEqual(
    tree.childrenOf(c, q.id).map((m) => m.content),
    ["first", "second"],
  );
  tree.choose(c, a);
  assert.deepEqual(tree.requestMessages(c, tree.pathOf(c)), [
    { role: "system", content: "Be kind." },
    { role: "user", content: "one" },
    { role: "assistant", content: "first" },
  ]);
  tree.removeMessage(c, q);
  assert.deepEqual(Object.keys(c.messages), [other.id]);
  assert.equal(c.title, "one");
});

test("reasoning is kept apart and not sent back", () => {
  assert.deepEqual(tree.partsOf({ content: "<think>\nhm\n</think>\n\nyes", ending: "stop" }), {
    reasoning: "hm",
    answer: "yes",
    thinking: false,
  });
  assert.deepEqual(tree.partsOf({ content: "hm</think>yes", ending: "stop" }), { reasoning: "hm", answer: "yes", thinking: false });
  assert.deepEqual(tree.partsOf({ content: "<think>hm" }), { reasoning: "hm", answer: "", thinking: true });
  assert.deepEqual(tree.partsOf({ content: "yes", reasoning: "hm" }), { reasoning: "hm", answer: "yes", thinking: false });
  assert.deepEqual(tree.partsOf({ content: "no thoughts" }), { reasoning: "", answer: "no thoughts", thinking: false });
  const c = tree.newConversation("");
  const q = tree.addMessage(c, null, "user", "?");
  tree.addMessage(c, q.id, "assistant", "<think>secret</think>yes");
  assert.deepEqual(tree.requestMessages(c, tree.pathOf(c))[1], { role: "assistant", content: "yes" });
});

test("what is exported is imported, and nothing else", () => {
  const c = tree.newConversation("s");
  const q = tree.addMessage(c, null, "user", "one");
  tree.addMessage(c, q.id, "assistant", "first").ending = "stop";
  q.ending = "stop";
  assert.deepEqual(tree.readExport(tree.exportText([c])), [c]);
  const file = (conversation: unknown) => JSON.stringify({ kind: tree.fileKind, conversations: [conversation] });
  const id = "00000000-0000",
    other = "00000000-0001";
  const refused: [string, RegExp][] = [
    ["{", /no JSON/],
    ["[]", /no conversations/],
    ['{"kind":"other","conversations":[]}', /no conversations/],
    [file(null), /no messages/],
    [file({ messages: { [id]: 1 } }), /no object/],
    [file({ messages: { [id]: { role: "root" } } }), /role "root"/],
    [file({ messages: { [id]: { role: "user", parent: id } } }), /no tree/],
    [file({ messages: { [id]: { role: "user", parent: "toString" } } }), /no tree/],
    [file({ messages: { [id]: { role: "user", parent: other }, [other]: { role: "user", parent: id } } }), /no tree/],
    ['{"kind":"millrace-conversations","conversations":[{"messages":{"__proto__":{"role":"user"}}}]}', /id "__proto__"/],
  ];
  for (const [text, sentence] of refused) assert.throws(() => tree.readExport(text), sentence, text);
  const odd = tree.readExport(
    file({
      title: { html: 1 },
      messages: { [id]: { role: "assistant", content: ["x"], timing: { tokens: "9" }, tokens: [{ text: 1, top: 2 }], extra: 1 } },
    }),
  )[0];
  assert.equal(odd.title, "");
  assert.deepEqual(Object.keys(odd.messages[id]).sort(), ["content", "created", "ending", "id", "parent", "role", "timing", "tokens"]);
  assert.deepEqual(odd.messages[id].tokens, [{ text: "", logprob: 0, top: [] }]);
});

// ---- the stream

async function eventsOf(...chunks: (string | Uint8Array)[]): Promise<string[]> {
  const bytes = chunks.map((c) => (typeof c === "string" ? new TextEncoder().encode(c) : c));
  const stream = new ReadableStream<Uint8Array>({
    start(control) {
      bytes.forEach((b) => control.enqueue(b));
      control.close();
    },
  });
  const out: string[] = [];
  for await (const data of events(stream)) out.push(data);
  return out;
}

test("events, however the bytes were cut", async () => {
  const whole = 'data: {"a":"\u00e9\u{1f600}"}\r\n\r\n: comment\nevent: x\ndata: one\ndata: two\n\ndata:[DONE]\n\n';
  const expected = ['{"a":"\u00e9\u{1f600}"}', "one\ntwo", "[DONE]"];
  const bytes = new TextEncoder().encode(whole);
  assert.deepEqual(await eventsOf(bytes), expected);
  assert.deepEqual(await eventsOf(...Array.from(bytes, (b) => new Uint8Array([b]))), expected);
  for (let cut = 1; cut < bytes.length; cut++) assert.deepEqual(await eventsOf(bytes.slice(0, cut), bytes.slice(cut)), expected);
});

test("an answer grows by its chunks", () => {
  const c = tree.newConversation("");
  const m = tree.addMessage(c, null, "assistant", "");
  const reply = new Reply(m);
  reply.add({ choices: [{ delta: { content: "" } }] });
  assert.equal(m.timing, undefined);
  reply.add({ choices: [{ delta: { reasoning_content: "hm" } }] });
  reply.add({
    choices: [
      { delta: { content: "caf" }, logprobs: { content: [{ token: "caf", logprob: -0.5, bytes: [99, 97, 102], top_logprobs: [] }] } },
    ],
  });
  reply.add({ choices: [{ delta: { content: "" }, logprobs: { content: [{ token: "\ufffd", logprob: -1, bytes: [0xc3] }] } }] });
  reply.add({ choices: [{ delta: { content: "\u00e9" }, logprobs: { content: [{ token: "\ufffd", logprob: -0.1, bytes: [0xa9] }] } }] });
  reply.add({ choices: [{ delta: { tool_calls: [{ index: 0, id: "c1", function: { name: "f", arguments: '{"x":' } }] } }] });
  reply.add({ choices: [{ delta: { tool_calls: [{ index: 0, function: { arguments: "1}" } }] }, finish_reason: "tool_calls" }] });
  reply.add({ choices: [], usage: { prompt_tokens: 9, completion_tokens: 7, prompt_tokens_details: { cached_tokens: 4 } } });
  reply.end("stop");
  assert.equal(m.content, "caf\u00e9");
  assert.equal(m.reasoning, "hm");
  assert.deepEqual(
    m.tokens!.map((t) => t.text),
    ["caf", "", "\u00e9"],
  );
  assert.deepEqual(m.toolCalls, [{ id: "c1", name: "f", arguments: '{"x":1}' }]);
  assert.equal(m.ending, "tool_calls");
  assert.equal(m.timing!.tokens, 7);
  assert.equal(m.timing!.exact, true);
  assert.equal(m.timing!.cachedTokens, 4);
});

test("empty settings are not sent", () => {
  const empty = { ...defaults, temperature: "", min_p: "" };
  assert.deepEqual(requestFields(empty), {});
  assert.deepEqual(
    requestFields({ ...empty, temperature: "0", seed: "7", stop: "END\n\nSTOP", logprobs: true, tools: '[{"type":"function"}]' }),
    { temperature: 0, seed: 7, stop: ["END", "STOP"], tools: [{ type: "function" }], logprobs: true, top_logprobs: 5 },
  );
  assert.throws(() => requestFields({ ...defaults, tools: "{" }), /tools are no JSON/);
});

// ---- metrics: numbers worked out by hand

const before = parseMetrics(`# HELP millrace_x y
millrace_generation_tokens_total 100
millrace_engine_bytes_total 1e9
millrace_engine_flops_total 5e9
millrace_engine_prefill_seconds_total 1
millrace_engine_decode_seconds_total 2
millrace_ttft_bucket{le="0.1"} 10
millrace_ttft_bucket{le="0.2"} 10
millrace_ttft_bucket{le="+Inf"} 10
`);
const after = parseMetrics(`millrace_generation_tokens_total 300
millrace_engine_bytes_total 3e9
millrace_engine_flops_total 6e9
millrace_engine_prefill_seconds_total 1.5
millrace_engine_decode_seconds_total 3
millrace_num_requests_running 2
millrace_num_requests_waiting{reason="memory"} 3
millrace_num_requests_waiting{reason="batch"} 0
millrace_state_units{group="0",kind="paged",window="512"} 64
millrace_state_units{group="1",kind="slot",window="0"} 8
millrace_state_units_used{group="0"} 16
millrace_state_units_used{group="1"} 2
millrace_state_units_cached{group="0"} 5
millrace_ttft_bucket{le="0.1"} 11
millrace_ttft_bucket{le="0.2"} 14
millrace_ttft_bucket{le="+Inf"} 14
millrace_hits_total 5
millrace_asked_total 20
`);

test("two readings make a moment", () => {
  const m = momentOf(after, before, 0, 2);
  assert.equal(m.generated, 100);
  assert.equal(m.bytes, 1e9);
  assert.equal(m.flops, 5e8);
  assert.equal(m.busy, 0.75);
  assert.equal(m.running, 2);
  assert.deepEqual(m.waiting, [["memory", 3]]);
  assert.equal(momentOf(before, after, 0, 2).generated, undefined); // counters that fell: another server
  assert.equal(momentOf(new Map(), before, 0, 1).busy, undefined);
});

test("quantiles, shares and groups", () => {
  // Of the four since then, one is under 0.1 and three between 0.1 and 0.2: the median is the second, a third of the way.
  assert.ok(Math.abs(quantile(after, before, "ttft", 0.5)! - (0.1 + 0.1 / 3)) < 1e-12);
  assert.equal(quantile(after, after, "ttft", 0.5), undefined);
  assert.equal(quantile(after, before, "none", 0.5), undefined);
  assert.equal(share(after, before, "hits_total", "asked_total"), 0.25);
  assert.equal(share(after, after, "hits_total", "asked_total"), undefined);
  assert.deepEqual(groupsOf(after), [
    { name: "pages, window of 512", units: 64, used: 16, cached: 5 },
    { name: "recurrent slots", units: 8, used: 2, cached: 0 },
  ]);
});
