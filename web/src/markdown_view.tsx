// Markdown as elements. Texts become text nodes and addresses are checked, so an answer cannot inject markup.
import type { ComponentChildren, VNode } from "preact";
import { useMemo } from "preact/hooks";
import { highlight } from "./highlight";
import { parseInline, parseMarkdown, type Block, type Inline, type TopBlock } from "./markdown";
import { CopyButton, memo } from "./ui";

const maxRows = 300; // rendered of a table
const maxItems = 2000; // of a list

function inlineView(x: Inline, key: number): ComponentChildren {
  if (typeof x === "string") return x;
  switch (x.kind) {
    case "strong":
      return <strong key={key}>{x.children.map(inlineView)}</strong>;
    case "em":
      return <em key={key}>{x.children.map(inlineView)}</em>;
    case "del":
      return <del key={key}>{x.children.map(inlineView)}</del>;
    case "code":
      return <code key={key}>{x.text}</code>;
    case "break":
      return <br key={key} />;
    case "link":
      return (
        <a key={key} href={x.href} target="_blank" rel="noopener noreferrer nofollow">
          {x.children.map(inlineView)}
        </a>
      );
  }
}

const Inlines = ({ text }: { text: string }) => <>{parseInline(text).map(inlineView)}</>;

const CodeBlock = memo(
  ({ language, text }: { language: string; text: string }) => (
    <figure class="code">
      <figcaption>
        <span>{language || "code"}</span>
        <CopyButton text={() => text} label="Copy code" />
      </figcaption>
      <pre tabIndex={0} role="region" aria-label={`Code${language ? `, ${language}` : ""}`}>
        <code>
          {highlight(text, language).map(([shade, piece], i) =>
            shade ? (
              <span key={i} class={`c-${shade}`}>
                {piece}
              </span>
            ) : (
              piece
            ),
          )}
        </code>
      </pre>
    </figure>
  ),
  (p) => p.language + "\n" + p.text,
);

function TableView({ block }: { block: Block & { kind: "table" } }) {
  const more = block.rows.length - maxRows;
  return (
    <div class="table" tabIndex={0} role="region" aria-label="Table">
      <table>
        <thead>
          <tr>
            {block.head.map((cell, i) => (
              <th key={i} scope="col" class={block.align[i]}>
                <Inlines text={cell} />
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {block.rows.slice(0, maxRows).map((row, r) => (
            <tr key={r}>
              {row.map((cell, i) => (
                <td key={i} class={block.align[i]}>
                  <Inlines text={cell} />
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
      {more > 0 && (
        <p class="more">
          {more} more {more === 1 ? "row is" : "rows are"} not drawn; copying the answer takes them along.
        </p>
      )}
    </div>
  );
}

function ListView({ block }: { block: Block & { kind: "list" } }) {
  const more = block.items.length - maxItems;
  const items = block.items.slice(0, maxItems).map((item, i) => (
    <li key={i} class={item.checked === undefined ? undefined : "task"}>
      {item.checked !== undefined && <input type="checkbox" checked={item.checked} disabled aria-label={item.checked ? "Done" : "To do"} />}
      {item.blocks.map((b, j) =>
        b.kind === "paragraph" && !block.loose ? <Inlines key={j} text={b.text} /> : <BlockView key={j} block={b} />,
      )}
    </li>
  ));
  if (more > 0)
    items.push(
      <li key="more" class="more">
        {more} more are not drawn; copying the answer takes them along.
      </li>,
    );
  return block.start === undefined ? <ul>{items}</ul> : <ol start={block.start}>{items}</ol>;
}

function BlockView({ block }: { block: Block }): VNode {
  switch (block.kind) {
    case "paragraph":
      return (
        <p>
          <Inlines text={block.text} />
        </p>
      );
    case "code":
      return <CodeBlock language={block.language} text={block.text} />;
    case "quote":
      return (
        <blockquote>
          {block.blocks.map((b, i) => (
            <BlockView key={i} block={b} />
          ))}
        </blockquote>
      );
    case "list":
      return <ListView block={block} />;
    case "table":
      return <TableView block={block} />;
    case "rule":
      return <hr />;
    case "heading": {
      const Level = `h${Math.min(6, block.level + 1)}` as "h2"; // h1 is the page's
      return (
        <Level class={`size-${block.level}`}>
          <Inlines text={block.text} />
        </Level>
      );
    }
  }
}

const TopView = memo(
  ({ top }: { top: TopBlock }) => <BlockView block={top.block} />,
  (p) => p.top.source,
);

export function Markdown({ text }: { text: string }) {
  const blocks = useMemo(() => parseMarkdown(text), [text]);
  return (
    <div class="markdown">
      {blocks.map((top, i) => (
        <TopView key={i} top={top} />
      ))}
    </div>
  );
}

// For screen readers: one line for each complete block.
export function spokenBlocks(text: string): string[] {
  return parseMarkdown(text).map(({ block, source }) => {
    if (block.kind === "code") return `Code, ${block.text.split("\n").length} lines.`;
    if (block.kind === "table") return `Table, ${block.rows.length} rows.`;
    return source.replace(/[*_`#>|~]+/g, " ").trim();
  });
}
