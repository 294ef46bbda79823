"""Who takes part in E5's two tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from published_.e5.functions import NAMES as FUNCTIONS
from published_.e5.functions import expected
from published_.e5.queues import COUNT, thing
from published_.e5.queues import NAMES as OBJECTS
from published_.model import Contestant, Experiment, Payload

_WORKERS = (1, 2, 4, 8)
_CALLS, _QUEUES = "published_.e5.calls", "published_.e5.queues"


def _call_payloads(workers: Sequence[int], functions: Sequence[str] = FUNCTIONS) -> tuple[Payload, ...]:
    return tuple(
        Payload(f"{function} x {count}", 0, {"function": function, "workers": count})
        for count in workers  # before the functions: what is started for so many workers serves them all
        for function in functions
    )


def _check_calls(data: Any, payload: Payload, _: int) -> None:
    right = [expected(payload.values["function"])] * payload.values["workers"]
    assert data == right, f"{data} came in place of {right}"


def _spoil_calls(data: list[int]) -> list[int]:
    return [*data[:-1], data[-1] + 1]


def _object_payloads() -> tuple[Payload, ...]:
    return tuple(Payload(name, 0) for name in OBJECTS)


def _check_objects(data: list[Any], payload: Payload, _: int) -> None:
    right = thing(payload.name)
    assert len(data) == COUNT, f"{len(data)} of {COUNT} objects came"
    wrong = sum(not _same(each, right) for each in data)
    assert not wrong, f"{wrong} of {COUNT} objects came wrong"


def _same(one: Any, other: Any) -> bool:
    if isinstance(other, np.ndarray):
        return isinstance(one, np.ndarray) and one.dtype == other.dtype and np.array_equal(one, other)
    return type(one) is type(other) and one == other


def _spoil_objects(data: list[Any]) -> list[Any]:
    return [*data[:-1], "spoiled"]


CALLS = Experiment(
    name="E5",
    contestants=(
        Contestant("stagepipe", f"{_CALLS}:Stagepipe"),
        Contestant("plain", f"{_CALLS}:Plain"),
        Contestant("threads", f"{_CALLS}:Threads"),
        Contestant("processes", f"{_CALLS}:Processes"),
        Contestant("pool, kept", f"{_CALLS}:Pool", beyond=True),
    ),
    payloads={
        "small": _call_payloads((2,), ("empty", "primes", "fetch")),
        "default": _call_payloads(_WORKERS),
        "full": _call_payloads(_WORKERS),
    },
    check=_check_calls,
    spoil=_spoil_calls,
    pinned=False,
    repetitions=30,
)

QUEUES = Experiment(
    name="E5 queue",
    contestants=(
        Contestant("stagepipe", f"{_QUEUES}:Stagepipe"),
        Contestant("queue.Queue of threads", f"{_QUEUES}:Threaded"),
        Contestant("multiprocessing.Queue", f"{_QUEUES}:Between", {"kind": "Queue"}),
        Contestant("multiprocessing.SimpleQueue", f"{_QUEUES}:Between", {"kind": "SimpleQueue"}, beyond=True),
    ),
    payloads=dict.fromkeys(("small", "default", "full"), _object_payloads()),
    check=_check_objects,
    spoil=_spoil_objects,
    repetitions=20,
)
