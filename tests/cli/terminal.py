"""A terminal of our own: a program on a pseudo-terminal, and the screen that it draws, as pyte understands it."""

import os
import time

import pexpect
import pyte


class Terminal:
    def __init__(self, command, columns=80, rows=24, env=None):
        self.screen = pyte.HistoryScreen(columns, rows, history=5000)
        self.stream = pyte.ByteStream(self.screen)
        self.raw = b""
        environment = {**os.environ, "TERM": "xterm-256color", **(env or {})}
        self.child = pexpect.spawn(command[0], list(map(str, command[1:])), dimensions=(rows, columns), env=environment, timeout=60)
        self.child.delaybeforesend = None

    def pump(self, seconds=0.05):
        """Takes what comes within this time; False: the program is gone."""
        try:
            data = self.child.read_nonblocking(65536, timeout=seconds)
        except pexpect.TIMEOUT:
            return True
        except pexpect.EOF:
            return False
        self.raw += data
        self.stream.feed(data)
        return True

    def settle(self):
        """Until nothing has come for a while: to see that something does not happen."""
        while True:
            before = len(self.raw)
            if not self.pump(0.3) or len(self.raw) == before:
                return

    def wait_for(self, condition, what="", seconds=60):
        end = time.time() + seconds
        while not condition():
            alive = self.pump()
            assert alive or condition(), f"the program ended before {what or condition}:\n{self.text()}"
            assert time.time() < end, f"never came: {what or condition}\n{self.text()}"

    def expect(self, text, seconds=60):
        self.wait_for(lambda: text in self.text(), text, seconds)

    def prompt(self, seconds=60):
        """Until the cursor waits after an empty prompt at the end of what is shown."""
        self.wait_for(lambda: self.lines()[-1] == ">" and self.screen.cursor.x == 2, "an empty prompt", seconds)

    def send(self, text):
        self.child.send(text)

    def shows(self, row, seconds=60):
        """Waits until the row that the cursor is in is this one."""
        self.wait_for(lambda: self.current() == row, repr(row), seconds)

    def paste(self, text):
        self.send("\x1b[200~" + text.replace("\n", "\r") + "\x1b[201~")

    def lines(self):
        lines = [line.rstrip() for line in self.screen.display]
        while len(lines) > 1 and not lines[-1]:
            lines.pop()
        return lines

    def text(self):
        return "\n".join(self.lines())

    def current(self):
        """The row that the cursor is in."""
        return self.screen.display[self.screen.cursor.y].rstrip()

    def resize(self, columns, rows):
        self.screen.resize(rows, columns)
        self.child.setwinsize(rows, columns)

    def exit_status(self, seconds=120):
        end = time.time() + seconds
        while self.pump() and time.time() < end:
            pass
        self.child.close()
        return self.child.exitstatus
