"""CPUs of a cluster are divided among the workers and reserved: which come first, and what is kept if that fails."""

import re
import sys
import time
from collections.abc import Callable
from operator import mul
from threading import Event
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from stagepipe import Pipeline, RunError, UsageError
from stagepipe.config import load
from stagepipe.costs import CostCurves
from stagepipe.engine.ray import cluster
from stagepipe.engine.ray.cluster import CpuShares, HeadWatch, Reservation, check_gpus, divide_cpus
from stagepipe.machine import Machine
from stagepipe.plan import make_plan
from tests.support.pipelines import pipeline, stage

CURVES = CostCurves.from_points((512, 2048, 4096), (9000, 9500, 40000), (15000, 15000, 15000))


def processes(*stages):
    spec = load(pipeline(*stages))
    return make_plan(spec, Machine(cpus=2, memory_bytes=8 << 30), CURVES).processes


def test_workers_beyond_the_cpus_get_fractions_and_leave_the_source_one():
    shares = divide_cpus(processes(stage("double"), stage("same")), total=2, free=2, nodes=[2])
    assert shares.source_tasks == 1
    assert sum(shares.by_process) <= 2
    assert min(shares.by_process) == pytest.approx(0.66)


def test_no_worker_gets_more_than_one_cpu_unasked():
    shares = divide_cpus(processes(stage("double", workers=2)), total=64, free=64, nodes=[64])
    assert shares.by_process == (1.0, 1.0)
    assert shares.source_tasks == 2


def test_a_stage_gets_the_threads_it_asks_for_and_the_others_share_the_rest():
    stages = [stage("double", workers=2, resources={"cpus": 2}), stage("same")]
    shares = divide_cpus(processes(*stages), total=6, free=6, nodes=[6])
    assert shares.by_process[1] == 2
    assert 2 * 2 + shares.by_process[2] + shares.source_tasks * shares.by_process[0] <= 6


def test_more_than_the_cluster_has_is_refused_with_the_sum_and_the_fix():
    stages = [stage("double", workers=2, resources={"cpus": 1})]
    with pytest.raises(
        UsageError,
        match=r"ask for 2 CPUs \(double: 2 x 1\).* 2 of the cluster's 2 CPUs are free; set a smaller",
    ):
        divide_cpus(processes(*stages), total=2, free=2, nodes=[2])


def test_a_cluster_that_others_use_is_refused_and_not_waited_for():
    with pytest.raises(UsageError, match=r"but 0 of the cluster's 8 CPUs are free; wait until other jobs"):
        divide_cpus(processes(stage("double")), total=8, free=0, nodes=[8])


def test_a_worker_larger_than_any_node_is_refused():
    stages = [stage("double", resources={"cpus": 6})]
    with pytest.raises(UsageError, match=r"stage double asks for 6 CPUs, and no node has more than 4 free"):
        divide_cpus(processes(*stages), total=8, free=8, nodes=[4, 4])


def test_a_range_of_workers_reserves_for_its_largest_number():
    ranged = Pipeline({**pipeline(stage("double", workers="1-3")), "engine": "ray"})
    plan = make_plan(ranged.resolve_auto(), Machine(cpus=2, memory_bytes=8 << 30), CURVES)
    assert [process.workers for process in plan.processes] == [1, 1]
    shares = divide_cpus(plan.processes, total=2, free=2, nodes=[2])
    assert 3 * shares.by_process[1] + shares.source_tasks * shares.by_process[0] <= 2


def test_fractions_are_by_the_measured_load_and_fit_as_equal_ones_do():
    stages = processes(stage("double", workers=2), stage("same"))
    costs = {"source": 1_000, "double": 9_000_000, "same": 1_000_000}
    shares = divide_cpus(stages, total=2, free=2, nodes=[2], cpu_costs=costs)
    source, double, same = shares.by_process
    assert shares.source_tasks * source + 2 * double + same <= 2
    assert double > 3 * same > 3 * source >= 3 * 0.05


def test_a_process_that_nobody_has_measured_makes_all_fractions_equal():
    stages = processes(stage("double"), stage("same"))
    shares = divide_cpus(stages, total=2, free=2, nodes=[2], cpu_costs={"source": 1_000, "double": 9_000_000})
    assert len(set(shares.by_process)) == 1


def test_whole_cpus_need_no_weights():
    costs = {"source": 1_000, "double": 9_000_000}
    shares = divide_cpus(processes(stage("double")), total=8, free=8, nodes=[8], cpu_costs=costs)
    assert shares.by_process == (1.0, 1.0)


def add_up(shares, *workers):
    """Return the sum of all reserved CPUs."""
    return sum(map(mul, shares.by_process, (shares.source_tasks, *workers)))


def test_the_cpu_shares_leave_room_for_the_loss_of_a_node():
    plan = processes(stage("double", workers=2))
    shares = divide_cpus(plan, total=4, free=4, nodes=[2, 2], spare=2)
    assert add_up(shares, 2) <= 2
    assert min(shares.by_process) > 0.4


def test_after_the_loss_of_a_node_each_worker_fits_into_one_of_the_others():
    plan = processes(stage("double", workers=2))
    shares = divide_cpus(plan, total=3, free=3, nodes=[1, 1, 1], spare=1)
    assert max(shares.by_process) <= 0.5, "three workers on two nodes of one CPU"


def test_a_plan_that_needs_all_nodes_still_runs_without_room_for_a_loss():
    plan = processes(stage("double", workers=3, resources={"cpus": 1}))
    shares = divide_cpus(plan, total=4, free=4, nodes=[2, 2], spare=2)
    assert shares.by_process == (1.0, 1.0)


def test_workers_that_would_fit_into_no_node_get_smaller_shares():
    stages = [stage("double", workers=5), stage("same", workers=3)]
    shares = divide_cpus(processes(*stages), total=8, free=8, nodes=[1.0] * 8)
    assert add_up(shares, 5, 3) <= 8
    assert max(shares.by_process) <= 0.5, "nine workers and read tasks, eight nodes of one CPU"


def test_workers_that_fit_into_no_node_are_refused_with_the_fix():
    stages = [stage("double", workers=3, resources={"cpus": 1})]
    with pytest.raises(UsageError, match=r"double: 3 x 1.*3.5 CPUs are free, at most 1.75 on one of 2 nodes; set a sm"):
        divide_cpus(processes(*stages), total=3.5, free=3.5, nodes=[1.75, 1.75])


def test_a_stream_has_one_read_task():
    assert divide_cpus(processes(), total=8, free=8, nodes=[8]).source_tasks == 8
    assert divide_cpus(processes(), total=8, free=8, nodes=[8], max_source_tasks=1).source_tasks == 1


@pytest.mark.parametrize(
    "total, free, amount", [(1, 1, "it has 1"), (8, 1, "1 of its 8 are free")], ids=["too few", "others use them"]
)
def test_gpus_that_are_not_free_are_refused(total, free, amount):
    plan = processes(stage("double", workers=2, resources={"gpus": 1}))
    with pytest.raises(UsageError, match=rf"double ask for 2 GPUs of the cluster, and {amount}; set"):
        check_gpus(plan, total, free)
    check_gpus(plan, 8, 2)


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
    monkeypatch.setattr(cluster, "_TIMEOUT_S", 0.0)
    monkeypatch.setattr(cluster, "_MAX_PAUSES_S", (0.01,))
    return groups


def process(name: str, workers: int = 1, gpus: float | None = None) -> Any:
    return SimpleNamespace(
        name=name, slot_count=workers, first_stage=SimpleNamespace(resources=SimpleNamespace(gpus=gpus))
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


def test_an_insufficient_reservation_is_released_and_named(groups):
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


def test_an_interrupt_releases_the_reservation(groups, monkeypatch):
    def interrupt(timeout_s: int) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(groups, "make", lambda *_: SimpleNamespace(wait=interrupt))
    with pytest.raises(KeyboardInterrupt):
        Reservation(PROCESSES, SHARES)
    assert len(groups.removed) == 4


@pytest.fixture
def head(monkeypatch):
    """A head that answers while `answers` is set; `ended` is what a silent one ends the process with."""
    ended: list[str] = []
    monkeypatch.setattr(cluster, "_ASK_INTERVAL_S", 0.02)
    monkeypatch.setattr(cluster, "_SILENCE_S", 0.2)
    monkeypatch.setattr(cluster, "_MAX_SILENCE_S", 0.8)
    monkeypatch.setattr(cluster, "_end_process", ended.append)
    answers = Event()
    answers.set()
    watch = HeadWatch()
    watch.start(answers.wait, "10.0.0.1:6379")
    yield SimpleNamespace(answers=answers, ended=ended)
    watch.stop()
    answers.set()


def test_a_head_that_does_not_answer_ends_the_process_by_name(head):
    head.answers.clear()
    wait_until(lambda: head.ended)
    assert re.search(r"the head of the cluster \(10.0.0.1:6379\) has not answered .* --resume", head.ended[0])


def test_a_head_that_answers_again_ends_nothing(head, caplog):
    head.answers.clear()
    wait_until(lambda: "has not answered" in caplog.text)
    head.answers.set()
    wait_until(lambda: "answers again" in caplog.text)
    assert not head.ended


def wait_until(condition: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
