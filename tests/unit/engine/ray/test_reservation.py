"""Reserving CPUs, with groups that the test says: which come first, and what is kept when that fails."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from stagepipe import RunError
from stagepipe.engine.ray import reservation
from stagepipe.engine.ray.cpu_shares import CpuShares
from stagepipe.engine.ray.reservation import Reservation


class Groups:
    """Stands in for Ray: `room` says for how many groups there is room, `made` and `removed` what was done."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.made: list[tuple[dict[str, float], ...]] = []
        self.removed: list[Any] = []

    def make(self, bundles: list[dict[str, float]], strategy: str) -> Any:
        assert strategy == "SPREAD"
        self.made.append(tuple(bundles))
        number = len(self.made) - len(self.removed)
        return SimpleNamespace(wait=lambda timeout_s: number <= self.room and isinstance(timeout_s, int))

    def remove(self, group: Any) -> None:
        self.removed.append(group)
        if len(self.removed) == 1:
            message = "the head does not answer"
            raise ConnectionError(message)


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> Groups:
    groups = Groups(room=100)
    module: Any = ModuleType("ray.util.placement_group")

    def make(bundles: list[dict[str, float]], strategy: str) -> Any:
        return groups.make(bundles, strategy)  # a test may replace it later

    module.placement_group = make
    module.remove_placement_group = groups.remove
    for name in ("ray", "ray.util"):  # Ray itself would change the import path of the other tests
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(reservation, "_TIMEOUT_S", 0.0)
    monkeypatch.setattr(reservation, "_MAX_PAUSES_S", (0.01,))
    return groups


def process(name: str, workers: int = 1, gpus: float | None = None) -> Any:
    return SimpleNamespace(
        name=name, workers=workers, first_stage=SimpleNamespace(resources=SimpleNamespace(gpus=gpus))
    )


PROCESSES = [process("source", 9), process("small", 3), process("large", 2), process("model", gpus=1)]
SHARES = CpuShares((0.2, 0.1, 2.0, 0.1), source_tasks=2)


def test_gpus_come_first_and_then_the_largest_shares(groups):
    Reservation(PROCESSES, SHARES)
    assert groups.made == [
        ({"CPU": 0.1, "GPU": 1},),
        ({"CPU": 2.0},) * 2,
        ({"CPU": 0.2},) * 2,
        ({"CPU": 0.1},) * 3,
    ]
    assert not groups.removed


def test_what_does_not_suffice_is_given_back_and_named(groups):
    groups.room = 2
    with pytest.raises(RunError, match=r"no room for source: 2 x 0.2 CPU, small: 3 x 0.1 CPU: another job"):
        Reservation(PROCESSES, SHARES)
    assert len(groups.made) == len(groups.removed) == 8, "two attempts"


def test_a_second_attempt_may_find_room(groups, monkeypatch):
    groups.room = 2
    first_make = groups.make

    def make(bundles: list[dict[str, float]], strategy: str) -> Any:
        groups.room = 100 if groups.removed else 2
        return first_make(bundles, strategy)

    monkeypatch.setattr(groups, "make", make)
    Reservation(PROCESSES, SHARES)
    assert (len(groups.made), len(groups.removed)) == (8, 4)


def test_each_group_is_given_back_once_even_if_ray_does_not_answer(groups):
    reserved = Reservation(PROCESSES, SHARES)
    reserved.release()
    reserved.release()
    assert len(groups.removed) == 4


def test_an_interrupt_gives_back_what_was_reserved(groups, monkeypatch):
    def interrupt(timeout_s: int) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(groups, "make", lambda *_: SimpleNamespace(wait=interrupt))
    with pytest.raises(KeyboardInterrupt):
        Reservation(PROCESSES, SHARES)
    assert len(groups.removed) == 4
