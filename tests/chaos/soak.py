"""One long pipeline whose workers are killed now and then: memory and descriptors stay flat. `make soak MINUTES=20`."""

# ruff: noqa: T201 - what it prints is what it is for
from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import NamedTuple

from stagepipe import Pipeline
from tests.chaos.cases import STAGES, understood
from tests.chaos.disturbing import pids_of
from tests.zoo.pipelines import pipeline, stage

_LINES = 20
_WARM = 0.25
"""The first share of the time is not judged: pages are touched for the first time, pools fill."""
_GROWTH_BYTES = 48 << 20


class Reading(NamedTuple):
    """What a run takes at a moment. Bytes; descriptors of all its processes."""

    at_s: float
    items: int
    kills: int
    pss: int
    shmem: int
    live: int
    descriptors: int


def _config() -> dict[str, object]:
    config = pipeline(
        stage(f"{STAGES}.arrays", name="make", with_={"salt": 1, "most": 600_000}, workers=2),
        stage(f"{STAGES}.changed", name="change", with_={"salt": 3}, workers=2),
        stage(f"{STAGES}.parts", name="cut", with_={"salt": 4}),
        stage(f"{STAGES}.Keeping", name="keep", with_={"count": 3}),
        stage("stagepipe.stages.Shuffle", name="mix", with_={"size": 16}),
        stage("stagepipe.stages.Batch", name="group", with_={"size": 1}),
        source=20_000,
    )
    config["memory"] = "1GiB"
    if understood("max_restarts", 1_000_000, of_stage=False):
        config["max_restarts"] = 1_000_000
    if understood("retries", 1000):
        for each in config["stages"]:
            if each["uses"].startswith(STAGES):
                each["retries"] = 1000
    return config


def _rollup(pid: int) -> dict[str, int]:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    return {line.split(":")[0]: 1024 * int(line.split()[1]) for line in lines}


def _read(running: Pipeline, begun: float, items: int, kills: int) -> Reading:
    pss = shmem = descriptors = 0
    for pid in [os.getpid(), *pids_of(running).values()]:
        try:
            rollup = _rollup(pid)
            descriptors += len(list(Path(f"/proc/{pid}/fd").iterdir()))
        except OSError:  # it has just been killed
            continue
        pss, shmem = pss + rollup["Pss"], shmem + rollup.get("Pss_Shmem", 0)
    live = running._run._supervisor.board.live_bytes()
    return Reading(time.monotonic() - begun, items, kills, pss, shmem, live, descriptors)


def _shown(reading: Reading) -> str:
    megabytes = "".join(f"{nbytes / (1 << 20):10.1f}" for nbytes in reading[3:6])
    return f"{reading.at_s:8.0f}{reading.items:10d}{reading.kills:8d}{megabytes}{reading.descriptors:12d}"


def soak(minutes: float, kill_every_s: float) -> list[Reading]:
    """Run for so long; the readings, each printed."""
    rnd, kills, items, found = random.Random(1), 0, 0, []
    print(f"{'s':>8}{'items':>10}{'kills':>8}{'PSS MiB':>10}{'shmem':>10}{'live':>10}{'descriptors':>12}")
    with Pipeline(_config()) as running:
        begun = time.monotonic()
        end = begun + 60 * minutes
        next_kill, next_line = begun + kill_every_s, begun
        while time.monotonic() < end:
            for _ in running:
                items += 1
                now = time.monotonic()
                if kill_every_s and now > next_kill and (pids := sorted(pids_of(running).values())):
                    os.kill(rnd.choice(pids), signal.SIGKILL)
                    kills, next_kill = kills + 1, now + kill_every_s * rnd.uniform(0.5, 1.5)
                if now > next_line:
                    found.append(_read(running, begun, items, kills))
                    print(_shown(found[-1]), flush=True)
                    next_line = now + 60 * minutes / _LINES
                if now > end:
                    break
    return found


def flat(found: list[Reading]) -> str:
    """What grew, in words: the last third against the one after the warm-up. Empty if nothing did."""
    rest = found[int(len(found) * _WARM) :]
    third = max(len(rest) // 3, 1)
    grown = []
    for name, most in (("pss", _GROWTH_BYTES), ("shmem", _GROWTH_BYTES), ("descriptors", 8)):
        first, last = (sorted(getattr(each, name) for each in some) for some in (rest[:third], rest[-third:]))
        more = last[len(last) // 2] - first[len(first) // 2]
        if more > most:
            grown.append(f"{name} grew by {more}")
    return ", ".join(grown)


def main() -> int:
    """Exit status 1 when something grew."""
    parser = argparse.ArgumentParser(description="One long pipeline, its workers killed now and then.")
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--kill-every", type=float, default=3.0, help="Seconds between kills; 0: none.")
    asked = parser.parse_args()
    recovers = understood("max_restarts", 1, of_stage=False)
    said = flat(soak(asked.minutes, asked.kill_every if recovers else 0.0))
    print(said or "memory and descriptors are flat")
    return bool(said)


if __name__ == "__main__":
    sys.exit(main())
