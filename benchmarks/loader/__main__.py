"""Measure the data loading of a training loop: stagepipe against `torch.utils.data.DataLoader`, in three parts.

    python scripts/make_images.py
    python -m benchmarks.loader [--quick] [--rounds 6] [--only collate,models] [--step sum] [--json FILE]

collate: a ready batch of 64 x 3 x 224 x 224 float32, from prepared samples to the training process. DataLoader's one or
two workers collate their own tensors, inherited through the fork. stagepipe's samples lie in shared memory ("Batch"),
are copied there first ("from copies"), or are copied into a batch made with `stagepipe.empty` ("filled"). "header only"
writes the first element of each sample only: the cost of a batch without its contents, which no user's batch has.

quickstart: configs/quickstart.yaml, and the same functions, files, order and draws in a map-style dataset.

models: three models of 400 MB; every input passes through all three. stagepipe has one copy of each, in three stages.
Each of three DataLoader workers has all three, made at its first input, before the fork, or handed over to spawned
workers in the dataset's pickle (torch passes CPU tensors in shared memory, but not models on a GPU).

Each turn is a new process, alone on the machine, in an order that changes. The first 8 batches of a turn, 12 of the
models, are compared bit for bit with those of a single process, and the epoch is left. Then the timing starts: two
complete epochs of the quickstart over all files; of collate, what follows the 8th batch of an epoch; of the models,
what follows the 12th input. Memory is measured in a last epoch. CPU is that of the process tree; "first batch" counts
from before the loader is created, with torch imported; "second epoch" is the second that is timed; the waits are those
for batches that are not the first of their epoch, the longest where they are fewer than 200; "CPU s total" has imports
and the check. A full run takes some 12 minutes on two processors.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks.common.command import add_corrupt, finish, make_parser, open_run, parse_names, write_json
from benchmarks.common.turn import ROOT, adopt_orphans
from benchmarks.loader.contest import (
    COLLATE,
    CONTESTANTS,
    FORKED,
    MODELS,
    PARTS,
    QUICKSTART,
    SPAWNED,
    THREE_PROCESSES,
    Job,
)
from benchmarks.loader.rounds import measure
from benchmarks.loader.tables import make_loader_table, report_lines, targets

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
        write_json(options.json, document)  # a run that is cut short keeps the parts that it has measured
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


if __name__ == "__main__":
    main(sys.argv[1:])
