"""Audio files to log mel features in Parquet: stagepipe beside Hugging Face `map`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import soundfile

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
from tests.programs.sources import find_python

JOB = "audio to mel features in Parquet"
COUNT = 1000
_RATE = 16_000
_SECONDS = 5
_RECORDINGS = 24


def write_audio(folder: Path) -> None:
    """Write WAV and FLAC files of a few chords in noise, each under many names."""
    generator = np.random.default_rng(17)
    times_s = np.arange(_RATE * _SECONDS) / _RATE
    (folder / "audio").mkdir()
    for number in range(_RECORDINGS):
        tones = sum(np.sin(2 * np.pi * hertz * times_s) for hertz in generator.uniform(80, 4000, 4))
        samples = (0.1 * tones + generator.normal(0, 0.02, len(times_s))).astype(np.float32)
        first = folder / "audio" / f"{number:06d}.{'flac' if number % 2 else 'wav'}"
        soundfile.write(first, samples, _RATE, subtype="PCM_16")
        for copy in range(number + _RECORDINGS, COUNT, _RECORDINGS):
            (folder / "audio" / f"{copy:06d}{first.suffix}").hardlink_to(first)


def make_programs() -> list[Program]:
    """Return the contestants. Each finds `audio/` in its folder."""
    python = find_python("huggingface", ["datasets", "soundfile"])
    return [
        Program(
            name=name_stagepipe(),
            commands=[[*STAGEPIPE, "run", str(CONTESTANTS / "mel.yaml"), "--quiet", "--resume"]],
            read=partial(read_parquet, column="mel"),
            is_worker=is_stagepipe_worker,
        ),
        Program(
            name=f"datasets {find_version(python, 'datasets')}",
            commands=[[str(python), str(CONTESTANTS / "run_datasets_mel.py")]],
            environment={"HF_HUB_OFFLINE": "1"},
            read=partial(read_parquet, column="mel"),
            is_worker=lambda line: "resource_tracker" not in line,
        ),
    ]


def measure(**options: Any) -> Sequence[dict[str, str]]:
    """Hold the contest and return its rows."""
    results = hold_contest(make_programs(), prepare=write_audio, count_calls=count_notes, items=COUNT, **options)
    return [
        {"job": JOB, "rows": describe_differences(results[0], each, COUNT), **each.make_row(COUNT)} for each in results
    ]
