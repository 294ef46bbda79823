"""The Ray engine's interface to the rest of stagepipe: its options, its capabilities and its start.

Every config check imports this module, so it imports neither Ray nor the code of a run. Runs in the caller's process.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final

from stagepipe.core import UsageError
from stagepipe.engine.engines import Cluster, Engine, EngineRun, RunRequest
from stagepipe.spec import Capabilities, EngineOption

_NO_OUTPUTS: Final = "Ray starts the processes itself"
_REPLICA_CAPABILITIES: Final = Capabilities(has_hops=True, yields_items=False, refused_outputs=_NO_OUTPUTS)
"""With `inside: local`, each node runs a local pipeline, which supports all other keys."""


class RayEngine(Engine):
    """Runs the stages on Ray Data or, with `inside: local`, a local pipeline on each node of a Ray cluster.

    `address` is the address of a cluster. Without it, the run joins RAY_ADDRESS, or starts its own Ray.
    """

    name = "ray"
    title = "Ray"
    capabilities = Capabilities(
        has_hops=True,
        takes_worker_ranges=True,
        takes_resources=True,
        runs_tail_in_caller=True,
        refused_keys={
            "timeout": "Ray has no watchdog that ends a single item",
            "stateful": ("Ray hands blocks to workers in no fixed order, and a replaced worker loses its state"),
            "cpus": "Ray chooses the CPUs",
            "concurrency": "each worker on Ray works on one item at a time",
            "group": "each worker on Ray is one process",
        },
        refused_outputs=_NO_OUTPUTS,
        ignored_keys=("memory_bytes", "window", "preload", "start", "transport"),
        ignored_reason="Ray starts the processes and moves the items",
    )
    options: ClassVar = {
        "address": EngineOption(
            {"type": "string", "minLength": 1},
            lambda value: isinstance(value, str) and bool(value.strip()),
            "an address such as `auto` or `10.0.0.5:6379`",
        ),
        "inside": EngineOption(
            {"enum": ["local"], "type": "string"},
            lambda value: value == "local",
            "`local`",
            "write `inside: local`, or remove it",
        ),
    }
    example: ClassVar = {"address": "auto"}

    def get_capabilities(self, options: Mapping[str, Any]) -> Capabilities:
        """Return the capabilities of the engine with these options."""
        return self.capabilities if options.get("inside") is None else _REPLICA_CAPABILITIES

    def start(self, request: RunRequest) -> EngineRun:
        """Start or join the cluster. CPU shares follow the costs of a probe from the last day, if there is one."""
        from stagepipe.engine.cost_cache import find_cpu_costs
        from stagepipe.engine.ray.run import RayRun

        options = request.spec.engine.options
        if options.get("inside") is not None:
            raise UsageError(
                "engine: ray, inside: local: each node runs its own pipeline into the sinks of the config, so this "
                "process gets no items; use `stagepipe run`, or a Loader with the rank of each training process"
            )
        return RayRun(request.plan, options.get("address"), find_cpu_costs(request.spec, request.plan))

    def join_cluster(self, options: Mapping[str, Any]) -> Cluster:
        """Join or start the cluster."""
        from stagepipe.engine.ray.cluster import RayCluster

        return RayCluster(options.get("address"))


RAY: Final = RayEngine()
