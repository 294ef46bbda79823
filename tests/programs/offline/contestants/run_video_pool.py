"""Cuts videos/ of the current folder into clips in shards in out/: the script that people write with PyAV and a pool.

A shard is written beside its place and then renamed; one that is there is left as it is.
"""

from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import av
import numpy as np
import webdataset
from work import note

FRAMES, STRIDE, SIZE = 16, 2, 96
VIDEOS_A_SHARD = 4


def cut_clips(path):
    """Yield the start in seconds and the frames of each clip."""
    with av.open(str(path)) as container:
        frames, start_s = [], 0.0
        for index, frame in enumerate(container.decode(video=0)):
            if index % STRIDE:
                continue
            start_s = start_s if frames else float(frame.time)
            frames.append(frame.to_ndarray(format="rgb24", width=SIZE, height=SIZE))
            if len(frames) == FRAMES:
                yield start_s, np.stack(frames)
                frames = []


def write_shard(number, paths):
    """Write the clips of some videos."""
    shard = Path(f"out/{number:06d}.tar")
    if shard.exists():
        return
    partial = shard.with_suffix(".partial")
    with partial.open("wb") as file, webdataset.TarWriter(file) as writer:
        for path in paths:
            note(path.name)
            for start_s, frames in cut_clips(path):
                key = f"{path.stem}-{round(1000 * start_s):06d}"
                writer.write({"__key__": key, "frames.npy": frames, "start_s.json": start_s, "path.txt": str(path)})
    partial.rename(shard)


if __name__ == "__main__":
    Path("out").mkdir(exist_ok=True)
    videos = sorted(Path("videos").glob("*.mp4"))
    shards = [videos[start : start + VIDEOS_A_SHARD] for start in range(0, len(videos), VIDEOS_A_SHARD)]
    with ProcessPoolExecutor(2) as pool:
        list(pool.map(write_shard, range(len(shards)), shards))
