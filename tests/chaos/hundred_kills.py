"""A hundred workers killed in one run of five stages: the same bits come out, in order, none twice.

    python -m tests.chaos.hundred_kills            # 100,000 small items, then 2,000 of 1.2 MB, 100 SIGKILLs each
    python -m tests.chaos.hundred_kills --kills 10 --small 5000 --large 200

Printed: the digests of the disturbed run and of one left alone, the time lost a kill (from the death to the next item
delivered), and the memory of caller, workers and arenas.
"""

# ruff: noqa: T201 - what it prints is what it is for
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
SMALL, LARGE = f"{STAGES}.small", f"{STAGES}.large"
_PACE_S = 0.02
"""Between an item's delivery and a kill, at random: so a worker dies at any step of its work."""
_MENDED_S = 60.0


def config(first: str, count: int, kills: int) -> dict[str, Any]:
    """Source and five stages, two of them with two workers, two fed by an order point."""
    return {
        "name": "hundred-kills",
        "max_restarts": 2 * kills,
        "source": {"uses": "stagepipe.sources.numbers", "with": {"count": count}},
        "stages": [
            {"name": "make", "uses": first, "workers": 2},
            {"name": "more", "uses": f"{STAGES}.more"},
            {"name": "shuffle", "uses": "stagepipe.stages.Shuffle", "with": {"size": 8}},
            {"name": "pass", "uses": f"{STAGES}.passed_on", "workers": 2},
            {"name": "last", "uses": f"{STAGES}.more"},
        ],
    }


def digest_of(items: Iterator[Any], seen: list[int]) -> Iterator[str]:
    """After each item, the digest of all so far; `seen` is given their ids."""
    word = hashlib.sha256()
    for item in items:
        seen.append(item["id"])
        word.update(f"{item['id']} {item['value']} ".encode())
        if "image" in item:
            word.update(item["image"].tobytes())
        yield word.hexdigest()


def undisturbed(pipeline_config: dict[str, Any]) -> str:
    """The digest of a run that nobody disturbs."""
    last = ""
    with Pipeline(pipeline_config) as running:
        for word in digest_of(iter(running), []):
            last = word
    return last


class Killer:
    """Kills a random worker at a random moment, again and again, each time once all are there again."""

    def __init__(self, running: Pipeline, kills: int, count: int) -> None:
        """So many over `count` items."""
        self._supervisor = running._run._supervisor  # type: ignore[union-attr]
        self._random = random.Random(7)
        self._every = max(count // (kills + 1), 1)
        self._left, self._next = kills, self._every
        self._timer = threading.Timer(0, lambda: None)
        self._timer.start()
        self.victims: list[str] = []

    def item(self, number: int) -> None:
        """An item was delivered."""
        if self._left and number >= self._next:
            self._next, self._left = self._next + self._every, self._left - 1
            self._timer.join()
            self._await_all()
            self._timer = threading.Timer(self._random.uniform(0, _PACE_S), self._kill)
            self._timer.start()

    def _await_all(self) -> None:
        deadline = time.monotonic() + _MENDED_S
        while time.monotonic() < deadline:
            workers = list(self._supervisor.workers.values())
            if len(self._supervisor.recovery.restarts) == len(self.victims) and all(
                worker.ready and worker.poll() is None for worker in workers
            ):
                return
            time.sleep(0.005)
        raise TimeoutError("the worker killed last was not replaced")

    def _kill(self) -> None:
        victim = self._random.choice(list(self._supervisor.workers.values()))
        self.victims.append(victim.name)
        os.kill(victim.pid, signal.SIGKILL)


def memory_of(running: Pipeline) -> tuple[int, int, int]:
    """MB of the caller, of the largest worker, and of the pages of all arenas."""
    supervisor = running._run._supervisor  # type: ignore[union-attr]
    workers = [_anonymous(worker.pid) for worker in supervisor.workers.values()]
    arenas = sum(os.fstat(fd).st_blocks * 512 for fd in supervisor.resources.arenas.values())
    return _anonymous(os.getpid()) >> 20, max(workers) >> 20, arenas >> 20


def _anonymous(pid: int) -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("RssAnon"))
    except (OSError, StopIteration):
        return 0


def disturbed(first: str, count: int, kills: int) -> bool:
    """Run it, print what happened, and say whether all was as it should be."""
    begun = time.monotonic()
    wanted = undisturbed(config(first, count, kills))
    alone_s = time.monotonic() - begun
    seen: list[int] = []
    word, begun, memories = "", time.monotonic(), []
    with Pipeline(config(first, count, kills)) as running:
        killer = Killer(running, kills, count)
        for number, word in enumerate(digest_of(iter(running), seen)):  # noqa: B007 - the last one counts
            killer.item(number)
            if number % max(count // 20, 1) == 0:
                memories.append(memory_of(running))
    restarts = running.report().restarts
    lost_ms = sorted(each.lost_ns / 1e6 for each in restarts)
    blocks = [set(seen[at : at + 8]) for at in range(0, count, 8)]
    in_order = blocks == [set(range(at, min(at + 8, count))) for at in range(0, count, 8)]
    print(f"{first.rpartition('.')[2]}: {count:,} items, {len(restarts)} deaths of {len(set(killer.victims))} workers")
    print(f"  digest {word[:16]}, undisturbed {wanted[:16]}: {'equal' if word == wanted else 'DIFFERENT'}")
    print(f"  {len(seen):,} came, {len(seen) - len(set(seen))} twice, blocks in order: {in_order}")
    print(f"  {time.monotonic() - begun:.0f} s, undisturbed {alone_s:.0f} s")
    if lost_ms:
        tenth = lost_ms[int(0.9 * len(lost_ms))]
        print(
            f"  lost a kill: median {statistics.median(lost_ms):.0f} ms, p90 {tenth:.0f} ms, most {lost_ms[-1]:.0f} ms"
        )
    for name, at in (("caller", 0), ("largest worker", 1), ("arenas", 2)):
        figures = [memory[at] for memory in memories[1:]] or [0]
        half = len(figures) // 2
        print(
            f"  MB of {name}: most {max(figures[:half] or [0])} in the first half, {max(figures[half:])} in the second"
        )
    return word == wanted and in_order and len(restarts) >= kills


def main() -> int:
    """Both sizes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--small", type=int, default=100_000)
    parser.add_argument("--large", type=int, default=2_000)
    given = parser.parse_args()
    return 0 if all([disturbed(SMALL, given.small, given.kills), disturbed(LARGE, given.large, given.kills)]) else 1


if __name__ == "__main__":
    sys.exit(main())
