"""The watch on nodes, and what Ray counts by hop and node. What a version does not have is left out."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import pytest

from stagepipe import RunError
from stagepipe.engine.ray import execution
from stagepipe.engine.ray.execution import NodeWatch, StoreStatistics, find_operators, make_node, subtract_node
from stagepipe.report import StoreHopReport, StoreNodeReport


def node(name: str, cpus: float, *, alive: bool = True) -> dict[str, Any]:
    return {"NodeID": name, "Alive": alive, "NodeManagerAddress": f"host-{name}", "Resources": {"CPU": cpus}}


@pytest.fixture(autouse=True)
def _quickly(monkeypatch):
    monkeypatch.setattr(execution, "_POLL_INTERVAL_S", 0.01)
    monkeypatch.setattr(execution, "_PATIENCE_S", 0.2)


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
        RunError, match=r"a node was lost \(host-b\), and the others, with 2 CPUs, have no room for .*resize"
    ):
        watch.raise_if_short()


def test_a_loss_that_leaves_enough_ends_nothing(nodes):
    with watch_nodes(nodes, []) as (watch, ended):
        lose_b(nodes)
        time.sleep(0.5)
    assert not ended
    watch.raise_if_short()


def test_a_run_that_goes_on_after_a_loss_is_not_ended(nodes):
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


def operator(*inputs: Any, **metrics: Any) -> Any:
    """An operator as Ray has it: hashable, with its inputs and its metrics."""
    return type("Operator", (), {"input_dependencies": inputs, "metrics": SimpleNamespace(**metrics)})()


def executor(*operators: Any) -> Any:
    """An executor of a chain of operators; the first one holds the tasks that the source reads."""
    return SimpleNamespace(_topology=dict.fromkeys((operator(), *operators)))


@pytest.fixture(autouse=True)
def stores(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, StoreNodeReport]]:
    """The answers of the cluster, the next one first: no Ray runs here."""
    answers: list[dict[str, StoreNodeReport]] = []
    monkeypatch.setattr(execution, "read_nodes", lambda: answers.pop(0) if answers else {})
    return answers


def test_a_hop_has_the_figures_of_both_operators_summed_over_the_epochs():
    source = operator(
        "tasks",
        num_task_outputs_generated=4,
        bytes_task_outputs_generated=4096,
        block_serialization_time_s=0.5,
        task_output_backpressure_time_s=0.25,
    )
    stage = operator(
        "source",
        num_task_outputs_generated=3,
        task_scheduling_time_s=2.0,
        bytes_inputs_of_task_locality_miss_tasks=1024,
        obj_store_mem_spilled=512,
    )
    statistics = StoreStatistics(2)
    for _ in range(2):
        statistics.begin_epoch(executor(source, stage))
        statistics.end_epoch()
    first, last = statistics.make_hops()
    assert first == StoreHopReport(
        blocks=8,
        block_bytes=8192,
        put_ns=10**9,
        held_ns=10**9 // 2,
        wait_ns=4 * 10**9,
        moved_bytes=2048,
        spilled_bytes=1024,
    )
    assert last == StoreHopReport(blocks=6), "what this version of Ray does not have is left out"


def test_an_epoch_that_is_under_way_counts_too():
    statistics = StoreStatistics(1)
    statistics.begin_epoch(executor(operator("tasks", num_task_outputs_generated=4)))
    assert [hop.blocks for hop in statistics.make_hops()] == [4]


@pytest.mark.parametrize(
    "hidden", [None, SimpleNamespace(), SimpleNamespace(_topology={}), executor(operator("tasks", metrics=None))]
)
def test_a_version_that_hides_its_operators_leaves_the_hops_without_figures(hidden):
    statistics = StoreStatistics(2)
    statistics.begin_epoch(hidden)
    statistics.end_epoch()
    assert statistics.make_hops() == [StoreHopReport()] * 2


def test_operators_that_ray_has_joined_are_not_blamed_on_a_hop():
    statistics = StoreStatistics(2)
    statistics.begin_epoch(executor(operator("tasks", num_task_outputs_generated=4)))
    assert statistics.make_hops() == [StoreHopReport()] * 2
    assert len(find_operators(executor(operator("tasks")))) == 1


def test_a_block_from_another_node_is_counted_as_moved(monkeypatch):
    monkeypatch.setattr(execution, "_was_spilled", lambda _: None)
    statistics = StoreStatistics(1)
    for node in ("mine", "other"):
        metadata = SimpleNamespace(size_bytes=100, exec_stats=SimpleNamespace(node_id=node))
        statistics.add_block(7, metadata, "no reference of Ray", own_node="mine")
    statistics.add_block(7, None, "no reference of Ray", own_node="mine")
    assert statistics.make_hops() == [StoreHopReport(get_ns=21, moved_bytes=100)]


def test_a_node_counts_the_work_of_its_store_during_the_run(stores):
    info = {"NodeID": "3f2a9c01" + "0" * 48, "Resources": {"CPU": 2.0, "object_store_memory": 80.0}}
    before = make_node(info, SimpleNamespace(spilled_bytes_total=100, spill_time_total_s=1.0))
    after = make_node(info, SimpleNamespace(spilled_bytes_total=250, spill_time_total_s=1.5, restored_bytes_total=70))
    assert before == StoreNodeReport(node="3f2a9c01", cpus=2, store_bytes=80, spilled_bytes=100, spill_ns=10**9)
    stores += [{"3f2a9c01": before}, {"3f2a9c01": after, "new": StoreNodeReport(node="new", spilled_bytes=5)}]
    statistics = StoreStatistics(1)
    statistics.end_epoch()
    assert statistics.nodes == (
        StoreNodeReport(
            node="3f2a9c01", cpus=2, store_bytes=80, spilled_bytes=150, spill_ns=10**9 // 2, restored_bytes=70
        ),
        StoreNodeReport(node="new", spilled_bytes=5),
    )


def test_a_node_that_has_started_again_is_never_negative():
    started_again = StoreNodeReport(node="a", spilled_bytes=10)
    assert subtract_node(started_again, StoreNodeReport(node="a", spilled_bytes=30)).spilled_bytes == 0


_FIND_FIELDS = """
from ray.core.generated.node_manager_pb2 import GetNodeStatsReply
from ray.data._internal.execution.interfaces.op_runtime_metrics import OpRuntimeMetrics
print(*GetNodeStatsReply.DESCRIPTOR.fields_by_name["store_stats"].message_type.fields_by_name)
print(*(metric.name for metric in OpRuntimeMetrics.get_metrics()))
"""


def test_the_installed_ray_has_every_figure():
    if not find_spec("ray"):
        pytest.skip("Ray is not installed")
    command = [sys.executable, "-c", _FIND_FIELDS]  # importing Ray puts modules of its own before the installed ones
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    *_, counters, metrics = done.stdout.splitlines()
    assert {name for name, _ in execution._STORE_COUNTERS.values()} <= set(counters.split())
    fields = {**execution._SENDER_METRICS, **execution._RECEIVER_METRICS}
    assert {name for name, _ in fields.values()} <= set(metrics.split())
