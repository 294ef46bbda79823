"""Runs one case and compares it with an inline run. In a runner's process."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import shutil
import tempfile
import time
import traceback
import uuid
from collections import Counter, deque
from collections.abc import Callable, Iterator
from typing import Any

from stagepipe import ConfigError, Pipeline, RunError
from stagepipe.report import Report
from tests.chaos.cases import Case, vary_resources
from tests.chaos.comparison import compare
from tests.chaos.disturbances import Disturber
from tests.chaos.leftovers import MARK, Leftovers
from tests.chaos.stages import FOLDER, digest
from tests.support.changing_workers import ChangeablePipeline, WorkerChanger
from tests.support.packets import always_packed
from tests.support.pipelines import with_start

_MAX_CLOSE_S = 4.5
"""A stop that takes longer is close to the 5 s after which workers are terminated."""

Outcome = dict[str, Any]
"""`verdict`, `details` and counts. The verdicts:

equal      the output is that of the inline run
different  it is not: `lost`, `doubled` and `strange` count the items
refused    the config is refused, so nothing ran
failed     the run failed
crashed    a worker died of something else than a kill
stalled    the run was equal, but only because the watchdog restarted it from the last item
late       it took long to end
left       it left something behind
no case    the inline run fails too
"""


def run_case(case: Case, watch: Callable[[Pipeline | None], None]) -> Outcome:
    """Run a case with its disturbances and return its outcome. `watch` is called with each pipeline that runs."""
    epochs = len(case["epochs"]) + 1
    try:
        with Pipeline(case["config"], inline=True) as oracle:
            expected = [[digest(item) for item in oracle] for _ in range(epochs)]
    except ConfigError as error:
        return {"verdict": "refused", "details": str(error)}
    except Exception as error:  # noqa: BLE001 - then there is nothing to compare with
        return {"verdict": "no case", "details": str(error)}
    mark, folder = uuid.uuid4().hex, tempfile.mkdtemp(prefix="chaos-")
    crashes = " ".join(entry["at"] for entry in case["disturbances"] if entry["kind"] == "crash")
    os.environ.update({MARK: mark, FOLDER: folder})
    state_before = Leftovers(mark)
    trial = Trial(case, expected, watch)
    try:
        has_hook = crashes or case.get("message_items")
        with always_packed(case.get("message_items"), crashes) if has_hook else contextlib.nullcontext():
            details = trial.run()
        verdict = "different" if details else "equal"
    except RunError as error:
        verdict, details = "failed", f"{error}\n{error.trace}"
    except Exception:  # noqa: BLE001 - any error breaks the promise
        verdict, details = "failed", traceback.format_exc()
    finally:
        trial.release_pipeline()
        for name in (MARK, FOLDER):
            os.environ.pop(name, None)
        shutil.rmtree(folder, ignore_errors=True)
    if verdict == "equal" and trial.complaint:
        verdict, details = trial.complaint
    if verdict == "equal" and trial.longest_close_s > _MAX_CLOSE_S:
        verdict, details = "late", f"it took {trial.longest_close_s:.1f} s to end"
    leftovers = state_before.found()
    if leftovers and verdict == "equal":
        verdict, details = "left", leftovers
    return {"verdict": verdict, "details": details, **trial.counts, "items": sum(map(len, expected))}


class Trial:
    """Runs the epochs of a case one after the other, and compares each as far as it went."""

    def __init__(self, case: Case, expected: list[list[str]], watch: Callable[[Pipeline | None], None]) -> None:
        self._case = case
        self._expected = expected
        self._watch = watch
        self._items_before_resume: list[str] = []
        self.longest_close_s = 0.0
        self._any_order = case["config"]["order"] == "any"
        self._changes: dict[str, Any] | None = case.get("changes")
        item_count = sum(self._get_item_limit(epoch) or len(items) for epoch, items in enumerate(expected))
        self._disturber = Disturber(case["disturbances"], item_count)
        self.counts: Counter[str] = Counter()
        self.complaint: tuple[str, str] | None = None
        """A verdict and its details, where a run ended well but not as it should."""

    def run(self) -> str:
        """Return a description of the first difference, or an empty text."""
        case, state = self._case, None
        try:
            with self._disturber:
                difference, state = self._run_pipeline(case["config"], None)
                if not difference and state is not None:
                    other_config = vary_resources(case["config"], random.Random(case["seed"]))
                    self._changes = case["changes_after_resume"] if self._changes else None
                    difference, _ = self._run_pipeline(other_config, state)
                return difference
        finally:
            self.counts.update(self._disturber.counts)

    def release_pipeline(self) -> None:
        """Drop all references to the pipeline: its mappings and descriptors are freed with the last one."""
        self._disturber.running = None
        self._watch(None)

    def _run_pipeline(self, config: dict[str, Any], state: dict[str, Any] | None) -> tuple[str, dict[str, Any] | None]:
        config, changes = with_start(config), self._changes
        running = ChangeablePipeline(config, most_workers=changes["most_workers"]) if changes else Pipeline(config)
        restarts: list[Any] = []
        changer = None
        try:
            supervisor = running.start()._run._supervisor  # type: ignore[union-attr]
            restarts = supervisor.recovery.restarts
            if changes:
                changer = WorkerChanger(supervisor, changes["seed"], changes["max_kills"])
            with changer or contextlib.nullcontext():
                return self._run_epochs(running, state)
        finally:
            started_s = time.monotonic()
            running.close()
            self.longest_close_s = max(self.longest_close_s, time.monotonic() - started_s)
            if changer is not None:
                self.counts.update(changer.counts)
                self._disturber.killed_pids |= changer.killed_pids
            if running.started:
                report = running.report()
                self.counts["errors"] += sum(stage.errors for stage in report.stages)
                self._count_restarts(report, {restart.death.pid: restart.death.cause for restart in restarts})

    def _count_restarts(self, report: Report, deaths: dict[int, str]) -> None:
        """Count deaths, by pid and cause, and stalls.

        A death must have been by SIGKILL: a kill from outside, at a crash point, or because a stage hung.
        """
        stalls = [restart.cause for restart in report.restarts if restart.kind == "stall"]
        timeouts = {pid for pid, cause in deaths.items() if cause.startswith("exceeded its `timeout`")}
        crashes = [deaths[pid] for pid in deaths if pid not in timeouts and "was killed by SIGKILL" not in deaths[pid]]
        killed = self._disturber.killed_pids & deaths.keys() - timeouts
        self.counts["restarts"] += sum(restart.kind == "death" for restart in report.restarts)
        self.counts["killed"] += len(killed)
        self.counts["timeouts"] += len(timeouts)
        self.counts["at crash points"] += len(deaths.keys() - killed - timeouts)
        self.counts["stalls"] += len(stalls)
        if crashes:
            self.complaint = "crashed", "; ".join(crashes)
        elif stalls:
            self.complaint = "stalled", "; ".join(stalls)

    def _run_epochs(self, running: Pipeline, state: dict[str, Any] | None) -> tuple[str, dict[str, Any] | None]:
        case = self._case
        first_epoch = 0 if state is None else case["resume"]
        self._disturber.running = running
        if state is not None:
            running.load_state_dict(state)
        self._watch(running)
        for epoch in range(first_epoch, len(self._expected)):
            is_resumed = state is not None and epoch == first_epoch
            expected = self._expected[epoch]
            stop = None if is_resumed else self._get_item_limit(epoch)
            received = self._items_before_resume * is_resumed + list(self._iter_epoch(running, stop))
            difference = compare(received, expected, any_order=self._any_order, stop=stop)
            if difference is not None:
                self.counts.update(lost=difference.lost, doubled=difference.doubled, strange=difference.strange)
                return f"epoch {epoch}: {difference}", None
            if state is None and epoch == case["resume"] and stop is not None:
                self._items_before_resume = received
                return "", running.state_dict()
        return "", None

    def _get_item_limit(self, epoch: int) -> int | None:
        """Return after how many items the epoch is stopped early, or None."""
        shares, count = self._case["epochs"], len(self._expected[epoch])
        share = shares[epoch] if epoch < len(shares) else None
        return None if share is None or count < 2 else min(max(1, round(share * count)), count - 1)

    def _iter_epoch(self, running: Pipeline, stop: int | None) -> Iterator[str]:
        pause_s, held_count = (self._changes["pause_s"], self._changes["held_items"]) if self._changes else (0.0, 0)
        held: deque[Any] = deque()
        for item in itertools.islice(running, stop):
            self._disturber.count_item()
            held.append(item)
            del item
            if len(held) > held_count:
                yield digest(held.popleft())
            if pause_s:
                time.sleep(pause_s)
        yield from map(digest, held)
