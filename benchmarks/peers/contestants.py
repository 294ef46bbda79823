"""Who takes part in which job, and what each needs. Pure."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass

OURS = "stagepipe"
REFERENCE = "plain loop"
"""Its samples are what the others must deliver."""


@dataclass(frozen=True)
class Contestant:
    """A framework's way to run a job. `run` is its function, as `module:function` of the folder `frameworks`."""

    name: str
    run: str
    package: str = ""
    jobs: tuple[str, ...] = ()
    """The jobs that it can do; empty: all."""
    is_ordered: bool = True
    """Whether it promises the order of the plain loop, as it is run here."""
    own_pixels: bool = False
    """Whether its pixels differ from those of the plain loop, so that only their number, dtypes and shapes are checked.
    """

    def can_do(self, job: str) -> bool:
        """Return whether the framework can do this job."""
        return not self.jobs or job in self.jobs

    @property
    def missing_package(self) -> str:
        """The package to install, or "" if it is here."""
        return self.package if self.package and importlib.util.find_spec(self.package) is None else ""


PACKAGES = (
    "joblib",
    "torchdata",
    "spdl",
    "spdl-core",
    "grain",
    "ray",
    "datasets",
    "webdataset",
    "tensorflow-cpu",
    "pillow",
)
"""As they are named by pip: their versions stand in the results."""

_BATCHED = ("images", "tensors", "tokens")
CONTESTANTS = {
    contestant.name: contestant
    for contestant in (
        Contestant(OURS, "stagepipe_itself:by_hand"),
        Contestant("stagepipe, functions unchanged", "stagepipe_itself:unchanged", "", ("images", "clips")),
        Contestant("stagepipe, auto", "stagepipe_itself:auto"),
        Contestant("stagepipe, inline", "stagepipe_itself:inline", "", ("tensors", "tokens")),
        Contestant(REFERENCE, "python:loop"),
        Contestant("Pool.imap", "python:pool"),
        Contestant("Pool.imap, models inherited by fork", "python:pool_inheriting", "", ("models",)),
        Contestant("joblib, loky", "python:joblib", "joblib"),
        Contestant("DataLoader", "torch_data:dataloader", "torch"),
        Contestant("DataLoader, models inherited by fork", "torch_data:dataloader_inheriting", "torch", ("models",)),
        Contestant("torchdata.nodes, processes", "torch_data:nodes_processes", "torchdata"),
        Contestant("torchdata.nodes, threads", "torch_data:nodes_threads", "torchdata"),
        Contestant("SPDL, threads", "spdl_:threads", "spdl", is_ordered=False),
        Contestant("SPDL, threads, per batch", "spdl_:threads_per_batch", "spdl", _BATCHED, is_ordered=False),
        Contestant("SPDL, subprocess with arena", "spdl_:subprocess_arena", "spdl", is_ordered=False),
        Contestant(
            "SPDL, subprocess with arena, per batch",
            "spdl_:subprocess_arena_per_batch",
            "spdl",
            _BATCHED,
            is_ordered=False,
        ),
        Contestant("SPDL, processes", "spdl_:processes", "spdl", is_ordered=False),
        Contestant("SPDL, processes, per batch", "spdl_:processes_per_batch", "spdl", _BATCHED, is_ordered=False),
        Contestant("Grain", "grain_:processes", "grain"),
        Contestant("Ray Data", "ray_:data", "ray", is_ordered=False),
        Contestant("Hugging Face, with_transform", "huggingface:with_transform", "datasets"),
        Contestant("Hugging Face, streaming", "huggingface:streaming", "datasets", is_ordered=False),
        Contestant("WebDataset", "webdataset_:shards", "webdataset", ("images", "thumbnails"), is_ordered=False),
        Contestant("tf.data", "tensorflow_:own_decoder", "tensorflow", ("images",), own_pixels=True),
    )
}
