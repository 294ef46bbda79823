"""One trial: the random pipeline of a seed, disturbed in several ways, against the plain run."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from tests.protocol_model.memory import WIPED
from tests.protocol_model.pipeline import MAX_STEPS, Outcome, Pipeline
from tests.protocol_model.random_pipelines import Case, plain_run, random_case
from tests.protocol_model.rules import Rule
from tests.protocol_model.stage_functions import source_items


def problems(seeds: Iterable[int], broken: Rule | None = None) -> Iterator[tuple[int, str]]:
    """The seeds whose pipelines go wrong, and how."""
    for seed in seeds:
        problem = problem_of(seed, broken)
        if problem:
            yield seed, problem


def problem_of(seed: int, broken: Rule | None = None) -> str | None:
    """What is wrong with the output of this seed's pipeline; None if nothing is.

    One pipeline runs an epoch with up to eight kills, begins a second that is abandoned, and runs a third with two
    kills. Then another pipeline resumes from a cursor of a third one.
    """
    rnd = random.Random(seed)
    case = random_case(rnd)
    problem = _disturbed(case, rnd, broken)
    if problem is None and not case.flaky and not (case.on_poison and case.on_poison.fails):
        problem = _resumed(case, seed, broken)
    return problem and f"seed {seed}, {case}: {problem}"


def _disturbed(case: Case, rnd: random.Random, broken: Rule | None) -> str | None:
    pipeline = case.pipeline(rnd, broken)
    problem = _run(case, pipeline, kills=rnd.randint(0, 8))
    if problem or pipeline.supervisor.has_failed:
        return problem
    pipeline.start(epoch=1)
    for _ in range(rnd.randint(0, 300)):
        pipeline.advance(rnd)
    if pipeline.supervisor.has_failed:
        return None if case.fails_in(1) else "epoch 1: failed"
    pipeline.sink.stop()
    pipeline.start(epoch=2)
    problem = _run(case, pipeline, kills=2)
    leaked = pipeline.leaked_blocks()
    if problem is None and leaked and not case.flaky and not pipeline.supervisor.has_failed:
        return f"epoch 2: {leaked} blocks leaked"
    return problem


def _run(case: Case, pipeline: Pipeline, *, kills: int) -> str | None:
    epoch = pipeline.supervisor.machine.epoch
    outcome = pipeline.run(kills, case.losses)
    fails = case.fails_in(epoch)
    if outcome is not (Outcome.FAILED if fails else Outcome.FINISHED):
        return f"epoch {epoch}: {outcome.value}"
    if pipeline.supervisor.machine.stalls and not case.losses:
        return f"epoch {epoch}: nothing could move, though no packet was lost"
    if pipeline.shared.wiped_value_seen:
        return f"epoch {epoch}: a stage function received a wiped value"
    if pipeline.supervisor.poison_tried_again:
        return f"epoch {epoch}: a worker processed an item that it should have skipped as poison"
    if pipeline.supervisor.suspect_with_others:
        return f"epoch {epoch}: an item that was to be tried alone was in progress with others"
    delivered = pipeline.sink.delivered
    problem = (
        _repeated_or_wiped(case, delivered)
        if case.flaky
        else _difference(case, delivered, plain_run(case, epoch), is_whole=not fails)
    )
    return problem and f"epoch {epoch}: {problem}"


def _repeated_or_wiped(case: Case, delivered: list[Any]) -> str | None:
    """With flaky stages the output varies; what it must never do is repeat or lose the content of an item."""
    items = [item for value in delivered for item in source_items(value)]
    if WIPED in items:
        return "a wiped value was delivered"
    if not case.generates and len(items) != len(set(items)):
        return "an item was delivered twice"
    return None


def _difference(case: Case, delivered: list[Any], expected: list[Any], *, is_whole: bool = True) -> str | None:
    if case.any_order:
        unexpected = Counter(delivered) - Counter(expected)
        missing = Counter(expected) - Counter(delivered) if is_whole else Counter[Any]()
        return f"{unexpected.total()} values too many, {missing.total()} missing" if unexpected or missing else None
    if delivered == (expected if is_whole else expected[: len(delivered)]):
        return None
    pairs = enumerate(zip(delivered, expected, strict=False))
    first = next((index for index, (got, want) in pairs if got != want), min(len(delivered), len(expected)))
    return f"{len(delivered)} values delivered, {len(expected)} expected; the first difference is at {first}"


def _resumed(case: Case, seed: int, broken: Rule | None) -> str | None:
    """A cursor taken anywhere, given to another pipeline that has already begun to prefetch."""
    rnd = random.Random(seed)
    first, second = (
        Pipeline(
            random.Random(seed + each),
            case.steps,
            items=case.items,
            max_entries=case.max_entries,
            max_rows=case.max_rows,
            sends_ranges=case.sends_ranges,
            any_order=case.any_order,
            on_poison=case.on_poison,
            broken=broken,
        )
        for each in (2, 3)
    )
    expected = plain_run(case, 0)
    if first.run(0) is not Outcome.FINISHED or _difference(case, first.sink.delivered, expected):
        return "resume: the undisturbed run went wrong"
    first.start(epoch=0)
    if not _deliver(first, rnd.randint(0, len(expected)), rnd):
        return "resume: the pipeline to resume from is endless"
    cursor = first.sink.cursor
    before = list(first.sink.delivered)
    for _ in range(rnd.randint(0, 200)):
        second.advance(rnd)
    second.sink.stop()
    second.start(epoch=0, cursor=cursor)
    outcome = second.run(2)
    if outcome is not Outcome.FINISHED:
        return f"resume at {len(before)}: {outcome.value}"
    if second.supervisor.machine.stalls:
        return f"resume at {len(before)}: nothing could move, though no packet was lost"
    problem = _difference(case, before + second.sink.delivered, expected)
    return problem and f"resume at {len(before)}: {problem}"


def _deliver(pipeline: Pipeline, values: int, rnd: random.Random) -> bool:
    """Let the pipeline deliver at least so many values. False if it does not."""
    sink = pipeline.sink
    for _ in range(MAX_STEPS):
        if (
            len(sink.delivered) >= values
            and not sink.dead
            and sink.generation == pipeline.supervisor.machine.generation
        ):
            return True
        if not pipeline.supervisor.asking:
            pipeline.supervisor.act()
        pipeline.advance(rnd)
    return False
