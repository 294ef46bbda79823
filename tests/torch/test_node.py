"""One pipeline a machine feeds all its ranks: dealt in a fixed order, resumed together, ended by name together."""

import json
import os
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from stagepipe import UsageError
from stagepipe.torch import Loader
from tests.torch.node_ranks import small
from tests.zoo.pipelines import BAD, pipeline, shuffle, stage

pytestmark = pytest.mark.timeout(120)

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "tests/torch/node_ranks.py"
SHARED = {"share": "node"}
IMAGES = pipeline(stage("megabyte", workers=2), source=23)
NUMBERS = pipeline(source=23)
MIXED = pipeline(stage("light_draws", fuse=True), shuffle(7), source=60, seed=5)
WHOLE = [["begin"], ["take"]]


def loader(config: dict[str, Any], script: Any, **keywords: Any) -> dict[str, Any]:
    """A loader of a job: every rank makes it and follows the script."""
    return {"config": config, "script": script, "keywords": {**SHARED, **keywords}}


@pytest.fixture(scope="module")
def server() -> Iterator[subprocess.Popen[str]]:
    """A process that has imported torch, and forks the ranks of each job."""
    with subprocess.Popen(
        [sys.executable, str(SCRIPT)], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.kill()


@pytest.fixture
def run(server, tmp_path):
    """Runs a job on so many ranks: what each found."""

    def start(ranks: int, *loaders: dict[str, Any], **keys: Any) -> list[dict[str, Any]]:
        job = written(tmp_path, ranks, loaders, **keys)
        server.stdin.write(f"{job}\n")
        server.stdin.flush()
        assert select.select([server.stdout], [], [], 90)[0], "the ranks do not end"
        assert server.stdout.readline() == "done\n"
        return read(job.parent, ranks)

    return start


def written(folder: Path, ranks: int, loaders: Any, **keys: Any) -> Path:
    """The job's file, in a folder of its own."""
    folder = folder / f"job{len(list(folder.iterdir()))}"
    (folder / "t").mkdir(parents=True)
    environ = {"TMPDIR": str(folder / "t"), "MARKER": str(folder), "OMP_NUM_THREADS": "1"}
    job = folder / "job.json"
    job.write_text(json.dumps({"loaders": loaders, "ranks": ranks, "environ": environ, **keys}))
    return job


def read(folder: Path, ranks: int) -> list[dict[str, Any]]:
    """What each rank found; a killed one nothing. Nothing is left behind."""
    psutil.wait_procs(marked(folder), timeout=5)
    assert not marked(folder), "a process outlives the run"
    assert not list((folder / "t").glob("stagepipe*")), "a file is left behind"
    pids = folder / "pids.json"
    found = []
    for rank in range(ranks):
        path, stderr = folder / f"rank{rank}.json", folder / f"stderr{rank}"
        each = json.loads(path.read_text()) if path.exists() else {"found": [], "error": ""}
        each["stderr"] = stderr.read_text() if stderr.exists() else ""
        found.append({"pid": json.loads(pids.read_text())[str(rank)], **each} if pids.exists() else each)
    return found


def marked(folder: Path) -> list[psutil.Process]:
    """All that a run has started, whoever the parent is now."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("MARKER") == str(folder) and process.status() != "zombie":
                found.append(process)
        except psutil.Error:
            continue
    return found


def epochs(config: dict[str, Any], count: int) -> list[list[Any]]:
    """What one run gives, as it stands in a rank's file."""
    with Loader(config, inline=True) as alone:
        return [json.loads(json.dumps([small(item) for item in alone])) for _ in range(count)]


def gave(found: dict[str, Any]) -> list[list[Any]]:
    assert not found["error"], found["stderr"]
    assert found["found"], found["stderr"]
    return found["found"]


# ---------------------------------------------------------------------- dealing


def dealt(items: list[Any], ranks: int, even: str | None) -> list[list[Any]]:
    """What each rank is to get."""
    whole = items[: len(items) // ranks * ranks]
    left = items[len(whole) :]
    if even == "pad" and left:
        left = [left[number % len(left)] for number in range(ranks)]
    together = whole if even == "drop" else whole + left
    return [together[rank::ranks] for rank in range(ranks)]


def test_items_are_dealt_in_a_fixed_order_epoch_by_epoch(run):
    evens = (None, "drop", "pad")
    found = run(3, *(loader(NUMBERS, [*WHOLE, *WHOLE], even=even) for even in evens))
    for rank in range(3):
        for number, even in enumerate(evens):
            assert gave(found[rank])[number] == [dealt(list(range(23)), 3, even)[rank]] * 2


def test_each_machine_takes_its_part_of_the_source_for_its_own_ranks(run):
    found = run(4, loader(NUMBERS, WHOLE), machines=2)
    for rank in range(4):
        of_machine = list(range(rank // 2, 23, 2))
        assert gave(found[rank]) == [[of_machine[rank % 2 :: 2]]]


def test_what_a_rank_gets_is_its_own_in_shared_memory_and_a_list_of_it_gets_copies_in_time(run):
    small_memory = {**pipeline(stage("megabyte"), source=60), "memory": "48MiB"}
    found = run(
        2,
        loader(IMAGES, [["length"], ["begin"], ["keep"], ["copied"]], even="pad"),
        loader(IMAGES, [["begin"], ["write"]], even="pad"),
        loader(small_memory, [["begin"], ["keep"]]),
    )
    for rank in range(2):
        first, written, kept = gave(found[rank])
        assert first[0] == 12 == len(first[1])
        arenas = [in_arena for _, in_arena in first[1]]
        assert all(arenas[:-1])
        assert first[2] == (0 if rank else 1_200_000), "nothing is copied on the way but what is given a second time"
        assert written == [[[number, number + 1] for number in [*range(rank, 22, 2), 22]]]
        assert [item for item, _ in kept[0]] == [[number, number * 1_200_000] for number in range(rank, 60, 2)]
        assert not all(in_arena for _, in_arena in kept[0])


def test_breaking_off_anywhere_and_beginning_anew_goes_on_with_the_next_epoch(run):
    stops = {0: [3, 1, 5, 1], 1: [4, 2, 1, 1]}
    scripts = {
        rank: [step for stop in each for step in (["begin"], ["take", stop])] + WHOLE for rank, each in stops.items()
    }
    found = run(2, loader(MIXED, scripts))
    whole = epochs(MIXED, 5)
    for rank, each in stops.items():
        parts = [dealt(epoch, 2, None)[rank] for epoch in whole]
        assert gave(found[rank])[0] == [part[:stop] for part, stop in zip(parts, [*each, None], strict=True)]


# ---------------------------------------------------------------------- state


def test_ranks_resume_together_from_the_lowest_of_their_places(run):
    taken = {0: 4, 1: 6, 2: 5}
    scripts = {rank: [["begin"], ["take", count], ["state"], ["take"], ["state"]] for rank, count in taken.items()}
    first = run(3, loader(MIXED, scripts, even="drop"))
    states = {rank: gave(first[rank])[0][1] for rank in taken}
    ends = {rank: gave(first[rank])[0][3] for rank in taken}
    mixed = {**ends, 1: states[1]}
    second = run(
        3,
        loader(MIXED, {rank: [["load", states[rank]], *WHOLE, *WHOLE] for rank in taken}, even="drop"),
        loader(MIXED, {rank: [["load", mixed[rank]], *WHOLE, *(WHOLE if rank == 1 else [])] for rank in taken},
               even="drop"),
    )  # fmt: skip
    whole = [dealt(epoch, 3, "drop") for epoch in epochs(MIXED, 2)]
    for rank, count in taken.items():
        before, after = gave(first[rank])[0][0], gave(second[rank])[0]
        assert before + after[0] == whole[0][rank]
        assert len(before) == count
        assert after[1] == whole[1][rank]
        one_behind = gave(second[rank])[1]
        assert one_behind == ([whole[0][1][6:], whole[1][1]] if rank == 1 else [whole[1][rank]])
        assert len(json.dumps(states[rank])) < 2000


def test_ranks_at_different_places_of_an_epoch_in_any_order_cannot_resume(run):
    config = {**NUMBERS, "order": "any"}
    scripts = {rank: [["begin"], ["take", 2 + rank], ["state"], ["load"], *WHOLE] for rank in range(2)}
    first, second = run(2, loader(config, scripts))
    assert "the ranks stand at different places of epoch 0 (items had, by local rank: {0: 2, 1: 3})" in first["error"]
    assert second["error"] == first["error"]


def test_a_state_of_another_number_of_ranks_is_refused_with_the_difference():
    two = {"share": "node", "local_world_size": 2, "local_rank": 0}
    state = Loader(MIXED, **two).state_dict()
    Loader(MIXED, **two).load_state_dict(state)
    with pytest.raises(UsageError, match="local_world_size: was 2, is 3"):
        Loader(MIXED, **{**two, "local_world_size": 3}).load_state_dict(state)
    with pytest.raises(UsageError, match="share: was node, is not there"):
        Loader(MIXED).load_state_dict(state)
    with pytest.raises(UsageError, match="this is rank1"):
        Loader(MIXED, **{**two, "local_rank": 1}).load_state_dict(state)


# ---------------------------------------------------------------------- ends

ENDLESS = pipeline(stage("megabyte"), source=100_000)


@pytest.mark.parametrize("killed", [0, 1])
def test_a_lost_rank_ends_the_others_by_name(run, killed):
    scripts = {rank: [["begin"], ["take", 3], ["kill"] if rank == killed else ["take"]] for rank in range(3)}
    found = run(3, loader(ENDLESS, scripts))
    name = f"RunError: rank {killed} (pid {found[killed]['pid']})"
    for rank in {0, 1, 2} - {killed}:
        assert found[rank]["error"].startswith(name), found[rank]["stderr"]
        assert "gone without closing its loader" in found[rank]["error"]


def test_a_rank_that_closes_lets_the_others_have_what_was_dealt_and_then_ends_them_by_name(run):
    found = run(
        2,
        loader(MIXED, {0: [["begin"], ["take", 5], ["close"]], 1: [["begin"], ["take", 5], ["close"]]}),
        loader(MIXED, {0: WHOLE, 1: [["begin"], ["take", 5], ["close"]]}),
        loader(MIXED, {0: [*WHOLE, *WHOLE], 1: WHOLE}),
    )
    first, second = found
    assert [len(step) for step in second["found"][0]] == [5] == [len(step) for step in first["found"][0]]
    assert not second["error"]
    assert first["found"][1] == [dealt(epochs(MIXED, 1)[0], 2, None)[0]], "one that goes leaves the others their part"
    assert first["error"].startswith(f"RunError: rank 1 (pid {second['pid']}): the loader is closed there")


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
    found = run(2, loader(pipeline(bad, source=20), WHOLE))
    assert all(rank["error"].startswith("RunError: stage") and message in rank["error"] for rank in found), found


def test_ranks_with_different_configs_do_not_begin(run):
    other = pipeline(stage("same"), source=9)
    job = {**loader(IMAGES, WHOLE), "configs": [IMAGES, other]}
    first, second = run(2, job)
    assert "rank 1 (pid" in first["error"]
    assert "has another config than rank 0" in first["error"]
    assert first["error"] in second["error"].replace("rank 0: ", "", 1)


# ---------------------------------------------------------------------- torchrun


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_torchrun_with_gloo_both_ways(tmp_path, ranks):
    taken = [["begin"], ["take", 4], ["state"]]
    own = {"config": MIXED, "script": WHOLE, "own": True, "keywords": {"even": "drop"}}
    shared = [loader(MIXED, taken, even="drop"), loader(MIXED, [["load"], *WHOLE], even="drop")]
    job = written(tmp_path, ranks, [*shared, own], gloo=True)
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
    for rank, found in enumerate(read(job.parent, ranks)):
        before, rest, own_part = gave(found)
        assert len(before[0]) == 4
        assert before[0] + rest[0] == dealt(whole, ranks, "drop")[rank]
        together += own_part[0]
    # Each rank shuffles its own part of the source.
    assert sorted(map(str, together)) == sorted(str(item) for item in whole if item["item"] < 60 // ranks * ranks)
