"""`dataset` followed by `Batch` sends several samples in a packet, and yields what inline yields."""

import itertools
import json
from collections import Counter

import pytest

from stagepipe import Pipeline, RunError
from tests.support.kills import kill
from tests.support.pipelines import batch, digest, outputs, plain, stage

pytestmark = pytest.mark.timeout(110)

ZOO = "tests.support.tiny_samples"


def make_config(*stages, dataset="Tiny", count=2000, shuffle=True, kind="nested", workers=2, keys=None, **more):
    arguments = {"count": count} if dataset == "Reused" else {"count": count, "kind": kind}
    source = {
        "uses": "stagepipe.sources.dataset",
        "with": {"dataset": f"{ZOO}.{dataset}", "with": arguments, "shuffle": shuffle},
        "workers": workers,
        **(keys or {}),
    }
    return {"name": "test", "seed": 5, "source": source, "stages": list(stages or [batch(64)]), **more}


def messages(report):
    """How many packets with samples left the readers."""
    counts = report.hops[1].messages
    return counts.pipe + counts.shared_memory + counts.mixed


def run(config, *, epochs=1, **keys):
    with Pipeline(config, **keys) as running:
        found = [plain(item) for _ in range(epochs) for item in running]
    return found, running.report()


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("kind", ["nested", "images", "tensors"])
def test_batches_equal_those_of_an_inline_run(kind, workers):
    config = make_config(batch(48, drop_last=True), kind=kind, workers=workers)
    found, report = run(config, epochs=2)
    assert digest(found) == digest(outputs(config, inline=True, epochs=2))
    assert messages(report) < 4000 / 4, "few samples travel alone"
    assert [record.items for record in report.stages] == [4000] * 2


@pytest.mark.parametrize(
    "stages, keys",
    [
        ((stage(f"{ZOO}.double", fuse=True), batch(50)), {}),
        ((stage(f"{ZOO}.parts", fuse=True), batch(50)), {}),
        ((batch(30), stage("same"), {**batch(3), "name": "groups"}), {}),
        ((batch(30), stage("same", fuse=True)), {}),
        ((batch(200), stage(f"{ZOO}.negate", fuse=True)), {"kind": "images"}),
        ((), {"dataset": "Reused"}),
        ((), {"dataset": "Mixed", "shuffle": False}),
        ((), {"dataset": "Bad", "keys": {"on_error": "skip"}}),
        ((), {"keys": {"retries": 2}, "window": 20}),
        ((), {"keys": {"reseed": False}, "kind": "images"}),
        ((), {"dataset": "Together", "keys": {"reseed": False}}),
        ((), {"dataset": "Together", "keys": {"reseed": False, "on_error": "skip"}, "kind": "bad"}),
        ((), {"transport": {"mode": "shared_memory"}}),
        ((), {"transport": {"mode": "pipe"}}),
    ],
    ids=[
        "fused",
        "generator",
        "two batches",
        "fused to Batch",
        "writes to the batch",
        "reused array",
        "mixed",
        "skips",
        "window",
        "unseeded",
        "together",
        "together, skips",
        "shared memory",
        "pipe",
    ],
)
def test_each_spelling_yields_the_items_of_an_inline_run(stages, keys):
    config = make_config(*stages, **keys)
    assert digest(run(config)[0]) == digest(outputs(config, inline=True))


def test_a_failing_sample_is_named_and_earlier_samples_are_delivered():
    config = make_config(dataset="Bad", shuffle=False, workers=1)
    with Pipeline(config) as running, pytest.raises(RunError) as caught:
        list(running)
    with Pipeline(config, inline=True) as inline, pytest.raises(RunError) as expected:
        list(inline)
    assert (caught.value.item, caught.value.message) == (expected.value.item, expected.value.message)


def test_a_sample_that_does_not_stack_fails_like_a_single_sample():
    config = make_config(dataset="Odd", shuffle=False)
    with Pipeline(config) as running, pytest.raises(RunError) as caught:
        list(running)
    with Pipeline(config, inline=True) as inline, pytest.raises(RunError) as expected:
        list(inline)
    assert caught.value.item == expected.value.item == "333"
    assert caught.value.message == expected.value.message


def test_skipped_samples_are_dead_letters_with_their_numbers():
    config = make_config(dataset="Bad", shuffle=False, keys={"on_error": "skip"})
    found, report = run(config)
    assert sorted(letter.item for letter in report.dead_letters) == sorted(map(str, range(50, 2000, 97)))
    assert digest(found) == digest(outputs(config, inline=True))
    with Pipeline({**config, "max_skipped": 5}) as running, pytest.raises(RunError, match="max_skipped"):
        list(running)


@pytest.mark.parametrize(
    "dataset", [{"dataset": "Deadly", "kind": "images"}, {"dataset": "Together", "kind": "deadly"}], ids=str
)
def test_a_deadly_sample_is_found_inside_its_chunk(dataset):
    keys = {"on_error": "skip", "reseed": dataset["dataset"] != "Together"}
    found, report = run(make_config(**dataset, shuffle=False, keys=keys))
    assert [letter.item for letter in report.dead_letters] == ["777"]
    labels = [label for one in found for label in one[1][-1]]
    assert labels == [number for number in range(2000) if number != 777]


def test_every_order_gives_each_sample_once():
    config = make_config(kind="images", order="any")
    found, report = run(config)
    labels = [label for one in found for label in one[1][-1]]
    assert Counter(labels) == dict.fromkeys(range(2000), 1)
    assert messages(report) < 2000 / 4


@pytest.mark.parametrize("order", ["source", "any"])
def test_killed_workers_lose_nothing(order):
    config = make_config(kind="images", count=6000, order=order, max_restarts=50)
    found, victims = [], itertools.cycle(range(4))
    with Pipeline(config) as running:
        for index, item in enumerate(running):
            found.append(plain(item))
            if index % 20 == 9:
                kill(running, next(victims))
    labels = [label for one in found for label in one[1][-1]]
    if order == "source":
        assert digest(found) == digest(outputs(config, inline=True))
    assert Counter(labels) == dict.fromkeys(range(6000), 1)


def test_states_are_those_of_single_samples():
    """A dataset that is fused to the source sends no chunks, and its states can be compared."""
    chunked = make_config(dataset="Bad", keys={"on_error": "skip"})
    single = make_config(dataset="Bad", keys={"on_error": "skip"})
    single["source"] |= {"fuse": True}
    del single["source"]["workers"]
    states = []
    for config in (chunked, single):
        with Pipeline(config) as running:
            states.append([json.loads(running.state_dict()["rank0"]) for _ in running])
    assert states[0][-1]["skipped"]["items"] > 0
    assert states[0] == states[1]


@pytest.mark.parametrize("position", [1, 7, 20])
def test_a_resume_goes_on_in_the_middle_of_a_chunk(position):
    config = make_config(batch(37), dataset="Bad", keys={"on_error": "skip"})
    expected = outputs(config, inline=True)
    with Pipeline(config) as first:
        begun = [plain(item) for item in itertools.islice(first, position)]
        state = first.state_dict()
    with Pipeline(config) as second:
        second.load_state_dict(state)
        assert digest(begun + [plain(item) for item in second]) == digest(expected)


def test_ranks_and_limits_divide_the_samples_as_inline():
    config = make_config(kind="images", workers=1)
    for keys in ({"rank": 1, "world_size": 3}, {"rank": 0, "world_size": 3, "even": "pad"}):
        assert digest(run(config, limit=1000, **keys)[0]) == digest(outputs(config, inline=True, limit=1000, **keys))


def test_an_index_that_is_a_list_counts_as_its_samples():
    source = {
        "uses": "stagepipe.sources.dataset",
        "with": {"dataset": f"{ZOO}.Sums", "sampler": f"{ZOO}.Pairs"},
    }
    config = {"name": "test", "source": source, "stages": [batch(4)]}
    found, report = run(config)
    assert found == outputs(config, inline=True)
    assert (report.run.items_out, report.run.samples_out) == (5, 40)


@pytest.mark.parametrize("keys", [{}, {"fuse": True}, {"reseed": False}], ids=repr)
def test_lines_that_are_read_together_are_those_of_inline(tmp_path, keys):
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(f'{{"id": {number}}}\n' for number in range(3000)))
    source = {"uses": "stagepipe.sources.jsonl", "with": {"path": str(file), "shuffle": True}, **keys}
    config = {"name": "test", "seed": 5, "source": source, "stages": [stage("same")]}
    assert run(config, epochs=2)[0] == outputs(config, inline=True, epochs=2)


def test_a_line_that_cannot_be_read_among_others_is_the_one_that_is_skipped(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text("".join("{]\n" if number == 2222 else f"{number}\n" for number in range(3000)))
    source = {"uses": "stagepipe.sources.jsonl", "with": {"path": str(file)}, "on_error": "skip"}
    found, report = run({"name": "test", "source": source, "stages": [stage("same")]})
    assert [letter.item for letter in report.dead_letters] == ["2222"]
    assert found == [number for number in range(3000) if number != 2222]
