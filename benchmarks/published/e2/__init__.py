"""E2: one large list of integers goes to another process, in several sizes.

numbers      the payload, and its check
mechanisms   the mechanisms, as the sender's and the receiver's call, and the child that sends
pipelines    stagepipe
"""

from __future__ import annotations

from benchmarks.published.e2.numbers import check, payload, spoil
from benchmarks.published.model import Contestant, Experiment

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
