"""Embeddings of images to Parquet: stagepipe beside Ray Data, Hugging Face `map` and Daft."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tests.programs.offline.contest import (
    CONTESTANTS,
    STAGEPIPE,
    Program,
    count_notes,
    describe_differences,
    find_version,
    hold_contest,
    is_stagepipe_worker,
    name_stagepipe,
    read_parquet,
)
from tests.programs.offline.image_server import make_pictures
from tests.programs.sources import find_python

JOB = "embeddings of images to Parquet"
COUNT = 1500


def write_images(folder: Path) -> None:
    """Write the photographs, each under many names."""
    pictures = make_pictures()
    (folder / "images").mkdir()
    for number in range(COUNT):
        (folder / "images" / f"{number:06d}.jpg").write_bytes(pictures[number % len(pictures)])


def make_programs() -> list[Program]:
    """Return the contestants. Each finds `images/` in its folder."""
    run = [*STAGEPIPE, "run", str(CONTESTANTS / "embeddings.yaml"), "--quiet", "--resume"]
    read = partial(read_parquet, column="embedding")
    programs = [Program(name=name_stagepipe(), commands=[run], read=read, is_worker=is_stagepipe_worker)]
    for environment, package, packages, script, word in (
        ("huggingface", "datasets", ["datasets", "pillow", "torch"], "run_datasets.py", "run_datasets.py"),
        ("daft", "daft", ["daft", "pillow", "torch"], "run_daft.py", "daft"),
        ("ray", "ray", ["'ray[data]'", "pillow", "torch"], "run_ray.py", "ray::"),
    ):
        python = find_python(environment, packages)
        programs.append(
            Program(
                name=f"{package} {find_version(python, package)}",
                commands=[[str(python), str(CONTESTANTS / script)]],
                environment={
                    "PYTHONPATH": str(CONTESTANTS),  # Daft's processes import from there, not from the script's folder
                    "RAY_TMPDIR": "{FOLDER}/ray",
                    "HF_HUB_OFFLINE": "1",
                    "DO_NOT_TRACK": "1",
                },
                read=read,
                is_worker=lambda line, word=word: word in line,  # type: ignore[misc]
            )
        )
    return programs


def measure(**options: Any) -> Sequence[dict[str, str]]:
    """Hold the contest and return its rows."""
    results = hold_contest(make_programs(), prepare=write_images, count_calls=count_notes, items=COUNT, **options)
    return [
        {"job": JOB, "rows": describe_differences(results[0], each, COUNT), **each.make_row(COUNT)} for each in results
    ]
