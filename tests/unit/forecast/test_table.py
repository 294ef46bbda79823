"""The tables of a forecast fit the terminal, in any encoding."""

import io

import pytest
from rich.cells import cell_len
from rich.console import Console

from stagepipe.forecast import render_forecast


def drawn(forecast, encoding="utf-8", width=80):
    target = io.TextIOWrapper(io.BytesIO(), encoding=encoding, write_through=True)
    Console(file=target, width=width, force_terminal=False).print(render_forecast(forecast))
    return target.buffer.getvalue().decode(encoding)


def test_it_shows_stages_hops_and_the_forecast(forecast):
    text = drawn(forecast)
    for words in (
        "demo",
        "+ crop",
        "1.2 ms",
        "200 \N{MICRO SIGN}s",
        "source \N{RIGHTWARDS ARROW} decode",
        "600 items/s",
    ):
        assert words in text


@pytest.mark.parametrize("width", [40, 80, 160])
def test_no_line_is_wider_than_the_terminal(forecast, width):
    assert max(cell_len(line) for line in drawn(forecast, width=width).splitlines()) <= width


def test_an_ascii_terminal_gets_ascii(forecast):
    text = drawn(forecast, "ascii")
    assert "200 us" in text
    assert "source -> decode" in text
