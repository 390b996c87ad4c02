// The page while it is being changed: rebuilt for every visit, everything else goes to a server that runs.
//   node dev.mjs [http://127.0.0.1:8000] [PORT]
import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { createServer, request } from "node:http";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const behind = new URL(process.argv[2] ?? "http://127.0.0.1:8000");
const types = { "/index.html": "text/html; charset=utf-8", "/app.js": "text/javascript; charset=utf-8", "/style.css": "text/css; charset=utf-8", "/icon.svg": "image/svg+xml" };
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

createServer((asked, answer) => {
  const path = asked.url === "/" ? "/index.html" : asked.url;
  if (path in types) {
    if (path === "/index.html") execFileSync(process.execPath, [join(here, "build.mjs")], { stdio: "inherit" });
    answer.writeHead(200, { "Content-Type": types[path], "Content-Security-Policy": policy, "Cache-Control": "no-store" });
    return answer.end(readFileSync(join(here, "dist", path)));
  }
  const on = request({ host: behind.hostname, port: behind.port, path: asked.url, method: asked.method, headers: asked.headers }, (found) => {
    answer.writeHead(found.statusCode, found.headers);
    found.pipe(answer);
  });
  on.on("error", () => answer.destroy());
  answer.on("close", () => on.destroy());
  asked.pipe(on);
}).listen(Number(process.argv[3] ?? 5173), "127.0.0.1", function () {
  console.log(`http://127.0.0.1:${this.address().port}`);
});
