"""Builds the pipeline of video_clips.yaml in Python.

From the root of the repository:

    python scripts/make_videos.py
    python examples/video_clips/build_video_clips.py
"""

from stagepipe import defer, from_source, sources
from stagepipe.stages import video

VIDEOS = "data/videos"
SIZE = 64

builder = (
    from_source(defer(sources.files, f"{VIDEOS}/*.mp4"))
    .flat_map(
        defer(video.DecodeClips, frames=8, stride=2, size=SIZE),  # several clips for one file
        field={"data": "path"},  # the clip's frames, start_s and frame_rate become fields
        name="clips",
        workers=2,
    )
    .shuffle(64)
    .batch(4)
    .with_options(name="video_clips", seed=17)
)

if __name__ == "__main__":
    builder.run().show()
