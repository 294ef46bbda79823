"""The processes of a local run: the supervisor, its workers and the caller's reader.

The supervisor is a thread in the caller's process. Each worker is a separate process. The consumer reads on the
caller's own thread. The folders, from top to bottom (import-linter enforces the order):

snapshot      the data of a run for all other modules, as frozen values; in the caller's process
consumer      reads the last hop and delivers items in order; in the caller's process
supervisor    starts, restarts and ends workers; in the caller's process
worker        the main loop of a worker process and its roles: source, stage, order point
dead_letters  skipped items: written in the process where they failed, kept in the caller's process
fork_server   forks workers in milliseconds, from a process that has imported their modules
execution     runs stages, sources, retries and seeding on items; in workers and inline
flow          backpressure, and leases on blocks of older eras; in workers and in the caller's process
attach        attaches another process to a run: a private socket hands out descriptors; both ends
logs          carries output and log records from the workers to the caller
protocol      messages, worker specs, lineage, keys and errors; shared by all processes
"""

from typing import TYPE_CHECKING

from stagepipe.core import lazy_names

if TYPE_CHECKING:
    from stagepipe.runtime.attach import (
        AttachedRun,
        FoundRuns,
        ProcessDescription,
        RunDescription,
        describe_run,
        find_runs,
        read_peer_credentials,
    )
    from stagepipe.runtime.consumer import (
        Consumer,
        DeliverySnapshot,
        DeliveryStatistics,
        MemoryHandle,
        read_deliveries,
    )
    from stagepipe.runtime.dead_letters import DeadLetterStore, DeadLetterWriter
    from stagepipe.runtime.execution import (
        Box,
        ChunkInHand,
        IsolatedGenerators,
        ItemHeader,
        OrderedGrouping,
        Route,
        SourceReader,
        SourceRunner,
        StageChain,
        StageError,
        StageRunner,
        as_only_rank,
        install_lazy_seeding,
        make_private_stage_region,
    )
    from stagepipe.runtime.flow import SMALL_ITEM_BUDGET_BYTES, HeldMemoryLimit
    from stagepipe.runtime.fork_server import (
        end_spare_server,
        launch_fork_server,
        launch_spare_server,
        leave_caller,
        serve_forks,
    )
    from stagepipe.runtime.logs import OutputCallback, OutputLine, forward_output
    from stagepipe.runtime.protocol import (
        Cardinality,
        DeadLetterEvent,
        ItemDigestEvent,
        ProbeSample,
        UnpicklableResultError,
        count_outputs,
        dump_with_main_objects,
        find_unpicklable_stage,
        format_error,
        format_key,
        format_user_traceback,
        pickle_main_objects,
    )
    from stagepipe.runtime.snapshot import (
        HopTimings,
        RunTimings,
        StageTimings,
        read_run_timings,
        read_trace_tracks,
        take_run_timings,
    )
    from stagepipe.runtime.supervisor import (
        WORKER_START_HOOK,
        ChangeCause,
        StallRestart,
        Supervisor,
        WorkerChange,
        WorkerRestart,
        compute_wanted_bytes,
    )
    from stagepipe.runtime.worker import install_main_objects, worker_main

__all__ = [
    "SMALL_ITEM_BUDGET_BYTES",
    "WORKER_START_HOOK",
    "AttachedRun",
    "Box",
    "Cardinality",
    "ChangeCause",
    "ChunkInHand",
    "Consumer",
    "DeadLetterEvent",
    "DeadLetterStore",
    "DeadLetterWriter",
    "DeliverySnapshot",
    "DeliveryStatistics",
    "FoundRuns",
    "HeldMemoryLimit",
    "HopTimings",
    "IsolatedGenerators",
    "ItemDigestEvent",
    "ItemHeader",
    "MemoryHandle",
    "OrderedGrouping",
    "OutputCallback",
    "OutputLine",
    "ProbeSample",
    "ProcessDescription",
    "Route",
    "RunDescription",
    "RunTimings",
    "SourceReader",
    "SourceRunner",
    "StageChain",
    "StageError",
    "StageRunner",
    "StageTimings",
    "StallRestart",
    "Supervisor",
    "UnpicklableResultError",
    "WorkerChange",
    "WorkerRestart",
    "as_only_rank",
    "compute_wanted_bytes",
    "count_outputs",
    "describe_run",
    "dump_with_main_objects",
    "end_spare_server",
    "find_runs",
    "find_unpicklable_stage",
    "format_error",
    "format_key",
    "format_user_traceback",
    "forward_output",
    "install_lazy_seeding",
    "install_main_objects",
    "launch_fork_server",
    "launch_spare_server",
    "leave_caller",
    "make_private_stage_region",
    "pickle_main_objects",
    "read_deliveries",
    "read_peer_credentials",
    "read_run_timings",
    "read_trace_tracks",
    "serve_forks",
    "take_run_timings",
    "worker_main",
]

__getattr__ = lazy_names(__name__, __file__)
