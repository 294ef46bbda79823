"""Measure the CPU time of a worker per small item, by part: the cost of a call of a stage.

    python -m benchmarks.small_items [--rounds 7] [--json FILE]

The item is a small dict, and the stages return it. The figures are CPU time, so a busy machine matters little. Each
figure is taken in a fresh process; the calls run in a process that makes the generators lazy, like a worker.

    worker              all CPU time of a stage's process per item in a real pipeline, including the operating system,
                        between two epochs' ends: reading, call, writing
    worker, torch       the same with a stage that uses torch, so torch is seeded before each item
    worker, torch idle  the same with a stage that imports torch and does not use it
    call                the stage is called and timed, with `reseed: false`: context, errors, run time, counters, board
    call, seeded        the same, seeded; the stage draws nothing
    call, torch         the same with torch imported and used: its generator is seeded for each item
    call, torch unused  the same in a worker that was forked from a server with torch and has not used it
    call, draws         seeded, and the stage draws from `random`
    call, draws NumPy   seeded, and the stage draws from `numpy.random`
    call, eager         seeded before each item, because a function of the generators was imported before
    inline, two stages  all CPU time per item in an inline run of a source and two stages
    inline, a stage     the additional time of each further stage: the slope from one stage to four
    three fused stages  three of `call, seeded` in one process
    hop's durations     the time of the recorders on both sides of a hop to record the item's phases
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Sequence
from time import process_time_ns
from typing import Any, Final

import numpy as np

from benchmarks.common.command import finish, make_parser, open_run
from benchmarks.common.figures import format_figures
from benchmarks.common.turn import adopt_orphans, answer_turn, run_turn, take_rounds
from stagepipe import Pipeline
from stagepipe.core import Key, watch_torch_use
from stagepipe.plan import StagePlan
from stagepipe.runtime import ChunkInHand, StageChain, StageRunner, install_lazy_seeding
from stagepipe.spec import Target
from stagepipe.timing import RECEIVE_PHASES, SEND_PHASES, Board, BoardLayout, DurationRecorder, make_board_fd

SMALL_DICT: Final = {"id": 123, "label": 7, "path": "images/000123.jpg"}
_ITEMS = 50_000
_CHUNK_ITEMS = 50
_CHUNK_NS = 10**9
_INLINE_ITEMS = 20_000
_BESIDE_TORCH: Final = "benchmarks.hop.PassOnBesideTorch"
_LIMIT_S = 120.0


class _Discard:
    """An output that drops its items."""

    def add(self, _value: Any, _key: Key) -> bool:
        return True


def _keep(item: Any) -> Any:
    return item


def _draw(item: Any) -> Any:
    random.random()
    return item


def _draw_numpy(item: Any) -> Any:
    np.random.random()  # noqa: NPY002 - the measured call
    return item


def _call(function: Callable[[Any], Any], *, stage_count: int = 1, reseed: bool = True, lazy: bool = True) -> float:
    """Return the CPU time per item in ns."""
    if lazy and not install_lazy_seeding():
        raise RuntimeError("the generators cannot be lazy: a function of theirs was imported before")
    layout = BoardLayout(1, (stage_count,))
    region = Board(make_board_fd(layout), layout).region(0)
    plans = [
        StagePlan(name=f"stage{index}", index=index + 1, target=Target(function, {}), reseed=reseed)
        for index in range(stage_count)
    ]
    stages = [StageRunner(plan, 0, 0, None, region.stage_region(plan.index - 1)) for plan in plans]
    chain = StageChain(stages, _Discard(), region)  # type: ignore[arg-type]  # sends nothing but items

    def push_all() -> None:
        for number in range(0, _ITEMS, _CHUNK_ITEMS):
            chain.push_chunk(ChunkInHand((number,), [SMALL_DICT] * _CHUNK_ITEMS), region, _CHUNK_NS)
        for stage in stages:
            stage.flush()

    return _time_ns(push_all)


def _call_with_torch(*, used: bool) -> float:
    import torch  # noqa: F401 - it is imported by the fork server, or the stage

    if not used:
        watch_torch_use()
    return _call(_keep)


def _record_hop() -> float:
    layout = BoardLayout(1, (1,))
    region = Board(make_board_fd(layout), layout).region(0)
    send_count, receive_count = len(SEND_PHASES), len(RECEIVE_PHASES)
    send = DurationRecorder(region.send_histogram_words, send_count, region.send_ledger)
    receive = DurationRecorder(region.receive_histogram_words, receive_count, region.receive_ledger)

    def record_all() -> None:
        for number in range(_ITEMS):
            send.add((number,) * send_count, (0, 100, number))
            receive.add((number,) * receive_count, (0, 100, number))

    return _time_ns(record_all)


def _time_ns(run: Callable[[], None]) -> float:
    run()  # caches and lazy imports
    started_ns = process_time_ns()
    run()
    return (process_time_ns() - started_ns) / _ITEMS


def _measure_worker(uses: str, **values: bool) -> float:
    config = {
        "name": "small-items",
        "source": {"uses": "benchmarks.hop.Dicts", "with": {"kind": "two numbers", "count": _ITEMS}},
        "preload": ["torch"],
        "stages": [{"name": "pass_on", "uses": uses, "with": values}],
    }
    with Pipeline(config) as pipeline:
        used_ns = []
        for _ in range(2):  # the first epoch also starts the worker
            received = sum(1 for _ in pipeline)
            assert received == _ITEMS, f"{received} items arrived instead of {_ITEMS}"
            used_ns.append(next(stage.cpu_ns for stage in pipeline.report().stages if stage.name == "pass_on"))
    return (used_ns[1] - used_ns[0]) / _ITEMS


ROWS: Final[dict[str, Callable[[], float]]] = {
    "worker": lambda: _measure_worker("benchmarks.common.stages.pass_on"),
    "worker, torch": lambda: _measure_worker(_BESIDE_TORCH, used=True),
    "worker, torch idle": lambda: _measure_worker(_BESIDE_TORCH, used=False),
    "call": lambda: _call(_keep, reseed=False),
    "call, seeded": lambda: _call(_keep),
    "call, torch": lambda: _call_with_torch(used=True),
    "call, torch unused": lambda: _call_with_torch(used=False),
    "call, draws": lambda: _call(_draw),
    "call, draws NumPy": lambda: _call(_draw_numpy),
    "call, eager": lambda: _call(_keep, lazy=False),
    "inline, two stages": lambda: _measure_inline(2),
    "inline, a stage": lambda: (_measure_inline(4) - _measure_inline(1)) / 3,
    "three fused stages": lambda: _call(_keep, stage_count=3),
    "hop's durations": _record_hop,
}


def _measure_inline(stage_count: int) -> float:
    """Return the CPU time per item of an inline run in ns, without the start of the run and of the epoch."""
    stages = [{"name": f"stage{index}", "uses": _keep} for index in range(stage_count)]
    config = {"source": {"uses": [dict(SMALL_DICT) for _ in range(_INLINE_ITEMS)]}, "stages": stages}
    with Pipeline(config, inline=True) as pipeline:
        items = iter(pipeline)
        for _ in range(_INLINE_ITEMS // 20):
            next(items)
        started_ns = process_time_ns()
        count = sum(1 for _ in items)
        return (process_time_ns() - started_ns) / count


def _run_turn(row: str) -> dict[str, float]:
    """Take one turn, in a separate process."""
    return {"us": ROWS[row]() / 1000}


def main(arguments: Sequence[str]) -> None:
    """Measure all rows and print them, or as a turn, measure one row and write its figure."""
    if answer_turn(arguments, _run_turn):
        return
    options = make_parser(__doc__, rounds=7).parse_args(arguments)
    adopt_orphans()
    document = open_run("small_items")
    found = take_rounds(
        list(ROWS), options.rounds, lambda row: run_turn("benchmarks.small_items", {"row": row}, _LIMIT_S)
    )
    print(*format_figures("CPU time of an item", found, ["us"]), sep="\n")
    finish(options.json, {**document, "figures": found})


if __name__ == "__main__":
    main(sys.argv[1:])
