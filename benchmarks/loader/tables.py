"""The printed tables: one for each part, and stagepipe's own report of a turn; and the targets. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from statistics import median

from benchmarks.common.figures import Estimate, Target, count_waits, estimate, format_waits, is_met, pool_waits, ratio
from benchmarks.loader.contest import (
    BATCH,
    COLLATE,
    COPIED,
    DATALOADER,
    DATALOADERS,
    FILLED,
    FORKED,
    FORKED_PRELOADED,
    FUSED,
    HEADER_ONLY,
    MODELS,
    PLAIN,
    QUICKSTART,
    SPAWNED,
    SPAWNED_PRELOADED,
    THREE_PROCESSES,
    TWO_WORKERS,
    Job,
)
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
        f"{'':{width}}{rate:<22}{f'CPU ms/{unit}':<22}{'first batch s':>13}{'2nd epoch ms':>13}  {'waits':22}"
        f"{'PSS MB':>8}{'CPU s total':>13}"
    )
    for row in rows:
        waits = pool_waits(count_waits(answer.waits_s) for answer in row.answers)
        speeds = row.values("items_per_s")
        speed = [1000 * per / value for value in speeds] if job.part == COLLATE else speeds
        cpu = [1000 * per * value for value in row.values("cpu_s_per_item")]
        yield (
            f"{row.contestant:{width}}{estimate(speed).text():<22}{estimate(cpu).text():<22}"
            f"{median(row.values('first_batch_s')):13.2f}{1000 * median(row.values('second_first_s')):13.1f}"
            f"  {format_waits(waits):22}{median(row.values('pss_bytes')) / 1e6:8.0f}"
            f"{median(row.values('life_cpu_s')):13.1f}"
        )


def report_lines(rows: list[Row]) -> Iterator[str]:
    """Format stagepipe's own reports of the last round."""
    for row in rows:
        for line in row.answers[-1].told:
            yield f"  {row.contestant}: {line}"


DESCRIPTION = (
    "Medians; each turn is a new process. Ratios are taken round by round; brackets hold the sign-test interval of the "
    "median, which contains the true median with the probability that stands above the table."
)


class Figures:
    """The rows of a run, by part and contestant."""

    def __init__(self, rows: list[Row]) -> None:
        self._rows = {(row.part, row.contestant): row for row in rows}

    def times(self, part: str, of: str, to: str, name: str) -> Estimate | None:
        """Return the figure of `of` divided by that of `to`, or None if one of them was not measured."""
        first, second = self._rows.get((part, of)), self._rows.get((part, to))
        return ratio(first.values(name), second.values(name)) if first and second else None

    def bare_bytes(self) -> float:
        """Return the memory of a process that has imported torch and stagepipe, and has created nothing yet."""
        return median([value for row in self._rows.values() for value in row.values("bare_pss_bytes")])

    def best(self, part: str, name: str, choose: Callable[..., str]) -> str:
        """Return the measured DataLoader with the smallest (`min`) or largest (`max`) median, or ''."""
        medians = {
            peer: median(self._rows[part, peer].values(name))
            for peer in DATALOADERS[part]
            if (part, peer) in self._rows
        }
        return choose(medians, key=medians.__getitem__) if medians else ""


def targets(rows: list[Row]) -> Iterator[Target]:
    """Judge all targets."""
    figures = Figures(rows)
    yield _batch(figures, "collated by Batch", BATCH, 5, COPIED)
    yield _batch(figures, "filled in place", FILLED, 20, HEADER_ONLY)
    yield _against_best(figures, "CPU seconds per item relative to the best DataLoader", "cpu_s_per_item", 0.9)
    yield _against_best(figures, "items per second relative to the best DataLoader", "items_per_s", 1.0)
    yield _memory(figures)


def _batch(figures: Figures, how: str, name: str, min_ratio: float, variant: str) -> Target:
    text = f"a batch {how} is at least {min_ratio:.0f} times faster than DataLoader's"
    times_faster = figures.times(COLLATE, name, DATALOADER, "items_per_s")
    if times_faster is None:
        return Target(text)
    variant_times_faster = figures.times(COLLATE, variant, DATALOADER, "items_per_s")
    cpu = figures.times(COLLATE, DATALOADER, name, "cpu_s_per_item")
    measured = f"{times_faster.text(1)} times faster{_append(f'{cpu.text(1)} times less CPU' if cpu else '')}"
    measured += _append(f"{variant}: {variant_times_faster.text(1)}" if variant_times_faster else "")
    of_two = figures.times(COLLATE, name, TWO_WORKERS, "items_per_s")
    measured += _append(f"{of_two.text(1)} times faster than {TWO_WORKERS}" if of_two else "")
    return Target(text, measured, is_met(times_faster, at_least=min_ratio))


def _against_best(figures: Figures, text: str, name: str, limit: float) -> Target:
    is_maximum = limit < 1.0
    text = f"{text}: {'at most' if is_maximum else 'at least'} {limit}"
    peer = figures.best(QUICKSTART, name, min if is_maximum else max)
    relative = figures.times(QUICKSTART, PLAIN, peer, name)
    if relative is None:
        return Target(text)
    fused_relative = figures.times(QUICKSTART, FUSED, peer, name)
    met = is_met(relative, at_most=limit) if is_maximum else is_met(relative, at_least=limit)
    measured = f"{relative.text()} of {peer}" + _append(f"{FUSED}: {fused_relative.text()}" if fused_relative else "")
    return Target(text, measured, met)


def _memory(figures: Figures) -> Target:
    limit, name = 0.45, "pss_bytes"
    text = f"memory of three models in three processes relative to spawned workers: at most {limit}"
    relative = figures.times(MODELS, THREE_PROCESSES, SPAWNED, name)
    if relative is None:
        return Target(text)
    relative_to = {
        peer: figures.times(MODELS, THREE_PROCESSES, peer, name)
        for peer in (FORKED, FORKED_PRELOADED, SPAWNED_PRELOADED)
    }
    others = "".join(_append(f"of {peer}: {estimate.text()}") for peer, estimate in relative_to.items() if estimate)
    bare = f"; torch takes {figures.bare_bytes() / 1e6:.0f} MB in each process that only imports it"
    return Target(text, relative.text() + others + bare, is_met(relative, at_most=limit))


def _append(text: str) -> str:
    return f"; {text}" if text else ""
