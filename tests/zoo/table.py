"""What comes of each bad stage: what it does, how the run ends, and the words in which the user is told."""

from __future__ import annotations

import re
import time
import uuid
from dataclasses import dataclass, field
from typing import Any

import pytest

from stagepipe import Pipeline, RunError
from tests.chaos.leftovers import MARK, Leftovers
from tests.zoo.pipelines import BAD, pipeline, stage

COUNT = 20


@dataclass(frozen=True)
class Animal:
    """A bad stage. `said`: what the error must say besides the stage; empty, where the run ends as if nothing were.

    `slow`: it needs time, or much of it is seen by other tests. `perhaps`: it may as well end as if nothing were.
    """

    uses: str
    does: str
    said: str = ""
    item: str = "5"
    stage: str = "bad"
    before: dict[str, Any] = field(default_factory=lambda: stage("same"))
    slow: bool = False
    perhaps: bool = False
    stage_keys: dict[str, Any] = field(default_factory=dict)
    keys: dict[str, Any] = field(default_factory=dict)


IMAGE = stage("tests.zoo.stages.image", with_={"size": 100})
TENSOR = stage(f"{BAD}.tensor_image", name="tensor")
MEGABYTE = stage("tests.zoo.stages.megabyte")

ANIMALS = [
    Animal("raises", "raises an exception", "KeyError: 'wanted'", slow=True),
    Animal("raises_what_cannot_travel", "raises an exception that cannot be pickled, nor printed", "CannotTravelError"),
    Animal("recurses", "recurses without end", "RecursionError: maximum recursion depth"),
    Animal("exits", "calls `sys.exit(3)`", "SystemExit: 3|exit code 3", slow=True),
    Animal("exits_hard", "calls `os._exit(3)`", "ended by itself with exit code 3", slow=True),
    Animal("kills_itself", "is killed with SIGKILL", "was killed by SIGKILL", slow=True),
    Animal("segfaults", "follows a null pointer", "was killed by SIGSEGV", slow=True),
    Animal("aborts", "calls `abort`", "was killed by SIGABRT"),
    Animal("closes_all_descriptors", "closes all descriptors", "Bad file descriptor|was killed by|exit code", item=""),
    Animal("floods_both", "floods stdout and stderr"),
    Animal("prints_half_a_letter", "prints half of a UTF-8 letter, and no line's end"),
    Animal(
        "unpicklable", "returns what cannot be pickled", "cannot travel to the next process: _thread.lock", slow=True
    ),
    Animal(
        "four_gigabytes",
        "returns 5 GiB where `memory` is less",
        r"5\d{9} bytes more do not fit.*raise `memory`",
        keys={"memory": "128MiB"},
    ),
    Animal(
        "writes_into_its_array",
        "writes into its NumPy input",
        "read-only.*`mutable: true`",
        "0",
        before=IMAGE,
        slow=True,
    ),
    Animal(
        "writes_into_its_tensor",
        "writes into its torch input",
        "SIGSEGV.*`mutable: true`",
        "0",
        before=TENSOR,
        slow=True,
    ),
    Animal(
        "KeepsEverything",
        "keeps every input, far more than `memory`",
        "bad/0 holds .* of it; raise `memory`",
        item="",
        stage="megabyte",
        perhaps=True,
        before=MEGABYTE,
        slow=True,
        keys={"memory": "16MiB"},
    ),
    Animal("exhausts_memory", "takes more memory than it may", "MemoryError|could not be allocated"),
    Animal("leaves_children", "starts a program that stays"),
    Animal("forks_and_stays", "forks a child that stays"),
    Animal("spawns_threads", "starts threads that never end", slow=True),
    Animal(
        "hangs_at_once",
        "hangs at its first item",
        "took longer for it than its `timeout`",
        "0",
        stage_keys={"timeout": "1s"},
        slow=True,
    ),
    Animal(
        "hangs", "hangs in Python", "took longer for it than its `timeout`", stage_keys={"timeout": "1s"}, slow=True
    ),
    Animal(
        "hangs_in_native_code",
        "hangs in native code",
        "took longer for it than its `timeout`",
        stage_keys={"timeout": "1s"},
        slow=True,
    ),
    Animal(
        "ignores_sigterm",
        "hangs, and ignores SIGTERM",
        "took longer for it than its `timeout`",
        stage_keys={"timeout": "1s"},
        slow=True,
    ),
]


@dataclass(frozen=True)
class Seen:
    """What the user saw: the error, or how many items came; how long it took, the end with it; what was left."""

    error: RunError | None
    items: int
    seconds: float
    left: str

    count: int

    @property
    def told(self) -> str:
        """In one line."""
        if self.error is None:
            return f"all {self.items} items" if self.items == self.count else f"{self.items} items"
        return re.sub(r"\(pid \d+\) ", "", str(self.error).partition("\n")[0])


def show(animal: Animal, monkeypatch: pytest.MonkeyPatch) -> Seen:
    """Run a pipeline with it in the middle."""
    mark = uuid.uuid4().hex
    monkeypatch.setenv(MARK, mark)
    count = 100 if animal.keys else COUNT
    bad = stage(f"{BAD}.{animal.uses}", name="bad", **animal.stage_keys)
    config = pipeline(animal.before, bad, stage("same"), source=count, **animal.keys)
    before, began = Leftovers(mark), time.monotonic()
    items, error = _run(config)
    seconds = time.monotonic() - began
    monkeypatch.delenv(MARK)
    return Seen(error, items, seconds, before.found(), count)


def _run(config: dict[str, Any]) -> tuple[int, RunError | None]:
    items = 0
    try:
        with Pipeline(config) as running:
            for _ in running:
                items += 1
    except RunError as error:
        return items, error.with_traceback(None)
    return items, None
