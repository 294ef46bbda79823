"""E2: one large list of integers goes to another process, in several sizes. Here: the list, its check, the contestants.

The list is list(range(n)) with the number of the transfer as its first element.

mechanisms   the mechanisms, as the sender's and the receiver's call, and the child that sends
pipelines    stagepipe
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.published.model import Contestant, Experiment, Payload

Integers = npt.NDArray[np.int32]
_INTEGER_BYTES = 36
"""Size of an integer in a list: a pointer and an object."""
_CHUNK = 1_000_000


def payload(power: int) -> Payload:
    """Return the payload of 10 to the power of `power` integers."""
    return Payload(f"10^{power}", 10**power * _INTEGER_BYTES, {"n": 10**power})


def numbers(n: int) -> list[int]:
    """Return the list, without the number of a transfer."""
    return list(range(n))


def check(data: Any, sent: Payload, number: int) -> None:
    """Check every integer of a list, or of an array of 32-bit integers."""
    n = sent.values["n"]
    assert isinstance(data, list | np.ndarray), f"received a {type(data).__name__}, expected a list or an array"
    assert len(data) == n, f"received {len(data):,} of {n:,} integers"
    wrong = sum(_wrong(data[start : start + _CHUNK], start, number) for start in range(0, n, _CHUNK))
    assert not wrong, f"transfer {number} has {wrong:,} of {n:,} integers wrong"


def _wrong(chunk: Any, start: int, number: int) -> int:
    expected = list(range(start, start + len(chunk)))
    if not start:
        expected[0] = number
    if isinstance(chunk, np.ndarray):
        assert chunk.dtype == np.int32, f"received integers of {chunk.dtype}, expected int32"
        return int(np.count_nonzero(chunk != np.array(expected)))
    return 0 if chunk == expected else sum(a is not b and a != b for a, b in zip(chunk, expected, strict=True))


def spoil(data: Any) -> Any:
    """Change one of the integers."""
    data = data.copy()
    data[len(data) // 2] += 1
    return data


_SENDING, _PIPELINE = "benchmarks.published.e2.mechanisms:MechanismPeer", "benchmarks.published.e2.pipelines:Stagepipe"


def _peer(name: str, mechanism: str, memory_factor: float = 3.5) -> Contestant:
    return Contestant(name, _SENDING, {"mechanism": mechanism}, memory_factor=memory_factor)


EXPERIMENT = Experiment(
    name="E2",
    contestants=(
        Contestant("stagepipe, list", _PIPELINE, {"form": "list"}, memory_factor=3.5),
        Contestant("stagepipe, array", _PIPELINE, {"form": "array"}, memory_factor=2.5),
        Contestant("stagepipe, array ready", _PIPELINE, {"form": "ready"}, memory_factor=2.5, is_addition=True),
        _peer("Queue", "Queue"),
        _peer("Pipe", "Pipe"),
        _peer("Array", "Array"),
        _peer("Manager list", "ManagerList", memory_factor=5.0),
        _peer("RawArray through NumPy", "RawArray", memory_factor=2.5),
        _peer("File", "File"),
        _peer("Socket", "Socket"),
    ),
    payloads={
        "small": tuple(map(payload, (1, 4))),
        "default": tuple(map(payload, (1, 5, 6, 7))),
        "full": tuple(map(payload, (1, 5, 6, 7, 8))),
    },
    check=check,
    spoil=spoil,
)
