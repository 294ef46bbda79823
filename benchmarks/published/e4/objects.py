"""Ray: an actor creates the array, the object store holds it, and the caller maps it."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.published.e4.arrays import Maker
from benchmarks.published.model import Payload, Received

_STORE_SHARE = 0.3
_MEMORY_FOLDER = "/dev/shm"  # noqa: S108 - the location of its object store


class Ray:
    """A cluster on this machine only, which ends with the turn."""

    def __init__(self) -> None:
        """Start the cluster."""
        os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="0")
        os.environ["RAY_AUTH_MODE"] = "disabled"  # otherwise Ray leaves a file in the home folder
        import ray

        self._ray = ray
        free = os.statvfs(_MEMORY_FOLDER)
        ray.init(
            address="local",
            num_cpus=2,
            include_dashboard=False,
            log_to_driver=False,
            object_store_memory=int(free.f_bavail * free.f_frsize * _STORE_SHARE),
            _temp_dir=str(Path(tempfile.gettempdir()) / "r"),
        )
        self._actor: Any = ray.remote(Maker).remote()
        self._shape: tuple[int, ...] = ()

    def prepare(self, payload: Payload) -> None:
        """Tell the actor which array is requested next."""
        self._ray.get(self._actor.prepare.remote(payload.values["shape"], payload.values["ready"]))

    def transfer(self, number: int) -> Received:
        """Request array `number`."""
        return Received(self._ray.get(self._actor.array.remote(number)))

    def close(self) -> None:
        """End the cluster."""
        self._ray.shutdown()
