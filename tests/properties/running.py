"""Runs a case in all its ways and compares their values. In a runner's process."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import shutil
import signal
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from stagepipe import Pipeline, RunError
from tests.chaos.cases import Case
from tests.chaos.disturbances import get_worker_pids
from tests.chaos.running import Outcome
from tests.chaos.stages import FOLDER, digest
from tests.properties.cases import vary
from tests.support.changing_workers import ChangeablePipeline, WorkerChanger
from tests.support.packets import always_packed

_EPOCHS = 2
_KILL_SHARE = 0.08
"""After how many of the items a `killed` case kills a worker."""
_MAX_KILLS = 3
_BREAK_SHARE = 0.25
_CHANGED_PAUSE_S = 0.02
"""After each item of a `changed` case: time for changes."""
_INLINE_SHARE = 0.2
"""How many of the positions in processes are resumed from the state of an inline run."""


class DifferenceError(Exception):
    """Two ways of running a case gave different values."""


def run_case(case: Case, watch: Callable[[Pipeline | None], None]) -> Outcome:
    """Run a case and return its outcome. `watch` is called with each pipeline that runs in processes."""
    counts: Counter[str] = Counter({case["kind"]: 1})
    try:
        with Pipeline(case["config"], inline=True, **case["keys"]) as oracle:
            expected = [[digest(item) for item in oracle] for _ in range(_EPOCHS)]
    except RunError as error:
        return {"verdict": "no case", "details": str(error)}
    try:
        comparison = _Comparison(case, expected, counts, watch)
        positions = comparison.run_inline()
        if case["kind"] != "inline":
            comparison.run_in_processes(positions)
        verdict, details = "equal", ""
    except DifferenceError as difference:
        verdict, details = "different", str(difference)
    except Exception:  # noqa: BLE001 - any error breaks the promise
        verdict, details = "failed", traceback.format_exc()
    finally:
        watch(None)
    return {"verdict": verdict, "details": details, **counts, "items": sum(map(len, expected))}


@contextlib.contextmanager
def _let_stages_fail() -> Iterator[None]:
    """Let the flaky and failing stages raise; in the oracle they do not."""
    folder = tempfile.mkdtemp(prefix="properties-")
    os.environ[FOLDER] = folder
    try:
        yield
    finally:
        del os.environ[FOLDER]
        shutil.rmtree(folder, ignore_errors=True)


class _Position(NamedTuple):
    """A state, and the digests of the items that came before it."""

    state: dict[str, Any]
    before: list[str]


class _Comparison:
    def __init__(
        self, case: Case, expected: list[list[str]], counts: Counter[str], watch: Callable[[Pipeline | None], None]
    ) -> None:
        self._case = case
        self._expected = expected
        self._counts = counts
        self._watch = watch
        self._rnd = random.Random(case["seed"])
        self._any_order = case["config"]["order"] == "any"
        self._kills_left = 0

    def run_inline(self) -> list[_Position]:
        """Fused and not; the second epoch is resumed at every position. Return the positions of the first epoch."""
        positions: list[_Position] = []
        for kind in ("fused", "one"):
            with _let_stages_fail(), self._open(kind, inline=True) as pipeline:
                positions = self._run_epoch(pipeline, 0, f"inline, {kind}")
                later = self._run_epoch(pipeline, 1, f"inline, {kind}")
                if not self._any_order:  # inline, this order has no states inside an epoch
                    self._resume_everywhere(pipeline, 1, later, f"inline, {kind}")
        return positions

    def run_in_processes(self, inline_positions: list[_Position]) -> None:
        """As the case's kind says. The first epoch is resumed at every position, at times with an inline state."""
        kind = self._case["kind"]
        self._kills_left = _MAX_KILLS if kind == "killed" else 0
        packed = always_packed(self._case["message_items"])
        with _let_stages_fail(), packed, self._open(kind, inline=False) as pipeline, self._change_workers(pipeline):
            self._watch(pipeline)
            positions = self._run_epoch(pipeline, 0, kind)
            if not self._any_order:
                pairs = zip(positions, inline_positions, strict=True)
                positions = [theirs if self._rnd.random() < _INLINE_SHARE else own for own, theirs in pairs]
            self._resume_everywhere(pipeline, 0, positions, kind)
            self._run_epoch(pipeline, 1, kind)

    @contextlib.contextmanager
    def _change_workers(self, pipeline: Pipeline) -> Iterator[None]:
        if not isinstance(pipeline, ChangeablePipeline):
            yield
            return
        with WorkerChanger(pipeline.start().supervisor, self._case["seed"], _MAX_KILLS) as changer:
            yield
        self._counts.update({name: changer.counts[name] for name in ("changes", "kills")})

    def _open(self, kind: str, *, inline: bool) -> Pipeline:
        pipeline_class = ChangeablePipeline if kind == "changed" else Pipeline
        return pipeline_class(vary(self._case["config"], kind, self._rnd), inline=inline, **self._case["keys"])

    def _run_epoch(self, pipeline: Pipeline, epoch: int, name: str) -> list[_Position]:
        """Run a whole epoch. Return the position after each item but the last, where the next epoch begins."""
        positions: list[_Position] = []
        received: list[str] = []
        for item in self._iter_items(pipeline):
            received.append(item)
            positions.append(_Position(pipeline.state_dict(), received[:]))
        self._compare(received, epoch, name)
        return positions

    def _resume_everywhere(self, pipeline: Pipeline, epoch: int, positions: list[_Position], name: str) -> None:
        """Resume at each position, and at times break off before the end."""
        for state, before in positions:
            pipeline.load_state_dict(state)
            stop = self._rnd.randint(1, 5) if self._rnd.random() < _BREAK_SHARE else None
            rest = list(itertools.islice(self._iter_items(pipeline), stop))
            self._counts["resumes inline" if name.startswith("inline") else "resumes"] += 1
            where = f"{name}, resumed after {len(before)} items"
            self._compare(before + rest, epoch, where, is_whole=stop is None or len(rest) < stop)

    def _iter_items(self, pipeline: Pipeline) -> Iterator[str]:
        """Yield the digests of an epoch's items, and kill a worker now and then."""
        for item in pipeline:
            yield digest(item)
            if isinstance(pipeline, ChangeablePipeline):
                time.sleep(_CHANGED_PAUSE_S)
            if self._kills_left and self._rnd.random() < _KILL_SHARE and (pids := get_worker_pids(pipeline)):
                self._kills_left -= 1
                self._counts["kills"] += 1
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self._rnd.choice(list(pids.values())), signal.SIGKILL)

    def _compare(self, received: list[str], epoch: int, name: str, *, is_whole: bool = True) -> None:
        expected = self._expected[epoch]
        if self._any_order:
            missing = Counter(expected) - Counter(received)
            received = sorted(received)
            expected = sorted(expected) if is_whole else sorted((Counter(expected) - missing).elements())
        elif not is_whole:
            expected = expected[: len(received)]
        if received == expected:
            return
        pairs = enumerate(zip(received, expected, strict=False))
        first = next((index for index, (got, want) in pairs if got != want), min(len(received), len(expected)))
        message = (
            f"{name}, epoch {epoch}: {len(received)} items instead of {len(expected)}; they differ from {first} on"
        )
        raise DifferenceError(message)
