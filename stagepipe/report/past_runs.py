"""Whether the last step paid: compares a run with earlier runs of the same config. Pure: rates in, a verdict out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    path, _, value = verdict.fix.partition("=")
    scope, _, rest = path.partition(".")
    name, _, key = rest.rpartition(".")
    if scope != "stages" or name not in run.layout or run.items_per_s <= 0:
        return verdict
    rates = _find_rates(name, run, past_runs)
    if key == "workers":
        text = _describe_useless_workers(name, run, rates, advised=int(value))
    elif key == "fuse":
        text = _describe_useless_fusion(name, run, rates, fuse=value == "true")
    else:
        return verdict
    return msgspec.structs.replace(verdict, fix="", advice=text) if text else verdict


def _find_rates(name: str, run: PastRun, past_runs: Sequence[PastRun]) -> dict[int, float]:
    """The rates of runs that differ from `run` in the workers of one stage alone, by their number."""
    others = {key: workers for key, workers in run.layout.items() if key != name}
    return {
        past.layout[name]: past.items_per_s
        for past in past_runs
        if past.layout.keys() == run.layout.keys()
        and all(past.layout[key] == workers for key, workers in others.items())
        and abs(past.free_cpus - run.free_cpus) <= _MAX_FREE_CPUS_DIFFERENCE
    }


def _describe_useless_workers(name: str, run: PastRun, rates: Mapping[int, float], *, advised: int) -> str:
    workers = run.layout[name]
    fewer = max((count for count in rates if _FUSED < count < workers), default=None)
    more = min((count for count in rates if workers < count <= advised), default=None)
    if fewer is not None and run.items_per_s < _MIN_PAYING_RATIO * rates[fewer]:
        counts, ratio = (workers, fewer), run.items_per_s / rates[fewer]
    elif more is not None and rates[more] < _MIN_PAYING_RATIO * run.items_per_s:
        counts, ratio = (more, workers), rates[more] / run.items_per_s
    else:
        return ""
    return (
        f"No config change will help: {counts[0]} workers of {name} gave {ratio:.2f} of what {counts[1]} gave, so more "
        f"will not help. Make {name} cheaper, or use more CPUs."
    )


def _describe_useless_fusion(name: str, run: PastRun, rates: Mapping[int, float], *, fuse: bool) -> str:
    rate = max((rate for workers, rate in rates.items() if (workers == _FUSED) == fuse), default=None)
    if rate is None or rate >= _MIN_PAYING_RATIO * run.items_per_s:
        return ""
    process = "the process of the stage before it" if fuse else "its own process"
    return f"No config change will help: {name} in {process} gave {rate / run.items_per_s:.2f} of this rate before."
