"""Make the videos of an example: MP4 files with a bright square that moves over a dark background.

    python scripts/make_videos.py --count 20 --out data/videos --seed 17

Writes OUT/00001.mp4 ...: 30 to 90 frames of 128 x 96 pixels, 30 frames a second. The same arguments make the same
files with the same release of FFmpeg; existing files are overwritten. Requires the `video` extra.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np

WIDTH, HEIGHT, RATE = 128, 96, 30
FRAMES = (30, 90)
SIDE = 16  # pixels of the square


def make_frames(rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Yield the frames of one video: uint8 arrays of shape (HEIGHT, WIDTH, 3)."""
    color = rng.integers(128, 256, 3, np.uint8)
    start, stop = rng.uniform(0, [HEIGHT - SIDE, WIDTH - SIDE], (2, 2))
    for progress in np.linspace(0, 1, rng.integers(*FRAMES)):
        top, left = (start + (stop - start) * progress).astype(int)
        frame = np.full((HEIGHT, WIDTH, 3), 16, np.uint8)
        frame[top : top + SIDE, left : left + SIDE] = color
        yield frame


def write_video(path: Path, frames: Iterator[np.ndarray]) -> None:
    """Encode frames as MPEG-4, which every build of FFmpeg supports."""
    import av

    with av.open(path, "w") as container:
        stream = container.add_stream("mpeg4", rate=RATE)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode())


def make(out: Path, count: int, seed: int) -> str:
    """Make the files; return one line about the result."""
    out.mkdir(parents=True, exist_ok=True)
    for number in range(1, count + 1):
        write_video(out / f"{number:05d}.mp4", make_frames(np.random.default_rng([seed, number])))
    return f"{out}: made {count} videos"


def main() -> None:
    """Read the command line and make the files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--out", type=Path, default=Path("data/videos"))
    parser.add_argument("--seed", type=int, default=17)
    arguments = parser.parse_args()
    print(make(arguments.out, arguments.count, arguments.seed))


if __name__ == "__main__":
    main()
