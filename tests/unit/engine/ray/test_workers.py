"""The operators, called one after the other by hand: what Ray calls in its workers, without Ray."""

from dataclasses import replace
from socket import gethostname

import pytest
import torch

pytest.importorskip("pyarrow")

from stagepipe.config import load
from stagepipe.core import RunError, SourceIdentity, describe_files
from stagepipe.costs import CostCurves
from stagepipe.engine.ray.blocks import RowKind, decode_item, iter_rows, load_value
from stagepipe.engine.ray.operators import RayLayout, choose_ranges, pack_operators
from stagepipe.engine.ray.workers import SourceOperator, StageOperator
from stagepipe.machine import Machine
from stagepipe.plan import make_plan
from stagepipe.runtime import SourceReader
from stagepipe.timing import StageCounter
from tests.support.pipelines import BAD, batch, outputs, pipeline, plain, stage


@pytest.fixture(autouse=True)
def _own_threads():
    """An operator sets the threads of its process for good: here, for a test."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


CURVES = CostCurves.from_points((512, 2048, 4096), (9000, 9500, 40000), (15000, 15000, 15000))


def plan_of(config):
    return make_plan(load(config), Machine(cpus=2, memory_bytes=8 << 30), CURVES)


def run_operators(config, *, epoch=0, step=7):
    """The rows of the last operator, from read tasks of `step` items each."""
    plan = plan_of(config)
    source, *others = pack_operators(plan, RayLayout.of(plan), epoch)
    reader = SourceOperator(source)
    operators = [StageOperator(packed) for packed in others]
    tables = [table for start in range(0, 21, step) for table in reader.read(start, start + step)]
    for operator in operators:
        tables = [output for table in tables for output in operator(table)]
    return [row for table in tables for row in iter_rows(table)]


def items_of(rows):
    return [
        plain(decode_item(row.payload, copies=True, is_readonly=False)[0]) for row in rows if row.kind is RowKind.ITEM
    ]


CONFIGS = {
    "maps and generators": [stage("double"), stage("skip_thirds"), stage("some_skipped"), stage("two")],
    "fused stages": [stage("parts", fuse=True), stage("parts"), stage("two", fuse=True)],
    "random draws": [stage("draws"), stage("draw_again"), stage("random_parts")],
    "a batch of a stage": [stage("halves_of_all", batch={"size": 4})],
    "fields and private copies": [
        stage("to_dict"),
        stage("write_in_place", mutable=True),
        stage("halve", field="x", fuse=True),
    ],
    "conditions": [stage("to_dict"), stage("halve", field="x", when={"id": {"ge": 5}})],
}


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("step", [1, 7, 21])
def test_operators_yield_the_items_of_the_inline_engine(name, step):
    config = pipeline(*CONFIGS[name], source=20, seed=5)
    assert items_of(run_operators(config, step=step)) == outputs(config, inline=True)


def test_items_that_fail_become_dead_letters_on_their_way():
    config = pipeline(stage(f"{BAD}.raises", on_error="skip", retries=1), stage("double"))
    rows = run_operators(config)
    letters = [load_value(row) for row in rows if row.kind is RowKind.DEAD_LETTER]
    assert [(letter.item, letter.attempts) for letter in letters] == [("5", 2)]
    assert items_of(rows) == outputs(config, inline=True)


def test_the_first_error_ends_the_items_of_its_block():
    rows = run_operators(pipeline(stage(f"{BAD}.raises")))
    kinds = [row.kind for row in rows]
    error = load_value(rows[kinds.index(RowKind.ERROR)])
    assert (error.stage, error.item) == ("raises", "5")
    assert isinstance(error, KeyError)
    assert items_of(rows[: kinds.index(RowKind.ERROR)]) == list(range(5))


def test_a_source_that_cannot_be_built_is_named():
    config = pipeline(stage("double"), source={"uses": f"{BAD}.NotBuilt", "with": {"size": 3}})
    plan = plan_of(config)
    with pytest.raises(RunError, match="stage source, worker 0: cannot be built"):
        SourceOperator(pack_operators(plan, RayLayout.of(plan), 0)[0])


def test_counts_travel_with_their_block_and_count_each_item_once():
    rows = run_operators(pipeline(stage("double"), stage("skip_thirds")))
    counts = [load_value(row) for row in rows if row.kind is RowKind.COUNTS]
    by_process = [
        sum(each.stages[0].counters[StageCounter.ITEMS] for each in counts if each.process_index == index)
        for index in range(3)
    ]
    assert by_process == [20, 20, 20]
    assert sum(len(each.clock.cost_ns) for each in counts if each.process_index == 1) == 20
    assert sum(sum(each.clock.sent_bytes) for each in counts) > 0


def test_all_from_the_first_order_point_on_stays_in_the_callers_process():
    plan = plan_of(pipeline(stage("double"), batch(3), stage("same")))
    assert RayLayout.of(plan).count == 2
    assert RayLayout.of(plan_of(pipeline(stage("double")))).count == 2


def test_read_tasks_cover_each_item_once():
    for count in (0, 1, 5, 1000, 1_000_003):
        ranges = choose_ranges(count, 4)
        assert [end for _, end in ranges[:-1]] == [start for start, _ in ranges[1:]]
        assert sum(end - start for start, end in ranges) == count
        assert len(ranges) <= 4000


def test_relative_paths_start_in_the_folder_of_the_caller(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("a")
    monkeypatch.chdir(tmp_path)
    plan = plan_of(pipeline(source={"uses": "stagepipe.sources.files", "with": {"glob": "*.txt", "read": True}}))
    [source] = pack_operators(plan, RayLayout.of(plan), 0)
    monkeypatch.chdir("/")
    [item] = items_of([row for table in SourceOperator(source).read(0, 1) for row in iter_rows(table)])
    assert item["data"] == b"a"


def test_stages_with_several_workers_after_an_order_point_are_a_pool():
    stages = [
        stage("double", workers=2),
        batch(3),
        stage("same", workers=2),
        stage("same", name="single"),
        stage("halves_of_all", batch={"size": 4}, workers=2),
    ]
    layout = RayLayout.of(plan_of(pipeline(*stages)))
    assert layout.indices == (0, 1, 3)
    assert [layout.is_on_ray(index) for index in range(7)] == [True, True, False, True, False, False, False]


@pytest.mark.parametrize(
    "found, difference",
    [
        (SourceIdentity(20), r"21 items there, 20 in the calling process"),
        (SourceIdentity(21, describe_files(["a", "b"], [1, 2], [0, 0])), r"file names or sizes differ"),
    ],
    ids=["items", "files"],
)
def test_a_node_that_sees_other_data_is_named(found, difference, monkeypatch):
    monkeypatch.setattr(SourceReader, "identify", lambda _: SourceIdentity(21, describe_files(["a"], [1], [0])))
    plan = plan_of(pipeline(stage("double")))
    with pytest.raises(RunError, match=rf"stage source, .* different data: {difference}.*node {gethostname()}"):
        SourceOperator(pack_operators(plan, RayLayout.of(plan), 0, found)[0])


def test_a_node_without_the_modules_is_named():
    plan = plan_of(pipeline(stage("double")))
    packed = pack_operators(plan, RayLayout.of(plan), 0)[0]
    elsewhere = replace(packed, spec=b"cmissing_module\nmissing\n.")
    with pytest.raises(RunError, match=rf"cannot be loaded: ModuleNotFoundError: .*\(on node {gethostname()}\)"):
        SourceOperator(elsewhere)
