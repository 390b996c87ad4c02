"""The Python module, as installed from the wheel, beside the program that came with it. The program's own answers are held to other
implementations elsewhere; here the two have to agree to the token."""
import json
import pathlib
import signal
import subprocess
import sys
import threading
import time
import unittest

import millrace
from millrace import LLM, Error, SamplingParams

PROGRAM = pathlib.Path(sys.executable).with_name("millrace")
FRANCE = "The capital of France is"
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


def asked(*words):
    done = subprocess.run([PROGRAM, "generate", "--json", *words], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300, check=True)
    return json.loads(done.stdout)


class Answers(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.llm = LLM()

    @classmethod
    def tearDownClass(cls):
        cls.llm.close()

    def test_they_are_the_programs_to_the_token(self):
        expected = asked("-p", FRANCE, "--seed", "7", "--temperature", "0.8", "-n", "2", "--logprobs", "2", "--max-tokens", "12")
        got = self.llm.generate(FRANCE, SamplingParams(n=2, seed=7, temperature=0.8, logprobs=2, max_tokens=12))[0]
        self.assertEqual(got.prompt_token_ids, expected["prompt_tokens"])
        for answer, choice in zip(got.outputs, expected["choices"], strict=True):
            self.assertEqual((answer.token_ids, answer.text, answer.finish_reason), (choice["tokens"], choice["text"], choice["finish_reason"]))
            self.assertEqual([row[token].logprob for row, token in zip(answer.logprobs, answer.token_ids)], choice["logprobs"])
            for row, top in zip(answer.logprobs, choice["top_logprobs"]):
                self.assertLessEqual({t["token"] for t in top}, set(row))
            self.assertEqual("".join(row[token].decoded_token for row, token in zip(answer.logprobs, answer.token_ids)), answer.text)

    def test_a_conversation(self):
        expected = asked("--chat", "-p", QUESTION[0]["content"], "--temperature", "0")
        got = self.llm.chat(QUESTION, SamplingParams(temperature=0))[0]
        self.assertEqual(got.prompt_token_ids, expected["prompt_tokens"])
        self.assertEqual(got.outputs[0].token_ids, expected["choices"][0]["tokens"])
        self.assertIn("Paris", got.outputs[0].text)
        self.assertIsNone(got.outputs[0].logprobs)

    def test_a_crowd_answers_as_one_alone(self):
        prompts = [FRANCE, "Once upon a time", self.llm.tokenize("Two and two")]
        params = [SamplingParams(seed=i, max_tokens=8 + i) for i in range(3)]
        together = self.llm.generate(prompts, params)
        for prompt, one, result in zip(prompts, params, together):
            self.assertEqual(self.llm.generate(prompt, one)[0].outputs, result.outputs)
        self.assertEqual(len(together[2].outputs[0].token_ids), 10)

    def test_a_stream_is_the_answer_in_pieces(self):
        params = SamplingParams(n=2, seed=3, max_tokens=10)
        whole = self.llm.chat(QUESTION, params)[0].outputs
        pieces = list(self.llm.stream_chat(QUESTION, params))
        for answer in whole:
            own = [p for p in pieces if p.index == answer.index]
            self.assertEqual("".join(p.text for p in own), answer.text)
            self.assertEqual(sum((p.token_ids for p in own), []), answer.token_ids)
            self.assertEqual([p.finish_reason for p in own if p.finish_reason], [answer.finish_reason])
        self.assertGreater(len(pieces), 10)

    def test_a_stream_that_is_left_makes_room(self):
        endless = SamplingParams(max_tokens=4000, ignore_eos=True, n=16)  # all that may run at once
        for _ in range(2):
            stream = self.llm.stream(FRANCE, endless)
            next(stream)
            stream.close()
        self.assertEqual(len(self.llm.generate(FRANCE, SamplingParams(max_tokens=3))[0].outputs[0].token_ids), 3)

    def test_threads(self):
        params = SamplingParams(seed=1, max_tokens=12)
        prompts = [f"{FRANCE} {i}" for i in range(6)]
        alone = [r.outputs for r in self.llm.generate(prompts, params)]
        results = {}
        threads = [threading.Thread(target=lambda p=p: results.update({p: self.llm.generate(p, params)[0].outputs})) for p in prompts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual([results[p] for p in prompts], alone)

    def test_others_run_while_the_engine_does(self):
        counted, done = 0, threading.Event()
        worker = threading.Thread(target=lambda: (self.llm.generate(FRANCE, SamplingParams(max_tokens=40, ignore_eos=True)), done.set()))
        worker.start()
        while not done.is_set():
            counted += 1
            time.sleep(0)
        worker.join()
        self.assertGreater(counted, 100)  # held, the lock would change hands a few times a token at most

    def test_text_and_tokens(self):
        ids = self.llm.tokenize("Grüße, 世界")
        self.assertEqual(self.llm.detokenize(ids), "Grüße, 世界")

    def test_what_is_wrong_is_a_sentence(self):
        for params, words in [(SamplingParams(temperature=-1), "temperature must be between 0 and"),
                              (SamplingParams(n=10_000), "n must be between 1 and 16"),
                              (SamplingParams(logit_bias={10**6: 1.0}), "49152")]:
            with self.assertRaisesRegex(Error, words):
                self.llm.generate(FRANCE, params)
        with self.assertRaisesRegex(Error, "the prompt is empty"):
            self.llm.generate("")
        with self.assertRaisesRegex(Error, "context holds 8192"):
            self.llm.generate([[1] * 9000])
        with self.assertRaisesRegex(TypeError, "temperature='hot'"):
            self.llm.generate(FRANCE, SamplingParams(temperature="hot"))
        with self.assertRaisesRegex(TypeError, "text or a list of token ids"):
            self.llm.generate({"prompt": FRANCE})
        self.assertIn("Paris", self.llm.generate(FRANCE, SamplingParams(temperature=0, max_tokens=4))[0].outputs[0].text)


class Loading(unittest.TestCase):
    def test_what_is_wrong_is_a_sentence(self):
        with self.assertRaisesRegex(Error, "there is no model 'no-such-model'"):
            LLM("no-such-model")
        for options, words in [({"max_model_len": 512}, "max_context"), ({"thread": 2}, "threads"), ({"prefix_cache": "perhaps"}, "prefix_cache='perhaps'")]:
            with self.assertRaisesRegex(TypeError, words):
                LLM(**options)
        for options, words in [({"memory": "much"}, "memory='much'"), ({"threads": -1}, "threads must be"), ({"device": "tpu"}, "no device 'tpu'"),
                               ({"isa": "sse"}, "sse"), ({"max_context": 10**6}, "made for 8192")]:
            with self.assertRaisesRegex(Error, words):
                LLM(**options)

    def test_a_closed_one_says_so(self):
        with LLM(max_context=256) as llm:
            self.assertEqual(llm.max_context, 256)
            stream = llm.stream(FRANCE, SamplingParams(max_tokens=200, ignore_eos=True))
            next(stream)
        with self.assertRaisesRegex(Error, "closed"):
            llm.generate(FRANCE)
        with self.assertRaisesRegex(Error, "closed before the answer was whole"):
            for _ in stream:
                pass

    def test_ctrl_c_stops_an_answer(self):
        script = ("from millrace import LLM, SamplingParams\n"
                  "llm = LLM()\n"
                  "try:\n"
                  "    print('ready', flush=True)\n"
                  "    llm.generate(['Once', 'Twice'], SamplingParams(max_tokens=8000, ignore_eos=True))\n"
                  "except KeyboardInterrupt:\n"
                  "    print(llm.generate('The capital of France is', SamplingParams(temperature=0, max_tokens=1))[0].outputs[0].text)\n")
        with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as process:
            self.assertEqual(process.stdout.readline(), "ready\n")
            process.send_signal(signal.SIGINT)
            self.assertEqual(process.communicate(timeout=300)[0], " Paris\n")
            self.assertEqual(process.returncode, 0)

    def test_the_version_is_the_programs(self):
        told = subprocess.run([PROGRAM, "--version"], capture_output=True, text=True, check=True).stdout
        self.assertTrue(told.startswith(f"millrace {millrace.__version__}\n"), told)


if __name__ == "__main__":
    unittest.main()
