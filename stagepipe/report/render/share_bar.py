"""The bar that shows how a stage spends its time: one stacked bar of shares, by colour and by character."""

from __future__ import annotations

from collections.abc import Mapping

from rich.text import Text

SHARE_STYLES = (
    ("busy", "green", "█", "#"),
    ("overhead", "yellow", "▓", "+"),
    ("blocked", "magenta", "▒", "="),
    ("starved", "blue", "░", "-"),
    ("starting", "bright_black", "·", "."),
)
"""Shares of a stage's time, in the order of the bar: name, colour, character, and the character without UTF-8."""


def draw_share_bar(shares: Mapping[str, float], chars: int, *, ascii_only: bool) -> Text:
    """Draw the shares as a bar. Each gets the characters between its rounded ends, so together they fill it exactly."""
    bar = Text()
    begin = 0.0
    for name, colour, character, ascii_character in SHARE_STYLES:
        end = begin + shares.get(name, 0.0)
        bar.append((ascii_character if ascii_only else character) * (round(end * chars) - round(begin * chars)), colour)
        begin = end
    return bar


def draw_legend(*, ascii_only: bool) -> Text:
    """Draw a line that says what the characters mean."""
    legend = Text("  ", no_wrap=True, overflow="crop")
    for name, colour, character, ascii_character in SHARE_STYLES:
        legend.append(ascii_character if ascii_only else character, style=colour).append(f" {name}  ", style="dim")
    return legend
