"""Plan -> operators of Ray Data: chooses the processes that run on Ray. Runs in the caller's process."""

from __future__ import annotations

import io
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from stagepipe.core import SourceIdentity
from stagepipe.engine.ray.cluster import CpuShares, Reservation
from stagepipe.engine.ray.workers import MAX_BLOCK_BYTES, OperatorSpec, PackedOperator, StageOperator
from stagepipe.plan import Plan, ProcessPlan, ProcessRole
from stagepipe.runtime import dump_with_main_objects, find_unpicklable_stage, pickle_main_objects


@dataclass(frozen=True)
class RayLayout:
    """The processes of a plan that run on Ray: the first `count` as Ray Data operators, and `pools` as actor pools.

    All other processes run in the caller's process.
    """

    count: int
    pools: frozenset[int] = frozenset()

    @classmethod
    def of(cls, plan: Plan) -> RayLayout:
        """Return the layout: all processes before the first order point, and later ones with several workers."""
        roles = [process.role for process in plan.processes]
        count = roles.index(ProcessRole.ORDER_POINT) if ProcessRole.ORDER_POINT in roles else len(roles)
        pools = (
            index
            for index, process in enumerate(plan.processes)
            if index > count
            and process.role is ProcessRole.STAGE
            and process.slot_count > 1
            and process.first_stage.batch is None  # a pool sends single items, so a batch would never fill
        )
        return cls(count, frozenset(pools))

    def is_on_ray(self, index: int) -> bool:
        """Return whether the process with this index in the plan runs on Ray."""
        return index < self.count or index in self.pools

    @property
    def indices(self) -> tuple[int, ...]:
        """The indices of the processes that run on Ray."""
        return (*range(self.count), *sorted(self.pools))


_MAX_BLOCK_ITEMS: Final = 64
"""Items of a read task: few enough that small sources spread over the workers."""
_BLOCKS_PER_WORKER: Final = 8
"""Minimum read tasks per worker for small sources: the workers then finish at nearly the same time."""
_MAX_READ_TASKS: Final = 4_000
"""The caller keeps an entry per task. Longer sources have more items per task; MAX_BLOCK_BYTES limits their blocks."""


def pack_operators(
    plan: Plan, layout: RayLayout, epoch: int, source: SourceIdentity | None = None
) -> list[PackedOperator]:
    """Return the operators of a plan. Raises UsageError for a stage that cannot be pickled.

    `source` is the identity of the source in this process; its read tasks compare it with theirs.
    """
    return [pack_operator(plan, index, epoch, None if index else source) for index in range(layout.count)]


def pack_operator(plan: Plan, index: int, epoch: int, source: SourceIdentity | None = None) -> PackedOperator:
    """Return the operator of one process. Raises UsageError for a stage that cannot be pickled."""
    main_pickles = dict(pickle_main_objects(plan))
    process = plan.processes[index]
    spec = OperatorSpec(
        index=index,
        plan=process,
        epoch=epoch,
        seed=plan.seed,
        limit=plan.limit,
        shard=plan.shard.for_segment(process.input_segment),
        any_order=plan.any_order,
        config_dir=plan.config_dir,
        source=source,
    )
    try:
        file = io.BytesIO()
        dump_with_main_objects(spec, file)
        data = file.getvalue()
    except Exception as error:
        raise find_unpicklable_stage(process.stages) or error from error
    return PackedOperator(
        spec=data, main_pickles=main_pickles, sys_path=tuple(sys.path), working_folder=str(Path.cwd())
    )


def choose_ranges(item_count: int | None, workers: int) -> list[tuple[int, int | None]]:
    """Divide the items of a source into read tasks; a stream, which has no item count, has one task.

    >>> choose_ranges(5, 1)
    [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5)]
    >>> choose_ranges(None, 1)
    [(0, None)]
    """
    if item_count is None:
        return [(0, None)]
    items = max(min(-(-item_count // (workers * _BLOCKS_PER_WORKER)), _MAX_BLOCK_ITEMS), 1)
    items = max(items, -(-item_count // _MAX_READ_TASKS))
    return [(start, min(start + items, item_count)) for start in range(0, item_count, items)]


def make_dataset(
    plan: Plan,
    layout: RayLayout,
    epoch: int,
    item_count: int | None,
    *,
    source: SourceIdentity,
    shares: CpuShares,
    reservation: Reservation,
    run_id: str,
) -> Any:
    """Return the Dataset of an epoch: read tasks, then an actor pool for each process that runs on Ray.

    `source` is the identity of the source in the caller's process.
    """
    import ray

    from stagepipe.engine.ray.source import ItemSource

    packed_source, *operators = pack_operators(plan, layout, epoch, source)
    processes = plan.processes[1 : layout.count]
    workers = max([1, *(process.slot_count for process in processes)])
    key = f"{run_id}/{epoch}"
    ranges = choose_ranges(item_count, max(workers, shares.source_tasks))
    with _allow_remote_options():
        dataset = ray.data.read_datasource(
            ItemSource(ray.put(packed_source), key, ranges),
            concurrency=shares.source_tasks,
            num_cpus=shares.by_process[0],
            ray_remote_args={"max_retries": plan.max_restarts, **reservation.get_options(plan.processes[0].name)},
            override_num_blocks=max(len(ranges), 1),  # otherwise Ray splits the blocks until there are 200
        )
    _set_options(dataset, plan)
    for index, (process, packed) in enumerate(zip(processes, operators, strict=True), 1):
        with _allow_remote_options():
            dataset = dataset.map_batches(
                StageOperator,
                batch_size=None,
                batch_format="pyarrow",
                zero_copy_batch=True,
                fn_constructor_args=(packed,),
                compute=ray.data.ActorPoolStrategy(
                    min_size=process.workers if process.worker_bounds is None else process.worker_bounds.minimum,
                    max_size=process.slot_count,
                    initial_size=process.workers,
                ),
                num_cpus=shares.by_process[index],
                **make_remote_options(process, plan.max_restarts),
                **reservation.get_options(process.name),
            )
    _set_options(dataset, plan)
    return dataset


@contextmanager
def _allow_remote_options() -> Iterator[None]:
    """Hide Ray 2.60's deprecation warning for options that have no parameter, such as `max_restarts`.

    Versions below 2.64 still have them, and pyproject.toml allows no later version.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="`ray_remote_args` is deprecated")
        yield


def _set_options(dataset: Any, plan: Plan) -> None:
    """Set the options that this Dataset needs, and leave the caller's own ones unchanged."""
    context = dataset.context
    context.enable_progress_bars = False
    context.enable_get_object_locations_for_metrics = True  # otherwise Ray does not count spilled bytes
    context.print_on_execution_start = False
    context.execution_options.preserve_order = not plan.any_order
    context.execution_options.verbose_progress = False
    context.target_max_block_size = MAX_BLOCK_BYTES  # so that Ray passes our blocks on instead of joining copies
    context.max_errored_blocks = 0
    context.actor_task_retry_on_errors = False


def make_remote_options(process: ProcessPlan, max_restarts: int) -> dict[str, Any]:
    """Return the Ray options of a process's actors, except for their CPUs."""
    stage = process.first_stage
    options: dict[str, Any] = {"max_restarts": max_restarts, "max_task_retries": max_restarts}
    if stage.resources is not None and stage.resources.gpus is not None:
        options["num_gpus"] = stage.resources.gpus
    if stage.env:
        options["runtime_env"] = {"env_vars": dict(stage.env)}
    return options
