"""Random pipelines, and the plain run: what a pipeline must give, computed without processes."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from tests.protocol_model.cursors import Key
from tests.protocol_model.order_points import Grouping
from tests.protocol_model.pipeline import GroupingStep, Pipeline, StageStep, Step
from tests.protocol_model.rules import Rule
from tests.protocol_model.stage_functions import RandomFunction, SpecialResult, batched, shuffled, unbatch

_Keyed = tuple[Key, Any]


@dataclass(frozen=True, kw_only=True)
class Case:
    """The pipeline of a seed."""

    steps: list[Step]
    items: int
    window: int
    hop_capacity: int
    stream: bool
    flaky: bool
    """Whether stages fail, and succeed on the second try. Then the output depends on the scheduler."""

    @property
    def generates(self) -> bool:
        """Whether a stage makes several items of one."""
        functions = [step.function for step in self.steps if isinstance(step, StageStep)]
        return any(isinstance(each, RandomFunction) and each.kind == "generate" for each in functions)

    def pipeline(self, rnd: random.Random, broken: Rule | None = None) -> Pipeline:
        """The pipeline, scheduled by `rnd`."""
        return Pipeline(
            rnd,
            self.steps,
            items=self.items,
            window=self.window,
            hop_capacity=self.hop_capacity,
            stream=self.stream,
            broken=broken,
        )

    def __str__(self) -> str:
        return " -> ".join(["stream" if self.stream else "index", *map(str, self.steps)])


def random_case(rnd: random.Random) -> Case:
    """One to five steps, and at times an Unbatch after a Batch; up to 40 items."""
    flaky = rnd.random() < 0.3
    steps: list[Step] = []
    for _ in range(rnd.randint(1, 5)):
        chance = rnd.random()
        if chance < 0.25:
            steps.append(GroupingStep(Grouping.BATCH, rnd.randint(1, 7)))
            if rnd.random() < 0.5:
                steps.append(StageStep(unbatch, rnd.randint(1, 2)))
        elif chance < 0.35:
            steps.append(GroupingStep(Grouping.SHUFFLE, rnd.randint(1, 6)))
        else:
            steps.append(StageStep(RandomFunction(rnd, flaky=flaky), rnd.randint(1, 4)))
    return Case(
        steps=steps,
        items=rnd.randint(0, 40),
        window=rnd.randint(1, 6),
        hop_capacity=rnd.randint(1, 4),
        stream=rnd.random() < 0.4,
        flaky=flaky,
    )


def plain_run(case: Case, epoch: int) -> list[Any]:
    """The output of the steps, one after the other, each on all values."""
    keyed: list[_Keyed] = [((item,), ("s", epoch, item)) for item in range(case.items)]
    for step in case.steps:
        if isinstance(step, StageStep):
            keyed = [made for key, value in keyed for made in _apply(step, key, value)]
        else:
            keyed = [((number,), value) for number, value in enumerate(_group(step, keyed, epoch))]
    return [value for _, value in keyed]


def _apply(step: StageStep, key: Key, value: Any) -> list[_Keyed]:
    result = step.function(value)
    if result is SpecialResult.DROPPED:
        return []
    if result is SpecialResult.UNCHANGED:
        return [(key, value)]
    if isinstance(result, list):
        return [((*key, part), each) for part, each in enumerate(result)]
    return [(key, result)]


def _group(step: GroupingStep, keyed: list[_Keyed], epoch: int) -> list[Any]:
    outputs: list[Any] = []
    for start in range(0, len(keyed), step.size):
        values = [value for _, value in keyed[start : start + step.size]]
        if step.grouping is Grouping.BATCH:
            outputs.append(batched(values))
        else:
            last = keyed[start - 1][0] if start else None
            outputs += shuffled(values, epoch=epoch, item=last[0] if last else 0, last=last)
    return outputs
