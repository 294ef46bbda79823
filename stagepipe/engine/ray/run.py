"""The Ray run: takes the rows of Ray's operators in order, and runs the rest of the pipeline. In the caller's process.

Ray Data reads only blocks that Ray made, so the output of an order point cannot go back into it. A later stage with
several workers runs in a pool of actors instead. The pool sends each item to the least busy actor, and takes the
results in order.
"""

from __future__ import annotations

import os
import uuid
from collections import deque
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import Any, Final

from stagepipe.core import Cursor, Key, RunError
from stagepipe.engine.inline import CallerRun
from stagepipe.engine.inline_hops import InlineOutput, make_build_error, make_stage_error
from stagepipe.engine.ray.blocks import BlockBuilder, HopClock, Row, RowKind, decode_item, iter_rows, load_value
from stagepipe.engine.ray.cluster import RayCluster, Reservation
from stagepipe.engine.ray.execution import NodeWatch, StoreStatistics, iter_blocks
from stagepipe.engine.ray.operators import RayLayout, make_dataset, make_remote_options, pack_operator
from stagepipe.engine.ray.recording import RayCounts, make_ray_record
from stagepipe.engine.ray.workers import StageActor
from stagepipe.plan import Plan
from stagepipe.report import RunRecord
from stagepipe.runtime import (
    Box,
    SourceReader,
    StageError,
    StageRunner,
    UnpicklableResultError,
    format_key,
    make_private_stage_region,
)

_CALLS_PER_ACTOR: Final = 2
"""One call that the actor works on, and the next one, so that it never waits for this process."""


@dataclass
class _PoolWorker:
    """An actor and its unanswered calls."""

    actor: Any
    calls: deque[Any] = field(default_factory=deque)


class PoolProcess(InlineOutput):
    """A stage process in a pool of actors. It keeps the order of the items."""

    def __init__(self, run: RayRun, index: int, sent_clock: HopClock, downstream: InlineOutput) -> None:
        """`index` is the process in the plan of `run`; `sent_clock` counts the items sent to this process."""
        super().__init__(downstream.on_dead_letter)
        self._run = run
        self._index = index
        self._sent_clock = sent_clock
        self._downstream = downstream
        self._builder = BlockBuilder()
        self._packed: Any = None
        """A reference to the operator. A restarted actor reads it again."""
        self._workers: list[_PoolWorker] = []
        self._calls: deque[tuple[_PoolWorker, Any]] = deque()
        """The calls of all actors, in item order."""

    def start_epoch(self, epoch: int) -> None:
        """End the actors of the previous epoch, and start those of `epoch`."""
        import ray

        self.end()
        plan = self._run.plan
        make_actor = ray.remote(StageActor).options(**self._run.make_actor_options(self._index))
        self._packed = ray.put(pack_operator(plan, self._index, epoch))
        workers = range(plan.processes[self._index].slot_count)
        self._workers = [_PoolWorker(make_actor.remote(self._packed)) for _ in workers]
        self._downstream.start_epoch(epoch)

    def send_item(self, key: Key, box: Box, samples: int, meta: bytes) -> None:
        """Send an item to the least busy actor. Wait for the oldest items while all actors have enough."""
        del meta
        self._encode(key, box.pop(), samples)
        worker = min(self._workers, key=lambda worker: len(worker.calls))
        call = worker.actor.run.remote(self._builder.build())
        worker.calls.append(call)
        self._calls.append((worker, call))
        while len(self._calls) >= _CALLS_PER_ACTOR * len(self._workers):
            self._take_oldest()

    def _encode(self, key: Key, value: Any, samples: int) -> None:
        started_ns = perf_counter_ns()
        try:
            nbytes = self._builder.add_item(key, value, samples)
        except Exception as error:
            sender = self._run.plan.processes[self._index - 1].stages[-1].name
            reason = UnpicklableResultError(value, error)
            message = f"stage {sender}, worker 0, item {format_key(key)}: {reason}"
            raise RunError(message, stage=sender, worker=0, item=format_key(key)) from error
        self._sent_clock.sent_bytes.append(nbytes)
        self._sent_clock.encode_ns.append(perf_counter_ns() - started_ns)

    def _take_oldest(self) -> None:
        import ray

        worker, call = self._calls.popleft()
        try:
            tables = ray.get(call)
        except (ray.exceptions.RayError, ray.exceptions.RaySystemError) as error:
            raise self._run.describe_ray_error(error) from error
        worker.calls.remove(call)
        for table in tables:
            for row in iter_rows(table):
                self._run.route_row(row, self._downstream, self._index)

    def finish_epoch(self) -> None:
        """Wait for all items, and end the actors."""
        while self._calls:
            self._take_oldest()
        self.end()
        self._downstream.finish_epoch()

    def kill(self) -> None:
        """Kill the actors, from any thread; threads that wait for an actor get an error."""
        import ray

        for worker in list(self._workers):
            ray.kill(worker.actor)

    def end(self) -> None:
        """Kill the actors and drop their calls. Call it while Ray is connected."""
        self.kill()
        self._workers = []
        self._packed = None
        self._calls.clear()


class RayRun(CallerRun):
    """A run on Ray Data."""

    def __init__(self, plan: Plan, address: str | None = None, cpu_costs: Mapping[str, float] | None = None) -> None:
        """Start or join the cluster, and build the stages that run in this process.

        `cpu_costs` maps process names to measured CPU times per item; None or empty without a measurement.
        Raises UsageError if the cluster has too few CPUs, and RunError if a stage or the source cannot be built.
        """
        self._layout = RayLayout.of(plan)
        super().__init__(plan, plan.processes[-1], self._layout.count, any_order=plan.any_order)
        self._counts = RayCounts(plan)
        self._pools: list[PoolProcess] = []
        self._downstream = self._build_downstream(self._layout.count)
        self._source_reader = self._build_source()
        self._source_identity = self._source_reader.identify()
        self._items: Generator[tuple[Any, int], None, None] | None = None
        """The items of the current epoch."""
        self._watch: NodeWatch | None = None
        self._run_id = uuid.uuid4().hex
        self._owner_pid = os.getpid()
        self._cluster = RayCluster(address)
        try:
            on_ray = [plan.processes[index] for index in self._layout.indices]
            max_tasks = None if self._source_reader.is_indexed else 1  # a stream has a single read task
            self._shares = self._cluster.divide_cpus(on_ray, cpu_costs or {}, max_source_tasks=max_tasks)
            self._store = self._counts.store = StoreStatistics(self._layout.count)
            self._reservation = Reservation(on_ray, self._shares)
        except BaseException:
            self._cluster.close()
            raise

    # ------------------------------------------------------------------ stages in this process

    @property
    def items_in(self) -> int:
        """The number of items that the source has read."""
        return self._counts.source_items

    def _build_process(self, index: int, downstream: InlineOutput) -> InlineOutput:
        if index not in self._layout.pools:
            return super()._build_process(index, downstream)
        self._pools.append(PoolProcess(self, index, self._counts.own_clocks[index - 1], downstream))
        return self._pools[-1]

    def make_actor_options(self, index: int) -> dict[str, Any]:
        """Return the Ray options of the actors of a pool."""
        process = self.plan.processes[index]
        share = self._shares.by_process[self._layout.indices.index(index)]
        place = self._reservation.get_options(process.name)
        return {"num_cpus": share, **make_remote_options(process, self.plan.max_restarts), **place}

    def _build_source(self) -> SourceReader:
        """Build the source in this process too: it provides the number of items and the source's identity."""
        plan, stage = self.plan, self.plan.processes[0].first_stage
        try:
            with self._generators.swap_in():
                runner = StageRunner(stage, 0, plan.seed, plan.config_dir, make_private_stage_region(), plan.shard)
                return SourceReader(runner.target, plan.seed, plan.limit, plan.shard)
        except (Exception, SystemExit) as error:
            raise make_build_error(stage.row, error) from error

    # ------------------------------------------------------------------ an epoch

    def iter_epoch(self, epoch: int, cursor: Cursor | None = None) -> Generator[Any, None, None]:
        """Yield the items of an epoch, in order. Raises RunError if a stage fails or Ray cannot go on."""
        del cursor
        statistics = self._statistics
        iteration = statistics.outside_clock.begin_iteration()
        self._end_epoch()
        blocks = self._items = self._iter_items(epoch)
        try:
            with self.noting_failures():
                while True:
                    started_ns = perf_counter_ns()
                    try:
                        value, samples = next(blocks)
                    except StopIteration:
                        return
                    finally:
                        statistics.wait_ns += perf_counter_ns() - started_ns
                    statistics.count_item(samples)
                    started_ns = perf_counter_ns()
                    box = [value]
                    del value
                    try:
                        yield box.pop()
                    finally:
                        statistics.busy_ns += perf_counter_ns() - started_ns
        finally:
            blocks.close()
            statistics.outside_clock.end_iteration(iteration)

    def _end_epoch(self) -> None:
        """End the operators and actors of an unfinished epoch."""
        if self._items is not None:
            self._items.close()
            self._items = None
        for pool in self._pools:
            pool.end()

    def _iter_items(self, epoch: int) -> Generator[tuple[Any, int], None, None]:
        import ray

        ready_items = self._output.ready_items
        for stage in self._stages.values():
            stage.start_epoch(epoch)
        self._downstream.start_epoch(epoch)
        self.dead_letters.apply_seek(0, epoch, [Cursor()] * len(self.plan.segments), ())
        with NodeWatch(ray.nodes, self._reservation.list_displaced) as self._watch:
            self._watch.ends += [pool.kill for pool in self._pools]
            for table in self._iter_blocks(epoch, self._watch):
                for row in iter_rows(table):
                    with self._naming_errors():
                        self.route_row(row, self._downstream, self._layout.count - 1)
                    while ready_items:
                        self._watch.note_pause()
                        yield ready_items.popleft()
                        self._watch.note_item()
            with self._naming_errors():
                self._downstream.finish_epoch()
        while ready_items:
            yield ready_items.popleft()
        self.dead_letters.enforce_limit()

    def _iter_blocks(self, epoch: int, watch: NodeWatch) -> Iterator[Any]:
        """Yield the blocks of the last operator, and end the operators with the iteration."""
        import ray

        with self._generators.swap_in():
            item_count = self._count_source_items(epoch)
        dataset = make_dataset(
            self.plan,
            self._layout,
            epoch,
            item_count,
            source=self._source_identity,
            shares=self._shares,
            reservation=self._reservation,
            run_id=self._run_id,
        )
        try:
            yield from iter_blocks(dataset, self._store, watch)
        except (ray.exceptions.RayError, ray.exceptions.RaySystemError) as error:
            raise self.describe_ray_error(error) from error

    def _count_source_items(self, epoch: int) -> int | None:
        reader = self._source_reader
        if reader.is_indexed:
            reader.seek(epoch, 0)
        return reader.epoch_items

    def route_row(self, row: Row, downstream: InlineOutput, sender: int) -> None:
        """Pass the item of a row to `downstream`, or handle its message. `sender` is the process that made the row."""
        if self._watch is not None:
            self._watch.note_item()
        if row.kind is RowKind.ITEM:
            value, decode_ns = decode_item(row.payload, copies=True, is_readonly=False)
            self._counts.own_clocks[sender].add_received(row.sender_ns, decode_ns)
            box = [value]
            del value
            downstream.send_item(row.key, box, row.samples, b"")
        elif row.kind is RowKind.COUNTS:
            self._counts.add(load_value(row))
        elif row.kind is RowKind.DEAD_LETTER:
            self._add_letter(load_value(row))
        else:
            raise load_value(row)

    @contextmanager
    def _naming_errors(self) -> Iterator[None]:
        """Run stages in this process: keep the caller's random generators, and name stage and item in errors."""
        try:
            with self._generators.swap_in():
                yield
        except StageError as error:
            raise make_stage_error(error) from error.cause

    def describe_ray_error(self, error: Exception) -> RunError:
        """Return the error of a run that Ray cannot continue: a worker died too often, or a node with items is lost."""
        if self._watch is not None:
            self._watch.raise_if_short()
        names = ", ".join(self.plan.processes[index].name for index in self._layout.indices)
        text = str(error).strip().splitlines()
        return RunError(
            f"engine: ray: {type(error).__name__}: {text[0] if text else ''}; a worker of {names} died more than "
            f"`max_restarts: {self.plan.max_restarts}` times, or a node was lost with items that Ray cannot make again"
        )

    # ------------------------------------------------------------------ the pipeline's interface

    def make_record(self) -> RunRecord:
        """Return the counts so far; after `close`, those of the whole run."""
        for stage in self._stages.values():
            stage.flush()
        return make_ray_record(
            self.plan,
            self._layout,
            self._counts,
            self._statistics.take_snapshot(),
            self._regions,
            **self.make_run_fields(),
        )

    def close(self) -> None:
        """Release the reservation, and end the cluster if the run started it. The record stays."""
        self._close_stages()
        self._statistics.end()
        try:
            self._end_epoch()
        finally:
            self._reservation.release()
            self._cluster.close()

    def close_unattended(self) -> None:
        """Close the run when its pipeline is garbage-collected, or at interpreter exit, but not in a forked child."""
        if os.getpid() == self._owner_pid:
            with suppress(Exception):  # Ray may have ended earlier
                self.close()
