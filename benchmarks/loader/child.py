"""The process of a contestant: `python -m benchmarks.loader.child JOB` prints its answer on the last line."""

from __future__ import annotations

import sys

import torch

from benchmarks.loader.contest import REFERENCE
from benchmarks.loader.digest import digest
from benchmarks.loader.job import Job
from benchmarks.loader.making import make
from benchmarks.loader.measuring import measure


def main(text: str) -> None:
    """Run the job and print the answer."""
    torch.set_num_threads(1)  # as DataLoader and stagepipe do in their workers
    job = Job.loads(text)
    if job.contestant == REFERENCE:
        print("\n".join(digest(batch) for batch in make(job).epoch(0)))
    else:
        print(measure(job, make).dumps())


if __name__ == "__main__":
    main(sys.argv[1])
