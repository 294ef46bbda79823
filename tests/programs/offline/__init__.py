"""Jobs beside the tool that people use for them.

contest       runs the programs of a job, measures and kills them, and compares what they wrote
contestants/  the programs: our configs, and scripts for the tools, which call their public interface

download      images of a list of URLs, resized, to shards of WebDataset: img2dataset
image_server  the server for it, with faults
"""

from __future__ import annotations

from tests.programs.offline import download
from tests.programs.tables import Table

TABLE = Table(
    name="offline",
    headings=("job", "tool", "rows", "items/s", "CPU", "memory", "killed and resumed", "notes"),
    cases={"download": download.measure},
)
