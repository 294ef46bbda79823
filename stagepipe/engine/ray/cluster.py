"""The Ray cluster of a run: starts or joins it, reserves its CPUs, and starts actors and tasks on its nodes.

Two runs that start together could each see the same CPUs as free, and then wait for each other forever. A Ray placement
group prevents this: Ray grants all of it or nothing. Each process of the plan has its own group, with one bundle per
worker. In one shared group, a small worker could occupy the bundle of a large one. Runs in the caller's process.
"""

from __future__ import annotations

import logging
import os
import random
import secrets
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from heapq import heapify, heapreplace
from importlib import import_module
from threading import Event, Thread
from time import monotonic, sleep
from typing import Any, Final

from stagepipe.core import RunError, UsageError, install_command
from stagepipe.engine.engines import ClusterNode, LostProcessError
from stagepipe.machine import detect_machine, read_free_memory_bytes
from stagepipe.plan import ProcessPlan

_log = logging.getLogger("stagepipe")

_MIN_SHARE: Final = 0.01
"""Ray stores an amount of CPUs with four decimals. Less than a hundredth of a CPU is useless to a worker."""
_MAX_SOURCE_TASKS: Final = 256
"""Maximum number of concurrent read tasks. The run reserves a place for each; the caller's process takes all output."""
_EQUAL_PART: Final = 0.2
"""Fraction of the shared CPUs that workers get in equal parts; the rest follows their measured load."""


@dataclass(frozen=True)
class CpuShares:
    """The CPUs that Ray reserves for one worker of each process, and the number of concurrent read tasks."""

    by_process: tuple[float, ...]
    source_tasks: int


def divide_cpus(
    processes: Sequence[ProcessPlan],
    total: float,
    free: float,
    nodes: Sequence[float],
    *,
    cpu_costs: Mapping[str, float] | None = None,
    spare: float = 0.0,
    max_source_tasks: int | None = None,
) -> CpuShares:
    """Divide `free` of `total` CPUs among `processes`, the source first; `nodes` are the free CPUs per node. Pure.

    A stage with `resources: {cpus: ...}` gets these CPUs. The source and all other workers share the rest. With fewer
    CPUs than workers, each worker gets a fraction of a CPU, because whole CPUs for actors would leave none for the
    source. `cpu_costs` is the measured CPU time of each process per item; if all are known, they weight the fractions.
    The fractions shrink until each worker fits into a node.
    The shares leave out the `spare` CPUs, the CPUs of the largest node, if the rest suffices: after the loss of a node,
    its workers must fit on the others.
    Raises UsageError, with the sums, if Ray would wait forever for the plan.
    """
    asked = {process.name: _get_cpus(process) for process in processes}
    workers = {process.name: process.slot_count for process in processes[1:]}
    most_free = max(nodes, default=0.0)
    for name, cpus in asked.items():
        if cpus is not None and cpus > most_free:
            path = next(process.first_stage.config_path for process in processes if process.name == name)
            raise UsageError(
                f"engine: ray: a worker of stage {name} asks for {cpus:g} CPUs, and no node has more than "
                f"{most_free:g} free; set a smaller `{path}.resources.cpus`"
            )
    demand = sum((asked[name] or 0.0) * count for name, count in workers.items())
    source_tasks = max(1, min(int(total) - sum(workers.values()), max(workers.values(), default=int(total))))
    source_tasks = min(source_tasks, max_source_tasks or _MAX_SOURCE_TASKS)
    counts = {processes[0].name: source_tasks, **workers}
    sharers = {name: count for name, count in counts.items() if asked[name] is None or name == processes[0].name}
    for amount, places in ((free - spare, sorted(nodes)[:-1]), (free, nodes)) if spare else ((free, nodes),):
        share = min(1.0, int((amount - demand) / sum(sharers.values()) * 100) / 100)
        while share >= _MIN_SHARE:
            shares = _weigh_shares(share, sharers, cpu_costs or {})
            by_process = tuple(asked[process.name] or shares[process.name] for process in processes)
            if _fit(by_process, list(counts.values()), places):
                return CpuShares(by_process, source_tasks)
            share = int(share * 75) / 100
    raise UsageError(_describe_shortage(asked, workers, f"{free:g} of the cluster's {total:g}", nodes))


def _fit(by_process: Sequence[float], counts: Sequence[int], nodes: Sequence[float]) -> bool:
    """Return whether all workers fit into the nodes, placing the largest workers first."""
    used = [-cpus for cpus in nodes]
    heapify(used)  # the node with most free CPUs comes first
    for cpus, count in sorted(zip(by_process, counts, strict=True), reverse=True):
        for _ in range(count):
            if not used or used[0] + cpus > _MIN_SHARE / 10:  # tolerance for rounding
                return False
            heapreplace(used, used[0] + cpus)
    return True


def _weigh_shares(equal_share: float, counts: Mapping[str, int], cpu_costs: Mapping[str, float]) -> dict[str, float]:
    """Divide `equal_share` CPUs for each of `counts` workers by measured load, with at most one CPU per worker.

    A small part is divided equally, because even a fast worker must start and meets slow items.
    """
    costs = {name: cpu_costs[name] for name in counts if name in cpu_costs}
    total_cost = sum(costs.values())
    if equal_share >= 1 or len(costs) < len(counts) or total_cost <= 0:
        return dict.fromkeys(counts, equal_share)
    whole = equal_share * sum(counts.values())
    shares = {}
    for name, count in counts.items():
        share = _EQUAL_PART * equal_share + (1 - _EQUAL_PART) * whole * costs[name] / total_cost / count
        shares[name] = max(min(1.0, int(share * 100) / 100), _MIN_SHARE)
    is_too_much = sum(shares[name] * count for name, count in counts.items()) > whole  # the smallest were rounded up
    return dict.fromkeys(counts, equal_share) if is_too_much else shares


def _describe_shortage(
    asked: dict[str, float | None], workers: dict[str, int], amount: str, nodes: Sequence[float]
) -> str:
    parts = [f"{name}: {count} x {asked[name]:g}" for name, count in workers.items() if asked[name] is not None]
    demand = sum((asked[name] or 0.0) * count for name, count in workers.items())
    if not parts:
        fix = "wait until other jobs have ended, close other pipelines, or set fewer `workers`"
        subject = f"{sum(workers.values())} workers and the source need CPUs"
    else:
        names = ", ".join(name for name in workers if asked[name] is not None)
        fix = f"set a smaller `resources: {{cpus: ...}}` (0.5, for example) or fewer `workers` for {names}"
        subject = f"the stages ask for {demand:g} CPUs ({', '.join(parts)}), and the source needs a part of one too"
    places = f", at most {max(nodes):g} on one of {len(nodes)} nodes" if len(nodes) > 1 else ""
    return f"engine: ray: {subject}, but {amount} CPUs are free{places}; {fix}"


def check_gpus(processes: Sequence[ProcessPlan], total: float, free: float) -> None:
    """Raise UsageError if the stages request more than the `free` of the cluster's `total` GPUs."""
    demand = sum(get_gpus(process) * process.slot_count for process in processes)
    if demand > free:
        names = ", ".join(process.name for process in processes if get_gpus(process))
        amount = f"{free:g} of its {total:g} are free" if free < total else f"it has {total:g}"
        raise UsageError(
            f"engine: ray: the stages {names} ask for {demand:g} GPUs of the cluster, and {amount}; set a smaller "
            "`resources: {gpus: ...}` or fewer `workers`"
        )


def _get_cpus(process: ProcessPlan) -> float | None:
    resources = process.first_stage.resources
    return None if resources is None else resources.cpus


def get_gpus(process: ProcessPlan) -> float:
    """Return the GPUs that one worker of a process requests."""
    resources = process.first_stage.resources
    return 0.0 if resources is None or resources.gpus is None else resources.gpus


_TIMEOUT_S: Final = 10.0
"""Ray places a group within a second if there is room."""
_MAX_PAUSES_S: Final = (4.0, 12.0)
"""Maximum random pauses between attempts. Two runs that each hold a part release it; then one of them goes first."""


class Reservation:
    """The CPUs and GPUs of the processes that run on Ray, until `release`."""

    def __init__(self, processes: Sequence[ProcessPlan], shares: CpuShares) -> None:
        """Reserve `shares`. Raises RunError, and keeps nothing, if there is no room within a minute."""
        self._groups: dict[str, Any] = {}
        try:
            self._reserve(processes, shares)
        except BaseException:
            self.release()
            raise

    def _reserve(self, processes: Sequence[ProcessPlan], shares: CpuShares) -> None:
        counts = [shares.source_tasks, *(process.slot_count for process in processes[1:])]
        wanted = list(zip(processes, map(_make_bundle, processes, shares.by_process), counts, strict=True))
        wanted.sort(key=lambda each: (each[1].get("GPU", 0.0), each[1]["CPU"]), reverse=True)  # small ones fit anywhere
        for max_pause_s in (*_MAX_PAUSES_S, 0.0):
            missing = self._try_to_reserve(wanted)
            if not missing:
                return
            self.release()
            sleep(random.SystemRandom().uniform(0, max_pause_s))  # not the generator that the user seeds
        parts = [f"{name}: {count} x {_describe(bundle)}" for name, bundle, count in missing]
        raise RunError(
            f"engine: ray: there is no room for {', '.join(parts)}: another job took the free resources, or no node "
            "has enough for one worker; run it again after that job, or set fewer `workers` or smaller `resources`"
        )

    def _try_to_reserve(
        self, wanted: Sequence[tuple[ProcessPlan, dict[str, float], int]]
    ) -> list[tuple[str, dict[str, float], int]]:
        """Reserve a group for each process, and return the processes for which there is no room."""
        from ray.util.placement_group import placement_group

        for process, bundle, count in wanted:
            self._groups[process.name] = placement_group([bundle] * count, strategy="SPREAD")
        deadline_s = monotonic() + _TIMEOUT_S
        return [
            (process.name, bundle, count)
            for process, bundle, count in wanted
            if not _wait(self._groups[process.name], deadline_s)
        ]

    def get_options(self, name: str) -> dict[str, Any]:
        """Return the Ray options that put the workers of a process into its group."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        return {"scheduling_strategy": PlacementGroupSchedulingStrategy(self._groups[name])}

    def list_displaced(self) -> list[str]:
        """Return the processes with a worker that has no place: its node was lost and no other node has room."""
        from ray.util.placement_group import placement_group_table

        return [name for name, group in self._groups.items() if placement_group_table(group).get("state") != "CREATED"]

    def release(self) -> None:
        """Release all groups. Does nothing if Ray has ended or does not answer: then nothing is reserved."""
        from ray.util.placement_group import remove_placement_group

        while self._groups:
            _, group = self._groups.popitem()
            with suppress(Exception):
                remove_placement_group(group)


def _wait(group: Any, deadline_s: float) -> bool:
    """Wait for a group in turns of a second, because Ray does not let Ctrl-C through."""
    while True:
        if group.wait(1):
            return True
        if monotonic() >= deadline_s:
            return False


def _make_bundle(process: ProcessPlan, cpus: float) -> dict[str, float]:
    gpus = get_gpus(process)
    return {"CPU": cpus, "GPU": gpus} if gpus else {"CPU": cpus}


def _describe(bundle: dict[str, float]) -> str:
    return " and ".join(f"{amount:g} {name}" for name, amount in bundle.items())


_MIN_STORE_BYTES: Final = 80 << 20
"""Ray requires an object store of at least 75 MB (ray_constants.OBJECT_STORE_MINIMUM_MEMORY_BYTES)."""
_START_ATTEMPTS: Final = 3
"""Ray gives its processes 30 s to start (ray/_private/node.py). A busy machine takes longer."""
_RELEASE_TIMEOUT_S: Final = 10.0
"""Long enough for processes to end on a busy machine, short enough for an answer within seconds."""
_POLL_INTERVAL_S: Final = 0.1
_SHARED_MEMORY_FOLDER: Final = "/dev/shm"  # noqa: S108 - only its size is read; Ray puts its object store there
_LOOPBACK_VARIABLE: Final = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
_TOKEN_VARIABLES: Final = ("RAY_AUTH_TOKEN", "RAY_AUTH_MODE")
_STORE_MEMORY_SHARE: Final = 0.3
"""Fraction of the free memory, or of /dev/shm if that is smaller. Ray uses the same fraction by default."""


def _has_level(level: int, record: logging.LogRecord) -> bool:
    return record.levelno >= level


_LOG_FILTERS: Final = {
    "ray.data._internal.execution.streaming_executor": partial(_has_level, logging.WARNING),
    "ray.data._internal.progress": partial(_has_level, logging.ERROR),  # it warns about missing progress bars
    "ray._private.authentication.authentication_token_setup": partial(
        _has_level, logging.ERROR
    ),  # it warns about clusters with a token
}


_ASK_INTERVAL_S: Final = 2.0
_SILENCE_S: Final = 20.0
"""A warning follows after this silence. Interrupted links usually return within seconds."""
_RECONNECT_VARIABLE: Final = "RAY_gcs_rpc_server_reconnect_timeout_s"
_MAX_SILENCE_S: Final = float(os.environ.get(_RECONNECT_VARIABLE) or 60)
"""Ray waits this long for a dead head before it ends the process. A head that restarts may need a longer setting."""


class HeadWatch:
    """Ends the process when the head of a cluster does not answer for a minute.

    Ray itself ends a process whose head has died. If only the link is down, Ray's calls block for more than two minutes
    in every thread, and so do the calls that end the run. One thread asks the head, and may block; another one waits.
    """

    def __init__(self) -> None:
        """Create the watch without starting it."""
        self._has_answered = Event()
        self._is_closed = Event()

    def start(self, ask: Callable[[], object], address: str) -> None:
        """Start. `ask` returns when the head has answered; `address` is the address of the head."""
        for target, argument in ((self._keep_asking, ask), (self._watch, address)):
            Thread(target=target, args=(argument,), name="stagepipe-ray-head", daemon=True).start()

    def stop(self) -> None:
        """Stop without waiting for an answer."""
        self._is_closed.set()

    def _keep_asking(self, ask: Callable[[], object]) -> None:
        while not self._is_closed.wait(_ASK_INTERVAL_S):
            with suppress(Exception):
                ask()
                self._has_answered.set()

    def _watch(self, address: str) -> None:
        head = f"engine: ray: the head of the cluster ({address})"
        silence_s = 0.0  # counted in intervals, so that time in which this process was stopped does not count
        while not self._is_closed.wait(_ASK_INTERVAL_S):
            if self._has_answered.is_set():
                self._has_answered.clear()
                if silence_s >= _SILENCE_S:
                    _log.warning("%s answers again", head)
                silence_s = 0.0
                continue
            silence_s += _ASK_INTERVAL_S
            if silence_s >= _MAX_SILENCE_S:
                _end_process(
                    f"{head} has not answered for {silence_s:.0f} s: its machine or its network is down; start the "
                    "cluster again, and run with --resume, which continues after the written items"
                )
            if silence_s - _ASK_INTERVAL_S < _SILENCE_S <= silence_s:
                _log.warning("%s has not answered for %.0f s", head, silence_s)


def _end_process(message: str) -> None:
    with suppress(Exception):
        _log.error(message)
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(1)


class RayCluster:
    """A connection to Ray. `close` ends a cluster that this object started, and leaves a cluster that it joined."""

    label = "engine: ray"

    def __init__(self, address: str | None) -> None:
        """Join the cluster at `address` or RAY_ADDRESS, or start one on this machine if neither is set."""
        self._starts = False
        self._joins = False
        self._folder = ""
        self._variables: dict[str, str | None] = {}
        """Environment variables that `close` restores."""
        self._watch = HeadWatch()
        try:
            import ray
        except ImportError as error:
            raise UsageError(f"engine: ray needs the package ray: `{install_command('ray')}`") from error
        self._ray: Any = ray
        for name, log_filter in _LOG_FILTERS.items():
            logging.getLogger(name).addFilter(log_filter)  # a filter, because Ray Data resets the levels
        if ray.is_initialized():
            return
        address = address or os.environ.get("RAY_ADDRESS") or None
        if address in {None, "local"}:
            self._start()
        else:
            self._join(str(address))

    def _start(self) -> None:
        machine = detect_machine()
        if cluster := _find_cluster_of_machine():
            _log.warning(
                "engine: ray: this run starts its own Ray and does not join the Ray that was started on this machine "
                "(%s); to join it, set `engine: {ray: {address: auto}}` or RAY_ADDRESS",
                cluster,
            )
        self._folder = tempfile.mkdtemp(prefix="stagepipe-ray-")
        self._set_token()
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a run sends nothing to other machines
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

    def _set_token(self) -> None:
        """Give this cluster its own token, which ends with it.

        Ray would store a token in ~/.ray. A program that finds this token uses it with any cluster on this machine; if
        that cluster has no token, the first actor dies.
        """
        self._variables = {name: os.environ.get(name) for name in _TOKEN_VARIABLES}
        if not any(name.startswith("RAY_AUTH_") for name in os.environ):
            os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
            _forget_token()

    def _join(self, address: str) -> None:
        try:
            self._ray.init(address=address, logging_level=logging.WARNING)
        except Exception as error:
            hint = "check `address` or RAY_ADDRESS; without both, a run starts Ray on this machine"
            raise UsageError(f"engine: ray: cannot join the cluster at {address}: {error}; {hint}") from error
        self._joins = True
        self._watch.start(self._ray.nodes, self._ray.get_runtime_context().gcs_address)

    def divide_cpus(
        self, processes: Sequence[ProcessPlan], cpu_costs: Mapping[str, float], *, max_source_tasks: int | None
    ) -> CpuShares:
        """Return the shares of each process in the free CPUs. Raises UsageError if there are too few CPUs or GPUs."""
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
        """Return the CPUs of the cluster, and the number of free ones.

        Waits up to 10 s for workers of a run that has just ended, because Ray releases their CPUs when they are gone.
        """
        deadline_s = monotonic() + _RELEASE_TIMEOUT_S
        while True:
            total, free = self._ray.cluster_resources().get("CPU", 0.0), self._count_free("CPU")
            if free >= total or monotonic() >= deadline_s:
                return total, free
            sleep(_POLL_INTERVAL_S)

    def list_nodes(self) -> list[ClusterNode]:
        """Return the live nodes that have CPUs, ordered by id."""
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
        """Start an actor on a node with a share of its CPUs and GPUs. It runs two calls at a time, without restarts.

        The actor starts when that share is free: call a method, and `wait` for the answer.
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
        """Call a function on a node without reserving a CPU; `get` returns its result."""
        remote_function = self._ray.remote(num_cpus=0, max_retries=0, scheduling_strategy=_stay_on(node))(function)
        return remote_function.remote(*arguments)

    def kill_actor(self, actor: Any) -> None:
        """Kill an actor immediately."""
        self._ray.kill(actor)

    def wait(self, references: Sequence[Any], count: int, timeout_s: float) -> tuple[list[Any], list[Any]]:
        """Wait up to `timeout_s` for `count` answers; return the references that have one, and the others."""
        if not references:
            return [], []
        ready, others = self._ray.wait(list(references), num_returns=count, timeout=timeout_s)
        return ready, others

    def get(self, reference: Any) -> Any:
        """Return an answer. Raises RunError with a remote error, and LostProcessError if the remote process is gone."""
        try:
            return self._ray.get(reference)
        except self._ray.exceptions.RayTaskError as error:
            raise RunError(f"{type(error.cause).__name__}: {error.cause}") from error
        except self._ray.exceptions.RayError as error:
            lines = str(error).strip().splitlines()
            raise LostProcessError(f"{type(error).__name__}: {lines[0] if lines else ''}") from error

    def close(self) -> None:
        """End the cluster if this run started it, or disconnect if this run joined it."""
        self._watch.stop()
        if self._starts or self._joins:
            self._ray.shutdown()
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)
            _restore(self._variables)
            _forget_token()
        self._starts = self._joins = False
        self._folder = ""


def _find_cluster_of_machine() -> str:
    """Return the address that `ray start` left on this machine, or ""."""
    with suppress(Exception):  # Ray's internals
        from ray._private.utils import read_ray_address

        return read_ray_address() or ""
    return ""


def _forget_token() -> None:
    """Make Ray read the token and its mode from the environment again; it caches both for the process."""
    with suppress(Exception):  # Ray's internals
        raylet: Any = import_module("ray._raylet")
        raylet.AuthenticationTokenLoader.instance().reset_cache()
        raylet.Config.initialize("")


def _restore(variables: Mapping[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


@contextmanager
def keep_on_loopback() -> Iterator[None]:
    """Keep Ray, and the processes that it starts, on 127.0.0.1.

    By default, Ray replaces this address with the public one and listens on all interfaces. It does not do so with its
    setting for other systems (ray/_private/services.py, `resolve_ip_for_localhost`), which it reads on import.
    """
    from ray._private import ray_constants

    before, constant = {_LOOPBACK_VARIABLE: os.environ.get(_LOOPBACK_VARIABLE)}, ray_constants.ENABLE_RAY_CLUSTER
    os.environ[_LOOPBACK_VARIABLE], ray_constants.ENABLE_RAY_CLUSTER = "0", False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = constant
        _restore(before)


def _stay_on(node: ClusterNode) -> Any:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(node.node_id, soft=False)


def _round_share(amount: float) -> float:
    """Round down: Ray requires whole numbers above 1."""
    return float(int(amount)) if amount >= 1 else int(amount * 100) / 100
