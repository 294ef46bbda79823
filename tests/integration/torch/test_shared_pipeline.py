"""One pipeline per machine feeds all its ranks: in a fixed order, resumed together, and ended with the rank's name."""

import json
import os
import select
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from stagepipe import UsageError
from stagepipe.torch import Loader
from tests.support.paths import ROOT
from tests.support.pipelines import BAD, pipeline, shuffle, stage
from tests.support.rank_jobs import SCRIPT, epochs, get_found, read_results, write_job

pytestmark = pytest.mark.timeout(120)

SHARED = {"share": "node"}
SPAWNED = {"start": "spawn"}
"""A rank that leads would start a fork server, which would import torch as the rank has done: two seconds for a job."""
IMAGES = pipeline(stage("megabyte", workers=2), source=23, **SPAWNED)
NUMBERS = pipeline(source=23, **SPAWNED)
MIXED = pipeline(stage("light_draws", fuse=True), shuffle(7), source=60, seed=5, **SPAWNED)
WHOLE = [["begin"], ["take"]]


def loader(config: dict[str, Any], script: Any, **keywords: Any) -> dict[str, Any]:
    """A loader of a job: every rank creates it and follows the script."""
    return {"config": config, "script": script, "keywords": {**SHARED, **keywords}}


@pytest.fixture(scope="module")
def server() -> Iterator[subprocess.Popen[str]]:
    """A process that has imported torch and forks the ranks of each job."""
    with subprocess.Popen(
        [sys.executable, str(SCRIPT)], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.kill()


@pytest.fixture
def run(server, tmp_path):
    """Runs a job on a number of ranks; returns what each rank found."""

    def start(ranks: int, *loaders: dict[str, Any], **keys: Any) -> list[dict[str, Any]]:
        job = write_job(tmp_path, ranks, loaders, **keys)
        server.stdin.write(f"{job}\n")
        server.stdin.flush()
        assert select.select([server.stdout], [], [], 90)[0], "the ranks do not finish"
        assert server.stdout.readline() == "done\n"
        return read_results(job.parent, ranks)

    return start


# ---------------------------------------------------------------------- dispatching


def split_by_rank(items: list[Any], ranks: int, even: str | None) -> list[list[Any]]:
    """Return the items that each rank should receive."""
    whole_rounds = items[: len(items) // ranks * ranks]
    rest = items[len(whole_rounds) :]
    if even == "pad" and rest:
        rest = [rest[number % len(rest)] for number in range(ranks)]
    dispatched = whole_rounds if even == "drop" else whole_rounds + rest
    return [dispatched[rank::ranks] for rank in range(ranks)]


def test_items_are_dispatched_in_a_fixed_order_epoch_by_epoch(run):
    evens = (None, "drop", "pad")
    found = run(3, *(loader(NUMBERS, [*WHOLE, *WHOLE], even=even) for even in evens))
    for rank in range(3):
        for number, even in enumerate(evens):
            assert get_found(found[rank])[number] == [split_by_rank(list(range(23)), 3, even)[rank]] * 2


def test_every_rank_receives_the_buffers_of_a_foreign_transport(run):
    config = {**IMAGES, "transport": {"mode": "file"}}
    found = run(2, loader(config, WHOLE), transports={"file": "tests.foreign.file_transport:FileTransport"})
    [expected] = epochs(IMAGES, 1)
    assert [get_found(rank) for rank in found] == [[[items]] for items in split_by_rank(expected, 2, None)]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
@pytest.mark.parametrize("keywords", [{"device": "cuda"}, {"pin_memory": True}], ids=["device", "pin_memory"])
def test_ranks_move_their_items_to_a_gpu(run, keywords):
    expected = run(2, loader(IMAGES, [*WHOLE, *WHOLE]))
    found = run(2, loader(IMAGES, [*WHOLE, *WHOLE], **keywords))
    assert [get_found(rank) for rank in found] == [get_found(rank) for rank in expected]


def test_each_machine_gets_its_part_of_the_source_for_its_own_ranks(run):
    found = run(4, loader(NUMBERS, WHOLE), machines=2)
    for rank in range(4):
        machine_items = list(range(rank // 2, 23, 2))
        assert get_found(found[rank]) == [[machine_items[rank % 2 :: 2]]]


def test_a_rank_owns_its_items_in_shared_memory_and_a_list_of_them_gets_copies(run):
    small_memory = {**pipeline(stage("megabyte"), source=60, **SPAWNED), "memory": "48MiB"}
    found = run(
        2,
        loader(IMAGES, [["length"], ["begin"], ["keep"], ["copied"]], even="pad"),
        loader(IMAGES, [["begin"], ["write"]], even="pad"),
        loader(small_memory, [["begin"], ["keep"]]),
    )
    for rank in range(2):
        first, written, kept = get_found(found[rank])
        assert first[0] == 12 == len(first[1])
        arenas = [in_arena for _, in_arena in first[1]]
        assert all(arenas[:-1])
        assert first[2] == (0 if rank else 1_200_000), "only the repeated item is copied on the way"
        assert written == [[[number, number + 1] for number in [*range(rank, 22, 2), 22]]]
        assert [item for item, _ in kept[0]] == [[number, number * 1_200_000] for number in range(rank, 60, 2)]
        assert not all(in_arena for _, in_arena in kept[0])


def test_an_iteration_may_stop_anywhere_and_the_next_is_the_next_epoch(run):
    stops = {0: [3, 1, 5, 1], 1: [4, 2, 1, 1]}
    scripts = {
        rank: [step for count in counts for step in (["begin"], ["take", count])] + WHOLE
        for rank, counts in stops.items()
    }
    found = run(2, loader(MIXED, scripts))
    whole = epochs(MIXED, 5)
    for rank, counts in stops.items():
        parts = [split_by_rank(epoch, 2, None)[rank] for epoch in whole]
        assert get_found(found[rank])[0] == [part[:count] for part, count in zip(parts, [*counts, None], strict=True)]


# ---------------------------------------------------------------------- state


def test_ranks_resume_together_from_the_lowest_of_their_positions(run):
    taken = {0: 4, 1: 6, 2: 5}
    scripts = {rank: [["begin"], ["take", count], ["state"], ["take"], ["state"]] for rank, count in taken.items()}
    first = run(3, loader(MIXED, scripts, even="drop"))
    states = {rank: get_found(first[rank])[0][1] for rank in taken}
    ends = {rank: get_found(first[rank])[0][3] for rank in taken}
    mixed = {**ends, 1: states[1]}
    second = run(
        3,
        loader(MIXED, {rank: [["load", states[rank]], *WHOLE, *WHOLE] for rank in taken}, even="drop"),
        loader(MIXED, {rank: [["load", mixed[rank]], *WHOLE, *(WHOLE if rank == 1 else [])] for rank in taken},
               even="drop"),
    )  # fmt: skip
    whole = [split_by_rank(epoch, 3, "drop") for epoch in epochs(MIXED, 2)]
    for rank, count in taken.items():
        before, after = get_found(first[rank])[0][0], get_found(second[rank])[0]
        assert before + after[0] == whole[0][rank]
        assert len(before) == count
        assert after[1] == whole[1][rank]
        one_behind = get_found(second[rank])[1]
        assert one_behind == ([whole[0][1][6:], whole[1][1]] if rank == 1 else [whole[1][rank]])
        assert len(json.dumps(states[rank])) < 2000


def test_all_ranks_refuse_data_that_has_changed(run, tmp_path):
    path = tmp_path / "numbers.jsonl"
    path.write_text("".join(f"{number}\n" for number in range(20)))
    config = pipeline(source={"uses": "stagepipe.sources.jsonl", "with": {"path": str(path)}})
    states = [get_found(each)[0][1] for each in run(2, loader(config, [["begin"], ["take", 3], ["state"]]))]
    path.write_text("".join(f"{number}\n" for number in range(25)))
    resumed = loader(config, {rank: [["load", states[rank]], *WHOLE] for rank in range(2)})
    for found in run(2, resumed):
        assert found["error"].startswith("UsageError: the data has changed since this state was saved")
        assert "source: 20 items when saved, now 25" in found["error"]


def test_ranks_at_different_positions_cannot_resume_in_any_order(run):
    config = {**NUMBERS, "order": "any"}
    scripts = {rank: [["begin"], ["take", 2 + rank], ["state"], ["load"], *WHOLE] for rank in range(2)}
    first, second = run(2, loader(config, scripts))
    assert (
        "the ranks resume epoch 0 at different positions (items received, by local rank: {0: 2, 1: 3})"
        in first["error"]
    )
    assert second["error"] == first["error"]


def test_a_state_of_another_number_of_ranks_is_refused_with_the_difference():
    two = {"share": "node", "local_world_size": 2, "local_rank": 0}
    state = Loader(MIXED, **two).state_dict()
    Loader(MIXED, **two).load_state_dict(state)
    with pytest.raises(UsageError, match="local_world_size: saved 2, now 3"):
        Loader(MIXED, **{**two, "local_world_size": 3}).load_state_dict(state)
    with pytest.raises(UsageError, match="share: saved node, now not set"):
        Loader(MIXED).load_state_dict(state)
    with pytest.raises(UsageError, match="this is rank1"):
        Loader(MIXED, **{**two, "local_rank": 1}).load_state_dict(state)


# ---------------------------------------------------------------------- ends

ENDLESS = pipeline(stage("megabyte"), source=100_000, **SPAWNED)


@pytest.mark.parametrize("killed", [0, 1])
def test_a_lost_rank_ends_the_others_with_its_name(run, killed):
    scripts = {rank: [["begin"], ["take", 3], ["kill"] if rank == killed else ["take"]] for rank in range(3)}
    found = run(3, loader(ENDLESS, scripts))
    name = f"RunError: rank {killed} (pid {found[killed]['pid']})"
    for rank in {0, 1, 2} - {killed}:
        assert found[rank]["error"].startswith(name), found[rank]["stderr"]
        assert "ended without closing its loader" in found[rank]["error"]


def test_a_rank_that_closes_leaves_the_others_their_items_and_then_ends_them_with_its_name(run):
    found = run(
        2,
        loader(MIXED, {0: [["begin"], ["take", 5], ["close"]], 1: [["begin"], ["take", 5], ["close"]]}),
        loader(MIXED, {0: WHOLE, 1: [["begin"], ["take", 5], ["close"]]}),
        loader(MIXED, {0: [*WHOLE, *WHOLE], 1: WHOLE}),
    )
    first, second = found
    assert [len(step) for step in second["found"][0]] == [5] == [len(step) for step in first["found"][0]]
    assert not second["error"]
    assert first["found"][1] == [split_by_rank(epochs(MIXED, 1)[0], 2, None)[0]], (
        "the other rank receives its whole part"
    )
    assert first["error"].startswith(f"RunError: rank 1 (pid {second['pid']}): the loader is closed, and")


@pytest.mark.parametrize(
    "bad, message",
    [
        (stage(f"{BAD}.raises"), "stage raises, worker 0, item 5"),
        (stage(f"{BAD}.kills_itself"), "SIGKILL"),
        (stage(f"{BAD}.NotBuilt", with_={"size": 3}), "cannot be built"),
    ],
    ids=lambda value: value["name"] if isinstance(value, dict) else "",
)
def test_a_stages_error_reaches_every_rank(run, bad, message):
    found = run(2, loader(pipeline(bad, source=20, **SPAWNED), WHOLE))
    assert all(rank["error"].startswith("RunError") and message in rank["error"] for rank in found), found


def test_ranks_with_different_configs_do_not_start(run):
    other = pipeline(stage("same"), source=9, **SPAWNED)
    job = {**loader(IMAGES, WHOLE), "configs": [IMAGES, other]}
    first, second = run(2, job)
    assert "rank 1 (pid" in first["error"]
    assert "has another config than rank 0" in first["error"]
    assert first["error"] in second["error"].replace("rank 0: ", "", 1)


# ---------------------------------------------------------------------- torchrun


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_torchrun_with_gloo_both_ways(tmp_path, ranks):
    forked = {**MIXED, "start": "fork"}
    taken = [["begin"], ["take", 4], ["state"]]
    own = {"config": MIXED, "script": WHOLE, "own": True, "keywords": {"even": "drop"}}
    shared = [loader(forked, taken, even="drop"), loader(forked, [["load"], *WHOLE], even="drop")]
    job = write_job(tmp_path, ranks, [*shared, own], gloo=True)
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", SCRIPT, job],
        cwd=ROOT,
        env={**os.environ, **json.loads(job.read_text())["environ"]},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert not done.returncode, done.stderr
    (whole,) = epochs(MIXED, 1)
    together = []
    for rank, found in enumerate(read_results(job.parent, ranks)):
        before, rest, own_part = get_found(found)
        assert len(before[0]) == 4
        assert before[0] + rest[0] == split_by_rank(whole, ranks, "drop")[rank]
        together += own_part[0]
    # Each rank shuffles its own part of the source.
    assert sorted(map(str, together)) == sorted(str(item) for item in whole if item["item"] < 60 // ranks * ranks)
