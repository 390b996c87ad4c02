"""millrace chat as a person at a terminal sees it: keys, pastes, commands, answers. Every test is a session on a pseudo-terminal.

Run by ctest with the program's path in MILLRACE; the default model must be in the cache folder, as ./test puts it there.
"""

import json
import os
import pathlib
import signal
import subprocess
import tempfile
import termios
import unittest

from terminal import Terminal

PROGRAM = os.environ["MILLRACE"]
LEFT, RIGHT, UP, DOWN, HOME, END, DELETE = "\x1b[D", "\x1b[C", "\x1b[A", "\x1b[B", "\x1b[H", "\x1b[F", "\x1b[3~"
WORD_LEFT, WORD_RIGHT = "\x1b[1;5D", "\x1bf"
STATE = tempfile.TemporaryDirectory()
unittest.addModuleCleanup(STATE.cleanup)
CTRL = {letter: chr(ord(letter) - 64) for letter in "ABCDEFGHIJKLNOPRTUWYZ"}


class Session(Terminal):
    """A chat with short, greedy answers, and a history of its own."""

    def __init__(self, *flags, columns=80, rows=24, state=None, command="chat"):
        state = state or tempfile.mkdtemp(dir=STATE.name)
        answers = ["--temperature", "0", "--max-tokens", "12"] if "--max-tokens" not in flags else []
        super().__init__([PROGRAM, command, *answers, *flags], columns, rows, {"XDG_STATE_HOME": state})
        self.prompt()

    def ask(self, text):
        before = self.raw.count(b"in the cache")
        self.send(text + "\r")
        self.wait_for(lambda: self.raw.count(b"in the cache") > before and self.lines()[-1] == ">" and self.screen.cursor.x == 2, "the answer")

    def clear(self):
        self.send(CTRL["U"])
        self.shows(">")

    def command(self, text):
        """Runs a slash command at an empty prompt and returns the screen after it, in one line."""
        seen = len(self.raw)
        self.send(text + "\r")
        self.wait_for(lambda: b"\n" in self.raw[seen:] and self.lines()[-1] == ">" and self.screen.cursor.x == 2, f"the end of {text}")
        return " ".join(self.text().split())

    def leave(self):
        self.send("/bye\r")
        status = self.exit_status()
        assert status == 0, f"it ended with {status}:\n{self.text()}"


def saved(session):
    """The conversation, as /save writes it."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "conversation.json"
        session.command(f"/save {path}")
        return json.loads(path.read_text())


class Keys(unittest.TestCase):
    def test_editing(self):
        s = Session()
        s.send("wrold")
        s.send(LEFT * 3 + CTRL["T"])  # w o|r -> the two around the cursor change places
        s.shows("> world")
        s.send(HOME + "hello " + END + "!")
        s.shows("> hello world!")
        s.send(WORD_LEFT + WORD_LEFT + "my ")
        s.shows("> my hello world!")
        s.send(WORD_RIGHT + CTRL["K"])
        s.shows("> my hello")
        s.send(CTRL["A"] + CTRL["Y"] + " ")
        s.shows(">  world! my hello")
        s.send(CTRL["E"] + CTRL["W"] + "dog\x7f\x7f\x7fcat" + CTRL["A"] + DELETE)
        s.shows("> world! my cat")
        s.send(CTRL["U"] + "x" + CTRL["E"] + CTRL["U"])
        s.shows(">")
        s.leave()

    def test_wide_characters_and_clusters(self):
        s = Session()
        s.send("東京 e\u0301 x")
        s.wait_for(lambda: s.screen.cursor.x == 2 + 4 + 1 + 1 + 2, "the cursor at the end")
        s.send(LEFT * 3)  # before the é, which is two code points
        s.wait_for(lambda: s.screen.cursor.x == 2 + 4 + 1, "the cursor before é")
        s.send("\x7f\x7f大" + END + "\x7f\x7f\x7f")
        s.wait_for(lambda: "".join(s.current().split()) == ">東大" and s.screen.cursor.x == 2 + 4, "two characters")
        s.clear()
        s.leave()

    def test_rows_wrap_and_the_cursor_moves_through_them(self):
        s = Session(columns=30)
        self.assertNotIn("loading", s.text())  # a progress line is one row in a narrow terminal too, and gone when it is done
        text = "abcdefghij" * 7
        s.send(text)
        s.wait_for(lambda: "".join(line[2:] for line in s.lines()[-3:]) == text, "three rows")
        self.assertTrue(all(len(line) < 30 for line in s.lines()[-3:]), s.text())
        s.send(UP + UP + HOME + "X")
        s.expect("> Xabc")
        s.resize(50, 24)
        s.wait_for(lambda: "".join(line[2:] for line in s.lines()[-2:]) == "X" + text, "two rows")
        s.send(CTRL["C"])
        s.shows(">")
        s.leave()

    def test_interrupts(self):
        s = Session()
        s.send("half a thought")
        s.shows("> half a thought")
        s.send(CTRL["C"])
        s.shows(">")
        s.send("another" + CTRL["U"] + CTRL["C"])
        s.expect("Ctrl-C again leaves")
        s.send(CTRL["C"])
        self.assertEqual(s.exit_status(), 0)
        s = Session()
        s.send("x" + CTRL["D"])  # deletes nothing at the end, and does not leave
        s.shows("> x")
        s.send("\x7f")
        s.shows(">")
        s.send(CTRL["D"])
        self.assertEqual(s.exit_status(), 0)

    def test_the_terminal_is_left_as_it_was(self):
        for end in (lambda s: s.send("/bye\r"), lambda s: s.child.kill(signal.SIGTERM)):
            s = Session()
            raw = termios.tcgetattr(s.child.child_fd)[3]
            end(s)
            while s.pump():
                pass
            left = termios.tcgetattr(s.child.child_fd)[3]
            s.exit_status()
            self.assertEqual(s.raw.rfind(b"\x1b[?2004"), s.raw.rfind(b"\x1b[?2004l"))
            for flag in (termios.ICANON, termios.ECHO, termios.ISIG):
                self.assertEqual((raw & flag, left & flag), (0, flag))


class History(unittest.TestCase):
    def test_is_kept_searched_and_private(self):
        with tempfile.TemporaryDirectory() as state:
            s = Session(state=state)
            s.command("/show")
            s.command("/system Say one word.")
            s.send("not sent" + UP)
            s.shows("> /system Say one word.")
            s.send(DOWN)
            s.shows("> not sent")
            s.clear()
            s.leave()
            file = pathlib.Path(state) / "millrace" / "history"
            self.assertEqual(file.stat().st_mode & 0o777, 0o600)
            self.assertEqual(file.read_text(), "/show\n/system Say one word.\n/bye\n")
            s = Session(state=state)
            s.send(UP + UP + UP)
            s.shows("> /show")
            s.send(CTRL["C"] + CTRL["R"] + "one w")
            s.wait_for(lambda: "/system Say one word." in s.current(), "what was searched")
            s.send(RIGHT)
            s.shows("> /system Say one word.")
            s.clear()
            s.leave()
            s = Session("--no-history", state=state)
            s.send(UP)
            s.shows(">")
            s.leave()


class Pastes(unittest.TestCase):
    def test_long_lines_and_many_unharmed(self):
        text = "international " * 400 + "\n" + "\n".join(f'line {i}: äöü 東京 \\n "quoted"\ttab' for i in range(30))
        s = Session("--max-tokens", "1", rows=20)
        s.paste(text)
        s.settle()
        self.assertNotIn("in the cache", s.text())  # nothing is sent before Enter
        s.ask("")
        self.assertEqual(saved(s)["messages"][0]["content"], text)
        s.leave()

    def test_what_is_typed_ahead_waits(self):
        s = Session("--max-tokens", "60", "--ignore-eos", "--temperature", "0")
        s.send("Count to one thousand.\r")
        s.wait_for(lambda: s.raw.count(b"\n") > 4, "the answer's beginning")
        s.send("typed ahead")
        s.shows("> typed ahead")
        s.clear()
        s.leave()

    def test_an_interrupt_leaves_what_is_typed_ahead(self):
        s = Session("--max-tokens", "4000", "--ignore-eos", "--temperature", "0")
        s.send("Count to one thousand.\r")
        s.wait_for(lambda: s.raw.count(b"\n") > 6, "the answer's beginning")
        s.send("typed ahead" + CTRL["C"])
        s.expect("[stopped]")
        s.shows("> typed ahead")
        s.clear()
        s.leave()

    def test_several_lines(self):
        s = Session()
        s.send('"""first\rsecond\r')
        s.ask('third"""')
        self.assertEqual(saved(s)["messages"][0]["content"], "first\nsecond\nthird")
        s.command("/clear")
        s.ask("one" + CTRL["J"] + "two\x1b\rthree")
        self.assertEqual(saved(s)["messages"][0]["content"], "one\ntwo\nthree")
        s.leave()


class Commands(unittest.TestCase):
    def test_each_of_them(self):
        s = Session("--system", "Be brief.")
        self.assertIn("SmolLM2-135M-Instruct", s.text())
        help_text = s.command("/help")
        for name in "help clear system set save load retry undo show model bye".split():
            self.assertIn(f"/{name}", help_text)
        self.assertIn("Be brief.", s.command("/system"))
        self.assertIn("is set", s.command("/system You are a parrot."))
        self.assertIn("temperature is 0.5 from now on", s.command("/set temperature 0.5"))
        self.assertIn("top_p must be above 0", s.command("/set top_p 7"))
        self.assertIn("did you mean 'top_p'?", s.command("/set topp 1"))
        s.command("/set temperature 0")
        settings = s.command("/set")
        self.assertIn("temperature 0 top_k", settings)
        self.assertIn("Ctrl-D", s.command("/help"))
        s.ask("Hello")
        first = saved(s)
        self.assertEqual([m["role"] for m in first["messages"]], ["system", "user", "assistant"])
        self.assertEqual(first["messages"][0]["content"], "You are a parrot.")
        self.assertRegex(s.command("/show"), r"1 turn so far")
        s.command("/undo")
        self.assertEqual(len(saved(s)["messages"]), 1)
        self.assertIn("nothing to take back", s.command("/undo"))
        self.assertIn("no answer to try again", s.command("/retry"))
        s.leave()

    def test_retry_clear_load_and_model(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "talk.json"
            path.write_text(json.dumps({"messages": [{"role": "user", "content": "My name is Ada."}, {"role": "assistant", "content": "Hello, Ada!"}]}))
            s = Session()
            self.assertIn("1 turn loaded", s.command(f"/load {path}"))
            before = s.text()
            s.command("/retry")
            again = saved(s)["messages"]
            self.assertEqual(again[0]["content"], "My name is Ada.")
            self.assertNotEqual(again[1]["content"], "Hello, Ada!", before)
            other = pathlib.Path(folder) / "precious.txt"
            other.write_text("mine")
            self.assertIn("no conversation", s.command(f"/save {other}"))
            self.assertEqual(other.read_text(), "mine")
            self.assertIn("no such file", s.command("/load /no/such/file"))
            self.assertIn("there is no model 'nosuchmodel'", s.command("/model nosuchmodel"))
            self.assertIn("million parameters", s.command("/model SmolLM2-135M-Instruct"))
            s.command("/clear")
            self.assertEqual(saved(s)["messages"], [])
            s.leave()

    def test_unknown_words_and_completion(self):
        s = Session()
        self.assertIn("there is no command '/hlep': did you mean '/help'?", s.command("/hlep"))
        self.assertIn("takes no argument", s.command("/undo 3"))
        s.send("/sy\t")
        s.shows("> /system")
        s.send(CTRL["U"] + "/s\t")
        s.wait_for(lambda: "/system" in s.lines()[-1] and "/save" in s.lines()[-1], "both commands")
        s.send(CTRL["U"] + "/set temp\t")
        s.shows("> /set temperature")
        s.clear()
        s.ask("/usr/bin/env what is it?")  # no word of ours: it goes to the model
        self.assertEqual(saved(s)["messages"][0]["content"], "/usr/bin/env what is it?")
        s.leave()


class Answers(unittest.TestCase):
    def test_interrupt_stops_the_answer_and_again_leaves(self):
        s = Session("--temperature", "0", "--max-tokens", "4000", "--ignore-eos")
        s.send("Count to one thousand.\r")
        s.wait_for(lambda: s.raw.count(b"\n") > 6, "the answer's beginning")
        s.send(CTRL["C"])
        s.expect("[stopped]")
        s.prompt()
        self.assertEqual(len(saved(s)["messages"]), 2)  # what was said of it stays
        seen = len(s.raw)
        s.send("Count again.\r")
        s.wait_for(lambda: s.raw[seen:].count(b"\n") > 3, "the second answer's beginning")
        s.send(CTRL["C"])
        s.prompt()
        s.send(CTRL["C"])
        self.assertEqual(s.exit_status(), 0)

    def test_cut_answers_say_so(self):
        s = Session("--max-tokens", "5", "--temperature", "0")
        s.ask("Tell me a long story.")
        self.assertIn("cut after 5 tokens", s.text())
        s.leave()

    def test_a_full_context_drops_the_oldest_turns(self):
        s = Session("--max-context", "160", "--max-tokens", "30", "--temperature", "0")
        for i in range(5):
            s.ask(f"Question {i}: what is {i} plus {i}?")
            if "no longer seen" in s.text():
                break
        self.assertRegex(" ".join(s.text().split()), r"the context of 160 tokens is full: the oldest (turn is|\d turns are) no longer seen")
        self.assertGreater(len(saved(s)["messages"]), 4)  # but they are still there to be saved
        self.assertIn("with its system prompt, but the context holds 160", s.command("word " * 200))
        s.leave()

    def test_hostile_answers_do_not_drive_the_terminal(self):
        text = "\x1b\x07"
        tokens = json.loads(subprocess.run([PROGRAM, "tokenize", "SmolLM2-135M-Instruct", text, "--json"], capture_output=True, text=True).stdout)
        self.assertEqual(tokens["pieces"], list(text))
        for command, i, shown in (("chat", 0, rb"\x1b"), ("chat", 1, rb"\x07"), ("run", 0, rb"\x1b")):
            flags = ["--temperature", "0", "--max-tokens", "20", "--logit-bias", f"{tokens['tokens'][i]}=100"]  # it says nothing else
            if command == "chat":
                s = Session(*flags)
                seen = len(s.raw)
                s.ask("Hi")
                answer = s.raw[seen:]
            else:
                s = Terminal([PROGRAM, "run", *flags, "SmolLM2-135M-Instruct", "Hi"])
                s.exit_status()
                answer = s.raw
            self.assertGreater(answer.count(shown), 10)  # shown, not sent
            self.assertNotIn(b"\x07", answer)
            self.assertNotRegex(answer, rb"\x1b[^\[]")
            self.assertNotRegex(answer, rb"\x1b\[[0-9;?]*[^0-9;?hlmACJK]")

    def test_reasoning_is_folded(self):
        with tempfile.TemporaryDirectory() as folder:
            template = pathlib.Path(folder) / "thinks.jinja"
            template.write_text("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n<think>\n")
            s = Session("--chat-template", str(template))
            s.ask("Why?")
            s.expect("thought for")
            self.assertIn(b"\x1b[2m", s.raw)
            message = saved(s)["messages"][1]
            self.assertEqual(message["content"], "")
            self.assertTrue(message["reasoning_content"])
            self.assertIn(" ".join(message["reasoning_content"].split())[:20], " ".join(s.command("/show reasoning").split()))
            s.leave()


if __name__ == "__main__":
    unittest.main()
