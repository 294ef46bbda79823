"""Measure the data loading of a training loop: stagepipe against `torch.utils.data.DataLoader`, in three parts.

    python scripts/make_images.py
    python -m benchmarks.loader [--quick] [--rounds 6] [--only collate,models] [--step sum] [--json FILE]

collate: a ready batch of 64 x 3 x 224 x 224 float32, from prepared samples to the training process. DataLoader's one or
two workers collate their own tensors, inherited through the fork. stagepipe's samples are in shared memory ("Batch"),
are copied there first ("from copies"), or are copied into a batch made with `stagepipe.empty` ("filled"). "header only"
writes only the first element of each sample: the cost of a batch without its contents, which no user's batch has.

quickstart: configs/quickstart.yaml, and the same functions, files, order and draws in a map-style dataset.

models: three models of 400 MB; every input passes through all three. stagepipe has one copy of each, in three stages.
Each of three DataLoader workers has all three: created at its first input, before the fork, or pickled in the dataset
for spawned workers (torch passes CPU tensors in shared memory, but not models on a GPU).

Each turn is a new process, alone on the machine, in a changing order. The first 8 batches of a turn (12 for the models)
are compared bit for bit with the batches of a single process; the rest of that epoch is skipped. Then the timing
starts: for the quickstart, two complete epochs over all files; for collate, the rest of an epoch after the 8th batch;
for the models, the rest after the 12th input. Memory is measured in a last epoch. CPU is the time of the process tree;
"first batch" counts from before the loader is created, with torch imported; "second epoch" is the second timed one; the
waits are for all batches but the first of each epoch, and the longest wait is shown if they are fewer than 200; "CPU s
total" includes imports and the check. A full run takes about 12 minutes on two processors.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.common.command import add_corrupt, finish, make_parser, open_run, parse_names, write_json
from benchmarks.common.figures import Estimate, Target, count_waits, estimate, format_waits, is_met, pool_waits, ratio
from benchmarks.common.page import Document, divide, list_targets, make_caption, make_table
from benchmarks.common.turn import ROOT, TurnError, adopt_orphans, measure_ended_children_s, order, run_turn
from benchmarks.loader import (
    BATCH,
    COLLATE,
    CONTESTANTS,
    COPIED,
    DATALOADER,
    DATALOADERS,
    FILLED,
    FORKED,
    FORKED_PRELOADED,
    FUSED,
    HEADER_ONLY,
    MODELS,
    PARTS,
    PLAIN,
    QUICKSTART,
    REFERENCE,
    SPAWNED,
    SPAWNED_PRELOADED,
    THREE_PROCESSES,
    TWO_WORKERS,
    Job,
)

_IMAGES = ROOT / "data" / "images"
_ROUNDS, _QUICK_ROUNDS = 6, 1
_QUICK = {**CONTESTANTS, MODELS: (THREE_PROCESSES, SPAWNED, FORKED)}
_ITEMS, _QUICK_ITEMS = 2_000, 256
_CHECKED_BATCHES = 8
_COLLATE_BATCHES, _COLLATE_WARM = 32, 8
_MODEL_ITEMS, _QUICK_MODEL_ITEMS, _MODELS_WARM = 120, 24, 12
"""Two inputs for each of three workers are in flight before the first one arrives."""


def main(arguments: Sequence[str]) -> None:
    """Measure, print, and write the JSON if requested."""
    options = _options(arguments)
    adopt_orphans()
    document: dict[str, Any] = {**open_run("loader"), "jobs": [], "rows": []}
    for job in [_job(part, options) for part in PARTS if options.only[part]]:
        document["jobs"].append({**asdict(job), "images": os.path.relpath(job.images)})
        document["rows"] += measure(job, options.only[job.part], options.rounds, options.corrupt, _progress)
        print(f"\n{job.part}, after each batch: {job.step}\n", *make_loader_table(document, job.part), sep="\n")
        print(*report_lines(document, job.part), sep="\n", flush=True)
        write_json(options.json, document)  # an interrupted run keeps the measured parts
    verdicts = list(targets(document))
    print("\nTargets:", *(target.line() for target in verdicts), sep="\n")
    finish(options.json, {**document, "targets": [asdict(target) for target in verdicts]})


def _job(part: str, options: argparse.Namespace) -> Job:
    job = Job(
        part=part,
        contestant="",
        items=options.items,
        batch=options.batch,
        side=options.side,
        steady_from=0,
        epochs=2 if part == QUICKSTART and not options.quick else 1,
        checked=_CHECKED_BATCHES,
        step=options.step or ("none" if part == COLLATE else "sum"),
        images=str(options.images.absolute()),
        model_bytes=options.model_mb * 1_000_000,
    )
    if part == QUICKSTART:
        return replace(job, items=min(job.items, _count(options.images)))
    if part == COLLATE:
        batches = min(_COLLATE_BATCHES, max(_COLLATE_WARM + 2, job.batches * 4))
        return replace(job, items=job.batch * batches, steady_from=_COLLATE_WARM)
    items = min(_QUICK_MODEL_ITEMS if options.quick else _MODEL_ITEMS, max(_MODELS_WARM + 2, job.items))
    return replace(job, items=items, batch=1, steady_from=_MODELS_WARM, checked=_MODELS_WARM)


def _count(images: Path) -> int:
    count = sum(1 for _ in images.rglob("*.jpg"))
    if not count:
        message = f"no .jpg files in {images}; create some: python scripts/make_images.py --out {images}"
        raise SystemExit(message)
    return count


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r{text:<79}", file=sys.stderr, end="", flush=True)


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = make_parser(__doc__, rounds=None)
    parser.add_argument(
        "--quick",
        action="store_true",
        help="one round, shorter epochs, models with three processes only: under two minutes",
    )
    parser.add_argument("--only", type=_parse_contestants, help="parts or part:contestant, separated by commas")
    parser.add_argument(
        "--step",
        choices=("none", "sum"),
        help="work of the training process on a batch; default: sum, for collate none",
    )
    parser.add_argument("--items", type=int, help="items in an epoch of the quickstart")
    parser.add_argument("--batch", type=int, default=64, help="samples in a batch")
    parser.add_argument("--side", type=int, default=224, help="side of the images in pixels")
    parser.add_argument("--model-mb", type=int, default=400, help="size of each of the three models in MB")
    parser.add_argument("--images", type=Path, default=_IMAGES, help="a folder with .jpg files")
    add_corrupt(parser)
    options = parser.parse_args(arguments)
    options.rounds = options.rounds or (_QUICK_ROUNDS if options.quick else _ROUNDS)
    options.only = options.only or (_QUICK if options.quick else CONTESTANTS)
    options.items = options.items or (_QUICK_ITEMS if options.quick else _ITEMS)
    return options


def _parse_contestants(text: str) -> dict[str, tuple[str, ...]]:
    """Return the contestants of each part: `collate` names all of that part, `models:stagepipe 3 processes` one."""
    choices = [
        choice for part, names in CONTESTANTS.items() for choice in (part, *(f"{part}:{name}" for name in names))
    ]
    wanted = parse_names(choices, "part or contestant")(text)
    return {
        part: tuple(name for name in names if part in wanted or f"{part}:{name}" in wanted)
        for part, names in CONTESTANTS.items()
    }


_DEADLINE_S = 600.0


def measure(
    job: Job, names: Sequence[str], rounds: int, corrupt: str, show_progress: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Measure the rows of `job`'s part. Raise SystemExit if one fails twice or delivers wrong batches."""
    os.environ["PYTHONPATH"] = str(ROOT / "configs")  # for quickstart_ops
    answers: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    expected = _run(replace(job, contestant=REFERENCE))["digests"]
    for round_number in range(rounds):
        for name in order(names, round_number):
            show_progress(f"{job.part}, round {round_number + 1} of {rounds}: {name}")
            answer = _turn(replace(job, contestant=name, corrupt=name == corrupt))
            _check(job, name, answer["digests"], expected)
            answers[name].append(answer)
    return [{"part": job.part, "contestant": name, "answers": of_one} for name, of_one in answers.items()]


def _turn(job: Job) -> dict[str, Any]:
    """Take a turn; retry once, with a line on stderr, if its process dies, so that a long run does not end there."""
    before = measure_ended_children_s()
    try:
        answer = run_turn("benchmarks.loader.turn", asdict(job), _DEADLINE_S)
    except TurnError as error:
        print(f"{job.part}, {job.contestant}: {error}\nThis turn is repeated.", file=sys.stderr, flush=True)
        before = measure_ended_children_s()
        answer = _run(job)
    return {**answer, "life_cpu_s": measure_ended_children_s() - before}


def _run(job: Job) -> dict[str, Any]:
    try:
        return run_turn("benchmarks.loader.turn", asdict(job), _DEADLINE_S)
    except TurnError as error:
        raise SystemExit(f"{job.part}, {job.contestant}: {error}") from None


def _check(job: Job, name: str, received: list[str], expected: list[str]) -> None:
    if name == HEADER_ONLY:  # it writes only first elements
        received, expected = ([text.rpartition(" ")[0] for text in digests] for digests in (received, expected))
    if len(received) != len(expected):
        message = f"{job.part}, {name}: received {len(received)} batches, expected {len(expected)}"
        raise SystemExit(message)
    for index, (own, right) in enumerate(zip(received, expected, strict=True)):
        if own != right:
            message = f"{job.part}, {name}: batch {index} is wrong: received {own}, expected {right}"
            raise SystemExit(message)


_TARGETS = {
    "a batch ": COLLATE,
    "CPU seconds per item ": QUICKSTART,
    "items per second ": QUICKSTART,
    "memory of three models ": MODELS,
}
"""The part of a target, by the beginning of its text."""


def find_part(text: str) -> str:
    """Return the part that a target belongs to.

    >>> find_part("a batch filled in place is at least 20 times faster than DataLoader's")
    'collate'
    """
    return next(part for begin, part in _TARGETS.items() if text.startswith(begin))


def collect(document: Document, part: str, figure: str) -> dict[str, list[float]]:
    """Return a figure of each round, by contestant of a part."""
    rows = (row for row in document["rows"] if row["part"] == part)
    return {row["contestant"]: [turn[figure] for turn in row["answers"]] for row in rows}


def make_loader_table(document: Document, part: str) -> Iterator[str]:
    """Yield the table of a part of the comparison with DataLoader."""
    rows = [row for row in document["rows"] if row["part"] == part]
    rows.sort(key=lambda row: row["contestant"] != FILLED)
    is_collate = part == COLLATE
    batch = next(job["batch"] for job in document["jobs"] if job["part"] == part) if is_collate else 1

    def find_speeds(rates: list[float]) -> list[float]:
        return [1000 * batch / rate for rate in rates] if is_collate else rates

    speeds = {name: find_speeds(rates) for name, rates in collect(document, part, "items_per_s").items()}
    peer = speeds.get(DATALOADER) if is_collate else None

    def make_row(row: Document) -> list[str]:
        columns = {key: [turn[key] for turn in row["answers"]] for key in row["answers"][0]}
        own = speeds[row["contestant"]]
        return [
            row["contestant"],
            estimate(own).text(1),
            *([divide(peer, own, 1)] if peer else []),
            estimate([1000 * batch * value for value in columns["cpu_s_per_item"]]).text(),
            f"{median(columns['first_batch_s']):.2f} s",
            *([f"{1000 * median(columns['second_first_s']):.0f} ms"] if part == QUICKSTART else []),
            format_waits(pool_waits(map(count_waits, columns["waits_s"]))),
            f"{median(columns['life_cpu_s']):.1f} s",
            f"{median(columns['pss_bytes']) / 1e6:,.0f} MB",
        ]

    cost = ("ms a batch", "CPU ms") if is_collate else ("items/s", "CPU ms of an item")
    times = (f"times faster than {DATALOADER}",) if peer else ()
    later = ("second epoch's first batch",) if part == QUICKSTART else ()
    rest = ("wait for a batch, all rounds", "CPU of the whole turn", "memory (PSS)")
    yield from make_table(("", cost[0], *times, cost[1], "first batch", *later, *rest), map(make_row, rows))
    yield from make_caption(document, len(speeds[rows[0]["contestant"]]))
    yield from list_targets(document, lambda text: find_part(text) == part)


def report_lines(document: Document, part: str) -> Iterator[str]:
    """Format stagepipe's own reports of the last round."""
    for row in document["rows"]:
        for line in row["answers"][-1]["told"] if row["part"] == part else ():
            yield f"  {row['contestant']}: {line}"


class Figures:
    """The figures of a run, by part and contestant."""

    def __init__(self, document: Document) -> None:
        self._document = document

    def times(self, part: str, of: str, to: str, name: str) -> Estimate | None:
        """Return the figure of `of` divided by the figure of `to`, or None if one was not measured."""
        found = collect(self._document, part, name)
        return ratio(found[of], found[to]) if of in found and to in found else None

    def bare_bytes(self) -> float:
        """Return the memory of a process that has imported torch and stagepipe, and has created nothing yet."""
        return median(float(turn["bare_pss_bytes"]) for row in self._document["rows"] for turn in row["answers"])

    def best(self, part: str, name: str, choose: Callable[..., str]) -> str:
        """Return the measured DataLoader with the smallest (`min`) or largest (`max`) median, or ''."""
        found = collect(self._document, part, name)
        medians = {peer: median(found[peer]) for peer in DATALOADERS[part] if peer in found}
        return choose(medians, key=medians.__getitem__) if medians else ""


def targets(document: Document) -> Iterator[Target]:
    """Judge all targets."""
    figures = Figures(document)
    yield _batch(figures, "collated by Batch", BATCH, 5, COPIED)
    yield _batch(figures, "filled in place", FILLED, 20, HEADER_ONLY)
    yield _against_best(figures, "CPU seconds per item relative to the best DataLoader", "cpu_s_per_item", 0.9)
    yield _against_best(figures, "items per second relative to the best DataLoader", "items_per_s", 1.0)
    yield _memory(figures)


def _batch(figures: Figures, how: str, name: str, min_ratio: float, variant: str) -> Target:
    text = f"a batch {how} is at least {min_ratio:.0f} times faster than DataLoader's"
    times_faster = figures.times(COLLATE, name, DATALOADER, "items_per_s")
    if times_faster is None:
        return Target(text)
    variant_times_faster = figures.times(COLLATE, variant, DATALOADER, "items_per_s")
    cpu = figures.times(COLLATE, DATALOADER, name, "cpu_s_per_item")
    measured = f"{times_faster.text(1)} times faster{_append(f'{cpu.text(1)} times less CPU' if cpu else '')}"
    measured += _append(f"{variant}: {variant_times_faster.text(1)}" if variant_times_faster else "")
    of_two = figures.times(COLLATE, name, TWO_WORKERS, "items_per_s")
    measured += _append(f"{of_two.text(1)} times faster than {TWO_WORKERS}" if of_two else "")
    return Target(text, measured, is_met(times_faster, at_least=min_ratio))


def _against_best(figures: Figures, text: str, name: str, limit: float) -> Target:
    is_maximum = limit < 1.0
    text = f"{text}: {'at most' if is_maximum else 'at least'} {limit}"
    peer = figures.best(QUICKSTART, name, min if is_maximum else max)
    relative = figures.times(QUICKSTART, PLAIN, peer, name)
    if relative is None:
        return Target(text)
    fused_relative = figures.times(QUICKSTART, FUSED, peer, name)
    met = is_met(relative, at_most=limit) if is_maximum else is_met(relative, at_least=limit)
    measured = f"{relative.text()} of {peer}" + _append(f"{FUSED}: {fused_relative.text()}" if fused_relative else "")
    return Target(text, measured, met)


def _memory(figures: Figures) -> Target:
    limit, name = 0.45, "pss_bytes"
    text = f"memory of three models in three processes relative to spawned workers: at most {limit}"
    relative = figures.times(MODELS, THREE_PROCESSES, SPAWNED, name)
    if relative is None:
        return Target(text)
    relative_to = {
        peer: figures.times(MODELS, THREE_PROCESSES, peer, name)
        for peer in (FORKED, FORKED_PRELOADED, SPAWNED_PRELOADED)
    }
    others = "".join(_append(f"of {peer}: {estimate.text()}") for peer, estimate in relative_to.items() if estimate)
    bare = f"; torch takes {figures.bare_bytes() / 1e6:.0f} MB in each process that only imports it"
    return Target(text, relative.text() + others + bare, is_met(relative, at_most=limit))


def _append(text: str) -> str:
    return f"; {text}" if text else ""


if __name__ == "__main__":
    main(sys.argv[1:])
