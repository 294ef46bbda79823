"""The process of a contestant: `python -m loader_.child JOB` prints its answer on the last line."""

from __future__ import annotations

import sys

import torch

from loader_.contest import REFERENCE
from loader_.digest import digest
from loader_.job import Job
from loader_.making import make
from loader_.measuring import measure


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
