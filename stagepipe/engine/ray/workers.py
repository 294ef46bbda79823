"""The code in a Ray worker: reads a part of the source, or runs the stages of a process on each item of a block.

Errors of stages do not raise in Ray. They travel as rows to the caller, which raises the first one in item order. Ray
repeats only the work of dead processes.
"""

from __future__ import annotations

import os
import pickle
import socket
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from time import perf_counter_ns, process_time_ns
from typing import Any, Final

from stagepipe.core import Key, RunError, SourceIdentity, UsageError, add_import_path
from stagepipe.engine.inline_hops import InlineOutput, InlineStageProcess, make_build_error, make_stage_error
from stagepipe.engine.ray.blocks import (
    BlockBuilder,
    BlockCounts,
    CountReader,
    HopClock,
    Row,
    RowKind,
    decode_item,
    iter_rows,
)
from stagepipe.plan import ProcessPlan, Shard
from stagepipe.runtime import (
    Box,
    DeadLetterWriter,
    SourceReader,
    SourceRunner,
    StageChain,
    StageError,
    StageRunner,
    UnpicklableResultError,
    format_error,
    install_main_objects,
    make_private_stage_region,
)

MAX_BLOCK_BYTES: Final = 128 << 20
"""Maximum bytes of a block, the same as Ray Data's default. Each block is expensive for Ray: with items of 1.2 MB, two
stages on two CPUs made 90 items/s with 8 MiB, 160 with 16 MiB, 230 with 32 MiB, and 390 with 128 MiB, or 64 items."""


@dataclass(frozen=True, kw_only=True)
class OperatorSpec:
    """The spec of one process of the plan, for a worker. `index` is its index in the plan, `epoch` the epoch to run."""

    index: int
    plan: ProcessPlan
    epoch: int
    seed: int
    limit: int | None
    shard: Shard
    any_order: bool
    config_dir: Path | None
    source: SourceIdentity | None = None
    """The data that the source reads in the caller's process; None for the operator of a stage."""


@dataclass(frozen=True, kw_only=True)
class PackedOperator:
    """An operator's spec on its way to a worker: a pickle, and the settings that its unpickling needs.

    `dump_with_main_objects` makes `spec`; `main_pickles` are the objects of the caller's script. Relative paths in a
    config start at `working_folder`, the caller's folder.
    """

    spec: bytes
    main_pickles: dict[str, bytes]
    sys_path: tuple[str, ...]
    working_folder: str


class BlockOutput(InlineOutput):
    """Adds the output items of a worker's stages to the block that it builds."""

    def __init__(self, spec: OperatorSpec) -> None:
        """Start without rows."""
        super().__init__(self._add_dead_letter)
        self.builder = BlockBuilder()
        self.clock = HopClock()
        self._letters = DeadLetterWriter(
            process_index=spec.index,
            worker=0,
            first_stage_name=spec.plan.first_stage.row,
            shard=spec.shard,
            any_order=spec.any_order,
        )

    def send_item(self, key: Key, box: Box, samples: int, meta: bytes) -> None:
        """Add an item to the block. Raises UnpicklableResultError."""
        del meta
        value = box.pop()
        started_ns = perf_counter_ns()
        try:
            nbytes = self.builder.add_item(key, value, samples)
        except Exception as error:
            box.append(value)
            raise UnpicklableResultError(value, error) from error
        self.clock.encode_ns.append(perf_counter_ns() - started_ns)
        self.clock.sent_bytes.append(nbytes)

    def _add_dead_letter(self, stage: StageRunner, key: Key, error: StageError, meta: bytes) -> None:
        self.builder.add_value(RowKind.DEAD_LETTER, self._letters.make_letter(stage, key, error, meta, 0), key)


class OperatorProcess:
    """The stages of one process of the plan, built in a Ray worker."""

    def __init__(self, packed: PackedOperator) -> None:
        """Build the stages. Raises RunError if a stage cannot be loaded or built."""
        began_ns = perf_counter_ns()
        try:
            self.spec = spec = unpack_operator(packed)
        except Exception as error:
            hint = "each node needs the modules of the stages, at the same paths"
            raise _name_node(RunError(f"the stages cannot be loaded: {format_error(error)}; {hint}")) from error
        self._regions = [make_private_stage_region() for _ in spec.plan.stages]
        self.stages = [self._build_stage(index) for index in range(len(self._regions))]
        _limit_threads(spec.plan.first_stage.threads or 1)
        for stage in self.stages:
            stage.start_epoch(spec.epoch)
        self.output = BlockOutput(spec)
        self._reader = CountReader(self.stages, self._regions)
        self._setup_ns = perf_counter_ns() - began_ns
        self._began_ns = self._cpu_ns = 0
        self.begin_block()

    def _build_stage(self, index: int) -> StageRunner:
        spec = self.spec
        stage = spec.plan.stages[index]
        try:
            return StageRunner(stage, 0, spec.seed, spec.config_dir, self._regions[index], spec.shard)
        except (Exception, SystemExit) as error:
            raise _name_node(make_build_error(stage.row, error)) from error

    def begin_block(self) -> None:
        """Start the clocks of a block."""
        self._began_ns = perf_counter_ns()
        self._cpu_ns = process_time_ns()

    def add_counts(self) -> None:
        """Add the counts since the last call to the block."""
        counts = BlockCounts(
            process_index=self.spec.index,
            worker=f"{socket.gethostname()}/{os.getpid()}",
            stages=self._reader.take(),
            clock=self.output.clock,
            began_ns=self._began_ns,
            ended_ns=perf_counter_ns(),
            cpu_ns=process_time_ns() - self._cpu_ns,
            setup_ns=self._setup_ns,
        )
        self._setup_ns = 0
        self.output.clock = HopClock()
        self.output.builder.add_value(RowKind.COUNTS, counts)

    def run(self, steps: Iterator[None]) -> Iterator[Any]:
        """Run the steps and yield the blocks that they fill. An error becomes the last item row."""
        builder = self.output.builder
        try:
            for _ in steps:
                if builder.nbytes >= MAX_BLOCK_BYTES:
                    yield builder.build()
        except StageError as error:
            builder.add_value(RowKind.ERROR, _name_node(make_stage_error(error)))
        except UnpicklableResultError as error:
            builder.add_value(RowKind.ERROR, make_stage_error(self.stages[-1].record_failure((), error)))
        except UsageError as error:
            builder.add_value(RowKind.ERROR, UsageError(str(error)))
        self.add_counts()
        yield builder.build()


class SourceOperator:
    """Reads parts of the source, in a read task of Ray."""

    def __init__(self, packed: PackedOperator) -> None:
        """Build the source and its fused stages. Raises RunError if one cannot be built."""
        self._process = process = OperatorProcess(packed)
        spec = process.spec
        self._source = SourceReader(process.stages[0].target, spec.seed, spec.limit, spec.shard)
        if spec.source is not None:
            _check_source(spec.source, self._source.identify(), spec.plan.first_stage.row)
        self._runner = SourceRunner(self._source, process.stages, process.output)
        self._is_positioned = False

    def read(self, first_item: int, end_item: int | None) -> Iterator[Any]:
        """Yield blocks of the items from `first_item` up to `end_item`, or to the end of a stream if it is None."""
        self._process.begin_block()
        yield from self._process.run(self._iter_steps(first_item, end_item))

    def _iter_steps(self, first_item: int, end_item: int | None) -> Iterator[None]:
        if not self._is_positioned or not self._source.is_indexed:
            self._runner.seek(self._process.spec.epoch, first_item)
            self._is_positioned = True  # an indexed source needs no seek before later items
        item = first_item
        while (end_item is None or item < end_item) and self._runner.step(item):
            item += 1
            yield


def _check_source(expected: SourceIdentity, found: SourceIdentity, stage: str) -> None:
    """Raise RunError if the source on this node reads other data than in the caller's process: items would be lost."""
    kind = found.find_difference(expected)
    if not kind:
        return
    counts = f"{found.items} items there, {expected.items} in the calling process"
    difference = counts if kind == "items" else "file names or sizes differ from those in the calling process"
    message = (
        f"stage {stage}, worker 0: the source reads different data: {difference}; all nodes must see the same files"
    )
    raise _name_node(RunError(message, stage=stage, worker=0))


class StageOperator:
    """Runs the stages of a process on the items of blocks: a callable class for Ray's `map_batches`, in an actor."""

    def __init__(self, packed: PackedOperator) -> None:
        """Defer building the stages to the first call, so that its errors can travel in a row."""
        self._packed = packed
        self._process: OperatorProcess | None = None

    def __call__(self, table: Any) -> Iterator[Any]:
        """Yield the blocks that the stages make from one block."""
        if self._process is None:
            try:
                self._process = OperatorProcess(self._packed)
            except RunError as error:
                yield make_error_block(error)
                return
        self._process.begin_block()
        yield from self._process.run(self._iter_steps(self._process, table))

    @staticmethod
    def _iter_steps(process: OperatorProcess, table: Any) -> Iterator[None]:
        plan, output = process.spec.plan, process.output
        is_private = plan.copies_all_input
        stage_process = InlineStageProcess(process.stages, output)
        chain = StageChain(process.stages, output)
        for row in iter_rows(table):
            if row.kind is not RowKind.ITEM:
                output.builder.add_payload(row.kind, row.key, row.samples, row.payload)
                continue
            box = _decode(row, process, chain, is_private=is_private)
            if box is not None:
                stage_process.send_item(row.key, box, row.samples, b"")
                yield
        stage_process.finish_epoch()
        yield


class StageActor:
    """The class of a pool's actors: runs the stages of a process on one block at a time."""

    def __init__(self, packed: PackedOperator) -> None:
        """Defer building the stages, as `StageOperator` does."""
        self._operator = StageOperator(packed)

    def run(self, table: Any) -> list[Any]:
        """Return the blocks that the stages make from one block."""
        return list(self._operator(table))


def _decode(row: Row, process: OperatorProcess, chain: StageChain, *, is_private: bool) -> Box | None:
    """Return the item of a row in a box, or None if it cannot be read: that counts as a failure of the first stage."""
    try:
        value, decode_ns = decode_item(row.payload, copies=is_private, is_readonly=not is_private)
    except Exception as error:  # noqa: BLE001 - unpickling a user's class may raise anything
        chain.reject(row.key, error, (row.samples, b""))
        return None
    process.output.clock.add_received(row.sender_ns, decode_ns)
    return [value]


def unpack_operator(packed: PackedOperator) -> OperatorSpec:
    """Set the folder and import paths as in the caller, and return the spec of an operator."""
    with suppress(OSError):  # this node may not have the folder; absolute paths work without it
        os.chdir(packed.working_folder)
    known = set(sys.path)
    sys.path += [path for path in packed.sys_path if path not in known and Path(path).exists()]
    unpickler = pickle.Unpickler(BytesIO(packed.spec))
    spec: OperatorSpec = unpickler.load()
    install_main_objects(unpickler.load(), packed.main_pickles)
    if spec.config_dir is not None:
        add_import_path(spec.config_dir)
    return spec


def make_error_block(error: RunError) -> Any:
    """Return a block with only the error that ends the run."""
    builder = BlockBuilder()
    builder.add_value(RowKind.ERROR, error)
    return builder.build()


def _name_node(error: RunError) -> RunError:
    """Add this node to an error: a file or package may be missing on this node only."""
    place = f" (on node {socket.gethostname()})"
    error.args = (str(error).replace(error.message, error.message + place, 1),)
    error.message += place
    return error


def _limit_threads(count: int) -> None:
    """Set the threads of loaded libraries; other libraries read the environment, which Ray has set."""
    if "torch" in sys.modules:
        import torch

        torch.set_num_threads(count)
    cv2 = sys.modules.get("cv2")
    if cv2 is not None:
        cv2.setNumThreads(count)
