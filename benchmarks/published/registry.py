"""The experiments. E3 is a separate benchmark: benchmarks/crossover."""

from __future__ import annotations

import importlib
from typing import Any

from benchmarks.published import e1, e2, e4, e5
from benchmarks.published.model import Contestant, Experiment

EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment for experiment in (e1.EXPERIMENT, e2.EXPERIMENT, e4.EXPERIMENT, e5.CALLS, e5.QUEUES)
}


def contestant(experiment: str, name: str) -> Contestant:
    """Return a contestant by its name. Raise KeyError if there is none."""
    return {known.name: known for known in EXPERIMENTS[experiment].contestants}[name]


def resolve(text: str) -> Any:
    """Import and return the object named by "module:name"."""
    module, _, name = text.partition(":")
    return getattr(importlib.import_module(module), name)
