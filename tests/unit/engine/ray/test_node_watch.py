"""The watch on nodes, with nodes and times that the test says."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
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


@pytest.fixture
def nodes() -> list[dict[str, Any]]:
    return [node("a", 2), node("b", 2)]


def lose_b(nodes: list[dict[str, Any]]) -> None:
    nodes[1] = node("b", 2, alive=False)


@contextmanager
def watch_nodes(nodes: Any, displaced: list[str]) -> Iterator[tuple[NodeWatch, list[bool]]]:
    """Watch nodes, or what a function returns; yield the watch and a list that has True once it has ended the run."""
    ended: list[bool] = []
    with NodeWatch(nodes if callable(nodes) else lambda: nodes, lambda: displaced) as watch:
        watch.ends.append(lambda: ended.append(True))
        yield watch, ended


def wait_for_end(ended: list[bool]) -> None:
    deadline = time.monotonic() + 20
    while not ended and time.monotonic() < deadline:
        time.sleep(0.01)


def test_a_loss_that_leaves_too_little_room_ends_the_execution_by_name(nodes):
    with watch_nodes(nodes, ["resize"]) as (watch, ended):
        time.sleep(0.3)
        assert not ended, "nothing is lost"
        lose_b(nodes)
        wait_for_end(ended)
    assert ended == [True]
    with pytest.raises(
        RunError, match=r"a node was lost \(host-b\), and the others, of 2 CPUs in all, have no room for .*resize"
    ):
        watch.raise_if_short()


def test_a_loss_that_leaves_enough_ends_nothing(nodes):
    with watch_nodes(nodes, []) as (watch, ended):
        lose_b(nodes)
        time.sleep(0.5)
    assert not ended
    watch.raise_if_short()


def test_what_still_runs_after_a_loss_is_not_ended(nodes):
    with watch_nodes(nodes, ["resize"]) as (watch, ended):
        lose_b(nodes)
        for _ in range(100):
            watch.note_item()
            time.sleep(0.005)
        is_ended_early = bool(ended)
    assert not is_ended_early


def test_a_consumer_that_pauses_after_a_loss_ends_nothing(nodes):
    with watch_nodes(nodes, ["resize"]) as (watch, ended):
        lose_b(nodes)
        watch.note_pause()
        time.sleep(0.5)
        was_ended_in_pause = bool(ended)
        watch.note_item()
        wait_for_end(ended)
    assert not was_ended_in_pause
    assert ended == [True], "the next item does not come"


def test_a_head_that_does_not_answer_does_not_end_the_watch(nodes):
    calls: list[int] = []

    def list_nodes() -> list[dict[str, Any]]:
        calls.append(1)
        if 1 < len(calls) < 5:
            message = "no answer"
            raise ConnectionError(message)
        return nodes

    with watch_nodes(list_nodes, ["resize"]) as (_, ended):
        lose_b(nodes)
        wait_for_end(ended)
    assert len(calls) > 5
    assert ended == [True]
