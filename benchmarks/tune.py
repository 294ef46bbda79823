"""Check that `stagepipe tune` reaches a hand-made layout, on the starters, the quickstart, and planted bottlenecks.

For each case, `tune` starts from the layout of the config. Then the final layout and a layout made by hand run in pairs
A B B A on the same items. The final layout is *level* if the ratio of the rates, final to hand-made, is at least 0.95,
or if its 95 % interval includes 1.

    python -m benchmarks.tune --json runs/tune.json
    python -m benchmarks.tune table "sleeping stage" --time 2m

The quickstart reads data/images: `python scripts/make_images.py` makes them.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any, Final

from benchmarks.common.command import machine
from benchmarks.common.turn import ROOT
from benchmarks.verdicts import CASES, Surroundings
from stagepipe.config import load
from stagepipe.core import format_rate, parse_duration_ns
from stagepipe.report import LiveRun
from stagepipe.starters import StarterKind, write_project
from stagepipe.tuning import (
    LayoutRunner,
    OutputSandbox,
    PairOfRuns,
    RatioInterval,
    TuneOptions,
    TuneStep,
    estimate_ratio,
    tune,
)

_LEVEL: Final = 0.95
_RUN_S: Final = 4.0
_LIMIT_S: Final = 120.0
_CPUS: Final = len(os.sched_getaffinity(0))


@dataclass(frozen=True, kw_only=True)
class TuneCase:
    """A pipeline to tune: `open_config` yields its path or mapping. `start` and `by_hand` are overrides."""

    name: str
    open_config: Callable[[], Any]
    by_hand: tuple[str, ...]
    start: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class TuneRow:
    """The result of a case. `total` compares the final layout with the start, `to_hand` with the layout by hand."""

    name: str
    changes: tuple[str, ...]
    by_hand: tuple[str, ...]
    start_items_per_s: float | None
    end_items_per_s: float | None
    hand_items_per_s: float
    total: RatioInterval | None
    to_hand: RatioInterval
    end_reason: str
    seconds: float

    @property
    def is_level(self) -> bool:
        """Whether the final layout is as fast as the layout by hand, within the precision of the runs."""
        return self.to_hand.ratio >= _LEVEL or self.to_hand.low <= 1 <= self.to_hand.high

    @property
    def is_below_start(self) -> bool:
        """Whether the final layout is slower than the start."""
        return self.total is not None and self.total.high < 1


def _fused(*stages: str) -> tuple[str, ...]:
    return tuple(
        override for stage in stages for override in (f"stages.{stage}.fuse=true", f"stages.{stage}.workers=null")
    )


def _apart(*stages: str) -> tuple[str, ...]:
    """Return overrides for a process per stage, because the starters ship with the layout that `tune` ends at."""
    return tuple(f"stages.{stage}.fuse=false" for stage in stages)


@contextmanager
def _starter(kind: StarterKind) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="tune-") as folder:
        project = write_project(Path(folder), kind)
        subprocess.run([sys.executable, "make_data.py"], cwd=folder, check=True, stdout=subprocess.DEVNULL)
        before = Path.cwd()
        os.chdir(folder)  # a starter's paths are relative to its folder
        try:
            yield project.folder / "pipeline.yaml"
        finally:
            os.chdir(before)


@contextmanager
def _planted(name: str, items: int) -> Iterator[Mapping[str, Any]]:
    case = next(case for case in CASES if case.name == name)
    with tempfile.TemporaryDirectory(prefix="tune-") as folder:
        config = case.make_config(Surroundings(folder=folder))
        source = {**config["source"], "with": {**config["source"]["with"], "count": items}}
        yield {**config, "source": source}


TUNE_CASES: Final = (
    TuneCase(
        name="image starter",
        open_config=lambda: _starter(StarterKind.IMAGE),
        by_hand=(f"stages.decode.workers={_CPUS}", *_fused("augment")),
        start=_apart("augment"),
    ),
    TuneCase(
        name="text starter",
        open_config=lambda: _starter(StarterKind.TEXT),
        by_hand=_fused("clean", "tokenize"),
        start=_apart("clean", "tokenize"),
    ),
    TuneCase(
        name="table starter",
        open_config=lambda: _starter(StarterKind.TABLE),
        by_hand=_fused("clean", "add_features"),
        start=_apart("clean", "add_features"),
    ),
    TuneCase(
        name="quickstart",
        open_config=lambda: nullcontext(ROOT / "configs" / "quickstart.yaml"),
        by_hand=(f"stages.decode.workers={_CPUS}", *_fused("augment")),
        start=(f"vars.images={ROOT / 'data' / 'images'}",),
    ),
    TuneCase(
        name="sleeping stage",
        open_config=lambda: _planted("sleeping stage", 100_000),
        by_hand=("stages.work.workers=16",),
    ),
    TuneCase(
        name="two equal stages",
        open_config=lambda: _planted("two equal stages", 100_000),
        by_hand=("stages.one.workers=12", "stages.two.workers=12"),
    ),
    TuneCase(
        name="forced pipe",
        open_config=lambda: _planted("forced pipe", 100_000),
        by_hand=(*_fused("use"), "stages.use.transport=null"),
    ),
    TuneCase(
        name="slow sink with workers",
        open_config=lambda: _planted("slow sink with workers", 100_000),
        by_hand=("sink.workers=12",),
    ),
)


class _Printer:
    """Prints each change that `tune` tried."""

    def begin_run(self, text: str) -> None:
        """Print nothing, because the runs are short."""

    def show_progress(self, progress: LiveRun) -> None:
        """Print nothing."""

    def end_step(self, step: TuneStep) -> None:
        """Print the step."""
        print(f"  {' '.join(step.change)}: {step.interval} {step.note} {'kept' if step.is_kept else ''}", flush=True)


def measure_case(case: TuneCase, time_s: float, pairs: int) -> TuneRow:
    """Tune a case, and compare the final layout with the layout by hand."""
    began_s = monotonic()
    with case.open_config() as config:
        options = TuneOptions(time_s=time_s, allow_writes=True)
        result = tune(config, case.start, options, _Printer())
        by_hand = (*case.start, *case.by_hand)
        interval, hand_rate = _compare(config, (*case.start, *result.overrides), by_hand, pairs)
    return TuneRow(
        name=case.name,
        changes=result.overrides,
        by_hand=case.by_hand,
        start_items_per_s=result.start_items_per_s,
        end_items_per_s=result.end_items_per_s,
        hand_items_per_s=hand_rate,
        total=result.total,
        to_hand=interval,
        end_reason=result.end_reason,
        seconds=monotonic() - began_s,
    )


def _compare(config: Any, end: Sequence[str], by_hand: Sequence[str], pairs: int) -> tuple[RatioInterval, float]:
    """Return the rate of the final layout relative to the layout by hand, and the rate of the layout by hand."""
    specs = (load(config, by_hand), load(config, end))
    with OutputSandbox(specs[0], allow_writes=True) as sandbox:
        runner = LayoutRunner(sandbox, nullcontext, lambda _: None)
        warm = [runner.warm_up(spec, None) for spec in specs]
        wanted = round(max(each.items_per_s for each in warm) * _RUN_S)
        total = min((each.items_total for each in warm if each.items_total is not None), default=None)
        items = None if total is not None and wanted >= total else wanted
        measured: list[PairOfRuns] = []
        for number in range(pairs):
            order = (0, 1) if number % 2 == 0 else (1, 0)
            runs = {index: runner.run(specs[index], items, _LIMIT_S) for index in order}
            measured.append(PairOfRuns(runs[0].seconds, runs[1].seconds))
    return estimate_ratio(measured), runs[0].items * len(measured) / sum(pair.before_s for pair in measured)


def format_rows(rows: Sequence[TuneRow]) -> Iterator[str]:
    """Format the table as Markdown."""
    yield "| case | start | end | end / start | changes | by hand | end / by hand | |"
    yield "|---|---|---|---|---|---|---|---|"
    for row in rows:
        rates = [
            "" if rate is None else f"{format_rate(rate)}/s" for rate in (row.start_items_per_s, row.end_items_per_s)
        ]
        verdict = "below the start" if row.is_below_start else "level" if row.is_level else "slower"
        cells = [
            row.name,
            *rates,
            "1" if row.total is None and not row.changes else str(row.total or ""),
            f"`{' '.join(row.changes)}`" if row.changes else "none",
            f"{format_rate(row.hand_items_per_s)}/s: `{' '.join(row.by_hand)}`",
            str(row.to_hand),
            verdict,
        ]
        yield f"| {' | '.join(cells)} |"


def main() -> None:
    """Tune the cases, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tune", description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", help="Words of the names of cases. Default: all.")
    parser.add_argument("--time", default="5m", help="Time of `tune` for a case.")
    parser.add_argument("--pairs", type=int, default=6, help="Pairs of runs of the end and the layout by hand.")
    parser.add_argument("--json", type=Path, help="Write the rows to this file.")
    arguments = parser.parse_args()
    time_s = parse_duration_ns(arguments.time) / 1e9
    chosen = [case for case in TUNE_CASES if not arguments.cases or any(word in case.name for word in arguments.cases)]
    rows = []
    for case in chosen:
        print(case.name, flush=True)
        rows.append(measure_case(case, time_s, arguments.pairs))
    print("\n".join(format_rows(rows)))
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        document = {"machine": machine(), "rows": [dataclasses.asdict(row) for row in rows]}
        arguments.json.write_text(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
