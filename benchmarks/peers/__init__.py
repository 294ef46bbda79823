"""The contestants of each job, and their requirements. No I/O."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass

OURS = "stagepipe"
REFERENCE = "plain loop"
"""The contestant whose samples the others must deliver."""


@dataclass(frozen=True)
class Contestant:
    """A framework's way to run a job. `run` is its function, as `module:function` of this package."""

    name: str
    run: str
    package: str = ""
    """The package to install in addition to stagepipe; see `requirements` for a tool with a separate environment."""
    jobs: tuple[str, ...] = ()
    """The jobs that it can do; empty: all."""
    is_ordered: bool = True
    """Whether it promises the order of the plain loop, in the way it is run here."""
    own_pixels: bool = False
    """Whether its pixels differ from the plain loop's, so that only their number, dtypes and shapes are checked.
    """

    requirements: tuple[str, ...] = ()
    """The packages of a separate environment, the tool first."""

    def can_do(self, job: str) -> bool:
        """Return whether the framework can do this job."""
        return not self.jobs or job in self.jobs

    @property
    def missing_package(self) -> str:
        """The package to install, or "" if it is installed."""
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
"""Names for pip: the results contain their versions."""

_BATCHED = ("images", "tensors", "tokens")
_WITHOUT_TORCH = ("images", "thumbnails", "tokens", "clips", "models")
_HARNESS = ("numpy", "pillow", "psutil", "msgspec")
"""The imports of the turns and the jobs."""
CONTESTANTS = {
    contestant.name: contestant
    for contestant in (
        Contestant(OURS, "frameworks:by_hand"),
        Contestant("stagepipe, functions unchanged", "frameworks:unchanged", "", ("images", "clips")),
        Contestant("stagepipe, auto", "frameworks:auto"),
        Contestant("stagepipe, inline", "frameworks:inline", "", ("tensors", "tokens")),
        Contestant(REFERENCE, "frameworks:loop"),
        Contestant("Pool.imap", "frameworks:pool"),
        Contestant("Pool.imap, models inherited by fork", "frameworks:pool_inheriting", "", ("models",)),
        Contestant("joblib, loky", "frameworks:joblib", "joblib"),
        Contestant("DataLoader", "frameworks_torch:dataloader", "torch"),
        Contestant(
            "DataLoader, models inherited by fork", "frameworks_torch:dataloader_inheriting", "torch", ("models",)
        ),
        Contestant("torchdata.nodes, processes", "frameworks_torch:nodes_processes", "torchdata"),
        Contestant("torchdata.nodes, threads", "frameworks_torch:nodes_threads", "torchdata"),
        Contestant("SPDL, threads", "frameworks:spdl_threads", "spdl", is_ordered=False),
        Contestant("SPDL, threads, per batch", "frameworks:spdl_threads_per_batch", "spdl", _BATCHED, is_ordered=False),
        Contestant("SPDL, subprocess with arena", "frameworks:spdl_subprocess", "spdl", is_ordered=False),
        Contestant(
            "SPDL, subprocess with arena, per batch",
            "frameworks:spdl_subprocess_per_batch",
            "spdl",
            _BATCHED,
            is_ordered=False,
        ),
        Contestant("SPDL, processes", "frameworks:spdl_processes", "spdl", is_ordered=False),
        Contestant(
            "SPDL, processes, per batch", "frameworks:spdl_processes_per_batch", "spdl", _BATCHED, is_ordered=False
        ),
        Contestant("Grain", "frameworks:grain_processes", "grain"),
        Contestant("Ray Data", "frameworks:ray_data", "ray", is_ordered=False),
        Contestant(
            "cosmos-xenna",
            "frameworks:cosmos_xenna",
            jobs=_WITHOUT_TORCH,
            is_ordered=False,
            requirements=("cosmos-xenna==0.3.0", "tqdm", *_HARNESS),  # it imports tqdm without requiring it
        ),
        Contestant("Daft", "frameworks:daft", jobs=_WITHOUT_TORCH, requirements=("daft==0.7.26", *_HARNESS)),
        Contestant("Hugging Face, with_transform", "frameworks_torch:with_transform", "datasets"),
        Contestant("Hugging Face, streaming", "frameworks_torch:streaming", "datasets", is_ordered=False),
        Contestant("WebDataset", "frameworks_torch:shards", "webdataset", ("images", "thumbnails"), is_ordered=False),
        Contestant("tf.data", "frameworks:own_decoder", "tensorflow", ("images",), own_pixels=True),
    )
}
