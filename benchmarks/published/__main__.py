"""Repeat the experiments of five write-ups on this machine: every mechanism and stagepipe, with the published payloads.

    python -m benchmarks.published [--full] [--experiments E1,E4] [--only "stagepipe; TCP"] [--json FILE]

    E1         a round trip of the MNIST table
    E2         one large list of integers, by size
    E3         arrays by size through Pipe and shared memory: benchmarks/crossover
    E4         one request for one array, of four shapes
    E5         functions in threads and processes
    E5 queue   objects through a queue

Every contestant has one turn in each round, in a different order every time. A turn is a new process; the other side
and the servers run in their own processes, on the loopback and in a temporary folder. When the turn ends, everything
that it started is ended. Each transfer is verified byte by byte, outside the timing. A contestant that cannot run here
stays in the tables with the reason.

The results are written after every turn. An interrupted run resumes if its settings, the machine and the versions are
unchanged; `--fresh` starts over. `python -m benchmarks.published.make_page` makes the page with tables and plots from
the results.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.common.command import add_corrupt, add_names, machine, machine_line, make_parser, repeat_command
from benchmarks.common.turn import adopt_orphans
from benchmarks.published.make_page import E3, tables
from benchmarks.published.results import EXPERIMENTS, Results, Settings, run_all, summarise

_SIZES = ("small", "default", "full")
_ROUNDS = {"small": 1, "default": 6, "full": 6}
_BUDGETS_S = {
    "small": {"E1": 0.1, "E2": 0.1, "E4": 0.1, "E5": 0.02, "E5 queue": 0.05},
    "default": {"E1": 0.0, "E2": 0.2, "E4": 0.15, "E5": 0.1, "E5 queue": 0.2},
    "full": {"E1": 10.0, "E2": 5.0, "E4": 5.0, "E5": 2.0, "E5 queue": 2.0},
}
"""Seconds per payload in a turn; 0 means a single transfer. The default takes about 36 minutes on two processors."""
_TURN_LIMITS_S = {"small": 100.0, "default": 120.0, "full": 1800.0}
_PACKAGES = (
    "fastapi", "uvicorn", "websockets", "grpcio", "pika", "redis", "hiredis", "uvloop", "httptools", "pyarrow", "ray",
    "iceoryx2", "dora-rs", "mpi4py",
)  # fmt: skip


def main(arguments: Sequence[str]) -> None:
    """Take the missing measurements, and print the tables."""
    options = _options(arguments)
    settings = _settings(options)
    adopt_orphans()
    if options.fresh:
        options.json.unlink(missing_ok=True)
    results = Results(options.json, _about(settings))
    print(machine_line(results.about["machine"]), f"Repeat: {results.about['command']}", sep="\n", flush=True)
    if results.resumed:
        print(f"Resuming {options.json}: {len(results.turns)} turns are done.", flush=True)
    run_all(settings, results, lambda text: print(text, file=sys.stderr, flush=True))
    if E3 in options.experiments and E3 not in results.about:
        results.about[E3] = _crossover(settings)
    results.finish(load_average_at_end=machine()["load_average"])
    print(*tables(summarise(results.turns, settings.size), results.about), sep="\n")
    about = results.about
    print(f"\n{about['took_s']:.0f} s; load average {about['load_average_at_end']:.1f} at the end; {options.json}")


def _settings(options: argparse.Namespace) -> Settings:
    return Settings(
        experiments=tuple(name for name in options.experiments if name != E3),
        only=tuple(options.only),
        size=options.size,
        rounds=options.rounds or _ROUNDS[options.size],
        budgets_s=_BUDGETS_S[options.size],
        turn_limit_s=_TURN_LIMITS_S[options.size],
        pinned=not options.unpinned,
        corrupt=options.corrupt,
    )


def _about(settings: Settings) -> dict[str, Any]:
    return {
        "command": repeat_command("published"),
        "settings": json.loads(json.dumps(asdict(settings))),
        "machine": machine(_PACKAGES),
        "sources": {name: EXPERIMENTS[name].source() for name in settings.experiments},
    }


def _crossover(settings: Settings) -> dict[str, Any]:
    """Run E3's own benchmark and return the parts of its JSON that the page needs."""
    quick = ["--sizes", "2,64", "--rounds", "2"] if settings.size == "small" else []
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "crossover.json"
        command = [sys.executable, "-m", "benchmarks.crossover", *quick, "--json", str(out)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        document: dict[str, Any] = json.loads(out.read_text())
        return {key: document[key] for key in ("rows", "lines", "targets", "transfers")}


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    contestants = list(dict.fromkeys(one.name for each in EXPERIMENTS.values() for one in each.contestants))
    parser = make_parser(__doc__, rounds=None)
    parser.set_defaults(json=Path("runs/published.json"))
    add_names(parser, "--experiments", (*EXPERIMENTS, E3), "experiment")
    add_names(parser, "--only", contestants, "contestant", separator=";")
    parser.set_defaults(only=())
    parser.add_argument("--size", choices=_SIZES, default="default", help="small is for the tests")
    parser.add_argument("--full", dest="size", action="store_const", const="full", help="the largest payloads too")
    parser.add_argument("--fresh", action="store_true", help="start over, even if the results are incomplete")
    parser.add_argument("--unpinned", action="store_true", help="let the kernel choose the processors")
    add_corrupt(parser)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # SystemExit lets the cleanup run
    try:
        main(sys.argv[1:])
    except KeyboardInterrupt:
        sys.exit("interrupted; run the same command to resume")
