"""What all printed results share: the console, and what is drawn when the console is known, in its characters."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.panel import Panel
from rich.text import Text

_NO_BREAK_SPACE = "\N{NO-BREAK SPACE}"

_UNLIMITED_CHARS: Final = 100_000
"""Width of what is not a terminal: a sentence stays in one line there, and so does the row of a table."""


def print_to_stdout(content: RenderableType) -> None:
    """Print on stdout. A pipe, a file or a log has no width, so nothing is wrapped there.

    The environment variable `COLUMNS` sets a width also there.
    """
    console = Console()
    if console.is_jupyter or "COLUMNS" in os.environ or sys.stdout.isatty():
        console.print(content)
        return
    console = Console(width=_UNLIMITED_CHARS)
    with console.capture() as capture:
        console.print(content)
    sys.stdout.write("".join(f"{line.rstrip()}\n" for line in capture.get().splitlines()))


@dataclass(frozen=True)
class TerminalView:
    """A rich renderable made by `draw` for the console's options. Without UTF-8, `us` stands for `µs`."""

    draw: Callable[[ConsoleOptions], Iterable[RenderableType]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw for this console."""
        for segment in console.render(Group(*self.draw(options)), options):
            yield segment._replace(text=segment.text.replace("µ", "u")) if options.ascii_only else segment


@dataclass(frozen=True)
class WrappedText:
    """Text that does not wrap between a number and its `%`. Rich's own wrapping breaks at any space."""

    text: str
    style: str = ""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the lines."""
        unbroken = self.text.replace(" %", f"{_NO_BREAK_SPACE}%")
        for line in textwrap.wrap(unbroken, options.max_width, break_on_hyphens=False):
            yield Text(line.replace(_NO_BREAK_SPACE, " "), style=self.style)


@dataclass(frozen=True)
class TitledBox:
    """Lines in a box as wide as the terminal, with a title. Where no width is known: the title, the lines indented."""

    title: str
    lines: Sequence[RenderableType]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the box, or the lines."""
        if options.max_width < _UNLIMITED_CHARS:
            yield Panel(Group(*self.lines), title=self.title, title_align="left", border_style="cyan")
            return
        yield Text(self.title, style="bold")
        yield Padding(Group(*self.lines), (0, 0, 0, 2), expand=False)
