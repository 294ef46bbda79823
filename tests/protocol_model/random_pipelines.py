"""Random pipelines, and the plain run: what a pipeline must give, computed without processes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from stagepipe.core import Key
from tests.protocol_model.order_points import Grouping
from tests.protocol_model.pipeline import GroupingStep, Pipeline, StageStep, Step
from tests.protocol_model.rules import Rule
from tests.protocol_model.stage_functions import (
    DeadlyValues,
    RandomFunction,
    SpecialResult,
    batched,
    shuffled,
    unbatch,
)
from tests.protocol_model.supervisor import OnPoison

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
    max_entries: int = 1
    """How many entries a packet may have."""
    max_rows: int = 1
    """How many items a chunk may have."""
    sends_ranges: bool = False
    """Whether the source sends ranges, for the workers of the first step to read."""
    any_order: bool = False
    on_poison: OnPoison | None = None
    """What becomes of poison; None if no value kills."""
    losses: int = 0
    """How many packets may vanish in an epoch."""

    @property
    def generates(self) -> bool:
        """Whether a stage makes several items of one."""
        functions = [step.function for step in self.steps if isinstance(step, StageStep)]
        return any(isinstance(each, RandomFunction) and each.kind == "generate" for each in functions)

    def fails_in(self, epoch: int) -> bool:
        """Whether a poison item ends the run in this epoch."""
        return bool(self.on_poison and self.on_poison.fails and _has_poison(self, epoch))

    def pipeline(self, rnd: random.Random, broken: Rule | None = None) -> Pipeline:
        """The pipeline, scheduled by `rnd`."""
        return Pipeline(
            rnd,
            self.steps,
            items=self.items,
            window=self.window,
            hop_capacity=self.hop_capacity,
            stream=self.stream,
            max_entries=self.max_entries,
            max_rows=self.max_rows,
            sends_ranges=self.sends_ranges,
            any_order=self.any_order,
            on_poison=self.on_poison,
            broken=broken,
        )

    def __str__(self) -> str:
        source = "stream" if self.stream else "ranges" if self.sends_ranges else "index"
        return " -> ".join([source, *map(str, self.steps)])


def random_case(rnd: random.Random) -> Case:
    """One to five steps, and at times an Unbatch after a Batch; up to 40 items.

    Some pipelines deliver in any order, some have values that kill workers, in some packets vanish; in most a packet
    may have several entries and a chunk several items, and in some a worker has several items in progress.
    """
    flaky = rnd.random() < 0.3
    steps: list[Step] = []
    if flaky and rnd.random() < 0.3:  # a skip that shapes an item, and a cursor inside that item
        steps = [StageStep(RandomFunction(rnd, flaky=True), 2), GroupingStep(Grouping.BATCH, 5), StageStep(unbatch, 2)]
    for _ in range(rnd.randint(1, 5)):
        chance = rnd.random()
        if chance < 0.25:
            steps.append(GroupingStep(Grouping.BATCH, rnd.randint(1, 7)))
            if rnd.random() < 0.5:
                steps.append(StageStep(unbatch, rnd.randint(1, 2)))
        elif chance < 0.35:
            steps.append(GroupingStep(Grouping.SHUFFLE, rnd.randint(1, 6)))
        else:
            steps.append(StageStep(RandomFunction(rnd, flaky=flaky), rnd.randint(1, 4), threads=_choose_threads(rnd)))
    case = Case(
        steps=steps,
        items=rnd.randint(0, 40),
        window=rnd.randint(1, 6),
        hop_capacity=rnd.randint(1, 4),
        stream=rnd.random() < 0.4,
        flaky=flaky,
    )
    return _with_troubles(case, rnd)


def _choose_threads(rnd: random.Random) -> int:
    return rnd.choice((1, 1, 2, 4))


def _with_troubles(case: Case, rnd: random.Random) -> Case:
    steps = case.steps
    on_poison = None
    if not case.flaky and rnd.random() < 0.3:
        on_poison = OnPoison(max_kills=rnd.randint(1, 3), fails=rnd.random() < 0.3)
        steps = [_make_deadly(step, rnd, on_poison.max_kills) for step in steps]
    max_rows = rnd.choice((1, 2, 4, 6))
    groups = any(isinstance(step, GroupingStep) for step in steps)
    return replace(
        case,
        steps=_with_spare_slots(steps, rnd),
        on_poison=on_poison,
        any_order=not groups and rnd.random() < 0.5,
        losses=0 if case.flaky or rnd.random() < 0.7 else rnd.randint(1, 6),
        max_entries=rnd.choice((1, 1, 2, 4)),
        max_rows=max_rows,
        sends_ranges=max_rows > 1 and not case.stream and isinstance(steps[0], StageStep) and rnd.random() < 0.5,
    )


def _with_spare_slots(steps: list[Step], rnd: random.Random) -> list[Step]:
    if rnd.random() < 0.5:
        return steps
    return [replace(step, spare_slots=rnd.randint(0, 3)) if isinstance(step, StageStep) else step for step in steps]


def _make_deadly(step: Step, rnd: random.Random, max_kills: int) -> Step:
    if isinstance(step, GroupingStep):
        return step
    return replace(step, deadly=DeadlyValues(rnd, max_kills), threads=max(step.threads, rnd.choice((1, 4))))


def plain_run(case: Case, epoch: int) -> list[Any]:
    """The output of the steps, one after the other, each on all values. Poison is left out."""
    *_, keyed = _iter_inputs(case, epoch)
    return [value for _, value in keyed]


def _has_poison(case: Case, epoch: int) -> bool:
    inputs = zip(case.steps, _iter_inputs(case, epoch), strict=False)
    return any(
        isinstance(step, StageStep) and step.deadly and step.deadly.is_poison(value)
        for step, keyed in inputs
        for _, value in keyed
    )


def _iter_inputs(case: Case, epoch: int) -> Iterator[list[_Keyed]]:
    """Yield the input of each step, and the output of the last."""
    keyed: list[_Keyed] = [((item,), ("s", epoch, item)) for item in range(case.items)]
    yield keyed
    for step in case.steps:
        if isinstance(step, StageStep):
            keyed = [made for key, value in keyed for made in _apply(step, key, value)]
        else:
            keyed = [((number,), value) for number, value in enumerate(_group(step, keyed, epoch))]
        yield keyed


def _apply(step: StageStep, key: Key, value: Any) -> list[_Keyed]:
    if step.deadly and step.deadly.is_poison(value):
        return []
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
