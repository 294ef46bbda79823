"""One case, run and compared with the plain run. In a runner's process."""

from __future__ import annotations

import itertools
import os
import random
import shutil
import tempfile
import time
import traceback
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from stagepipe import Pipeline, RunError
from stagepipe.runtime.crashing import VARIABLE
from tests.chaos.cases import Case, moved
from tests.chaos.disturbing import Disturber
from tests.chaos.leftovers import MARK, Leftovers
from tests.chaos.stages import FOLDER, word

_LATE_S = 4.5
"""Workers are asked to end, and after 5 s they are made to."""

Outcome = dict[str, Any]
"""`verdict`: equal, different, failed, late, left, or no case (the plain run fails too); `said`: what of it; counts."""


def run(case: Case, watch: Callable[[Pipeline | None], None]) -> Outcome:
    """Run it, disturbed, and say what came of it. `watch` is told of each pipeline that is under way."""
    epochs = len(case["epochs"]) + 1
    try:
        with Pipeline(case["config"], inline=True) as oracle:
            want = [[word(item) for item in oracle] for _ in range(epochs)]
    except Exception as error:  # noqa: BLE001 - then there is nothing to compare with
        return {"verdict": "no case", "said": str(error)}
    mark, folder = uuid.uuid4().hex, tempfile.mkdtemp(prefix="chaos-")
    crashes = " ".join(each["at"] for each in case["disturbances"] if each["kind"] == "crash")
    os.environ.update({MARK: mark, FOLDER: folder, VARIABLE: crashes} if crashes else {MARK: mark, FOLDER: folder})
    before = Leftovers(mark)
    tried = Trial(case, want, watch)
    try:
        said = tried.run()
        verdict = "different" if said else "equal"
    except RunError as error:
        verdict, said = "failed", f"{error}\n{error.trace}"
    except Exception:  # noqa: BLE001 - whatever it is, it is not what was promised
        verdict, said = "failed", traceback.format_exc()
    finally:
        tried.forget()
        for name in (MARK, FOLDER, VARIABLE):
            os.environ.pop(name, None)
        shutil.rmtree(folder, ignore_errors=True)
    if verdict == "equal" and tried.longest_end_s > _LATE_S:
        verdict, said = "late", f"it took {tried.longest_end_s:.1f} s to end"
    left = before.found()
    if left and verdict == "equal":
        verdict, said = "left", left
    return {"verdict": verdict, "said": said, **tried.counts, "items": sum(map(len, want))}


class Trial:
    """The epochs of a case, one after the other, each compared as far as it went."""

    def __init__(self, case: Case, want: list[list[str]], watch: Callable[[Pipeline | None], None]) -> None:
        self._case, self._want, self._watch = case, want, watch
        self._kept: list[str] = []
        self.longest_end_s = 0.0
        self._any = case["config"]["order"] == "any"
        self._disturber = Disturber(case["disturbances"])
        self.counts: Counter[str] = Counter()

    def run(self) -> str:
        """The first difference, or nothing."""
        case, state = self._case, None
        try:
            with self._disturber:
                said, state = self._iterate(case["config"], None)
                if not said and state is not None:
                    said, _ = self._iterate(moved(case["config"], random.Random(case["seed"])), state)
                return said
        finally:
            self.counts.update(self._disturber.done)

    def forget(self) -> None:
        """Hold no pipeline any more: its mappings, and their descriptors, end with the last who does."""
        self._disturber.running = None
        self._watch(None)

    def _iterate(self, config: dict[str, Any], state: dict[str, Any] | None) -> tuple[str, dict[str, Any] | None]:
        running = Pipeline(config)
        try:
            return self._epochs(running, state)
        finally:
            began = time.monotonic()
            running.close()
            self.longest_end_s = max(self.longest_end_s, time.monotonic() - began)
            if running.started:
                report = running.report()
                self.counts["crashes"] += len(report.restarts)
                self.counts["errors"] += sum(each.errors for each in report.stages)

    def _epochs(self, running: Pipeline, state: dict[str, Any] | None) -> tuple[str, dict[str, Any] | None]:
        case = self._case
        first = 0 if state is None else case["resume"]
        self._disturber.running = running.start()
        if state is not None:
            running.load_state_dict(state)
        self._watch(running)
        for epoch in range(first, len(self._want)):
            resumed = state is not None and epoch == first
            want = self._want[epoch]
            stop = None if resumed else self._stop(epoch)
            found = self._kept * resumed + list(self._epoch(running, stop))
            if not self._agrees(found, want, stop):
                return self._told(epoch, found, want, stop), None
            if state is None and epoch == case["resume"] and stop is not None:
                self._kept = found
                return "", running.state_dict()
        return "", None

    def _stop(self, epoch: int) -> int | None:
        """Behind how many items an epoch is broken off, if it is."""
        shares, count = self._case["epochs"], len(self._want[epoch])
        share = shares[epoch] if epoch < len(shares) else None
        return None if share is None or count < 2 else min(max(1, round(share * count)), count - 1)

    def _epoch(self, running: Pipeline, stop: int | None) -> Iterator[str]:
        for item in itertools.islice(running, stop):
            self._disturber.first.set()
            yield word(item)

    def _agrees(self, found: list[str], want: list[str], stop: int | None) -> bool:
        if not self._any:
            return found == want[: len(want) if stop is None else stop]
        more = Counter(found) - Counter(want)
        return not more and len(found) == (len(want) if stop is None else stop)

    def _told(self, epoch: int, found: list[str], want: list[str], stop: int | None) -> str:
        want = want[:stop]
        at = next((n for n, pair in enumerate(zip(found, want, strict=False)) if pair[0] != pair[1]), None)
        missing, more = Counter(want) - Counter(found), Counter(found) - Counter(want)
        where = "in their number" if at is None else f"first at {at}: {found[at]} for {want[at]}"
        return (
            f"epoch {epoch}: {len(found)} items for {len(want)}, {sum(missing.values())} missing, "
            f"{sum(more.values())} that should not be there (twice or other); {where}"
        )
