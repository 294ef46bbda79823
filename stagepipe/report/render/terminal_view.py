"""What all printed results share: they are drawn when the console is known, and keep to the characters that it has."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.text import Text

_NO_BREAK_SPACE = "\N{NO-BREAK SPACE}"


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
