"""The server driven by OpenAI's own Python client. Only the loopback is used, and every wait is bounded.

Run by ctest with the program's path in MILLRACE and the client installed beside the interpreter; the default model must be in
the cache folder, as ./test puts it there.
"""

import concurrent.futures
import json
import math
import pathlib
import signal
import socket
import subprocess
import tempfile
import time
import unittest

import openai
from prometheus_client.parser import text_string_to_metric_families

from millrace_server import FIXTURES, NAME, PROGRAM, Server

EXPECTED = json.loads((FIXTURES / "smollm2" / "expected.json").read_text())
# Its tokens lead by 0.39 logits and more, so that activations of 16 bits, on a GPU, choose them too.
PLANET = EXPECTED["prompts"][3]
# Log-probabilities beside the oracle's: with f32 activations, or on a GPU, where they are bf16.
NEAR = 0.1 if pathlib.Path("/dev/nvidiactl").exists() else 0.02
TINY = json.loads((FIXTURES / "llama_gqa" / "expected.json").read_text())


class WithServer(unittest.TestCase):
    ARGS = []

    @classmethod
    def setUpClass(cls):
        cls.server = Server(*cls.ARGS)
        cls.client = cls.server.client

    @classmethod
    def tearDownClass(cls):
        status = cls.server.stop()
        assert status == 0, status


def generate(*args):
    out = subprocess.run([PROGRAM, "generate", *map(str, args), "--deterministic", "--json"], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                         timeout=300)
    assert out.returncode == 0, out.stderr
    return json.loads(out.stdout)


class DefaultModel(WithServer):
    ARGS = ["--deterministic"]  # on a GPU too, answers must not depend on the batch or the cache

    def chat(self, **more):
        return self.client.chat.completions.create(model=NAME, messages=PLANET["messages"], **{"temperature": 0, **more})

    def complete(self, prompt, **more):
        return self.client.completions.create(model=NAME, prompt=prompt, **more)

    def test_models(self):
        self.assertEqual([m.id for m in self.client.models.list()], [NAME])
        self.assertEqual(self.client.models.retrieve(NAME).id, NAME)
        with self.assertRaises(openai.NotFoundError):
            self.client.models.retrieve("abacus")

    def test_chat_answers_as_the_oracle_does(self):
        answer = self.chat()
        self.assertEqual(answer.object, "chat.completion")
        self.assertEqual(answer.choices[0].message.content, PLANET["answer"])
        self.assertEqual(answer.choices[0].message.role, "assistant")
        self.assertEqual(answer.choices[0].finish_reason, "stop")
        self.assertEqual(answer.usage.prompt_tokens, len(PLANET["prompt"]))
        self.assertEqual(answer.usage.completion_tokens, len(PLANET["greedy"]))
        self.assertEqual(answer.usage.total_tokens, len(PLANET["prompt"]) + len(PLANET["greedy"]))

    def test_chat_stream(self):
        chunks = list(self.chat(stream=True, stream_options={"include_usage": True}))
        self.assertEqual({c.object for c in chunks}, {"chat.completion.chunk"})
        self.assertEqual(len({c.id for c in chunks}), 1)
        self.assertEqual(chunks[0].choices[0].delta.role, "assistant")
        self.assertEqual("".join(c.choices[0].delta.content or "" for c in chunks if c.choices), PLANET["answer"])
        self.assertEqual([c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason], ["stop"])
        self.assertEqual(chunks[-1].choices, [])
        self.assertEqual(chunks[-1].usage.completion_tokens, len(PLANET["greedy"]))
        self.assertGreater(len(chunks), 5)

    def test_parts_of_content_are_joined(self):
        parts = [{"type": "text", "text": "Which planet is "}, {"type": "text", "text": "closest to the Sun?"}]
        messages = [PLANET["messages"][0], {"role": "user", "content": parts}]
        answer = self.client.chat.completions.create(model=NAME, messages=messages, temperature=0)
        self.assertEqual(answer.choices[0].message.content, PLANET["answer"])

    def test_chat_logprobs(self):
        whole = self.chat(logprobs=True, top_logprobs=3).choices[0].logprobs.content
        self.assertEqual(len(whole), len(PLANET["greedy"]))
        for entry in whole:
            self.assertEqual(len(entry.top_logprobs), 3)
            self.assertEqual((entry.token, entry.logprob), (entry.top_logprobs[0].token, entry.top_logprobs[0].logprob))
            self.assertEqual(bytes(entry.bytes).decode(), entry.token)
        streamed = []
        for chunk in self.chat(logprobs=True, top_logprobs=3, stream=True):
            if chunk.choices[0].logprobs:
                streamed += chunk.choices[0].logprobs.content
        self.assertEqual(streamed, whole)

    def test_seeds_give_what_generate_gives(self):
        expected = generate("-p", "Once upon a time", "--seed", 7, "-n", 3, "--max-tokens", 12, "--temperature", 1.2, "--top-k", 50)["choices"]
        ask = dict(seed=7, n=3, max_tokens=12, temperature=1.2, logprobs=0, extra_body={"top_k": 50})
        first, again = self.complete("Once upon a time", **ask), self.complete("Once upon a time", **ask)
        other = self.complete("Once upon a time", **{**ask, "seed": 8})
        self.assertEqual([c.text for c in first.choices], [c["text"] for c in expected])
        self.assertEqual([c.logprobs.token_logprobs for c in first.choices], [c["logprobs"] for c in expected])
        self.assertEqual(first.choices, again.choices)
        self.assertNotEqual([c.text for c in first.choices], [c.text for c in other.choices])
        self.assertEqual(len({c.text for c in first.choices}), 3)
        texts = ["", "", ""]
        for chunk in self.complete("Once upon a time", stream=True, **ask):
            texts[chunk.choices[0].index] += chunk.choices[0].text
        self.assertEqual(texts, [c.text for c in first.choices])

    def test_lists_of_prompts_and_token_ids(self):
        prompts = ["The mill by the river", "Once upon a time", "One, two, three,"]
        ask = dict(temperature=0, max_tokens=8)
        alone = [self.complete(p, **ask).choices[0].text for p in prompts]
        together = self.complete(prompts, **ask)
        self.assertEqual([c.index for c in together.choices], [0, 1, 2])
        self.assertEqual([c.text for c in together.choices], alone)
        ids = [self.server.json("POST", "/tokenize", {"prompt": p})[1]["tokens"] for p in prompts]
        self.assertEqual([c.text for c in self.complete(ids, **ask).choices], alone)
        self.assertEqual(self.complete(ids[0], **ask).choices[0].text, alone[0])
        self.assertEqual(together.usage.prompt_tokens, sum(map(len, ids)))

    def test_echo_scores_the_prompt_as_the_oracle_does(self):
        page = EXPECTED["page"]
        tokens = page["tokens"][:48]
        answer = self.complete(tokens, echo=True, logprobs=1, max_tokens=0).choices[0]
        self.assertEqual(answer.finish_reason, "length")
        got = answer.logprobs.token_logprobs
        self.assertEqual(len(got), len(tokens))
        self.assertIsNone(got[0])
        oracle = [x for x in page["logprobs"] if x is not None][: len(tokens) - 1]
        for mine, theirs in zip(got[1:], oracle, strict=True):
            self.assertAlmostEqual(mine, theirs, delta=NEAR)
        self.assertEqual("".join(answer.logprobs.tokens), answer.text)
        for offset, token in zip(answer.logprobs.text_offset, answer.logprobs.tokens):
            self.assertTrue(answer.text[offset:].startswith(token))
        plain = self.complete("The mill by the river", temperature=0, max_tokens=6).choices[0].text
        self.assertEqual(self.complete("The mill by the river", temperature=0, max_tokens=6, echo=True).choices[0].text, "The mill by the river" + plain)
        streamed = self.complete("The mill by the river", temperature=0, max_tokens=6, echo=True, stream=True)
        self.assertEqual("".join(c.choices[0].text for c in streamed), "The mill by the river" + plain)

    def test_stop_and_length(self):
        self.assertEqual(self.chat(stop="Sun is Ve").choices[0].message.content, "The closest planet to the ")
        self.assertEqual(self.chat(stop=["never", " to"]).choices[0].message.content, "The closest planet")
        self.assertEqual("".join(c.choices[0].delta.content or "" for c in self.chat(stop="Sun is Ve", stream=True)), "The closest planet to the ")
        short = self.chat(max_completion_tokens=3)
        self.assertEqual((short.choices[0].finish_reason, short.usage.completion_tokens), ("length", 3))
        self.assertEqual(self.chat(max_tokens=3).choices[0].message.content, short.choices[0].message.content)

    def test_biases_reach_the_sampler(self):
        banned = self.chat(logit_bias={str(PLANET["greedy"][0]): -100}, max_tokens=4).choices[0].message.content
        self.assertFalse(banned.startswith("The"), banned)

    def test_tokenize_and_back(self):
        self.assertEqual(self.server.json("POST", "/tokenize", {"messages": PLANET["messages"]})[1]["tokens"], PLANET["prompt"])
        self.assertEqual(self.server.json("POST", "/detokenize", {"tokens": PLANET["prompt"]})[1]["prompt"], PLANET["text"])

    def test_a_crowd_gets_the_bits_of_one_alone(self):
        asks = [dict(prompt=EXPECTED["page"]["tokens"][i : i + 5 + 7 * i], seed=i, max_tokens=6 + i, temperature=1.0, logprobs=2) for i in range(10)]

        def ask(a):
            return self.client.completions.create(model=NAME, **a).choices

        alone = [ask(a) for a in asks]
        with concurrent.futures.ThreadPoolExecutor(10) as pool:
            self.assertEqual(list(pool.map(ask, asks)), alone)

    def test_wrong_requests_name_the_field(self):
        for more, param in [({"temperature": -1}, "temperature"), ({"n": 0}, "n"), ({"top_p": 2}, "top_p"), ({"stop": [""]}, None),
                            ({"max_tokens": -5}, "max_tokens"), ({"seed": "x"}, "seed")]:
            with self.assertRaises(openai.BadRequestError) as caught:
                self.chat(**more)
            if param:
                self.assertEqual(caught.exception.param, param)
            self.assertEqual(caught.exception.type, "invalid_request_error")
        with self.assertRaises(openai.BadRequestError) as caught:
            self.chat(tools=[Tools.TOOL])  # its template does not support them
        self.assertEqual(caught.exception.param, "tools")
        self.assertIn("--tools-in-system-prompt", str(caught.exception))
        with self.assertRaises(openai.NotFoundError) as caught:
            self.client.chat.completions.create(model="abacus", messages=PLANET["messages"])
        self.assertEqual(caught.exception.code, "model_not_found")
        with self.assertRaises(openai.BadRequestError) as caught:
            self.complete([1] * 9000)
        self.assertEqual(caught.exception.code, "context_length_exceeded")


class Tools(WithServer):
    """The template renders the last message only. Decoded greedily, the model continues its lines, which are calls, with another call."""

    TOOL = {"type": "function", "function": {"name": "get_weather", "description": "Says the weather.", "parameters": {"type": "object"}}}

    @classmethod
    def setUpClass(cls):
        with tempfile.NamedTemporaryFile("w", suffix=".jinja") as template:
            template.write("{{ messages[-1].content }}")
            template.flush()
            cls.ARGS = ["--chat-template", template.name, "--tools-in-system-prompt"]
            super().setUpClass()

    def ask(self, line, **more):
        more = {"tools": [self.TOOL], "temperature": 0, "max_tokens": 60, "stop": "\n", **more}
        return self.client.chat.completions.create(model=NAME, messages=[{"role": "user", "content": (line + "\n") * 6}], **more)

    def check(self, line, arguments):
        said = self.ask(line, tools=[]).choices[0]
        self.assertEqual((said.message.content, said.finish_reason), (line, "stop"))  # the model does write it
        choice = self.ask(line).choices[0]
        self.assertEqual((choice.finish_reason, choice.message.content), ("tool_calls", None))
        [call] = choice.message.tool_calls
        self.assertEqual((call.type, call.function.name, json.loads(call.function.arguments)), ("function", "get_weather", arguments))
        chunks = [c.choices[0] for c in self.ask(line, stream=True)]
        [[call]] = [c.delta.tool_calls for c in chunks if c.delta.tool_calls]
        self.assertEqual((call.index, call.type, call.function.name, json.loads(call.function.arguments)), (0, "function", "get_weather", arguments))
        self.assertEqual((chunks[0].delta.role, chunks[-1].finish_reason), ("assistant", "tool_calls"))
        self.assertEqual("".join(c.delta.content or "" for c in chunks), "")
        self.assertEqual(self.ask(line, tool_choice="none").choices[0].message, said.message)

    def test_calls_come_back(self):
        self.check('<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>', {"city": "Paris"})
        self.check('{"name": "get_weather", "parameters": {"city": "Paris", "days": 3}}', {"city": "Paris", "days": 3})
        self.check('[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Rome"}}]', {"city": "Rome"})

    def test_what_cannot_be_promised_is_refused(self):
        for choice in ["required", {"type": "function", "function": {"name": "get_weather"}}]:
            with self.assertRaises(openai.BadRequestError) as caught:
                self.ask("x", tool_choice=choice)
            self.assertEqual(caught.exception.param, "tool_choice")
        with self.assertRaises(openai.BadRequestError) as caught:
            self.ask("x", tools=[{"type": "function", "function": {}}])
        self.assertEqual(caught.exception.param, "tools[0].function.name")

    def test_templates_without_a_place_for_them(self):
        def prompt_of(messages):
            tokens = self.server.json("POST", "/tokenize", {"messages": messages, "tools": [self.TOOL]})[1]["tokens"]
            return self.server.json("POST", "/detokenize", {"tokens": tokens})[1]["prompt"]

        question, call = {"role": "user", "content": "And in Rome?"}, {"type": "function", "id": "1", "function": {"name": "get_weather", "arguments": "{\"a\": 1}"}}
        self.assertEqual(prompt_of([question]), "And in Rome?")  # the template renders no system prompt either
        self.assertEqual(prompt_of([question, {"role": "assistant", "tool_calls": [call]}]),
                         '<tool_call>\n{"name":"get_weather","arguments":{"a":1}}\n</tool_call>')
        self.assertEqual(prompt_of([question, {"role": "tool", "content": "21"}]), "<tool_response>\n21\n</tool_response>")


class Tiny(WithServer):
    """Without a tokenizer, on every endpoint."""

    ARGS = [FIXTURES / "llama_gqa", "--served-model-name", "tiny/model", "--max-body", 4096, "--allow-origin", "http://page.example"]

    def test_token_ids_as_the_oracle_continues_them(self):
        answer = self.client.completions.create(
            model="tiny/model", prompt=TINY["prompt"], temperature=0, max_tokens=len(TINY["greedy"]), logprobs=0, extra_body={"ignore_eos": True})
        self.assertEqual([int(t.split(":")[1]) for t in answer.choices[0].logprobs.tokens], TINY["greedy"])
        self.assertEqual(answer.choices[0].token_ids, TINY["greedy"])
        ask = {"model": "tiny/model", "prompt": TINY["prompt"], "temperature": 0, "max_tokens": len(TINY["greedy"]), "extra_body": {"ignore_eos": True}}
        self.assertEqual(self.client.completions.create(echo=True, **ask).choices[0].token_ids, TINY["prompt"] + TINY["greedy"])
        streamed = [c.choices[0].token_ids for c in self.client.completions.create(stream=True, **ask)]
        self.assertEqual(sum(streamed, []), TINY["greedy"])
        self.assertEqual(self.client.models.retrieve("tiny/model").id, "tiny/model")

    def test_doors(self):
        status = lambda *args: self.server.raw(*args)[0].status
        self.assertEqual(status("GET", "/health"), 200)
        self.assertEqual(status("GET", "/ready"), 200)
        self.assertEqual(status("GET", "/nowhere"), 404)
        self.assertEqual(status("POST", "/health"), 405)
        response, body = self.server.raw("GET", "/v1/completions")
        self.assertEqual((response.status, response.getheader("Allow")), (405, "POST"))
        self.assertEqual(set(json.loads(body)["error"]), {"message", "type", "param", "code"})
        for broken in [b"", b"{", b"[]", b"\xff\xfe", b"[" * 3000, b'{"prompt":[1],"n":1e99}', b'{"prompt":' + b"[" * 100 + b"]" * 100 + b"}"]:
            response, body = self.server.raw("POST", "/v1/completions", broken)
            self.assertEqual(response.status, 400, broken)
            self.assertIn("message", json.loads(body)["error"])
        response, body = self.server.raw("POST", "/v1/completions", b" " * 5000)
        self.assertEqual(response.status, 413)
        self.assertIn("4096", json.loads(body)["error"]["message"])

    def test_what_is_no_http_is_refused(self):
        for words in [b"\x00\x01\x02\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/1.1\r\nX: " + b"y" * 40000 + b"\r\n\r\n", b"POST /tokenize HTTP/1.1\r\nContent-Length: -4\r\n\r\n"]:
            with socket.create_connection(("127.0.0.1", self.server.port), timeout=20) as s:
                s.sendall(words)
                self.assertRegex(s.recv(4096), rb"^HTTP/1.1 4\d\d ")
        self.assertEqual(self.server.raw("GET", "/health")[0].status, 200)

    def test_connections_are_kept_and_requests_may_follow_each_other(self):
        with socket.create_connection(("127.0.0.1", self.server.port), timeout=20) as s:
            s.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n" * 3 + b"GET /health HTTP/1.1\r\nConnection: close\r\n\r\n")
            data = b""
            while part := s.recv(4096):
                data += part
        self.assertEqual(data.count(b"HTTP/1.1 200 OK"), 4)

    def test_origins(self):
        ask = lambda origin: self.server.raw("GET", "/v1/models", headers={"Origin": origin})[0].getheader("Access-Control-Allow-Origin")
        self.assertEqual(ask("http://page.example"), "http://page.example")
        self.assertIsNone(ask("http://other.example"))
        response, _ = self.server.raw("OPTIONS", "/v1/completions", headers={"Origin": "http://page.example"})
        self.assertEqual(response.status, 204)

    def test_metrics(self):
        self.server.wait_for(lambda: self.server.metric("num_requests_running") == 0)
        before = self.server.metric("generation_tokens_total"), self.server.metric("e2e_request_latency_seconds_count")
        self.client.completions.create(model="tiny/model", prompt=[1, 2, 3], max_tokens=5, extra_body={"ignore_eos": True})
        self.server.wait_for(lambda: self.server.metric("e2e_request_latency_seconds_count") == before[1] + 1)
        self.server.wait_for(lambda: self.server.metric("generation_tokens_total") == before[0] + 5)
        self.assertEqual(self.server.metric("num_requests_waiting"), 0)

    def test_metrics_are_what_prometheus_reads(self):
        response, text = self.server.raw("GET", "/metrics")
        self.assertEqual(response.getheader("Content-Type"), "text/plain; version=0.0.4; charset=utf-8")
        families = list(text_string_to_metric_families(text.decode()))
        self.assertEqual(len({family.name for family in families}), len(families))
        self.assertEqual({family.type for family in families}, {"gauge", "counter", "histogram"})
        for family in families:
            self.assertRegex(family.name, "^millrace_")
            self.assertTrue(family.documentation and family.samples, family)
            self.assertTrue(all(math.isfinite(sample.value) and sample.value >= 0 for sample in family.samples), family)
            if family.type == "histogram":
                buckets = [(float(s.labels["le"]), s.value) for s in family.samples if s.name == family.name + "_bucket"]
                self.assertEqual(buckets, sorted(buckets), family)
                self.assertEqual({s.name: s.value for s in family.samples}[family.name + "_count"], dict(buckets)[math.inf])


class Key(WithServer):
    ARGS = [FIXTURES / "llama_gqa", "--api-key", "open sesame"]

    def test_it_is_asked_for(self):
        self.assertEqual([m.id for m in self.server.new_client("open sesame").models.list()], ["llama_gqa"])
        for wrong in ["x", "open sesam", "open sesame!"]:
            with self.assertRaises(openai.AuthenticationError):
                self.server.new_client(wrong).models.list()
        for path in ["/v1/models", "/metrics", "/nowhere"]:
            self.assertEqual(self.server.raw("GET", path)[0].status, 401)
        for path in ["/health", "/ready"]:
            self.assertEqual(self.server.raw("GET", path)[0].status, 200)


LONG = dict(model=NAME, prompt="Once upon a time", max_tokens=6000, temperature=1, stream=True, extra_body={"ignore_eos": True})


class Crowded(WithServer):
    ARGS = ["--max-seqs", 1, "--max-queue", 1]

    def test_a_full_queue_and_hang_ups(self):
        running = self.client.completions.create(**LONG)
        next(iter(running))  # it has its first token: it is no longer in the queue
        waiting = self.server.new_client().completions.create(**LONG)
        self.server.wait_for(lambda: self.server.metric('num_requests_waiting{reason="sequences"}') == 1)
        self.assertEqual(self.server.metric("num_requests_waiting"), 1)
        with self.assertRaises(openai.RateLimitError) as caught:
            self.client.completions.create(model=NAME, prompt="x", max_tokens=1)
        self.assertGreaterEqual(int(caught.exception.response.headers["retry-after"]), 1)
        self.assertEqual(self.server.raw("GET", "/ready")[0].status, 200)

        aborted = 'request_success_total{finished_reason="abort"}'
        before = self.server.metric(aborted)
        waiting.close()
        self.server.wait_for(lambda: self.server.metric(aborted) == before + 1)
        running.close()
        self.server.wait_for(lambda: self.server.metric(aborted) == before + 2)
        self.server.wait_for(lambda: self.server.metric("num_requests_running") == 0 and self.server.metric("kv_cache_usage_ratio") == 0)
        self.assertEqual(self.client.completions.create(model=NAME, prompt="x", max_tokens=1).usage.completion_tokens, 1)

    def test_a_client_that_waits_for_a_whole_answer_may_leave_too(self):
        aborted = 'request_success_total{finished_reason="abort"}'
        before = self.server.metric(aborted)
        body = json.dumps({"prompt": "Once upon a time", "max_tokens": 6000, "ignore_eos": True}).encode()
        with socket.create_connection(("127.0.0.1", self.server.port)) as s:
            s.sendall(b"POST /v1/completions HTTP/1.1\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
            self.server.wait_for(lambda: self.server.metric("num_requests_running") == 1)
        self.server.wait_for(lambda: self.server.metric(aborted) == before + 1)


class CrowdedWithTokens(WithServer):
    ARGS = ["--max-seqs", 1, "--max-queue-tokens", 10]

    def test_the_queue_is_bounded_in_tokens_too(self):
        running = self.client.completions.create(**LONG)
        next(iter(running))
        waiting = self.client.completions.create(**{**LONG, "prompt": [1] * 8})
        self.server.wait_for(lambda: self.server.metric("num_tokens_waiting") == 8)
        with self.assertRaises(openai.RateLimitError):
            self.client.completions.create(**{**LONG, "prompt": [1] * 3})
        small = self.client.completions.create(**{**LONG, "prompt": [1] * 2})
        self.server.wait_for(lambda: self.server.metric("num_tokens_waiting") == 10)
        for stream in [small, waiting, running]:
            stream.close()
        self.server.wait_for(lambda: self.server.metric("num_tokens_waiting") == 0)
        large = self.client.completions.create(model=NAME, prompt=[1] * 30, max_tokens=1)  # an empty queue accepts any request
        self.assertEqual(large.usage.prompt_tokens, 30)


class Drain(unittest.TestCase):
    def test_what_runs_is_finished(self):
        server = Server("--drain-seconds", 300)
        stream = server.client.completions.create(**{**LONG, "max_tokens": 1000})  # takes seconds: the rest happens while it runs
        chunks = [next(iter(stream))]
        server.process.send_signal(signal.SIGTERM)
        server.wait_for(lambda: server.raw("GET", "/ready")[0].status == 503)
        with self.assertRaises(openai.InternalServerError) as caught:
            server.client.completions.create(model=NAME, prompt="x")
        self.assertEqual(caught.exception.status_code, 503)
        chunks += list(stream)
        self.assertEqual(chunks[-1].choices[0].finish_reason, "length")
        self.assertEqual(server.stop(), 0)

    def test_the_deadline_ends_what_does_not_end(self):
        server = Server("--drain-seconds", 1)
        stream = server.client.completions.create(**LONG)
        next(iter(stream))
        server.process.send_signal(signal.SIGTERM)
        with self.assertRaises(openai.APIError):
            list(stream)
        self.assertEqual(server.stop(), 0)

    def test_an_idle_server_goes_at_once(self):
        for number in [signal.SIGTERM, signal.SIGINT]:
            server = Server(FIXTURES / "llama_gqa", "--drain-seconds", 600)
            server.process.send_signal(number)
            self.assertEqual(server.stop(), 0)  # which waits for a minute


class Starting(unittest.TestCase):
    def start(self, tokenizer):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        model = pathlib.Path(folder.name)
        for name in ["config.json", "model.safetensors"]:
            (model / name).symlink_to(FIXTURES / "llama_gqa" / name)
        (model / "tokenizer.json").write_text(json.dumps(tokenizer))
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        process = subprocess.Popen([PROGRAM, "serve", model, "--port", str(self.port), "--log-level", "off"], stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.stderr.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def test_a_signal_ends_it(self):
        """Every added token takes the normalizer milliseconds, and there are many of them."""
        added = [{"id": 3 + i, "content": "a" * 980 + f"dc{i}", "special": False, "normalized": True} for i in range(40000)]
        process = self.start({"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}, "added_tokens": added,
                              "normalizer": {"type": "Replace", "pattern": {"Regex": "a*(?=c)"}, "content": ""}})
        client = openai.OpenAI(base_url=f"http://127.0.0.1:{self.port}/v1", api_key="none", max_retries=0, timeout=20)
        end = time.time() + 60
        while True:
            try:
                client.models.list()
            except openai.APIConnectionError:
                self.assertLess(time.time(), end)
                time.sleep(0.02)
            except openai.InternalServerError as error:
                self.assertEqual((error.status_code, error.code, error.response.headers["retry-after"]), (503, "loading", "1"))
                break
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(60), 0)

    def test_a_model_that_cannot_be_loaded_is_one_sentence(self):
        process = self.start({})
        self.assertEqual(process.wait(60), 1)
        self.assertEqual(len(process.stderr.read().strip().splitlines()), 1)


class CommandLine(unittest.TestCase):
    def test_a_taken_port_is_one_sentence(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            out = subprocess.run([PROGRAM, "serve", FIXTURES / "llama_gqa", "--port", str(port)], capture_output=True, text=True, timeout=60)
        self.assertEqual(out.returncode, 1)
        self.assertEqual(len(out.stderr.strip().splitlines()), 1)
        self.assertIn(str(port), out.stderr)


if __name__ == "__main__":
    unittest.main()
