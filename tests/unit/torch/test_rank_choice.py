"""`rank="auto"`: the process group's rank, else the launcher's; a loader that nobody gave a rank warns among others."""

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from torch import distributed
from torch.testing._internal.distributed.fake_pg import FakeStore

import stagepipe
from stagepipe import Pipeline, UsageError
from stagepipe.torch import Loader, StageDataset
from stagepipe.torch.ranks import RankChoice, RankOrigin, find_rank

pytestmark = pytest.mark.timeout(60)

CONFIG = {"source": {"uses": range(10)}}
LAUNCHED = {"RANK": "1", "WORLD_SIZE": "4"}


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch: pytest.MonkeyPatch):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch):
    for name, text in LAUNCHED.items():
        monkeypatch.setenv(name, text)


def join_group(rank: int, world_size: int):
    """Make torch's process group that has a rank and no peers."""
    distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)


@pytest.fixture
def group() -> Iterator[None]:
    """This process is rank 2 of 3."""
    join_group(2, 3)
    yield
    distributed.destroy_process_group()


@pytest.fixture
def _leaves_the_group():
    yield
    distributed.destroy_process_group()


def items(config: Any = CONFIG, **keywords: Any) -> list[int]:
    with Loader(config, inline=not isinstance(config, Pipeline), **keywords) as loader:
        return list(loader)


# ---------------------------------------------------------------------- what "auto" finds


def test_without_a_launcher_and_a_group_auto_is_the_only_rank():
    assert find_rank({}) is None
    assert items(rank="auto") == list(range(10))


@pytest.mark.usefixtures("launched")
def test_auto_takes_the_part_that_the_launcher_says():
    assert items(rank="auto") == [1, 5, 9]
    assert items(rank="auto", even="drop") == [1, 5]


@pytest.mark.usefixtures("launched", "group")
def test_the_process_group_counts_more_than_the_launcher():
    assert items(rank="auto") == [2, 5, 8]


TASK = {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_NTASKS": "2", "SLURM_STEP_ID": "0"}
"""What `srun` gives to the second of two tasks (Slurm 22.05)."""


@pytest.mark.parametrize(
    "environ, expected",
    [
        (TASK, (1, 2)),
        (TASK | LAUNCHED, (1, 4)),
        (TASK | {"PMI_RANK": "1", "PMI_SIZE": "2"}, (1, 2)),
        # The script of `sbatch`, which is no task, and a process of `mpirun`, whose step has one task a node.
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "2"}, None),
        (TASK | {"OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_SIZE": "16"}, None),
    ],
)
def test_a_task_of_srun_is_a_rank_and_the_script_of_sbatch_is_none(environ, expected):
    assert find_rank(environ) == expected


def test_auto_takes_the_part_of_a_task(monkeypatch: pytest.MonkeyPatch):
    for name, text in TASK.items():
        monkeypatch.setenv(name, text)
    assert items(rank="auto") == [1, 3, 5, 7, 9]


@pytest.mark.parametrize(
    "environ, message",
    [
        ({"SLURM_STEP_NUM_TASKS": "2"}, "has SLURM_STEP_NUM_TASKS='2', but SLURM_PROCID is not set"),
        ({"SLURM_PROCID": "2", "SLURM_STEP_NUM_TASKS": "2"}, "ranks count from 0 to SLURM_STEP_NUM_TASKS - 1"),
        ({"RANK": "1"}, "the environment has RANK='1', but WORLD_SIZE is not set; start the script with torchrun"),
        ({"WORLD_SIZE": "2"}, "has WORLD_SIZE='2', but RANK is not set; start .* or pass rank= and world_size="),
        ({"RANK": "one", "WORLD_SIZE": "2"}, "RANK='one' and WORLD_SIZE='2', but RANK must be a whole number"),
        ({"RANK": "-1", "WORLD_SIZE": "2"}, "RANK must be a whole number from 0 on"),
        ({"RANK": "0", "WORLD_SIZE": ""}, "WORLD_SIZE='', but WORLD_SIZE must be a whole number"),
        ({"RANK": "\N{SUPERSCRIPT TWO}", "WORLD_SIZE": "4"}, "RANK must be a whole number"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "ranks count from 0 to WORLD_SIZE - 1"),
        ({"RANK": "0", "WORLD_SIZE": "0"}, "ranks count from 0 to WORLD_SIZE - 1"),
    ],
)
def test_variables_that_do_not_fit_together_are_named(environ, message, monkeypatch):
    for name, text in environ.items():
        monkeypatch.setenv(name, text)
    with pytest.raises(UsageError, match=message):
        Loader(CONFIG, rank="auto")
    assert items() == list(range(10)), "nobody asked for them"
    assert items(rank=1, world_size=5) == [1, 6]


@pytest.mark.parametrize(
    "keywords, message",
    [
        ({"rank": "node"}, "rank='node'; give a number, 'auto' "),
        ({"rank": "auto", "world_size": 1}, "finds the world size too; remove world_size=1"),
        ({"rank": None, "world_size": 0}, "rank=0 of world_size=0"),
    ],
)
def test_a_rank_that_cannot_be_meant_is_refused(keywords, message):
    with pytest.raises(UsageError, match=message):
        Loader(CONFIG, **keywords)


def test_a_pipeline_has_its_rank_already():
    with (
        pytest.raises(UsageError, match="already has its overrides, rank"),
        Pipeline(CONFIG, inline=True) as pipeline,
    ):
        Loader(pipeline, rank="auto")


@pytest.mark.usefixtures("launched")
def test_a_builder_and_a_dataset_know_auto():
    with stagepipe.from_source(range(10)).loader(rank="auto", inline=True) as loader:
        assert list(loader) == [1, 5, 9]
    with StageDataset(CONFIG, rank="auto", inline=True) as dataset:
        assert list(dataset) == [1, 5, 9]


# ---------------------------------------------------------------------- when it is found out late


@pytest.mark.usefixtures("_leaves_the_group")
def test_a_loader_that_is_older_than_the_process_group_is_refused_when_it_starts():
    with Loader(CONFIG, rank="auto", inline=True) as loader:
        join_group(1, 2)
        with pytest.raises(UsageError, match=r"found rank 0 of 1 when .* is rank 1 of 2 now; make the loader after"):
            iter(loader)


@pytest.mark.usefixtures("launched", "_leaves_the_group")
def test_the_group_of_the_same_launcher_changes_nothing():
    with Loader(CONFIG, rank="auto", inline=True) as loader:
        join_group(1, 4)
        assert list(loader) == [1, 5, 9]


# ---------------------------------------------------------------------- when nobody said it

WARNING = r"this process is rank {}, and its loader yields all items.*pass Loader\(config, rank='auto'\)"


@pytest.mark.usefixtures("launched")
def test_a_loader_without_a_rank_warns_under_a_launcher_and_yields_the_same_items():
    with pytest.warns(UserWarning, match=WARNING.format("1 of 4")) as caught:
        assert items() == list(range(10))
    assert caught[0].filename == __file__


@pytest.mark.usefixtures("group")
def test_a_loader_without_a_rank_warns_in_a_process_group():
    with pytest.warns(UserWarning, match=WARNING.format("2 of 3")):
        assert items() == list(range(10))


@pytest.mark.usefixtures("group")
def test_a_pipeline_without_a_rank_warns_too_and_one_with_a_part_does_not():
    with pytest.warns(UserWarning, match=WARNING.format("2 of 3")):
        assert items(Pipeline(CONFIG, inline=True, even="drop")) == list(range(10))
    assert items(Pipeline(CONFIG, inline=True, rank=2, world_size=3)) == [2, 5, 8]
    assert items(Pipeline(CONFIG, inline=True, only=[4, 7])) == [4, 7]


@pytest.mark.usefixtures("launched")
@pytest.mark.parametrize(
    "keywords",
    [
        {"rank": 0, "world_size": 1},
        {"rank": 0},
        {"world_size": 1},
        {"share": "node", "rank": "auto"},
        {"share": "node"},
    ],
    ids=str,
)
def test_no_warning_with_a_rank_or_a_shared_pipeline(keywords, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    expected = [1, 3, 5, 7, 9] if "share" in keywords else list(range(10))
    with warnings.catch_warnings(), Loader(CONFIG, **keywords) as loader:
        warnings.simplefilter("error")
        assert list(loader) == expected


@pytest.mark.parametrize("environ", [{}, {"RANK": "0", "WORLD_SIZE": "1"}, {"WORLD_SIZE": "2"}, {"RANK": "x"}], ids=str)
def test_a_single_process_gets_no_warning(environ):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        RankChoice(0, 1, RankOrigin.LEFT_OUT).check_world(environ)
