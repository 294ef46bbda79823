"""Measure the data loading of a training loop: stagepipe against `torch.utils.data.DataLoader`, in three parts.

    python scripts/make_images.py
    python -m benchmarks.loader [--quick] [--rounds 6] [--only collate,models] [--step sum] [--json FILE]

collate: the cost of a ready batch of 64 x 3 x 224 x 224 float32, from prepared samples to the training process.

    DataLoader                       one worker collates (default_collate) into shared memory; the samples are its own
                                     tensors, inherited through the fork
    stagepipe Batch                  the samples lie in shared memory, as after a stage that creates them with
                                     `stagepipe.empty`; Batch collates in its own process
    stagepipe Batch from copies      the source owns the samples; they are copied into shared memory first
    stagepipe filled                 a stage creates the batch with `stagepipe.empty` and copies the prepared samples
                                     into it
    stagepipe header only            the same, but it writes the first element of each sample only: the cost of a batch
                                     without its contents. No user's batch costs so little

quickstart: configs/quickstart.yaml, and the same functions in a map-style dataset with the same files, order and random
draws. DataLoader forks its workers unless the name says "spawned". "fused x 2" runs decode, augment and normalise in
one process, twice.

models: the motive of E4. Three models of 400 MB each; every input passes through all three. stagepipe has one copy of
each model, in three stage processes. Each of three DataLoader workers has all three models, and creates them at its
first input.

    forked made before               the models are created before the fork, so the workers share their pages
    spawned handed over              the models are in the dataset that is pickled for the workers. torch passes CPU
                                     tensors in shared memory, so the workers share them. Models on a GPU, or of another
                                     library, are not shared

Each turn is a new process, alone on the machine; the contestants take turns in a different order every round. The first
epoch of a turn is compared batch by batch with one made in a single process, bit for bit (the models' results are
rounded). Then the timing starts: two complete epochs of the quickstart, including their start; of collate, what follows
the 8th batch of one epoch; of the models, what follows the 6th input of one epoch. Memory is measured in a last epoch.
All workers stay alive between epochs. Columns:

    CPU ms       processor time of the whole process tree in the timed epochs, from the clocks of its processes
    first batch  time to the first batch, from before the loader is created, with torch already imported
    2nd epoch    time from the request for the second epoch to its first batch
    p99 wait     wait for a batch that is not the first of its epoch, over all rounds
    PSS          sum over the process tree
    CPU s total  processor time of the whole process tree from start to end, from getrusage(2), including imports and
                 the check
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from benchmarks.common.machine import machine, machine_line, repeat_command
from benchmarks.loader.contest import COLLATE, CONTESTANTS, FORKED, MODELS, PARTS, QUICKSTART, SPAWNED, THREE_PROCESSES
from benchmarks.loader.job import Job
from benchmarks.loader.rounds import Row, measure
from benchmarks.loader.tables import DESCRIPTION, report_lines, table, title
from benchmarks.loader.targets import targets

_IMAGES = Path(__file__).parents[2] / "data" / "images"
_ROUNDS, _QUICK_ROUNDS = 6, 1
_QUICK = {**CONTESTANTS, MODELS: (THREE_PROCESSES, SPAWNED, FORKED)}
_ITEMS, _QUICK_ITEMS = 512, 256
_COLLATE_BATCHES, _COLLATE_WARM = 32, 8
_MODEL_ITEMS, _MODELS_WARM = 24, 6
"""Two inputs for each of three workers are in flight before the first one arrives."""


def main(arguments: Sequence[str]) -> None:
    """Measure, print, and write the JSON if requested."""
    options = _options(arguments)
    machine_found, begin = machine(), time.monotonic()
    command = repeat_command("loader")
    print(machine_line(machine_found), DESCRIPTION, f"Repeat: {command}", sep="\n", flush=True)
    rows: list[Row] = []
    jobs = [_job(part, options) for part in PARTS if options.only[part]]
    for job in jobs:
        measured = measure(job, options.only[job.part], options.rounds, options.corrupt, _progress)
        rows += measured
        print(title(job, options.rounds), *table(job, measured), *report_lines(measured), sep="\n", flush=True)
    verdicts = list(targets(rows))
    print("\nTargets:", *(target.line() for target in verdicts), sep="\n")
    print(f"{time.monotonic() - begin:.0f} s; load average {machine()['load_average']:.1f} at the end")
    if options.json:
        document = {
            "command": command,
            "machine": machine_found,
            "jobs": [asdict(job) for job in jobs],
            "rows": [asdict(row) for row in rows],
            "targets": [asdict(target) for target in verdicts],
        }
        options.json.write_text(json.dumps(document, indent=1) + "\n")


def _job(part: str, options: argparse.Namespace) -> Job:
    job = Job(
        part=part,
        contestant="",
        items=options.items,
        batch=options.batch,
        side=options.side,
        steady_from=0,
        epochs=2 if part == QUICKSTART and not options.quick else 1,
        step=options.step or ("none" if part == COLLATE else "sum"),
        images=str(options.images.absolute()),
        model_bytes=options.model_mb * 1_000_000,
    )
    if part == QUICKSTART:
        return replace(job, items=min(job.items, _count(options.images)))
    if part == COLLATE:
        batches = min(_COLLATE_BATCHES, max(_COLLATE_WARM + 2, job.batches * 4))
        return replace(job, items=job.batch * batches, steady_from=_COLLATE_WARM)
    return replace(job, items=min(_MODEL_ITEMS, max(_MODELS_WARM + 2, job.items)), batch=1, steady_from=_MODELS_WARM)


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
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--quick",
        action="store_true",
        help="one round, shorter epochs, models with three processes only: under two minutes",
    )
    parser.add_argument("--rounds", type=int, help="number of rounds; each contestant has a turn in each")
    parser.add_argument("--only", type=_parse_contestants, help="parts or part:contestant, separated by commas")
    parser.add_argument(
        "--step",
        choices=("none", "sum"),
        help="work of the training process on a batch; default: sum, for collate none",
    )
    parser.add_argument("--json", type=Path, help="file for the figures of every round")
    parser.add_argument("--items", type=int, help="items in an epoch of the quickstart")
    parser.add_argument("--batch", type=int, default=64, help="samples in a batch")
    parser.add_argument("--side", type=int, default=224, help="side of the images in pixels")
    parser.add_argument("--model-mb", type=int, default=400, help="size of each of the three models in MB")
    parser.add_argument("--images", type=Path, default=_IMAGES, help="a folder with .jpg files")
    parser.add_argument(
        "--corrupt", help="corrupt one element of what this contestant delivers; the check must stop the run"
    )
    options = parser.parse_args(arguments)
    options.rounds = options.rounds or (_QUICK_ROUNDS if options.quick else _ROUNDS)
    options.only = options.only or (_QUICK if options.quick else CONTESTANTS)
    options.items = options.items or (_QUICK_ITEMS if options.quick else _ITEMS)
    return options


def _parse_contestants(text: str) -> dict[str, tuple[str, ...]]:
    """Return the contestants of each part: `collate` names all of that part, `models:stagepipe 3 processes` one."""
    known = {
        part: {part: names, **{f"{part}:{name}": (name,) for name in names}} for part, names in CONTESTANTS.items()
    }
    wanted = [name.strip() for name in text.split(",")]
    for name in wanted:
        if not any(name in names for names in known.values()):
            choices = ", ".join(choice for names in known.values() for choice in names)
            message = f"unknown part or contestant {name!r}; choose from {choices}"
            raise argparse.ArgumentTypeError(message)
    return {
        part: tuple(dict.fromkeys(contestant for name in wanted for contestant in names.get(name, ())))
        for part, names in known.items()
    }


if __name__ == "__main__":
    main(sys.argv[1:])
