"""Check stagepipe's targets for small items, whole jobs and large hops, all paired in one run.

    python -m benchmarks.targets [--rows stage,loop] [--load quiet,busy] [--rounds 6] [--json FILE]
    python -m benchmarks.targets --against CHECKOUT   # an older commit, with its own .venv, in the same rounds

    stage       the CPU time of a worker per item of a stage that does nothing
    loop        a loop over small dicts, without and with a stage, compared with `multiprocessing.Pipe`
    ping        one dict at a time, there and back, compared with Pipe: on two CPUs, and with both processes on one
    arrays      small arrays by size, the published experiment E3, compared with the better of Pipe and RawArray
    table       the starter `table`: the CPU time per row from 2,000 to 20,000 rows, compared with a plain loop
    tokens, tensors, thumbnails, clips, models, images
                the jobs of `benchmarks.peers`, compared with the fastest tools there
    hop         arrays of 1.2 MB compared with iceoryx2; a hop whose array nobody writes, up to 64 MB
    auto        `workers: auto` and `fuse: auto` compared with the layout by hand, on all jobs
    waits       the waits of a training loop for a batch of *images*; the loop holds the GIL between two batches

Each round takes every contestant once per load, in a changing order, each in new processes. A ratio is taken within a
round. `busy` runs another program that takes one CPU where the kernel places it; `pinned` is the same, but that program
stays on the last CPU. A target is met or missed if the whole interval of the median is on one side of it. The best
other tool is the one with the highest rate of this run. A target of 1.0 for items/s is met from 0.95: level. Peers run
the same functions with the settings that their documentation recommends; `benchmarks.peers` checks that they deliver
the same samples. CHECKOUT needs `data/images` too. All rows take an hour and a half, twice that with `--against` and
both loads.
"""

from __future__ import annotations

import argparse
import csv
import importlib
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.common.command import ROUNDS, add_names, finish, make_parser, open_run, write_json
from benchmarks.common.figures import VERDICTS, Estimate, compare, describe_rounds, estimate
from benchmarks.common.page import make_table
from benchmarks.common.turn import (
    ROOT,
    CpuMeter,
    TurnError,
    adopt_orphans,
    answer_turn,
    find_python,
    last_line,
    make_environment,
    order,
    run_turn,
    turn_folder,
)

Taken = Mapping[str, float]
"""The figures of a turn."""
_LIMIT_S = 180.0
_CPUS = len(os.sched_getaffinity(0))
_LEVEL = 0.95
_OWN, _AUTO, _LOOP = "stagepipe", "stagepipe, auto", "plain loop"


# ---------------------------------------------------------------------------------------------- contestants


@dataclass(frozen=True)
class Contestant:
    """Takes turns: `take(root)` measures with the code of a checkout. `is_own`: it is measured for each checkout."""

    name: str
    take: Callable[[Path], Taken]
    is_own: bool = True


def _take_turn(root: Path, module: str, job: Mapping[str, Any]) -> dict[str, Any]:
    return run_turn(module, job, _LIMIT_S, root=root)


def _run_command(root: Path, module: str, *arguments: str, cpus: int = 0) -> dict[str, Any]:
    """Run a benchmark of a checkout that contains all contestants of a row, on `cpus` CPUs; return its JSON."""
    with turn_folder() as folder:
        out, log = folder / "out.json", folder / "log.txt"
        chosen = set(sorted(os.sched_getaffinity(0))[: cpus or None])
        with log.open("wb") as file:
            done = subprocess.run(
                [find_python(root), "-m", module, *arguments, "--json", str(out)],
                cwd=root, env=make_environment(root=root), stdout=file, stderr=file, timeout=2 * _LIMIT_S, check=False,
                preexec_fn=lambda: os.sched_setaffinity(0, chosen),
            )  # fmt: skip
        if done.returncode:
            raise TurnError(last_line(log.read_text(errors="replace")))
        document: dict[str, Any] = json.loads(out.read_text())
    return document


def _take_stage(root: Path) -> Taken:
    return _take_turn(root, "benchmarks.small_items", {"row": "worker"})


_LOOP_ITEMS = 30_000
_LOOP_KIND = "two numbers"


def _take_loop(root: Path, name: str) -> Taken:
    return _take_turn(root, "benchmarks.hop", {"name": name, "kind": _LOOP_KIND, "items": _LOOP_ITEMS})


def _take_ping(root: Path, cpus: int) -> Taken:
    document = _run_command(root, "benchmarks.small_items_hop", "--rounds", "1", "--items", "20000", cpus=cpus)
    found = document["one at a time"]
    ratios = {key: found["packets"][key][0] / found["Pipe"][key][0] for key in ("wall us", "CPU us")}
    return {**ratios, "us": found["packets"]["wall us"][0]}


_ARRAY_SIZES = ("2", "4", "8", "16", "32", "64")


def _take_arrays(root: Path) -> Taken:
    document = _run_command(root, "benchmarks.crossover", "--rounds", "6", "--sizes", ",".join(_ARRAY_SIZES))
    return {f"d = {line['d']}": line["to_peer"]["value"] for line in document["lines"]}


_IMAGE, _HEADER_SIZES = "1.2MB", ("64KB", "1.2MB", "8MB")
_FILLED, _HEADER_ONLY, _ICE = "stagepipe filled", "stagepipe header only", "iceoryx2"


def _take_hop(root: Path) -> Taken:
    sizes, names = (*_HEADER_SIZES, "64MB"), (_FILLED, _HEADER_ONLY, _ICE)
    document = _run_command(
        root, "benchmarks.hop", "--rounds", "3", "--sizes", ",".join(sizes), "--only", ",".join(names)
    )
    us = {(row["contestant"], row["size"]): median(row["us"]) for row in document["rows"] if not row["touched"]}
    header_us = {size: us[_HEADER_ONLY, size] for size in sizes}
    taken = {f"header {size}": header_us[size] for size in _HEADER_SIZES}
    taken |= {"filled us": us[_FILLED, _IMAGE], "growth": header_us["64MB"] / min(header_us.values())}
    return {**taken, "filled": us[_FILLED, _IMAGE] / us[_ICE, _IMAGE]} if (_ICE, _IMAGE) in us else taken


_JOBS = {
    "tokens": {},
    "tensors": {
        "DataLoader": "frameworks_torch:dataloader",
        "torchdata.nodes, processes": "frameworks_torch:nodes_processes",
        "SPDL, subprocess with arena, per batch": "frameworks:spdl_subprocess_per_batch",
        "SPDL, threads, per batch": "frameworks:spdl_threads_per_batch",
    },
    "thumbnails": {
        "torchdata.nodes, processes": "frameworks_torch:nodes_processes",
        "DataLoader": "frameworks_torch:dataloader",
        "joblib, loky": "frameworks:joblib",
    },
    "clips": {
        "torchdata.nodes, threads": "frameworks_torch:nodes_threads",
        "SPDL, threads": "frameworks:spdl_threads",
    },
    "models": {
        "torchdata.nodes, threads": "frameworks_torch:nodes_threads",
        "Pool.imap": "frameworks:pool",
    },
    "images": {
        "SPDL, threads, per batch": "frameworks:spdl_threads_per_batch",
        "torchdata.nodes, threads": "frameworks_torch:nodes_threads",
        "DataLoader": "frameworks_torch:dataloader",
    },
}  # fmt: skip
"""The other tools of each job: some of the fastest ones in docs/peers.md."""
_THREADS, _PROCESSES = ("SPDL, threads, per batch",), tuple(_JOBS["tensors"])[:3]
_LONG_JOBS = {"models": 8}
"""Factors for the measuring time: jobs with few items per second deliver in bursts."""


def _take_job(root: Path, job: str, framework: str) -> Taken:
    seconds = 2.0 * _LONG_JOBS.get(job, 1)
    request = {
        "job": job,
        "framework": framework,
        "workers": _CPUS,
        "min_s": seconds,
        "max_s": max(seconds, 6.0),
        "started_s": time.monotonic(),
    }
    figures = _take_turn(root, "benchmarks.peers.turn", request)
    return {key: figures[key] for key in ("items_per_s", "cpu_s_per_item")}


# ---------------------------------------------------------------------------------------------- the table starter

_TABLE_ROWS = (2_000, 20_000)
_TABLE_RUNS = 2
_APART = ("stages.clean.fuse=false", "stages.add_features.fuse=false")
TABLE_WAYS = {_LOOP: None, "processes": _APART, "all fused": (), "inline": ()}
_fewer, _more = _TABLE_ROWS


def write_tables(folder: Path) -> None:
    """Write the starter with few and with many rows, each in a separate folder."""
    from stagepipe.starters import StarterKind, write_project

    for rows in _TABLE_ROWS:
        project = write_project(folder / str(rows), StarterKind.TABLE, items=rows).folder
        subprocess.run([sys.executable, "make_data.py"], cwd=project, check=True, stdout=subprocess.DEVNULL)


def take_table(root: Path, way: str, folder: Path) -> Taken:
    """Measure the table with the package of a checkout and these benchmarks, which an older commit lacks."""
    return _take_here(root, folder, {"way": way, "folder": str(folder)})


def _take_here(root: Path, folder: Path, job: Mapping[str, Any]) -> Taken:
    for name in ("benchmarks", "data"):  # next to the package `stagepipe`, which the interpreter's environment names
        if not (folder / name).exists():
            (folder / name).symlink_to(ROOT / name)

    def launch(_: Path, command: list[str]) -> list[str]:
        return ["env", f"PYTHONPATH={folder}", command[0], "-P", *command[1:]]

    return run_turn("benchmarks.targets", job, _LIMIT_S, root=root, launch=launch)


def take_own_turn(**job: Any) -> Taken:
    """Take a turn of this module, in a separate process."""
    return time_table(**job) if "way" in job else time_waits(**job)


_WAITS_BATCH = 16
_WAITS = 100


def time_waits(step_s: float) -> Taken:
    """Return the 99th percentile and the median of the waits for a batch, in ms. A step holds the GIL for `step_s`.

    The step is so long that the pipeline is ahead: the waits measure the path to the caller, not the work on the
    images.
    """
    from benchmarks.peers.frameworks import by_hand
    from benchmarks.peers.jobs import JOBS

    batches = by_hand(replace(JOBS["images"], batch=_WAITS_BATCH), _CPUS)
    for _ in range(_WAITS // 10):
        next(batches)
    waits_ms = []
    for _ in range(_WAITS):
        began_s = time.perf_counter()
        next(batches)
        now_s = time.perf_counter()
        waits_ms.append(1000 * (now_s - began_s))
        while time.perf_counter() - now_s < step_s:
            pass
    return {"p99 ms": sorted(waits_ms)[_WAITS * 99 // 100 - 1], "median ms": median(waits_ms)}


def time_table(way: str, folder: str) -> Taken:
    """Return the CPU us per row by slope. One turn, in a separate process; the first run warms the caches."""
    run = _loop_over_table if way == _LOOP else partial(_run_table, way)
    used_s: dict[int, list[float]] = defaultdict(list)
    for number in range(1 + _TABLE_RUNS):
        for rows in _TABLE_ROWS:
            project = Path(folder) / str(rows)
            os.chdir(project)
            if str(project) not in sys.path:
                sys.path.insert(0, str(project))
            cpu = CpuMeter()
            run()
            if number:
                used_s[rows].append(cpu.measure_s())
    slope_s = (sum(used_s[_more]) - sum(used_s[_fewer])) / _TABLE_RUNS / (_more - _fewer)
    return {"us": 1e6 * slope_s}


def _loop_over_table() -> None:
    """Do the work of the starter in a plain loop."""
    ops: Any = importlib.import_module("my_ops")
    from stagepipe import SKIP

    with Path("loop.jsonl").open("w", encoding="utf-8") as out:
        for path in sorted(Path("data").glob("*.csv")):
            with path.open(encoding="utf-8", newline="") as file:
                for fields in csv.DictReader(file):
                    row: Any = {
                        **fields,
                        "celsius": float(fields["celsius"]) if fields["celsius"] else None,
                        "humidity": float(fields["humidity"]) if fields["humidity"] else None,
                    }
                    row = ops.clean(row)
                    if row is not SKIP:
                        out.write(json.dumps(ops.add_features(row)) + "\n")


def _run_table(way: str) -> None:
    from stagepipe import Pipeline
    from stagepipe.api import open_shards, run_to_sink

    pipeline: Pipeline[Any] = Pipeline("pipeline.yaml", TABLE_WAYS[way] or (), inline=way == "inline")
    with open_shards(pipeline, resume=False) as shards, pipeline:
        run_to_sink(pipeline, lambda _: None, shards=shards)


# ---------------------------------------------------------------------------------------------- targets

Rounds = Mapping[int, float]
"""A value by round; a round in which the contestant's turn failed is missing."""


class Found:
    """The figures of a load by contestant, figure and round. For own contestants, the figures of one checkout."""

    def __init__(self, figures: Mapping[str, Mapping[str, Rounds]]) -> None:
        self._figures = figures

    def get(self, contestant: str, figure: str) -> Rounds:
        """Return a figure of each round; empty if it was not measured."""
        return self._figures.get(contestant, {}).get(figure, {})

    def divide(self, contestant: str, other: str, figure: str) -> Rounds:
        """Divide within each round."""
        own, others = self.get(contestant, figure), self.get(other, figure)
        return {number: own[number] / others[number] for number in own if number in others}

    def find_fastest(self, job: str, tools: Sequence[str]) -> str:
        """Return the contestant of a job with the most items/s among these tools, or ""."""
        rates = {f"{job}: {tool}": self.get(f"{job}: {tool}", "items_per_s") for tool in tools}
        return max((name for name in rates if rates[name]), key=lambda name: median(rates[name].values()), default="")


@dataclass(frozen=True, kw_only=True)
class Goal:
    """A line of the table: its text, its computation from the figures, and its limits in a quiet load."""

    row: str
    text: str
    measure: Callable[[Found], Rounds]
    at_most: float = math.inf
    at_least: float = -math.inf
    busy_at_most: float = 0.0
    """The limit under load, if it differs."""
    against: Callable[[Found], str] = lambda _: ""
    """Names the reference, if the run determines it."""

    def judge(self, found: Found, load: str) -> tuple[Estimate, bool | None]:
        """Return the figure, and whether its whole interval is within the limit; None if only a part of it is."""
        figure = estimate(list(self.measure(found).values()))
        at_most = self.busy_at_most if load != QUIET and self.busy_at_most else self.at_most
        return figure, compare(figure, at_most=at_most, at_least=self.at_least) if self.measure(found) else None

    def format_limit(self, load: str) -> str:
        """Format the limit for the table."""
        if self.at_least > -math.inf:
            return f">= {self.at_least:g}"
        return f"<= {self.busy_at_most if load != QUIET and self.busy_at_most else self.at_most:g}"


def _goal(row: str, text: str, contestant: str, figure: str, **limits: Any) -> Goal:
    return Goal(row=row, text=text, measure=lambda found: found.get(contestant, figure), **limits)


def _ratio(row: str, text: str, pair: tuple[str, str], figure: str, **limits: Any) -> Goal:
    return Goal(row=row, text=text, measure=lambda found: found.divide(*pair, figure), **limits)


def _beside(job: str, text: str, tools: Sequence[str], figure: str, **limits: Any) -> Goal:
    """Compare with the fastest of several tools."""

    def fastest(found: Found) -> str:
        return found.find_fastest(job, tools)

    return Goal(
        row=job,
        text=f"{job}: {text}",
        measure=lambda found: found.divide(f"{job}: {_OWN}", fastest(found), figure),
        against=lambda found: fastest(found).partition(": ")[2],
        **limits,
    )


def _make_goals() -> Iterator[Goal]:
    yield _goal("stage", "worker's CPU for a stage that does nothing, us", "stage", "us", at_most=5, busy_at_most=7)
    yield _ratio("loop", "loop over small dicts, times Pipe", (_OWN, "Pipe"), "us", at_most=1.0)
    yield _ratio("loop", "the same with a stage", ("stagepipe + stage", "Pipe + stage"), "us", at_most=1.0)
    yield _goal("ping", "one at a time, times Pipe, two CPUs", "ping", "wall us", at_most=1.2)
    yield _goal("ping", "one at a time, times Pipe, one CPU", "ping, one CPU", "wall us", at_most=1.5)
    for d in _ARRAY_SIZES:
        yield _goal(
            "arrays", f"arrays, d = {d}, times the better of Pipe and RawArray", "arrays", f"d = {d}", at_most=1.1
        )
    for way, limit in (("processes", 4), ("all fused", 2), ("inline", 2)):
        pair = (f"table: {way}", f"table: {_LOOP}")
        yield _ratio("table", f"CPU of a row, {way}, times a plain loop", pair, "us", at_most=limit)
    yield _beside("tokens", "CPU, times a plain loop", (_LOOP,), "cpu_s_per_item", at_most=1.8)
    yield _beside("tokens", "items/s, times a plain loop", (_LOOP,), "items_per_s", at_least=_LEVEL)
    yield _beside("tensors", "items/s, times the best tool with processes", _PROCESSES, "items_per_s", at_least=1.5)
    yield _beside("tensors", "items/s, times SPDL's threads per batch", _THREADS, "items_per_s", at_least=0.9)
    for job in ("thumbnails", "clips", "models", "images"):
        yield _beside(job, "items/s, times the best other tool", tuple(_JOBS[job]), "items_per_s", at_least=_LEVEL)
        yield _beside(job, "CPU, times that tool", tuple(_JOBS[job]), "cpu_s_per_item", at_most=1.1)
    yield _goal("hop", "1.2 MB filled, times iceoryx2", "hop", "filled", at_most=1.4)
    for size in _HEADER_SIZES:
        yield _goal("hop", f"header only at {size}, us", "hop", f"header {size}", at_most=20)
    yield _goal("hop", "header only, growth up to 64 MB", "hop", "growth", at_most=2)
    # 1.2 times the values before small items shared chunks, on a machine with other work.
    yield _goal("waits", "a loop's waits for a batch of images, 99 % of them, ms", "waits", "p99 ms", at_most=26)
    yield _goal("waits", "half of them, ms", "waits", "median ms", at_most=0.7)
    for job in _JOBS:
        pair = (f"{job}: {_AUTO}", f"{job}: {_OWN}")
        yield _ratio("auto", f"auto, items/s, times the hand-made layout: {job}", pair, "items_per_s", at_least=_LEVEL)


GOALS = tuple(_make_goals())
ROWS = tuple(dict.fromkeys(goal.row for goal in GOALS))


def list_contestants(rows: Sequence[str], tables: Path) -> list[Contestant]:
    """Return the contestants of these rows."""
    single = {
        "stage": [Contestant("stage", _take_stage)],
        "loop": [
            Contestant(name, partial(_take_loop, name=name), is_own=_OWN in name)
            for name in (_OWN, "Pipe", "stagepipe + stage", "Pipe + stage")
        ],
        "ping": [
            Contestant("ping", partial(_take_ping, cpus=0)),
            Contestant("ping, one CPU", partial(_take_ping, cpus=1)),
        ],
        "arrays": [Contestant("arrays", _take_arrays)],
        "table": [
            Contestant(f"table: {way}", partial(take_table, way=way, folder=tables), is_own=way != _LOOP)
            for way in TABLE_WAYS
        ],
        "hop": [Contestant("hop", _take_hop)],
        "waits": [Contestant("waits", partial(_take_here, folder=tables, job={"step_s": 0.15}))],
    }
    found = [contestant for row in rows for contestant in single.get(row, ())]
    for job, others in _JOBS.items():
        tools: dict[str, str] = {}
        if job in rows:
            tools |= {_OWN: "frameworks:by_hand", **others}
            tools |= {_LOOP: "frameworks:loop"} if job == "tokens" else {}
        if "auto" in rows:
            tools |= {_OWN: "frameworks:by_hand", _AUTO: "frameworks:auto"}
        for tool, framework in tools.items():
            take = partial(_take_job, job=job, framework=framework)
            found.append(Contestant(f"{job}: {tool}", take, is_own=_OWN in tool))
    return found


# ---------------------------------------------------------------------------------------------- loads and rounds

QUIET, _PINNED = "quiet", "pinned"
_BURN = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n    for _ in range(10**6): pass"
LOADS = (QUIET, "busy", _PINNED)


@contextmanager
def apply_load(load: str) -> Iterator[None]:
    """Keep another program busy during the block: it ends with the block, and with this process."""
    if load == QUIET:
        yield
        return
    burner = subprocess.Popen([sys.executable, "-c", _BURN])
    try:
        if load == _PINNED:
            os.sched_setaffinity(burner.pid, {max(os.sched_getaffinity(0))})
        yield
    finally:
        burner.kill()
        burner.wait()


@dataclass
class Measured:
    """The figures by load, checkout ("" for other tools), contestant, figure and round; and the failed turns."""

    figures: dict[str, dict[str, dict[str, dict[str, dict[int, float]]]]]
    failures: list[str]

    def add(self, place: Sequence[str], number: int, taken: Taken) -> None:
        """Add the figures of a turn."""
        load, root, contestant = place
        by_figure = self.figures.setdefault(load, {}).setdefault(root, {}).setdefault(contestant, {})
        for figure, value in taken.items():
            by_figure.setdefault(figure, {})[number] = value

    def select(self, load: str, root: str) -> Found:
        """Return the figures of a load with one checkout."""
        by_root = self.figures.get(load, {})
        return Found({**by_root.get("", {}), **by_root.get(root, {})})


def take_round(
    number: int, contestants: Sequence[Contestant], roots: Mapping[str, Path], loads: Sequence[str], measured: Measured
) -> Iterator[None]:
    """Let every contestant take a turn in each load; yield after each turn."""
    by_name = {contestant.name: contestant for contestant in contestants}
    for load in order(loads, number):
        with apply_load(load):
            for name in order(list(by_name), number):
                contestant = by_name[name]
                for root in order(list(roots), number) if contestant.is_own else [""]:
                    print(f"round {number}, {load}: {name} {root}", file=sys.stderr, flush=True)
                    try:
                        measured.add((load, root, name), number, contestant.take(roots.get(root, ROOT)))
                    except (TurnError, subprocess.TimeoutExpired) as error:
                        measured.failures.append(f"round {number}, {load}, {name} {root}: {error}")
                        print(measured.failures[-1], file=sys.stderr, flush=True)
                    yield


def make_rows(measured: Measured, load: str, roots: Sequence[str], rows: Sequence[str]) -> Iterator[list[str]]:
    """Yield the cells of a load's goals: the figure of each checkout, and the verdict only for the first."""
    for goal in GOALS:
        if goal.row not in rows:
            continue
        judged = [goal.judge(measured.select(load, root), load) for root in roots]
        (_, met), others = judged[0], goal.against(measured.select(load, roots[0]))
        figures = [figure.text() if not math.isnan(figure.value) else "" for figure, _ in judged]
        verdict = VERDICTS[met] if figures[0] else "not measured"
        yield [f"{goal.text}{f' ({others})' if others else ''}", goal.format_limit(load), *figures, verdict]


def _print_tables(measured: Measured, options: argparse.Namespace, roots: Sequence[str]) -> dict[str, list[list[str]]]:
    """Print a table for each load, and return their cells."""
    tables = {load: list(make_rows(measured, load, roots, options.rows)) for load in options.load}
    for load, rows in tables.items():
        print(f"\n{load}: {describe_rounds(options.rounds)}\n")
        print(*make_table(("target", "limit", *roots, f"{roots[0]} has"), rows), sep="\n")
    return tables


def main(arguments: Sequence[str]) -> None:
    """Take the rounds, print a table for each load, and write the JSON after each turn."""
    if answer_turn(arguments, take_own_turn):
        return
    parser = make_parser(__doc__, rounds=ROUNDS)
    add_names(parser, "--rows", ROWS, "row")
    add_names(parser, "--load", LOADS, "load")
    parser.set_defaults(load=[QUIET, "busy"])
    parser.add_argument("--against", type=Path, metavar="CHECKOUT", help="measure this checkout too, by its .venv")
    options = parser.parse_args(arguments)
    roots = {"now": ROOT}
    if options.against is not None:
        roots["before"] = options.against.resolve()
        if not Path(find_python(roots["before"])).exists():
            parser.error(f"{options.against} has no .venv: run make .venv/.bench there")
    os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))
    adopt_orphans()
    about = {
        **open_run("targets", packages=("spdl", "torchdata", "iceoryx2")),
        "roots": {k: str(v) for k, v in roots.items()},
    }
    measured = Measured({}, [])
    with tempfile.TemporaryDirectory(prefix="targets-") as folder:
        tables = Path(folder)
        if "table" in options.rows:
            write_tables(tables)
        contestants = list_contestants(options.rows, tables)
        with suppress(KeyboardInterrupt):  # an interrupted run prints the figures that it has
            for number in range(options.rounds):
                for _ in take_round(number, contestants, roots, options.load, measured):
                    write_json(options.json, {**about, **asdict(measured)})
    print(*(f"failed: {failure}" for failure in measured.failures), sep="\n")
    finish(options.json, {**about, **asdict(measured), "tables": _print_tables(measured, options, list(roots))})


if __name__ == "__main__":
    main(sys.argv[1:])
