// Bundles the page: src/ and index.html to four plain files. The same source and the same pinned tools give the same bytes.
//   node build.mjs [OUT]      writes them (to dist/, which is committed for builds without node)
//   node build.mjs --check    fails if dist/ is not what the source gives, or if the page grew too large
import { build } from "esbuild";
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const maxBytes = 120 * 1024;

async function bundle() {
  const result = await build({
    absWorkingDir: here,
    entryPoints: ["src/app.tsx", "src/style.css"],
    outdir: "dist",
    bundle: true,
    minify: true,
    write: false,
    format: "iife",
    target: ["chrome123", "firefox121", "safari17.5"],
    jsx: "automatic",
    jsxImportSource: "preact",
    legalComments: "none",
    charset: "utf8",
    banner: { js: "/* millrace, Apache-2.0. Holds Preact, MIT, (c) 2015-present Jason Miller. */" },
  });
  const files = new Map(result.outputFiles.map((f) => [f.path.split(/[\\/]/).pop(), Buffer.from(f.contents)]));
  for (const name of ["index.html", "icon.svg"]) files.set(name, readFileSync(join(here, "src", name)));
  return files;
}

const files = await bundle();
const total = [...files.values()].reduce((n, bytes) => n + bytes.length, 0);
if (total > maxBytes) throw new Error(`the page has ${total} bytes, more than ${maxBytes}`);
if (process.argv[2] === "--check") {
  for (const [name, bytes] of files)
    if (!bytes.equals(readFileSync(join(here, "dist", name)))) throw new Error(`web/dist/${name} is not what web/src gives: run npm run build in web/`);
  console.log(`web/dist is what web/src gives: ${total} bytes`);
} else {
  const out = process.argv[2] ?? join(here, "dist");
  mkdirSync(out, { recursive: true });
  for (const [name, bytes] of files) writeFileSync(join(out, name), bytes);
  console.log(`${out}: ${total} bytes`);
}
