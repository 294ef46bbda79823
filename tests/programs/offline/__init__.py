"""Jobs beside the tool that people use for them.

contest       runs the programs of a job, measures and kills them, and compares what they wrote
contestants/  the programs: our configs, and scripts for the tools, which call their public interface

download      images of a list of URLs, resized, to shards of WebDataset: img2dataset
image_server  the server for it, with faults
duplicates    texts of poor quality and near duplicates removed: datatrove
embeddings    embeddings of images to Parquet: Hugging Face `map`, Daft, Ray Data
mel           audio to mel features: Hugging Face `map`
video         videos to clips in shards of WebDataset: a script of PyAV and a pool
"""

from __future__ import annotations

from tests.programs.offline import download, duplicates, embeddings, mel, video
from tests.programs.tables import Table

TABLE = Table(
    name="offline",
    headings=("job", "tool", "rows", "items/s", "CPU", "memory", "killed and resumed", "notes"),
    cases={
        "download": download.measure,
        "duplicates": duplicates.measure,
        "embeddings": embeddings.measure,
        "mel": mel.measure,
        "video": video.measure,
    },
)
