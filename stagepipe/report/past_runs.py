"""Whether the last step paid: compares a run with earlier runs of the same config. Pure: rates in, a verdict out."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from stagepipe.report.model import Verdict
from stagepipe.report.record import RunRecord

_MIN_PAYING_RATIO = 1.05
"""A step that raised the rate by less did not pay."""

_MAX_FREE_CPUS_DIFFERENCE = 0.5
"""Runs are compared only if other programs left them about as many CPUs."""

_FUSED = 0
"""The number of workers of a fused stage, in a layout."""


@dataclass(frozen=True, kw_only=True)
class PastRun:
    """The rate of a run. `layout`: the workers of each stage, 0 for a fused one. Others left it `free_cpus`."""

    layout: Mapping[str, int]
    items_per_s: float
    free_cpus: float


def summarize_run(record: RunRecord, items_per_s: float) -> PastRun:
    """What later runs are compared with."""
    layout = {stage.name: _FUSED if stage.fused_into else stage.workers for stage in record.stages}
    return PastRun(layout=layout, items_per_s=items_per_s, free_cpus=max(record.cpus - record.other_cpus, 0.0))


def drop_step_that_did_not_pay(verdict: Verdict, run: PastRun, past_runs: Sequence[PastRun]) -> Verdict:
    """Return the verdict without its fix if a step of the same kind has not paid.

    >>> drop_step_that_did_not_pay(verdict, run, past_runs).advice  # doctest: +SKIP
    'No config change will help: 4 workers of decode gave 0.98 of what 3 gave in an earlier run, so more will not ...'
    """
    if run.items_per_s <= 0:
        return verdict
    advised = _parse_workers(verdict, run)
    if advised:
        text = _describe_useless_workers(run, past_runs, advised)
    else:
        text = _describe_useless_fusion(verdict.fix.split(" "), run, past_runs)
    return msgspec.structs.replace(verdict, fix="", advice=text) if text else verdict


def _parse_workers(verdict: Verdict, run: PastRun) -> dict[str, int]:
    """The number of workers that the fix sets, by stage; empty if it sets anything else. A sink is the limit itself."""
    advised = {}
    for override in verdict.fix.split():
        if override.startswith("window="):
            continue  # more workers need more items in flight
        path, _, value = override.partition("=")
        scope, _, rest = path.partition(".")
        name, _, key = rest.rpartition(".")
        name = name if scope == "stages" else verdict.limited_by
        if key != "workers" or name not in run.layout or not value.isdecimal():
            return {}
        advised[name] = int(value)
    return advised


def _find_comparable_runs(names: Collection[str], run: PastRun, past_runs: Sequence[PastRun]) -> list[PastRun]:
    """The runs that differ from `run` in the workers of these stages alone."""
    others = {key: workers for key, workers in run.layout.items() if key not in names}
    return [
        past
        for past in past_runs
        if past.layout.keys() == run.layout.keys()
        and all(past.layout[key] == workers for key, workers in others.items())
        and abs(past.free_cpus - run.free_cpus) <= _MAX_FREE_CPUS_DIFFERENCE
    ]


def _describe_useless_workers(run: PastRun, past_runs: Sequence[PastRun], advised: Mapping[str, int]) -> str:
    names = list(advised)

    def count(each: PastRun) -> list[int]:
        return [each.layout[name] for name in names]

    def is_step(less: Sequence[int], more: Sequence[int]) -> bool:
        return list(less) != list(more) and all(a <= b for a, b in zip(less, more, strict=True))

    comparable = [past for past in _find_comparable_runs(names, run, past_runs) if _FUSED not in count(past)]
    fewer = max((past for past in comparable if is_step(count(past), count(run))), key=count, default=None)
    in_between = [past for past in comparable if is_step(count(run), count(past))]
    more = min(
        (past for past in in_between if all(a <= b for a, b in zip(count(past), advised.values(), strict=True))),
        key=count,
        default=None,
    )
    if fewer is not None and run.items_per_s < _MIN_PAYING_RATIO * fewer.items_per_s:
        counts, ratio = (count(run), count(fewer)), run.items_per_s / fewer.items_per_s
    elif more is not None and more.items_per_s < _MIN_PAYING_RATIO * run.items_per_s:
        counts, ratio = (count(more), count(run)), more.items_per_s / run.items_per_s
    else:
        return ""
    tried, before = (" and ".join(map(str, each)) for each in counts)
    stages = " and ".join(names)
    return (
        f"No config change will help: {tried} workers of {stages} gave {ratio:.2f} of what {before} gave, so more "
        f"will not help. Make {stages} cheaper, or use more CPUs."
    )


def _describe_useless_fusion(overrides: Sequence[str], run: PastRun, past_runs: Sequence[PastRun]) -> str:
    path, _, value = overrides[0].partition("=")
    name = path.removeprefix("stages.").removesuffix(".fuse")
    if path != f"stages.{name}.fuse" or name not in run.layout:
        return ""
    fuse = value == "true"
    prefix = f"stages.{name}.workers="
    counts = [each.removeprefix(prefix) for each in overrides if each.startswith(prefix)]
    workers = next((int(count) for count in counts if count != "null"), 1)  # a fusion takes `workers` away
    rates = [
        past.items_per_s
        for past in _find_comparable_runs([name], run, past_runs)
        if (past.layout[name] == _FUSED if fuse else past.layout[name] >= workers)
    ]
    rate = max(rates, default=None)
    if rate is None or rate >= _MIN_PAYING_RATIO * run.items_per_s:
        return ""
    process = "the process of the stage before it" if fuse else "its own process"
    return f"No config change will help: {name} in {process} gave {rate / run.items_per_s:.2f} of this rate before."
