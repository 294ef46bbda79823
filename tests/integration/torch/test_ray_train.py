"""Ray Train: each worker takes its part, and a checkpoint resumes with other workers, after a kill, on two nodes."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support.rank_jobs import epochs
from tests.support.ray_training import CONFIG, TAKEN, check_resumed, fit, read_items

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore")]

AUTO = {"rank": "auto"}


@pytest.fixture(autouse=True)
def _ray(local_ray):
    pass


@pytest.fixture(scope="module")
def two_epochs() -> list[list[Any]]:
    return epochs(CONFIG, 2)


@pytest.fixture(scope="module")
def stopped(local_ray, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of two workers that have stopped at their checkpoint."""
    folder = tmp_path_factory.mktemp("stopped")
    fit(folder, 2, AUTO, stops=True)
    return folder


def test_each_worker_takes_its_part_of_the_source(stopped, two_epochs):
    for rank, received in enumerate(read_items(stopped, "started", 2)):
        assert received == [[0, item] for item in two_epochs[0][rank::2][:TAKEN]]


@pytest.mark.parametrize("workers", [2, 3, 1])
def test_a_checkpoint_resumes_with_any_number_of_workers(stopped, two_epochs, tmp_path, workers):
    folder = shutil.copytree(stopped, tmp_path / "copy")
    fit(folder, workers, AUTO)
    check_resumed(read_items(folder, "started", 2), read_items(folder, "resumed", workers), two_epochs)


def test_workers_on_a_machine_share_a_pipeline_and_resume_together(two_epochs, tmp_path):
    shared = {"share": "node"}
    fit(tmp_path, 2, shared, stops=True)
    fit(tmp_path, 2, shared)
    check_resumed(read_items(tmp_path, "started", 2), read_items(tmp_path, "resumed", 2), two_epochs)
