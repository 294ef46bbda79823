"""The experiments. E3 is a benchmark of its own: benchmarks/crossover.py."""

from __future__ import annotations

import importlib
from typing import Any

from published_ import e1, e2, e4, e5
from published_.model import Contestant, Experiment

EXPERIMENTS: dict[str, Experiment] = {
    each.name: each for each in (e1.EXPERIMENT, e2.EXPERIMENT, e4.EXPERIMENT, e5.CALLS, e5.QUEUES)
}


def contestant(experiment: str, name: str) -> Contestant:
    """By its name. KeyError where there is none."""
    return {each.name: each for each in EXPERIMENTS[experiment].contestants}[name]


def target(text: str) -> Any:
    """What "module:name" stands for."""
    module, _, name = text.partition(":")
    return getattr(importlib.import_module(module), name)
