"""E5: functions called in parallel in threads and in processes, and the cost of objects through a queue.

functions    the functions that are called
calls        how they are called: in threads, processes, a pool, stages
queues       objects through a queue
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.published.e5.functions import NAMES as FUNCTIONS
from benchmarks.published.e5.functions import expected
from benchmarks.published.e5.queues import COUNT, object_named
from benchmarks.published.e5.queues import NAMES as OBJECTS
from benchmarks.published.model import Contestant, Experiment, Payload

_WORKERS = (1, 2, 4, 8)
_CALLS, _QUEUES = "benchmarks.published.e5.calls", "benchmarks.published.e5.queues"


def _call_payloads(workers: Sequence[int], functions: Sequence[str] = FUNCTIONS) -> tuple[Payload, ...]:
    return tuple(
        Payload(f"{function} x {count}", 0, {"function": function, "workers": count})
        for count in workers  # the outer loop, so that the workers that are started once serve all functions
        for function in functions
    )


def _check_calls(data: Any, payload: Payload, _: int) -> None:
    expected_value = [expected(payload.values["function"])] * payload.values["workers"]
    assert data == expected_value, f"received {data}, expected {expected_value}"


def _spoil_calls(data: list[int]) -> list[int]:
    return [*data[:-1], data[-1] + 1]


def _object_payloads() -> tuple[Payload, ...]:
    return tuple(Payload(name, 0) for name in OBJECTS)


def _check_objects(data: list[Any], payload: Payload, _: int) -> None:
    expected_value = object_named(payload.name)
    assert len(data) == COUNT, f"received {len(data)} of {COUNT} objects"
    wrong = sum(not _same(received, expected_value) for received in data)
    assert not wrong, f"{wrong} of {COUNT} objects are wrong"


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
        Contestant("pool, kept", f"{_CALLS}:Pool", is_addition=True),
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
        Contestant("queue.Queue of threads", f"{_QUEUES}:ThreadQueue"),
        Contestant("multiprocessing.Queue", f"{_QUEUES}:ProcessQueue", {"kind": "Queue"}),
        Contestant("multiprocessing.SimpleQueue", f"{_QUEUES}:ProcessQueue", {"kind": "SimpleQueue"}, is_addition=True),
    ),
    payloads=dict.fromkeys(("small", "default", "full"), _object_payloads()),
    check=_check_objects,
    spoil=_spoil_objects,
    repetitions=20,
)
