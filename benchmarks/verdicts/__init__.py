"""The planted cases: a config with one fault, the correct verdict, and the change that helps. No I/O.

>>> [case.name for case in CASES][:2]
['sleeping stage', 'computing stage']
>>> config = CASES[0].make_config(Surroundings(folder="/tmp/x"))
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

_PARTS = "benchmarks.verdicts.parts"


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """External resources of a config: an empty folder, and the port of a server that answers after 20 ms."""

    folder: str
    port: int = 0


@dataclass(frozen=True, kw_only=True)
class Case:
    """A planted bottleneck.

    `kind`, one of `limited_by`, and a match of `fix` (a regular expression) make the verdict right; `says` must be in
    its sentence or its advice. If `fix` is empty, `change` (overrides) is made by hand and follows the advice. With
    `alone`, the change is that the `trouble` around the run ends. `consumer_ms`: the sleep of the loop per item.
    `rate`: whether start-up counts, as it does for a user who waits.
    """

    name: str
    make_config: Callable[[Surroundings], dict[str, Any]]
    kind: str
    limited_by: tuple[str, ...]
    fix: str = ""
    says: str = ""
    change: tuple[str, ...] = ()
    consumer_ms: float = 0
    trouble: Literal["", "busy", "quota"] = ""
    rate: Literal["steady", "total"] = "steady"


def _source(count: int, **arguments: Any) -> dict[str, Any]:
    return {"uses": f"{_PARTS}.Numbers", "with": {"count": count, **arguments}}


def _stage(name: str, uses: str, keys: dict[str, Any] | None = None, **arguments: Any) -> dict[str, Any]:
    where = uses if "." in uses else f"{_PARTS}.{uses}"
    return {"name": name, "uses": where, **({"with": arguments} if arguments else {}), **(keys or {})}


def _run(source: dict[str, Any], *stages: dict[str, Any], **keys: Any) -> Callable[[Surroundings], dict[str, Any]]:
    return lambda _: {"name": "planted", "source": source, "stages": list(stages), **keys}


def _fetching(around: Surroundings) -> dict[str, Any]:
    return _run(_source(200), _stage("fetch", "Fetch", port=around.port))(around)


def _sink_with_workers(around: Surroundings) -> dict[str, Any]:
    sink = {"uses": f"{_PARTS}.SlowShards", "with": {"path": f"{around.folder}/out", "sleep_ms": 10, "part_items": 8}}
    return _run(_source(400), sink=sink)(around)


def _straggler(around: Surroundings) -> dict[str, Any]:
    stage = _stage("work", "Straggler", {"workers": 4}, path=f"{around.folder}/worker", sleep_ms=10, times=40)
    return _run(_source(500), stage, window=16)(around)


def _mortal(around: Surroundings) -> dict[str, Any]:
    stage = _stage(
        "work", "Mortal", path=f"{around.folder}/dead", deaths=[100, 200, 300, 400], sleep_ms=4, build_ms=700
    )
    return _run(_source(500), stage)(around)


_WORKERS = r"stages\.{}\.workers=\d+"

CASES = (
    Case(
        name="sleeping stage",
        make_config=_run(_source(400), _stage("before", "Work"), _stage("work", "Work", sleep_ms=10)),
        kind="stage",
        limited_by=("work",),
        fix=_WORKERS.format("work"),
    ),
    Case(
        name="computing stage",
        make_config=_run(_source(400), _stage("before", "Work", sleep_ms=1), _stage("work", "Work", rounds=100)),
        kind="stage",
        limited_by=("work",),
        fix=_WORKERS.format("work"),
    ),
    Case(
        name="waiting for a server",
        make_config=_fetching,
        kind="stage",
        limited_by=("fetch",),
        fix=_WORKERS.format("fetch"),
    ),
    Case(
        name="slow source",
        make_config=_run(_source(400, sleep_ms=10), _stage("work", "Work", {"workers": 4})),
        kind="source",
        limited_by=("source",),
        says="one process",
        change=("source.with.sleep_ms=0", "stages.work.with.sleep_ms=10"),
    ),
    Case(
        name="slow training step",
        make_config=_run(_source(400), _stage("work", "Work", sleep_ms=1)),
        kind="consumer",
        limited_by=("consumer",),
        says="Stop tuning",
        change=("stages.work.workers=2",),
        consumer_ms=10,
    ),
    Case(
        name="slow sink",
        make_config=_run(
            _source(400), _stage("work", "Work"), sink={"uses": f"{_PARTS}.SlowSink", "with": {"sleep_ms": 10}}
        ),
        kind="sink",
        limited_by=("SlowSink",),
        says="with workers",
        change=(
            f"sink.uses={_PARTS}.SlowShards",
            "sink.with.path={folder}/out",
            "sink.with.part_items=8",
            "sink.workers=4",
        ),
    ),
    Case(
        name="slow sink with workers",
        make_config=_sink_with_workers,
        kind="sink",
        limited_by=("SlowShards",),
        fix=r"sink\.workers=\d+",
        rate="total",
    ),
    Case(
        name="slow collate",
        make_config=_run(_source(6000), _stage("make", "explode"), _stage("batch", "stagepipe.stages.Batch", size=64)),
        kind="stage",
        limited_by=("batch", "make -> batch"),
        says="batch",
        change=(f"stages.make.uses={_PARTS}.pack",),
    ),
    Case(
        name="forced pipe",
        make_config=_run(
            _source(1500), _stage("make", "Work", nbytes=2_000_000), _stage("use", "Work", {"transport": "pipe"})
        ),
        kind="hop",
        limited_by=("make -> use",),
        fix=r"stages\.use\.(transport=(shared_memory|auto)|fuse=true)",
    ),
    Case(
        name="window too small",
        make_config=_run(_source(500), _stage("work", "Work", {"workers": 4}, sleep_ms=10), window=1),
        kind="window",
        limited_by=("window",),
        fix=r"window=\d+",
    ),
    Case(
        name="window held by memory",
        make_config=_run(
            _source(500),
            _stage("make", "Work", {"workers": 4}, sleep_ms=10, nbytes=8_000_000),
            _stage("use", "Work"),
            memory="32MB",
        ),
        kind="memory",
        limited_by=("memory",),
        fix=r"memory=\S+",
    ),
    Case(
        name="head-of-line blocking",
        make_config=_run(
            _source(600), _stage("work", "Work", {"workers": 4}, sleep_ms=2, pauses=[[0, 600, 20, 120]]), window=8
        ),
        kind="window",
        limited_by=("order",),
        fix=r"order=any|window=\d+",
    ),
    Case(
        name="one straggler worker",
        make_config=_straggler,
        kind="stage",
        limited_by=("work",),
        says="worker ",
        change=("stages.work.with.times=1",),
    ),
    Case(
        name="oversubscribed threads",
        make_config=_run(_source(300), _stage("work", f"{_PARTS}.multiply", {"workers": 2, "threads": 4})),
        kind="stage",
        limited_by=("work",),
        fix=r"stages\.work\.threads=1",
    ),
    Case(
        name="busy machine",
        make_config=_run(_source(250), _stage("work", "Work", {"workers": 2}, rounds=100)),
        kind="machine",
        limited_by=("other programs",),
        trouble="busy",
    ),
    Case(
        name="throttled cgroup",
        make_config=_run(_source(80), _stage("work", "Work", {"workers": 2}, rounds=100)),
        kind="machine",
        limited_by=("cpu quota",),
        says="quota",
        trouble="quota",
    ),
    Case(
        name="time lost to retries",
        make_config=_run(_source(150), _stage("work", "Flaky", {"retries": 10}, sleep_ms=10, good=3)),
        kind="stage",
        limited_by=("work",),
        says="failed",
        change=("stages.work.with.good=1",),
    ),
    Case(
        name="time lost to restarts",
        make_config=_mortal,
        kind="restarts",
        limited_by=("work",),
        change=("stages.work.with.deaths=[]",),
        rate="total",
    ),
    Case(
        name="two equal stages",
        make_config=_run(_source(400), _stage("one", "Work", sleep_ms=10), _stage("two", "Work", sleep_ms=10)),
        kind="stage",
        limited_by=("one", "two"),
        fix=r"stages\.one\.workers=\d+ stages\.two\.workers=\d+",
    ),
    Case(
        name="start-up dominates",
        make_config=_run(_source(300), _stage("load", "Work", sleep_ms=1, build_ms=3000)),
        kind="startup",
        limited_by=("load",),
        change=("source.with.count=3000",),
        rate="total",
    ),
    Case(
        name="bottleneck changes",
        make_config=_run(
            _source(500),
            _stage("early", "Work", sleep_ms=1, pauses=[[0, 250, 1, 9]]),
            _stage("late", "Work", sleep_ms=1, pauses=[[250, 500, 1, 9]]),
        ),
        kind="stage",
        limited_by=("early", "late"),
        fix=r"stages\.early\.workers=\d+ stages\.late\.workers=\d+",
        says="changes",
    ),
    Case(
        name="too few items",
        make_config=_run(_source(6), _stage("work", "Work", sleep_ms=10)),
        kind="none",
        limited_by=("",),
        says="Too few items",
        change=("source.with.count=400",),
        rate="total",
    ),
)
