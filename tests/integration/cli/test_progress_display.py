"""The progress on a real pseudo-terminal: drawn in place, never too wide, never scrolling, tidy at the end."""

import fcntl
import os
import re
import select
import struct
import subprocess
import sys
import termios

import pytest

from tests.support.paths import ROOT

CHILD = """
import sys, time
from stagepipe.cli.progress import ProgressDisplay
from stagepipe.report import LiveHop, LiveRun, LiveStage

def progress(done):
    stages = [LiveStage(name=f"stage_{n}", items_per_s=100, busy=n / 20, work=n / 20, queued=n) for n in range(14)]
    hops = (LiveHop(source="a", target="b"),) * 13
    return LiveRun(elapsed_ns=done * 10**8, items_in=done, items_total=90, items_out=done, samples_out=done,
                   samples_per_s=10, items_done=done, items_per_s=10, stages=tuple(stages), hops=hops)

try:
    with ProgressDisplay(None, quiet=False) as display:
        for done in range(91):
            if done % 30 == 10:
                print("printed " + "x" * 100, file=sys.stderr)
                print(f"from the sink {done}")
            display.update(progress(done))
            if done in (29, 59):
                sys.stdin.readline()
        if "interrupt" in sys.argv:
            raise KeyboardInterrupt
except KeyboardInterrupt:
    pass
print("the end")
"""

pytestmark = pytest.mark.timeout(20)


class Screen:
    """What a terminal shows, as far as rich uses it. Lines that scroll away are in `lines` too, the oldest first."""

    def __init__(self) -> None:
        self.lines = [""]
        self.row = self.column = 0

    def feed(self, text: str) -> None:
        for part in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|[\r\n]|[^\r\n\x1b]+", text):
            self._apply(part)

    def _apply(self, part: str) -> None:
        if part == "\r":
            self.column = 0
        elif part == "\n":
            self.row += 1
            self.lines += [""] * (self.row == len(self.lines))
        elif part.endswith("A"):
            self.row -= int(part[2:-1] or 1)
        elif part == "\x1b[2K":
            self.lines[self.row] = ""
        elif not part.startswith("\x1b"):
            line = self.lines[self.row].ljust(self.column)
            self.lines[self.row] = line[: self.column] + part + line[self.column + len(part) :]
            self.column += len(part)


class Child:
    """The child on a pseudo-terminal. It waits for a line after 30 and after 60 items."""

    def __init__(self, width: int, height: int, *arguments: str, **variables: str) -> None:
        self._fd, inner = os.openpty()
        attributes = termios.tcgetattr(inner)
        attributes[3] &= ~termios.ECHO
        termios.tcsetattr(inner, termios.TCSANOW, attributes)
        self.resize(width, height)
        names = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR")
        environment = {name: value for name, value in os.environ.items() if name not in names}
        self._process = subprocess.Popen(
            [sys.executable, "-c", CHILD, *arguments],
            stdin=inner,
            stdout=inner,
            stderr=inner,
            env={**environment, "PYTHONPATH": str(ROOT), "TERM": "xterm-256color", **variables},
        )
        os.close(inner)

    def resize(self, width: int, height: int) -> None:
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

    def read_until(self, pattern: str) -> str:
        """Read until what has been read holds `pattern`; fail after 15 s without output."""
        text = ""
        while not re.search(pattern, text, re.DOTALL):
            assert select.select([self._fd], [], [], 15)[0], f"{pattern!r} not in ...{text[-1500:]!r}"
            text += os.read(self._fd, 1 << 16).decode()
        return text

    def go_on(self) -> None:
        os.write(self._fd, b"\n")

    def finish(self) -> str:
        text = self.read_until("the end")
        assert self._process.wait(20) == 0
        os.close(self._fd)
        return text


def drawn_lines(text: str) -> list[str]:
    """All lines of the progress that were ever written, without colours."""
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    return [line.rstrip() for line in re.split(r"[\r\n]+", plain) if re.match(r"\d+ of|  stage|  and", line)]


@pytest.mark.parametrize("ending", ["finish", "interrupt"])
def test_it_is_redrawn_in_place_within_the_terminal_and_leaves_one_line(ending: str):
    child = Child(120, 40, ending)
    screen = Screen()
    parts = [child.read_until(r"29 of 90.*stage_13[^\n]*13\.0")]
    screen.feed(parts[0])
    assert [line.split() for line in screen.lines[-14:-12]] == [
        ["stage_0", "0", "%", "100/s"],
        ["stage_1", "█", "5", "%", "100/s", "1.0"],
    ]
    assert any("29 of 90 items in  32 %  10.0/s  elapsed 0:02  ETA 0:06" in line for line in screen.lines)
    child.resize(34, 8)  # narrower than the lines, lower than the stages
    child.go_on()
    parts.append(child.read_until(r"59 of 90.*less busy"))
    child.resize(80, 24)
    child.go_on()
    parts.append(child.finish())
    for part in parts[1:]:
        screen.feed(part)
    for part, width, height in zip(parts, (120, 34, 80), (40, 8, 24), strict=True):
        drawn = drawn_lines(part)
        assert max(map(len, drawn)) <= width
        redraws = [match[0].count("\x1b[1A") for match in re.finditer(r"\r(\x1b\[2K|\x1b\[1A)+", part)]
        assert max(redraws[1:]) < height  # the first one goes up over the lines from before the resize
    small = screen_of(parts[1])
    assert [line for line in small if "stage_" in line and "stage_9" not in line], small
    said = [line for line in screen.lines if line]
    assert [line for line in said if line.startswith("printed")] == ["printed " + "x" * 100] * 3
    assert [line for line in said if line.startswith("from")] == [f"from the sink {done}" for done in (10, 40, 70)]
    assert said[-2:] == ["90 of 90 items in  100 %  elapsed 0:09", "the end"]
    assert not [line for line in said if "stage" in line], "the lines of the stages are gone"


def screen_of(text: str) -> list[str]:
    screen = Screen()
    screen.lines = [""] * 60
    screen.row = 30
    screen.feed(text)
    return screen.lines


def test_without_colours_there_are_none():
    child = Child(80, 24, NO_COLOR="1")
    child.go_on()
    child.go_on()
    text = child.finish()
    assert "  stage" in text
    assert not re.search(r"\x1b\[[0-9;]*3[0-9][0-9;]*m", text)


def test_a_dumb_terminal_gets_plain_lines():
    child = Child(80, 24, TERM="dumb")
    child.go_on()
    child.go_on()
    text = child.finish()
    assert "\x1b" not in text
    assert "from the sink 10" in text
    assert "stage_1" not in text
