"""Rows of one figure each, measured in interleaved rounds: the order changes from round to round."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.common.figures import estimate
from benchmarks.common.machine import machine, machine_line, repeat_command
from benchmarks.common.turns import order

ROUNDS = 7


def make_parser(text: str | None) -> argparse.ArgumentParser:
    """Return a parser with `--rounds` and `--json`; `text` is the module's docstring."""
    parser = argparse.ArgumentParser(description=(text or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="each row is measured in each")
    parser.add_argument("--json", type=Path, help="file for the figures of every round")
    return parser


def report_rows(name: str, rows: Mapping[str, Callable[[], float]], rounds: int, json_path: Path | None) -> None:
    """Measure the rows, which return nanoseconds, print their medians in us, and write the JSON if requested."""
    about = machine()
    found: dict[str, list[float]] = {row: [] for row in rows}
    for number in range(rounds):
        for row in order(list(rows), number):
            found[row].append(rows[row]())
    coverage = estimate([0.0] * rounds).coverage
    print(machine_line(about), f"Repeat: {repeat_command(name)}", sep="\n")
    print(f"us, medians of {rounds} rounds with their {100 * coverage:.0f} % intervals")
    width = 2 + max(map(len, rows))
    for row, values_ns in found.items():
        print(f"{row:{width}}{estimate([value / 1000 for value in values_ns]).text()}")
    if json_path is not None:
        json_path.write_text(json.dumps({"machine": about, "ns": found}, indent=1) + "\n")
