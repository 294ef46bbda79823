"""The printed tables: one for each part, and stagepipe's own report of a turn. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from benchmarks.common.figures import estimate
from benchmarks.loader.contest import COLLATE, MODELS, QUICKSTART
from benchmarks.loader.job import Job
from benchmarks.loader.rounds import Row


def title(job: Job, rounds: int) -> str:
    """Describe the part, the work of the training process, and how often it was measured."""
    step = "none" if job.step == "none" else "the sum of its elements"
    megabytes = job.batch * 3 * job.side**2 * 4 / 1e6
    shape = f"{job.batch} x 3 x {job.side} x {job.side}"
    what = {
        COLLATE: f"From prepared samples to a batch of {shape} float32, {megabytes:.1f} MB; {job.batches} per epoch",
        QUICKSTART: f"The quickstart: {job.items} JPEG files per epoch, in batches of {shape} float32",
        MODELS: f"Three models of {job.model_bytes / 1e6:.0f} MB, {job.items} inputs per epoch, one by one",
    }[job.part]
    covered = f"{rounds} rounds, {100 * estimate([1.0] * rounds).coverage:.0f} % intervals"
    return f"\n{job.part}. {what}. Work of the training process on each: {step}. {covered}."


def table(job: Job, rows: list[Row]) -> Iterator[str]:
    """Format the rows of the part."""
    width = 3 + max(len(row.contestant) for row in rows)
    per, unit = (job.batch, "batch") if job.part == COLLATE else (1, "item")
    rate = "ms/batch" if job.part == COLLATE else "items/s"
    yield (
        f"{'':{width}}{rate:<22}{f'CPU ms/{unit}':<22}{'first batch s':>13}{'2nd epoch ms':>13}{'p99 wait ms':>12}"
        f"{'PSS MB':>8}{'CPU s total':>13}"
    )
    for row in rows:
        waits_s = [wait for answer in row.answers for wait in answer.waits_s]
        speeds = row.values("items_per_s")
        speed = [1000 * per / value for value in speeds] if job.part == COLLATE else speeds
        cpu = [1000 * per * value for value in row.values("cpu_s_per_item")]
        yield (
            f"{row.contestant:{width}}{estimate(speed).text():<22}{estimate(cpu).text():<22}"
            f"{median(row.values('first_batch_s')):13.2f}{1000 * median(row.values('second_first_s')):13.1f}"
            f"{1000 * find_p99(waits_s):12.1f}{median(row.values('pss_bytes')) / 1e6:8.0f}"
            f"{median(row.values('life_cpu_s')):13.1f}"
        )


def find_p99(waits_s: Sequence[float]) -> float:
    """Return the wait in seconds that one in a hundred exceeds."""
    waits = sorted(waits_s)
    return waits[-1 - len(waits) // 100] if waits else 0.0


def report_lines(rows: list[Row]) -> Iterator[str]:
    """Format stagepipe's own reports of the last round."""
    for row in rows:
        for line in row.answers[-1].told:
            yield f"  {row.contestant}: {line}"


DESCRIPTION = (
    "Medians; each turn is a new process. Ratios are taken round by round; brackets hold the sign-test interval of the "
    "median, which contains the true median with the probability that stands above the table."
)
