"""The bad stages as a table: what each does, and the error that the user must see."""

from __future__ import annotations

import re
import time
import uuid
from dataclasses import dataclass, field
from typing import Any

import pytest

from stagepipe import Pipeline, RunError
from tests.chaos.leftovers import MARK, Leftovers
from tests.support.pipelines import BAD, pipeline, stage

ITEM_COUNT = 20


@dataclass(frozen=True)
class BadStageCase:
    """A bad stage and its outcome.

    `error_pattern`: what the error must match; "" if the run must end without an error. `may_pass`: the run may also
    end without an error. `slow`: it takes long, or other tests cover most of it.
    """

    uses: str
    behaviour: str
    error_pattern: str = ""
    item: str = "5"
    stage: str = "bad"
    previous_stage: dict[str, Any] = field(default_factory=lambda: stage("same"))
    slow: bool = False
    may_pass: bool = False
    stage_keys: dict[str, Any] = field(default_factory=dict)
    keys: dict[str, Any] = field(default_factory=dict)


IMAGE = stage("tests.support.stages.image", with_={"size": 100})
TENSOR = stage(f"{BAD}.tensor_image", name="tensor")
MEGABYTE = stage("tests.support.stages.megabyte")

BAD_STAGE_CASES = [
    BadStageCase("raises", "raises an exception", "KeyError: 'wanted'", slow=True),
    BadStageCase(
        "raises_what_cannot_be_pickled",
        "raises an exception that can be neither pickled nor printed",
        "UnprintableError",
    ),
    BadStageCase("recurses", "recurses without end", "RecursionError: maximum recursion depth"),
    BadStageCase("exits", "calls `sys.exit(3)`", "SystemExit: 3|exit code 3", slow=True),
    BadStageCase("exits_hard", "calls `os._exit(3)`", "exited unexpectedly with exit code 3", slow=True),
    BadStageCase("kills_itself", "is killed with SIGKILL", "was killed by SIGKILL", slow=True),
    BadStageCase("segfaults", "follows a null pointer", "was killed by SIGSEGV", slow=True),
    BadStageCase("aborts", "calls `abort`", "was killed by SIGABRT"),
    BadStageCase(
        "closes_all_descriptors", "closes all descriptors", "Bad file descriptor|was killed by|exit code", item=""
    ),
    BadStageCase("floods_both", "floods stdout and stderr"),
    BadStageCase("prints_half_a_character", "prints half of a UTF-8 character without a line end"),
    BadStageCase(
        "unpicklable",
        "returns what cannot be pickled",
        "cannot be pickled for the next process: _thread.lock",
        slow=True,
    ),
    BadStageCase(
        "five_gibibytes",
        "returns 5 GiB where `memory` is less",
        r"cannot allocate 5\d{9} bytes.*raise `memory`",
        keys={"memory": "128MiB"},
    ),
    BadStageCase(
        "writes_into_its_array",
        "writes into its NumPy input",
        "read-only.*mutable=true`",
        "0",
        previous_stage=IMAGE,
        slow=True,
    ),
    BadStageCase(
        "writes_into_its_tensor",
        "writes into its torch input",
        "SIGSEGV.*mutable=true`",
        "0",
        previous_stage=TENSOR,
        slow=True,
    ),
    BadStageCase(
        "KeepsEverything",
        "keeps every input, far more than `memory`",
        "bad/0 holds .* of it; raise `memory`",
        item="",
        stage="megabyte",
        may_pass=True,
        previous_stage=MEGABYTE,
        slow=True,
        keys={"memory": "16MiB"},
    ),
    BadStageCase("exhausts_memory", "allocates more memory than its limit", "MemoryError|could not be allocated"),
    BadStageCase("leaves_children", "starts a program that outlives it"),
    BadStageCase("forks_and_stays", "forks a child that outlives it"),
    BadStageCase("spawns_threads", "starts threads that never end", slow=True),
    BadStageCase(
        "hangs_at_once",
        "hangs at its first item",
        "exceeded its `timeout` of 1.0 s",
        "0",
        stage_keys={"timeout": "1s"},
        slow=True,
    ),
    BadStageCase(
        "hangs", "hangs in Python", "exceeded its `timeout` of 1.0 s", stage_keys={"timeout": "1s"}, slow=True
    ),
    BadStageCase(
        "hangs_in_native_code",
        "hangs in native code",
        "exceeded its `timeout` of 1.0 s",
        stage_keys={"timeout": "1s"},
        slow=True,
    ),
    BadStageCase(
        "ignores_sigterm",
        "hangs, and ignores SIGTERM",
        "exceeded its `timeout` of 1.0 s",
        stage_keys={"timeout": "1s"},
        slow=True,
    ),
]


@dataclass(frozen=True)
class Outcome:
    """What the user saw.

    `items` counts the items that arrived, of `item_count`. `seconds` includes closing the run. `leftovers` names what
    it left behind.
    """

    error: RunError | None
    items: int
    seconds: float
    leftovers: str
    item_count: int

    @property
    def summary(self) -> str:
        """The outcome in one line."""
        if self.error is None:
            return f"all {self.items} items" if self.items == self.item_count else f"{self.items} items"
        return re.sub(r"\(pid \d+\) ", "", str(self.error).partition("\n")[0])


def run_case(case: BadStageCase, monkeypatch: pytest.MonkeyPatch) -> Outcome:
    """Run a pipeline with the bad stage in the middle."""
    mark = uuid.uuid4().hex
    monkeypatch.setenv(MARK, mark)
    item_count = 100 if case.keys else ITEM_COUNT
    bad = stage(f"{BAD}.{case.uses}", name="bad", **case.stage_keys)
    config = pipeline(case.previous_stage, bad, stage("same"), source=item_count, **case.keys)
    leftovers = Leftovers(mark)
    started_s = time.monotonic()
    items, error = _run(config)
    seconds = time.monotonic() - started_s
    monkeypatch.delenv(MARK)
    return Outcome(error, items, seconds, leftovers.found(), item_count)


def _run(config: dict[str, Any]) -> tuple[int, RunError | None]:
    items = 0
    try:
        with Pipeline(config) as running:
            for _ in running:
                items += 1
    except RunError as error:
        return items, error.with_traceback(None)
    return items, None
