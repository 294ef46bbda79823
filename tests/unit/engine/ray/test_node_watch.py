"""The watch on nodes, with nodes and times that the test says."""

import time
from typing import Any

import pytest

from stagepipe import RunError
from stagepipe.engine.ray import node_watch
from stagepipe.engine.ray.node_watch import NodeWatch


def node(name: str, cpus: float, *, alive: bool = True) -> dict[str, Any]:
    return {"NodeID": name, "Alive": alive, "NodeManagerAddress": f"host-{name}", "Resources": {"CPU": cpus}}


@pytest.fixture(autouse=True)
def _quickly(monkeypatch):
    monkeypatch.setattr(node_watch, "_POLL_INTERVAL_S", 0.01)
    monkeypatch.setattr(node_watch, "_PATIENCE_S", 0.2)


def test_a_loss_that_leaves_too_little_room_ends_the_execution_by_name():
    nodes = [node("a", 2), node("b", 2)]
    ended: list[bool] = []
    with NodeWatch(lambda: nodes, lambda: ["resize"]) as watch:
        watch.ends.append(lambda: ended.append(True))
        time.sleep(0.3)
        assert not ended, "nothing is lost"
        nodes[1] = node("b", 2, alive=False)
        deadline = time.monotonic() + 20
        while not ended and time.monotonic() < deadline:
            time.sleep(0.01)
    assert ended == [True]
    with pytest.raises(
        RunError, match=r"a node was lost \(host-b\), and the others, of 2 CPUs in all, have no room for .*resize"
    ):
        watch.raise_if_short()


def test_a_loss_that_leaves_enough_ends_nothing():
    nodes = [node("a", 2), node("b", 2)]
    ended: list[bool] = []
    with NodeWatch(lambda: nodes, list) as watch:
        watch.ends.append(lambda: ended.append(True))
        nodes[1] = node("b", 2, alive=False)
        time.sleep(0.5)
    assert not ended
    watch.raise_if_short()


def test_what_still_runs_after_a_loss_is_not_ended():
    nodes = [node("a", 2), node("b", 2)]
    ended: list[bool] = []
    with NodeWatch(lambda: nodes, lambda: ["resize"]) as watch:
        watch.ends.append(lambda: ended.append(True))
        nodes[1] = node("b", 2, alive=False)
        for _ in range(100):
            watch.note_item()
            time.sleep(0.005)
        is_ended_early = bool(ended)
    assert not is_ended_early


def test_a_consumer_that_pauses_after_a_loss_ends_nothing():
    nodes = [node("a", 2), node("b", 2)]
    ended: list[bool] = []
    with NodeWatch(lambda: nodes, lambda: ["resize"]) as watch:
        watch.ends.append(lambda: ended.append(True))
        nodes[1] = node("b", 2, alive=False)
        watch.note_pause()
        time.sleep(0.5)
        was_ended_in_pause = bool(ended)
        watch.note_item()
        deadline = time.monotonic() + 20
        while not ended and time.monotonic() < deadline:
            time.sleep(0.01)
    assert not was_ended_in_pause
    assert ended == [True], "the next item does not come"


def test_a_head_that_does_not_answer_does_not_end_the_watch():
    nodes = [node("a", 2), node("b", 2)]
    calls: list[int] = []
    ended: list[bool] = []

    def list_nodes() -> list[dict[str, Any]]:
        calls.append(1)
        if 1 < len(calls) < 5:
            message = "no answer"
            raise ConnectionError(message)
        return nodes

    with NodeWatch(list_nodes, lambda: ["resize"]) as watch:
        watch.ends.append(lambda: ended.append(True))
        nodes[1] = node("b", 2, alive=False)
        deadline = time.monotonic() + 20
        while not ended and time.monotonic() < deadline:
            time.sleep(0.01)
    assert len(calls) > 5
    assert ended == [True]
