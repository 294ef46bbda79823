"""Shrinks a case as long as it fails: fewer stages, items, workers, epochs, disturbances."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable, Iterator

from tests.chaos.cases import Case
from tests.chaos.runner import Runner

_ATTEMPTS = 3
"""A race does not fail each time: a smaller case counts as passing after this many runs."""


def iter_smaller_cases(case: Case) -> Iterator[Case]:
    """Yield the cases that are one step simpler, the largest steps first."""
    stages = case["config"]["stages"]
    yield from _iter_calmer_cases(case)
    for index in range(len(stages)):
        yield _with_config(case, stages=stages[:index] + stages[index + 1 :])
    for source in _iter_shorter_sources(case["config"]["source"]):
        yield _with_config(case, source=source)
    for index, stage in enumerate(stages):
        for simpler in _iter_simpler_stages(stage):
            yield _with_config(case, stages=[*stages[:index], simpler, *stages[index + 1 :]])
    for key, value in (("window", "auto"), ("transport", {"mode": "auto"}), ("memory", "1GiB"), ("order", "source")):
        if case["config"][key] != value:
            yield _with_config(case, **{key: value})


def _iter_calmer_cases(case: Case) -> Iterator[Case]:
    """Yield the case with fewer disturbances or epochs, without its resume, or with messages as they come."""
    for key in ("disturbances", "epochs"):
        for index in range(len(case[key])):
            yield _with(case, **{key: case[key][:index] + case[key][index + 1 :]})
    for key, simple in (("resume", None), ("message_items", 0), ("changes", None)):
        if case.get(key, simple) != simple:
            yield _with(case, **{key: simple})


def _iter_shorter_sources(source: Case) -> Iterator[Case]:
    """Yield the source, or the dataset in it, with fewer items."""
    arguments = source["with"]
    if "dataset" in arguments:
        yield from ({**source, "with": shorter} for shorter in _iter_shorter_sources(arguments))
        return
    count = arguments["count"]
    for fewer in {count // 2, count - 1} - {-1, count}:
        yield {**source, "with": {**arguments, "count": fewer}}


def _iter_simpler_stages(stage: Case) -> Iterator[Case]:
    if "concurrency" in stage:
        yield {key: value for key, value in stage.items() if key != "concurrency"}
    if stage.get("workers", 1) > 1:
        yield {**stage, "workers": 1}
        yield {**stage, "workers": stage["workers"] - 1}
    if stage.get("uses", "").startswith("tests.chaos.stages.") and not stage["uses"].endswith(
        (".same", ".slow", ".number", "_task")
    ):
        uses = "number" if stage["uses"].endswith(("text", "arrays", "image", "loaned")) else "same"
        arguments = {"with": stage["with"]} if uses == "number" else {}
        kept_keys = {key: stage[key] for key in ("name", "workers", "fuse", "retries") if key in stage}
        yield {**kept_keys, "uses": f"tests.chaos.stages.{uses}", **arguments}


def _with(case: Case, **keys: object) -> Case:
    return {**copy.deepcopy(case), **keys}


def _with_config(case: Case, **keys: object) -> Case:
    return _with(case, config={**case["config"], **keys})


def shrink(case: Case, fails: Callable[[Case], bool], timeout_s: float) -> Case:
    """Return the smallest failing case that was found within `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    is_smaller = True
    while is_smaller:
        is_smaller = False
        for candidate in iter_smaller_cases(case):
            if time.monotonic() > deadline:
                return case
            if any(fails(candidate) for _ in range(_ATTEMPTS) if time.monotonic() < deadline):
                case = candidate
                is_smaller = True
                break
    return case


def print_smallest(runner: Runner, case: Case, verdict: str, module: str, timeout_s: float) -> None:
    """Shrink a case with a verdict; print its details and the command, of `module`, that repeats it."""
    details = ""

    def fails(candidate: Case) -> bool:
        nonlocal details
        outcome = runner.run(candidate)
        if outcome["verdict"] == verdict:
            details = outcome["details"]
        return bool(outcome["verdict"] == verdict)

    case = shrink(case, fails, timeout_s)
    print(f"smallest case with the same verdict: {details}")  # noqa: T201 - for the command line
    print(f"python -m {module} --case '{json.dumps(case)}'")  # noqa: T201
