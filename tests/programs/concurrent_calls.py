"""Calls to a server with faults: `async def` stages beside other tools.

Each contestant makes 3,000 calls, 32 at a time, in a process of its own and takes a turn in each round. Its rate counts
from the first call to the last answer, its CPU from its first result to its last: the start of interpreters is not in
it, nor is what was done before the first result. The server is a process apart, whose CPU and memory do not count.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from statistics import median
from typing import Any, NamedTuple
from urllib.request import urlopen

from benchmarks.common.turn import ROOT, adopt_orphans, run_turn
from tests.programs.callers import WINDOW
from tests.programs.faulty_server import FAULTS
from tests.programs.sources import find_python
from tests.programs.tables import Row, Table

_ITEMS, _CONCURRENCY, _ROUNDS = 3_000, 32, 3
_LIMIT_S = 300.0
_SPDL = ("spdl", "aiohttp")


class _Contestant(NamedTuple):
    name: str
    label: str
    notes: str
    packages: Sequence[str] = ()
    """Of its own environment, called as the first; none: it runs in that of the project."""


_CONTESTANTS = (
    _Contestant("stagepipe", "stagepipe, `async def`, `concurrency: 32`", "limits and retries are keys of the stage"),
    _Contestant("threads", "stagepipe, threads, `concurrency: 32`", "http.client: aiohttp is not for threads"),
    _Contestant(
        "spdl",
        "SPDL, `pipe(concurrency=32)`",
        "all in one process; limits and retries are in the function; in order no call starts while the oldest one of "
        "32 lasts, where ours goes on",
        _SPDL,
    ),
    _Contestant(
        "spdl-wide",
        f"SPDL, `pipe(concurrency={WINDOW})`, a semaphore of 32",
        "the same, but the function waits for one of 32 calls",
        _SPDL,
    ),
    _Contestant(
        "spdl-any",
        'SPDL, `pipe(concurrency=32, output_order="completion")`',
        "as the first, but results come as they are ready",
        _SPDL,
    ),
    _Contestant("ray", "Ray Data, an async actor", "limits and retries are in the function"),
)


@contextmanager
def run_server() -> Iterator[str]:
    """Start the server and give its address."""
    command = [sys.executable, "-m", "tests.programs.faulty_server"]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            yield f"http://127.0.0.1:{int(server.stdout.readline())}"
        finally:
            server.terminate()


def measure(items: int, concurrency: int, rounds: int, names: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    """Return what each contestant did in each round."""
    adopt_orphans()
    pythons = {
        each.name: str(find_python(each.packages[0], each.packages)) if each.packages else sys.executable
        for each in _CONTESTANTS
        if each.name in names
    }
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in pythons}
    with run_server() as address:
        for turn in range(rounds):
            for name, python in pythons.items() if turn % 2 == 0 else reversed(pythons.items()):
                job = {
                    "contestant": name,
                    "url": f"{address}/{name}-{turn}",
                    "items": items,
                    "concurrency": concurrency,
                }
                did = run_turn("tests.programs.callers", job, _LIMIT_S, samples_memory=True, python=python)
                with urlopen(f"{job['url']}/seconds") as answer:
                    found[name].append({**did, "items_per_s": items / json.load(answer)})
    return found


def _compare() -> Sequence[Row]:
    found = measure(_ITEMS, _CONCURRENCY, _ROUNDS, [each.name for each in _CONTESTANTS])
    return [_make_row(each, found[each.name]) for each in _CONTESTANTS]


def _make_row(contestant: _Contestant, turns: Sequence[dict[str, Any]]) -> Row:
    rates = [turn["items_per_s"] for turn in turns]
    cpus_s = [turn["cpu_s"] for turn in turns]
    return {
        "calls by": contestant.label,
        "items/s": f"{median(rates):,.0f} ({min(rates):,.0f} to {max(rates):,.0f})",
        "lost": str(sum(turn["lost"] + turn["doubled"] for turn in turns)),
        "order": "kept" if all(turn["in_order"] for turn in turns) else "not kept",
        "CPU": "" if None in cpus_s else f"{median(cpus_s) / (_ITEMS - 1) * 1e3:.2f} ms",
        "memory": f"{median(turn['pss_bytes'] for turn in turns) / 1e6:,.0f} MB",
        "first item": f"{median(turn['first_s'] for turn in turns):.2f} s",
        "notes": contestant.notes,
    }


TABLE = Table(
    name="async",
    headings=("calls by", "items/s", "lost", "order", "CPU", "memory", "first item", "notes"),
    cases={"calls": _compare},
)
assert sum(FAULTS.values()) < 1
