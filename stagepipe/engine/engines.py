"""The interface of engines: `Engine`, its runs, and the two engines for one machine.

Checking a config asks an engine for its capabilities, so each engine imports the code of a run only in `start`. To add
an engine, write a subclass of `Engine` whose `start` returns a subclass of `EngineRun`, and call `register_engine`. No
other code of stagepipe has to change. tests/foreign/threads_engine.py is an example.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

from stagepipe.core import RunError, UsageError
from stagepipe.spec import Capabilities, EngineDeclaration, EngineSpec, PipelineSpec, find_engine

if TYPE_CHECKING:
    from stagepipe.core import Cursor, SourceIdentity
    from stagepipe.plan import Plan
    from stagepipe.report import LiveRun, RunRecord
    from stagepipe.runtime import DeadLetterStore, OutputCallback
    from stagepipe.transport import Lease


@dataclass(frozen=True)
class RunOutputs:
    """Outputs that show a run: a file for its trace, and host and port for Prometheus. Each may be None."""

    trace_path: Path | None = None
    prometheus: tuple[str, int] | None = None


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """The request to run a plan. `spec` belongs to the plan: it has no `auto`, and has the options of the engine.

    `on_output` gets the text that workers print and log.
    """

    plan: Plan
    spec: PipelineSpec
    on_output: OutputCallback
    outputs: RunOutputs


class EpochCancelledError(RunError):
    """Another thread cancelled the epoch, because it wants no more items. The run has not failed."""


class EngineRun(ABC):
    """A run of a plan, as a pipeline uses it. A context manager; call `iter_epoch` once for each epoch."""

    plan: Plan
    has_written_trace: bool = False
    """Whether the run has ended and has written its trace."""
    _status: str = "finished"
    _error_message: str | None = None

    @property
    @abstractmethod
    def dead_letters(self) -> DeadLetterStore:
        """The items that failed and were skipped."""

    @abstractmethod
    def iter_epoch(self, epoch: int, cursor: Cursor | None = None) -> Generator[Any, None, None]:
        """Return an iterator over the items of an epoch, in order.

        It starts after `cursor`; engines that do not resume in mid-epoch get none. Iterating raises RunError if the run
        fails.
        """

    @abstractmethod
    def get_epoch_length(self) -> int | None:
        """Return the number of items in an epoch, or None if unknown. Waits until all stages are built."""

    @abstractmethod
    def wait_for_source(self) -> SourceIdentity | None:
        """Wait until the source is built, and return its identity; None if the run has failed before."""

    @abstractmethod
    def progress(self, *, detailed: bool = False) -> LiveRun:
        """Return the current figures of the run, or its last ones once it has ended.

        With `detailed`, they include percentiles and memory if the engine measures them.
        """

    @abstractmethod
    def make_record(self) -> RunRecord:
        """Return the counts so far, from which the report is made; after `close`, those of the whole run."""

    @abstractmethod
    def close(self) -> None:
        """End the run, and release its resources. The record stays."""

    def close_unattended(self) -> None:
        """Close the run when its pipeline is garbage-collected, or at interpreter exit."""
        self.close()

    @property
    def committed_cursor(self) -> Cursor | None:
        """The cursor of the last delivered item; None if the engine does not resume in mid-epoch."""
        return None

    def find_lease(self, address: int, nbytes: int) -> Lease | None:
        """Return the lease on the block that holds these bytes of a yielded item, or None if they are in no block."""
        del address, nbytes
        return None

    def count_files(self, files: int) -> None:
        """Take the number of files that sinks have written in this run. An engine may ignore it."""
        del files

    @contextmanager
    def noting_failures(self) -> Iterator[None]:
        """Note for the record if a Ctrl-C or a RunError ends the block, except for a cancelled epoch."""
        try:
            yield
        except EpochCancelledError:
            raise
        except RunError as error:
            self._status, self._error_message = "failed", str(error)
            raise
        except KeyboardInterrupt:
            self._status = "interrupted"
            raise

    def make_run_fields(self) -> dict[str, Any]:
        """Return the fields that the record of every run has: its status, error and dead letters."""
        return {
            "status": self._status,
            "error": self._error_message,
            "dead_letters": self.dead_letters.to_records(),
        }

    def __enter__(self) -> Self:
        """Return the run."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Close the run. The record shows an exception of the caller's block."""
        if self._status == "finished":
            self._status, self._error_message = describe_end(kind, error)
        self.close()


def describe_end(kind: type[BaseException] | None, error: BaseException | None) -> tuple[str, str | None]:
    """Return the status of a run whose `with` block ended with this exception, and the error message.

    >>> describe_end(ValueError, ValueError("no label")), describe_end(KeyboardInterrupt, None)
    (('failed', 'ValueError: no label'), ('interrupted', None))
    """
    if kind is None:
        return "finished", None
    if issubclass(kind, KeyboardInterrupt | GeneratorExit):
        return "interrupted", None
    return "failed", f"{kind.__name__}: {error}"


class Engine(EngineDeclaration, ABC):
    """Runs plans. Its attributes declare its capabilities and its options in a config."""

    @abstractmethod
    def start(self, request: RunRequest) -> EngineRun:
        """Start a run. Raises UsageError if the engine does not support the plan, RunError if the run cannot start."""

    def join_cluster(self, options: Mapping[str, Any]) -> Cluster:
        """Join or start a cluster, for an engine that replicates a pipeline instead of yielding items."""
        del options
        message = f"engine: {self.name} has no cluster"
        raise NotImplementedError(message)


def get_engine(spec: EngineSpec) -> Engine:
    """Return the engine of a spec."""
    engine = find_engine(spec.kind)
    if not isinstance(engine, Engine):
        message = f"engine: {spec.kind}: there is no such engine; register it with `register_engine`"
        raise UsageError(message)
    return engine


# ------------------------------------------------------------------ the engines of one machine


class LocalEngine(Engine):
    """Runs the stages in worker processes on this machine."""

    name = "local"
    title = "local"
    capabilities = Capabilities(
        resumes_in_mid_epoch=True, has_hops=True, forks_workers=True, shares_memory=True, shows_workers=True
    )

    def start(self, request: RunRequest) -> EngineRun:
        """Start the workers."""
        from stagepipe.engine import LocalRun

        return LocalRun(request.plan, request.on_output, request.outputs)


class InlineEngine(Engine):
    """Runs all stages in the calling process. `inline=True` selects it; configs cannot."""

    name = "inline"
    title = "inline"
    capabilities = Capabilities(calls_objects=True)
    phrase = "an inline"
    way_out = "remove `inline`"
    outputs_refusal = "an inline run has no worker processes to show"

    def start(self, request: RunRequest) -> EngineRun:
        """Build the stages."""
        from stagepipe.engine import InlineRun

        return InlineRun(request.plan)


LOCAL: Final = LocalEngine()
INLINE: Final = InlineEngine()


# ------------------------------------------------------------------ clusters


@dataclass(frozen=True)
class ClusterNode:
    """A live node: its id in the cluster, its address, and its CPUs and GPUs."""

    node_id: str
    address: str
    cpus: float
    gpus: float


class LostProcessError(RunError):
    """The remote process or its node has ended."""


class Cluster(Protocol):
    """The nodes on which an engine starts replicas of a pipeline: one actor each, which answers through references."""

    label: str
    """The prefix of its error messages."""

    def wait_for_free_cpus(self) -> tuple[float, float]:
        """Return the CPUs of the cluster, and the free ones once ended programs have released theirs."""

    def list_nodes(self) -> list[ClusterNode]:
        """Return the live nodes."""

    def start_actor(self, actor_class: type, arguments: tuple[Any, ...], node: ClusterNode, *, share: float) -> Any:
        """Start an actor on a node, with a share of its CPUs and GPUs."""

    def start_task(self, function: Callable[..., Any], arguments: tuple[Any, ...], node: ClusterNode) -> Any:
        """Call a function on a node."""

    def kill_actor(self, actor: Any) -> None:
        """Kill an actor immediately."""

    def wait(self, references: Sequence[Any], count: int, timeout_s: float) -> tuple[list[Any], list[Any]]:
        """Return the references that have an answer, and those that have none."""

    def get(self, reference: Any) -> Any:
        """Return an answer. Raises LostProcessError if the process is gone, and RunError for a remote error."""

    def close(self) -> None:
        """Leave the cluster, and end it if it was started here."""
