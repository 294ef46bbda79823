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
    own_pixels: bool = False
    """Whether its samples differ from those of the plain loop, so that only their number is checked."""

    def can_do(self, job: str) -> bool:
        """Return whether the framework can do this job."""
        return not self.jobs or job in self.jobs

    @property
    def missing_package(self) -> str:
        """The package to install, or "" if it is here."""
        return self.package if self.package and importlib.util.find_spec(self.package) is None else ""


CONTESTANTS = {
    contestant.name: contestant
    for contestant in (
        Contestant(OURS, "stagepipe_itself:by_hand"),
        Contestant(REFERENCE, "python:loop"),
        Contestant("Pool.imap", "python:pool"),
        Contestant("joblib, loky", "python:joblib", "joblib"),
        Contestant("DataLoader", "torch_data:dataloader", "torch"),
        Contestant("torchdata.nodes, processes", "torch_data:nodes_processes", "torchdata"),
        Contestant("torchdata.nodes, threads", "torch_data:nodes_threads", "torchdata"),
        Contestant("SPDL, threads", "spdl_:threads", "spdl"),
        Contestant("SPDL, subprocess with arena", "spdl_:subprocess_arena", "spdl"),
        Contestant("SPDL, processes", "spdl_:processes", "spdl"),
        Contestant("Grain", "grain_:processes", "grain"),
        Contestant("Ray Data", "ray_:data", "ray"),
        Contestant("Hugging Face, with_transform", "huggingface:with_transform", "datasets"),
        Contestant("Hugging Face, streaming", "huggingface:streaming", "datasets"),
        Contestant("WebDataset", "webdataset_:shards", "webdataset", ("images", "thumbnails")),
        Contestant("tf.data", "tensorflow_:own_decoder", "tensorflow", ("images",), own_pixels=True),
    )
}
