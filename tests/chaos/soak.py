"""Soak test: one long pipeline with occasional kills; memory and descriptors must not grow. `make soak MINUTES=20`.

It fails too if no killed worker was replaced, or if the watchdog had to restart a stalled run.
"""

# ruff: noqa: T201 - a command-line tool
from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from stagepipe import Pipeline
from tests.chaos.cases import STAGES
from tests.chaos.disturbances import get_worker_pids
from tests.support.pipelines import pipeline, stage

_READING_COUNT = 20
_WARM_UP_SHARE = 0.25
"""The first share of the readings is not judged: pages are touched for the first time, pools fill."""
_MAX_GROWTH_BYTES = 48 << 20
_MAX_GROWTH_DESCRIPTORS = 8


class Reading(NamedTuple):
    """What all processes of a run use at a moment. `pss`, `shmem` and `live` are bytes."""

    at_s: float
    items: int
    kills: int
    pss: int
    shmem: int
    live: int
    descriptors: int


def _config() -> dict[str, object]:
    config = pipeline(
        stage(f"{STAGES}.arrays", name="make", with_={"salt": 1, "max_size": 600_000}, workers=2),
        stage(f"{STAGES}.changed", name="change", with_={"salt": 3}, workers=2),
        stage(f"{STAGES}.parts", name="cut", with_={"salt": 4}),
        stage(f"{STAGES}.Keeping", name="keep", with_={"count": 3}),
        stage("stagepipe.stages.Shuffle", name="mix", with_={"size": 16}),
        stage("stagepipe.stages.Batch", name="group", with_={"size": 1}),
        source=20_000,
    )
    config["memory"] = "1GiB"
    config["max_restarts"] = 1_000_000
    for entry in config["stages"]:
        if entry["uses"].startswith(STAGES):
            entry["retries"] = 1000
    return config


def _read_memory_rollup(pid: int) -> dict[str, int]:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    return {line.split(":")[0]: 1024 * int(line.split()[1]) for line in lines}


def _take_reading(running: Pipeline, started_s: float, items: int, kills: int) -> Reading:
    pss = shmem = descriptors = 0
    for pid in [os.getpid(), *get_worker_pids(running).values()]:
        try:
            rollup = _read_memory_rollup(pid)
            descriptors += len(list(Path(f"/proc/{pid}/fd").iterdir()))
        except OSError:  # the worker has just been killed
            continue
        pss += rollup["Pss"]
        shmem += rollup.get("Pss_Shmem", 0)
    live = running._run._supervisor.board.live_bytes()
    return Reading(time.monotonic() - started_s, items, kills, pss, shmem, live, descriptors)


def _format_reading(reading: Reading) -> str:
    megabytes = "".join(f"{nbytes / (1 << 20):10.1f}" for nbytes in reading[3:6])
    return f"{reading.at_s:8.0f}{reading.items:10d}{reading.kills:8d}{megabytes}{reading.descriptors:12d}"


def soak(minutes: float, kill_every_s: float) -> tuple[list[Reading], Counter[str]]:
    """Run for `minutes`; print and return the readings. Also returns the restarts by kind (death, stall)."""
    rnd, kills, items = random.Random(1), 0, 0
    readings: list[Reading] = []
    print(f"{'s':>8}{'items':>10}{'kills':>8}{'PSS MiB':>10}{'shmem':>10}{'live':>10}{'descriptors':>12}")
    with Pipeline(_config()) as running:
        started_s = time.monotonic()
        end = started_s + 60 * minutes
        next_kill, next_reading = started_s + kill_every_s, started_s
        while time.monotonic() < end:
            for _ in running:
                items += 1
                now = time.monotonic()
                if kill_every_s and now > next_kill and (pids := sorted(get_worker_pids(running).values())):
                    os.kill(rnd.choice(pids), signal.SIGKILL)
                    kills += 1
                    next_kill = now + kill_every_s * rnd.uniform(0.5, 1.5)
                if now > next_reading:
                    readings.append(_take_reading(running, started_s, items, kills))
                    print(_format_reading(readings[-1]), flush=True)
                    next_reading = now + 60 * minutes / _READING_COUNT
                if now > end:
                    break
    return readings, Counter(restart.kind for restart in running.report().restarts)


def describe_growth(readings: list[Reading]) -> str:
    """Compare the medians of the first third after the warm-up and of the last third. Empty if nothing grew."""
    judged = readings[int(len(readings) * _WARM_UP_SHARE) :]
    third = max(len(judged) // 3, 1)
    growths = []
    for name, limit in (
        ("pss", _MAX_GROWTH_BYTES),
        ("shmem", _MAX_GROWTH_BYTES),
        ("descriptors", _MAX_GROWTH_DESCRIPTORS),
    ):
        first, last = (sorted(getattr(reading, name) for reading in part) for part in (judged[:third], judged[-third:]))
        growth = last[len(last) // 2] - first[len(first) // 2]
        if growth > limit:
            growths.append(f"{name} grew by {growth}")
    return ", ".join(growths)


def main() -> int:
    """Run the command line. The exit status is 1 if something grew."""
    parser = argparse.ArgumentParser(description="Run one long pipeline with occasional kills of its workers.")
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--kill-every", type=float, default=3.0, help="Seconds between kills; 0: none.")
    options = parser.parse_args()
    readings, restarts = soak(options.minutes, options.kill_every)
    growth = describe_growth(readings)
    print(growth or "memory and descriptors did not grow")
    deaths, stalls = restarts["death"], restarts["stall"]
    print(f"{readings[-1].kills} kills, {deaths} workers replaced, {stalls} restarts after a stall")
    return bool(growth or stalls or (options.kill_every and not deaths))


if __name__ == "__main__":
    sys.exit(main())
