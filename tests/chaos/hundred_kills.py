"""Kills a hundred workers in one run of five stages and checks the output: the same bits, in order, none twice.

    python -m tests.chaos.hundred_kills            # 100,000 small items, then 2,000 of 1.2 MB, 100 SIGKILLs each
    python -m tests.chaos.hundred_kills --kills 10 --small 5000 --large 200

It prints the digests of the disturbed and of an undisturbed run, the time lost per kill (from the death to the next
delivered item), and the memory of the caller, the workers and the arenas.
"""

# ruff: noqa: T201 - a command-line tool
from __future__ import annotations

import argparse
import hashlib
import os
import random
import signal
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stagepipe import Pipeline

STAGES = "tests.chaos.five_stages"
SMALL = f"{STAGES}.make_small"
LARGE = f"{STAGES}.make_large"
_MAX_KILL_DELAY_S = 0.02
"""A kill follows an item's delivery by a random time up to this one, so a worker dies at any step of its work."""
_RECOVERY_TIMEOUT_S = 60.0


def make_config(first: str, count: int, kills: int) -> dict[str, Any]:
    """Return a source and five stages: two have two workers, two are fed by an order point."""
    return {
        "name": "hundred-kills",
        "max_restarts": 2 * kills,
        "source": {"uses": "stagepipe.sources.numbers", "with": {"count": count}},
        "stages": [
            {"name": "make", "uses": first, "workers": 2},
            {"name": "more", "uses": f"{STAGES}.increment"},
            {"name": "shuffle", "uses": "stagepipe.stages.Shuffle", "with": {"size": 8}},
            {"name": "pass", "uses": f"{STAGES}.same", "workers": 2},
            {"name": "last", "uses": f"{STAGES}.increment"},
        ],
    }


def iter_digests(items: Iterator[Any], seen_ids: list[int]) -> Iterator[str]:
    """Yield, after each item, the digest of all items so far; append their ids to `seen_ids`."""
    digest = hashlib.sha256()
    for item in items:
        seen_ids.append(item["id"])
        digest.update(f"{item['id']} {item['value']} ".encode())
        if "image" in item:
            digest.update(item["image"].tobytes())
        yield digest.hexdigest()


def run_undisturbed(config: dict[str, Any]) -> str:
    """Return the digest of a run without kills."""
    last_digest = ""
    with Pipeline(config) as running:
        for digest in iter_digests(iter(running), []):
            last_digest = digest
    return last_digest


class Killer:
    """Kills random workers at random moments; before each kill, it waits until all workers run again."""

    def __init__(self, running: Pipeline, kills: int, count: int) -> None:
        """Spread `kills` over `count` items."""
        self._supervisor = running._run._supervisor  # type: ignore[union-attr]
        self._random = random.Random(7)
        self._interval_items = max(count // (kills + 1), 1)
        self._remaining_kills = kills
        self._next_item = self._interval_items
        self._timer = threading.Timer(0, lambda: None)
        self._timer.start()
        self.victims: list[str] = []

    def count_item(self, number: int) -> None:
        """Count a delivered item, and start the next kill when it is due."""
        if self._remaining_kills and number >= self._next_item:
            self._next_item += self._interval_items
            self._remaining_kills -= 1
            self._timer.join()
            self._wait_for_recovery()
            self._timer = threading.Timer(self._random.uniform(0, _MAX_KILL_DELAY_S), self._kill)
            self._timer.start()

    def _wait_for_recovery(self) -> None:
        deadline = time.monotonic() + _RECOVERY_TIMEOUT_S
        while time.monotonic() < deadline:
            workers = list(self._supervisor.workers.values())
            if len(self._supervisor.recovery.restarts) == len(self.victims) and all(
                worker.is_ready and worker.poll() is None for worker in workers
            ):
                return
            time.sleep(0.005)
        raise TimeoutError("the last killed worker was not replaced within 60 s")

    def _kill(self) -> None:
        victim = self._random.choice(list(self._supervisor.workers.values()))
        self.victims.append(victim.name)
        os.kill(victim.pid, signal.SIGKILL)


def measure_memory(running: Pipeline) -> tuple[int, int, int]:
    """Return MiB of the caller, of the largest worker, and of the pages of all arenas."""
    supervisor = running._run._supervisor  # type: ignore[union-attr]
    workers = [_anonymous_bytes(worker.pid) for worker in supervisor.workers.values()]
    arenas = sum(os.fstat(fd).st_blocks * 512 for fd in supervisor.resources.arena_memfds.values())
    return _anonymous_bytes(os.getpid()) >> 20, max(workers) >> 20, arenas >> 20


def _anonymous_bytes(pid: int) -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("RssAnon"))
    except (OSError, StopIteration):
        return 0


def run_disturbed(first: str, count: int, kills: int) -> bool:
    """Run with kills, print the results, and return whether the output is right."""
    started_s = time.monotonic()
    expected_digest = run_undisturbed(make_config(first, count, kills))
    undisturbed_s = time.monotonic() - started_s
    seen_ids: list[int] = []
    digest, started_s, memories = "", time.monotonic(), []
    with Pipeline(make_config(first, count, kills)) as running:
        killer = Killer(running, kills, count)
        for number, digest in enumerate(iter_digests(iter(running), seen_ids)):  # noqa: B007 - the last one counts
            killer.count_item(number)
            if number % max(count // 20, 1) == 0:
                memories.append(measure_memory(running))
    restarts = running.report().restarts
    lost_ms = sorted(restart.lost_ns / 1e6 for restart in restarts)
    blocks = [set(seen_ids[start : start + 8]) for start in range(0, count, 8)]
    in_order = blocks == [set(range(start, min(start + 8, count))) for start in range(0, count, 8)]
    print(f"{first.rpartition('.')[2]}: {count:,} items, {len(restarts)} deaths of {len(set(killer.victims))} workers")
    is_equal = digest == expected_digest
    print(f"  digest {digest[:16]}, undisturbed {expected_digest[:16]}: {'equal' if is_equal else 'DIFFERENT'}")
    duplicates = len(seen_ids) - len(set(seen_ids))
    print(f"  {len(seen_ids):,} items delivered, {duplicates} twice, blocks in order: {in_order}")
    print(f"  {time.monotonic() - started_s:.0f} s, undisturbed {undisturbed_s:.0f} s")
    if lost_ms:
        p90_ms = lost_ms[int(0.9 * len(lost_ms))]
        median_ms = statistics.median(lost_ms)
        print(f"  lost per kill: median {median_ms:.0f} ms, p90 {p90_ms:.0f} ms, max {lost_ms[-1]:.0f} ms")
    for index, name in enumerate(("caller", "largest worker", "arenas")):
        values = [memory[index] for memory in memories[1:]] or [0]
        half = len(values) // 2
        print(f"  MiB of {name}: max {max(values[:half] or [0])} in the first half, {max(values[half:])} in the second")
    return is_equal and in_order and len(restarts) >= kills


def main() -> int:
    """Run both item sizes. The exit status is 1 if an output is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--small", type=int, default=100_000)
    parser.add_argument("--large", type=int, default=2_000)
    options = parser.parse_args()
    results = [
        run_disturbed(SMALL, options.small, options.kills),
        run_disturbed(LARGE, options.large, options.kills),
    ]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
