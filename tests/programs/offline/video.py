"""Videos cut into clips in shards of WebDataset: stagepipe beside a script of PyAV, webdataset and a pool."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from functools import cache
from hashlib import blake2b
from importlib.metadata import version
from io import BytesIO
from pathlib import Path
from typing import Any

import av
import numpy as np

from tests.programs.offline.contest import (
    CONTESTANTS,
    STAGEPIPE,
    Output,
    Program,
    Result,
    count_notes,
    hold_contest,
    is_stagepipe_worker,
    name_stagepipe,
    read_shards,
)

JOB = "videos cut into clips, resized, to WebDataset"
COUNT = 48
_VIDEOS = 6
_FRAMES = 240
_CLIPS = 7
"""Of a video: 16 frames each, of every second frame."""
_RATE = 25
_HEIGHT, _WIDTH = 360, 640
_SEED = 17


@cache
def make_videos() -> Sequence[bytes]:
    """Return H.264 files of 9.6 s: a picture that moves, in noise."""
    generator = np.random.default_rng(_SEED)
    videos = []
    for _ in range(_VIDEOS):
        picture = generator.integers(0, 256, (_HEIGHT // 20, _WIDTH // 20, 3), np.uint8).repeat(20, 0).repeat(20, 1)
        noise = generator.integers(0, 24, (_HEIGHT, _WIDTH, 3), np.uint8)
        file = BytesIO()
        with av.open(file, "w", format="mp4") as container:
            stream = container.add_stream("libx264", rate=_RATE, options={"preset": "veryfast", "crf": "26"})
            stream.width = _WIDTH
            stream.height = _HEIGHT
            stream.pix_fmt = "yuv420p"
            for number in range(_FRAMES):
                moved = np.roll(picture, 3 * number, axis=1) // 2 + np.roll(noise, 7 * number, axis=0)
                container.mux(stream.encode(av.VideoFrame.from_ndarray(moved, format="rgb24")))
            container.mux(stream.encode())
        videos.append(file.getvalue())
    return videos


def write_videos(folder: Path) -> None:
    """Write the videos, each under many names."""
    (folder / "videos").mkdir()
    for number in range(COUNT):
        path = folder / "videos" / f"{number:06d}.mp4"
        if number < _VIDEOS:
            path.write_bytes(make_videos()[number])
        else:
            path.hardlink_to(folder / "videos" / f"{number % _VIDEOS:06d}.mp4")


def read_clips(folder: Path) -> Output:
    """Return a digest of each clip's frames, by the video and the start in seconds."""
    rows = []
    samples, unreadable = read_shards(folder / "out")
    for _, fields in samples:
        key = f"{Path(fields['path.txt'].decode()).name} {json.loads(fields['start_s.json']):.3f}"
        rows.append((key, blake2b(np.load(BytesIO(fields["frames.npy"])).tobytes()).hexdigest()))
    return Output(rows=rows, unreadable=unreadable)


def make_programs() -> list[Program]:
    """Return the contestants. Each finds `videos/` in its folder."""
    return [
        Program(
            name=name_stagepipe(),
            commands=[[*STAGEPIPE, "run", str(CONTESTANTS / "video.yaml"), "--quiet", "--resume"]],
            read=read_clips,
            is_worker=is_stagepipe_worker,
        ),
        Program(
            name=f"a script: PyAV {version('av')}, webdataset {version('webdataset')}",
            commands=[[sys.executable, str(CONTESTANTS / "run_video_pool.py")]],
            read=read_clips,
            is_worker=lambda line: "run_video_pool" in line,
            notes="two processes of a ProcessPoolExecutor, 4 videos a shard, which is begun again after a kill",
        ),
    ]


def measure(**options: Any) -> Sequence[dict[str, str]]:
    """Hold the contest and return its rows."""
    results = hold_contest(make_programs(), prepare=write_videos, count_calls=count_notes, items=COUNT, **options)
    first = dict(results[0].output.rows)
    return [{"job": JOB, "rows": _compare(each, first), **each.make_row(COUNT)} for each in results]


def _compare(result: Result, first: dict[str, Any]) -> str:
    rows = dict(result.output.rows)
    equal = sum(first.get(key) == digest for key, digest in rows.items())
    return f"{len(rows)} of {COUNT * _CLIPS} clips" + ("" if equal == len(rows) == len(first) else f", {equal} equal")
