"""A failing case made smaller, as long as it fails: fewer stages, items, workers, epochs, disturbances."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator

from tests.chaos.cases import Case

_AGAIN = 3
"""A race does not show each time: so often a smaller case is tried before it counts as one that does not fail."""


def smaller(case: Case) -> Iterator[Case]:
    """What is one step simpler, the greatest steps first."""
    stages = case["config"]["stages"]
    for at in range(len(case["disturbances"])):
        yield _with(case, disturbances=[each for n, each in enumerate(case["disturbances"]) if n != at])
    for at in range(len(case["epochs"])):
        yield _with(case, epochs=case["epochs"][:at] + case["epochs"][at + 1 :])
    if case["resume"] is not None:
        yield _with(case, resume=None)
    for at in range(len(stages)):
        yield _config(case, stages=[each for n, each in enumerate(stages) if n != at])
    count = case["config"]["source"]["with"]["count"]
    for fewer in {count // 2, count - 1} - {-1, count}:
        yield _config(case, source={**case["config"]["source"], "with": {"count": fewer}})
    for at, each in enumerate(stages):
        for simpler in _simpler(each):
            yield _config(case, stages=[*stages[:at], simpler, *stages[at + 1 :]])
    for key, value in (("window", "auto"), ("transport", {"mode": "auto"}), ("memory", "1GiB"), ("order", "source")):
        if case["config"][key] != value:
            yield _config(case, **{key: value})


def _simpler(stage: Case) -> Iterator[Case]:
    if stage.get("workers", 1) > 1:
        yield {**stage, "workers": 1}
        yield {**stage, "workers": stage["workers"] - 1}
    if stage["uses"].startswith("tests.chaos.stages.") and not stage["uses"].endswith((".same", ".slow", ".number")):
        uses = "number" if stage["uses"].endswith(("text", "arrays", "image", "loaned")) else "same"
        given = {"with": stage["with"]} if uses == "number" else {}
        kept = {key: stage[key] for key in ("name", "workers", "fuse", "retries") if key in stage}
        yield {**kept, "uses": f"tests.chaos.stages.{uses}", **given}


def _with(case: Case, **keys: object) -> Case:
    return {**copy.deepcopy(case), **keys}


def _config(case: Case, **keys: object) -> Case:
    return _with(case, config={**case["config"], **keys})


def shrink(case: Case, fails: Callable[[Case], bool], within_s: float) -> Case:
    """The smallest that was found in the time."""
    deadline = time.monotonic() + within_s
    found = True
    while found:
        found = False
        for candidate in smaller(case):
            if time.monotonic() > deadline:
                return case
            if any(fails(candidate) for _ in range(_AGAIN) if time.monotonic() < deadline):
                case, found = candidate, True
                break
    return case
