"""The Ray cluster of a run: starts or joins it, and starts what runs on its nodes. In the caller's process."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from time import monotonic, sleep
from typing import Any, Final

from stagepipe.core import RunError, UsageError, install_command
from stagepipe.engine.engines import ClusterNode, LostProcessError
from stagepipe.engine.ray.cpu_shares import CpuShares, check_gpus, divide_cpus
from stagepipe.machine import detect_machine, read_free_memory_bytes
from stagepipe.plan import ProcessPlan

_MIN_STORE_BYTES: Final = 80 << 20
"""Ray accepts no smaller object store than 75 MB (ray_constants.OBJECT_STORE_MINIMUM_MEMORY_BYTES)."""
_START_ATTEMPTS: Final = 3
"""Ray gives its processes 30 s to start (ray/_private/node.py), which a busy machine exceeds."""
_RELEASE_TIMEOUT_S: Final = 10.0
"""Long enough for processes to end on a busy machine, short enough for an answer within seconds."""
_POLL_INTERVAL_S: Final = 0.1
_SHARED_MEMORY_FOLDER: Final = "/dev/shm"  # noqa: S108 - asked for its size; Ray puts its object store there
_LOOPBACK_VARIABLE: Final = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
_STORE_MEMORY_SHARE: Final = 0.3
"""Of the free memory and of /dev/shm: the share that Ray itself takes by default."""


def _has_level(level: int, record: logging.LogRecord) -> bool:
    return record.levelno >= level


_LOG_FILTERS: Final = {
    "ray.data._internal.execution.streaming_executor": partial(_has_level, logging.WARNING),
    "ray.data._internal.progress": partial(_has_level, logging.ERROR),  # it warns that a run has no bars of Ray's
    "ray._private.authentication.authentication_token_setup": partial(
        _has_level, logging.ERROR
    ),  # clusters have a token
}


class RayCluster:
    """A connection to Ray. A cluster that it has started ends with it; one that it has joined stays."""

    label = "engine: ray"

    def __init__(self, address: str | None) -> None:
        """Join the cluster at `address`, or that of the environment; else start one on this machine."""
        self._starts = False
        self._joins = False
        self._folder = ""
        try:
            import ray
        except ImportError as error:
            raise UsageError(f"engine: ray needs the package ray: `{install_command('ray')}`") from error
        self._ray: Any = ray
        for name, log_filter in _LOG_FILTERS.items():
            logging.getLogger(name).addFilter(log_filter)  # Ray Data sets the levels again
        if ray.is_initialized():
            return
        address = address or os.environ.get("RAY_ADDRESS") or None
        if address in {None, "local"}:
            self._start()
        else:
            self._join(str(address))

    def _start(self) -> None:
        machine = detect_machine()
        self._folder = tempfile.mkdtemp(prefix="stagepipe-ray-")
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a run sends nothing off this machine
        store_bytes = _STORE_MEMORY_SHARE * min(read_free_memory_bytes(), shutil.disk_usage(_SHARED_MEMORY_FOLDER).free)
        self._starts = True
        for attempt in range(_START_ATTEMPTS):
            try:
                with keep_on_loopback():
                    self._ray.init(
                        address="local",
                        num_cpus=machine.cpus,
                        include_dashboard=False,
                        object_store_memory=max(int(store_bytes), _MIN_STORE_BYTES),
                        logging_level=logging.WARNING,
                        _node_ip_address="127.0.0.1",
                        _temp_dir=self._folder,
                    )
                break
            except Exception as error:
                self._ray.shutdown()
                if "timed out" in str(error) and attempt + 1 < _START_ATTEMPTS:
                    continue
                self.close()
                raise RunError(f"engine: ray: cannot start Ray on this machine: {error}") from error
            except BaseException:  # such as Ctrl-C
                self.close()
                raise

    def _join(self, address: str) -> None:
        try:
            self._ray.init(address=address, logging_level=logging.WARNING)
        except Exception as error:
            hint = "check `address` or RAY_ADDRESS; without both, a run starts Ray on this machine"
            raise UsageError(f"engine: ray: cannot join the cluster at {address}: {error}; {hint}") from error
        self._joins = True

    def divide_cpus(
        self, processes: Sequence[ProcessPlan], cpu_costs: Mapping[str, float], *, max_source_tasks: int | None
    ) -> CpuShares:
        """Return the CPUs of each process, of those that are free. Raises UsageError if they do not suffice."""
        from ray._private.state import available_resources_per_node

        total, free = self.wait_for_free_cpus()
        check_gpus(processes, self._ray.cluster_resources().get("GPU", 0.0), self._count_free("GPU"))
        sizes = [node.cpus for node in self.list_nodes()]
        return divide_cpus(
            processes,
            total,
            free,
            [resources.get("CPU", 0.0) for resources in available_resources_per_node().values()],
            cpu_costs=cpu_costs,
            spare=max(sizes) if len(sizes) > 1 else 0.0,
            max_source_tasks=max_source_tasks,
        )

    def _count_free(self, name: str) -> float:
        return float(self._ray.available_resources().get(name, 0.0))

    def wait_for_free_cpus(self) -> tuple[float, float]:
        """Return the CPUs of the cluster, and how many are free.

        Waits some seconds for workers of a run that has just ended: Ray releases their CPUs when they are gone.
        """
        deadline_s = monotonic() + _RELEASE_TIMEOUT_S
        while True:
            total, free = self._ray.cluster_resources().get("CPU", 0.0), self._count_free("CPU")
            if free >= total or monotonic() >= deadline_s:
                return total, free
            sleep(_POLL_INTERVAL_S)

    def list_nodes(self) -> list[ClusterNode]:
        """Return the nodes that live and have CPUs, in the order of their ids."""
        found = [
            ClusterNode(
                node["NodeID"],
                f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}",
                node["Resources"].get("CPU", 0.0),
                node["Resources"].get("GPU", 0.0),
            )
            for node in self._ray.nodes()
            if node["Alive"]
        ]
        return sorted((node for node in found if node.cpus), key=lambda node: node.node_id)

    def start_actor(self, actor_class: type, arguments: tuple[Any, ...], node: ClusterNode, *, share: float) -> Any:
        """Start an actor on a node with a share of its CPUs and GPUs; Ray does not start it again. Two calls at a time.

        It gets its place when that share is free: call a method, and `wait` for the answer.
        """
        remote_class = self._ray.remote(
            num_cpus=_round_share(node.cpus * share),
            num_gpus=_round_share(node.gpus * share),
            max_restarts=0,
            max_concurrency=2,
            scheduling_strategy=_stay_on(node),
        )(actor_class)
        return remote_class.remote(*arguments)

    def start_task(self, function: Callable[..., Any], arguments: tuple[Any, ...], node: ClusterNode) -> Any:
        """Call a function on a node, without a CPU of its own; `get` its answer."""
        remote_function = self._ray.remote(num_cpus=0, max_retries=0, scheduling_strategy=_stay_on(node))(function)
        return remote_function.remote(*arguments)

    def kill_actor(self, actor: Any) -> None:
        """End an actor at once, if it lives."""
        self._ray.kill(actor)

    def wait(self, references: Sequence[Any], count: int, timeout_s: float) -> tuple[list[Any], list[Any]]:
        """Wait until `count` answers are there, or some seconds; return those that are, and the others."""
        if not references:
            return [], []
        ready, others = self._ray.wait(list(references), num_returns=count, timeout=timeout_s)
        return ready, others

    def get(self, reference: Any) -> Any:
        """Return an answer. Raises RunError with what was raised there, LostProcessError if nobody answers any more."""
        try:
            return self._ray.get(reference)
        except self._ray.exceptions.RayTaskError as error:
            raise RunError(f"{type(error.cause).__name__}: {error.cause}") from error
        except self._ray.exceptions.RayError as error:
            lines = str(error).strip().splitlines()
            raise LostProcessError(f"{type(error).__name__}: {lines[0] if lines else ''}") from error

    def close(self) -> None:
        """End the cluster if this run has started it; leave it if it was joined."""
        if self._starts or self._joins:
            self._ray.shutdown()
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._starts = self._joins = False
        self._folder = ""


@contextmanager
def keep_on_loopback() -> Iterator[None]:
    """Keep Ray, and the processes that it starts, on 127.0.0.1.

    Otherwise Ray replaces this address by the public one, and listens on all interfaces. The setting is the one for
    other systems, where it does not (ray/_private/services.py, `resolve_ip_for_localhost`); Ray reads it when imported.
    """
    from ray._private import ray_constants

    before, constant = os.environ.get(_LOOPBACK_VARIABLE), ray_constants.ENABLE_RAY_CLUSTER
    os.environ[_LOOPBACK_VARIABLE], ray_constants.ENABLE_RAY_CLUSTER = "0", False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = constant
        if before is None:
            del os.environ[_LOOPBACK_VARIABLE]
        else:
            os.environ[_LOOPBACK_VARIABLE] = before


def _stay_on(node: ClusterNode) -> Any:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(node.node_id, soft=False)


def _round_share(amount: float) -> float:
    """Ray takes whole numbers above 1."""
    return float(int(amount)) if amount >= 1 else int(amount * 100) / 100
