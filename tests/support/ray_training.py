"""A training run of Ray Train whose workers write down each item that they receive, and how its tests start it."""

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from stagepipe.torch import Loader
from tests.support.paths import ROOT
from tests.support.pipelines import pipeline, plain, stage
from tests.support.rank_jobs import find_processes

ITEMS = 40
TAKEN = 5  # by each of two workers up to the checkpoint; the other 30 items are divided evenly among one, two and three
CONFIG = pipeline(stage("light_draws"), stage("same"), source=ITEMS, seed=5, start="fork")
_FOLLOWING = 4
"""How many items of the next epoch a resumed worker takes."""


def train(settings: Mapping[str, Any]) -> None:
    """Train as a worker of Ray Train does: a collective at each step, a checkpoint, and what `settings` asks for.

    `settings`: `folder`, where the items are written; `keywords` of the loader; `stops` at the checkpoint.
    """
    import ray

    rank = ray.train.get_context().get_world_rank()
    checkpoint = ray.train.get_checkpoint()
    path = Path(settings["folder"]) / f"{'resumed' if checkpoint else 'started'}-rank{rank}.jsonl"
    path.with_suffix(".address").write_text(ray.util.get_node_ip_address())
    with path.open("w", buffering=1) as log, Loader(CONFIG, **settings["keywords"]) as loader:
        if checkpoint:
            loader.load_state_dict(read_states(checkpoint))
        for step, item in enumerate(loader, 1):
            write_item(log, loader.epoch, item)
            if checkpoint:
                continue
            if step == TAKEN:
                report_state(loader, rank)
                if settings.get("stops"):
                    return
        if checkpoint:
            for _, item in zip(range(_FOLLOWING), loader, strict=False):
                write_item(log, loader.epoch, item)


def write_item(log: Any, epoch: int, item: Any) -> None:
    """Write an item down, and reduce over all workers: it hangs if they have different numbers of items."""
    import torch
    from torch import distributed

    log.write(json.dumps([epoch, plain(item)]) + "\n")
    distributed.all_reduce(torch.ones(1))


def report_state(loader: Loader, rank: int) -> None:
    """Report a checkpoint with the loader's state; Ray Train puts the files of all workers into one folder."""
    import ray.train

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / f"loader-{rank}.json").write_text(json.dumps(loader.state_dict()))
        ray.train.report({}, checkpoint=ray.train.Checkpoint.from_directory(folder))


def read_states(checkpoint: Any) -> list[dict[str, Any]]:
    """Return the states of all workers that saved the checkpoint."""
    with checkpoint.as_directory() as folder:
        return [json.loads(path.read_text()) for path in Path(folder).glob("loader-*.json")]


def fit(folder: Path, workers: int, keywords: Mapping[str, Any], **settings: Any) -> None:
    """Train with `workers` on CPUs. What they write, and Ray Train's checkpoints, are in `folder`.

    A second call with the same folder resumes at the last checkpoint of the first. Checks that no process is left, of
    Ray Train's workers or of their pipelines.
    """
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    environ = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "MARKER": str(folder)}
    TorchTrainer(
        train,
        train_loop_config={"folder": str(folder), "keywords": dict(keywords), **settings},
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=ScalingConfig(
            num_workers=workers, resources_per_worker={"CPU": 0.5}, placement_strategy="SPREAD"
        ),
        run_config=RunConfig(
            name="training",
            storage_path=str(folder / "storage"),
            worker_runtime_env={"env_vars": environ},
        ),
    ).fit()
    psutil.wait_procs(find_processes(folder), timeout=60)
    assert not find_processes(folder), "a process outlives the training"


def read_items(folder: Path, stem: str, workers: int) -> list[list[list[Any]]]:
    """Return what each worker has written down: lists of an epoch and an item."""
    paths = [folder / f"{stem}-rank{rank}.jsonl" for rank in range(workers)]
    assert sorted(folder.glob(f"{stem}-rank*.jsonl")) == paths
    return [[json.loads(line) for line in path.read_text().splitlines()] for path in paths]


def check_resumed(before: list[list[Any]], resumed: list[list[Any]], two_epochs: list[list[Any]]) -> None:
    """Check that workers took what those before had left: each item once, by rank, with the bits of a single run."""
    workers = len(resumed)
    first_left = TAKEN * len(before)
    for rank, received in enumerate(resumed):
        rest = [item for epoch, item in received if epoch == 0]
        assert rest == [two_epochs[0][item] for item in range(first_left, ITEMS) if item % workers == rank]
        following = [item for epoch, item in received if epoch == 1]
        assert following == two_epochs[1][rank::workers][:_FOLLOWING]
    together = [item for worker in before for _, item in worker]
    together += [item for worker in resumed for epoch, item in worker if epoch == 0]
    assert sorted(map(json.dumps, together)) == sorted(map(json.dumps, two_epochs[0]))
