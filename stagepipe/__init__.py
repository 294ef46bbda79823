"""stagepipe: data preparation in stages, each in its own process, with every hop between them measured.

The layers, from top to bottom. A layer imports only from layers below it; folders on one line do not import each other.

    cli                      the commands, one file each, and their output
    builder                  `from_source(...).map(...)`: a pipeline as a chain of typed calls
    tuning                   measures a pipeline with one change after the other, and keeps improvements
    testing, torch           `run_stage` and crash points for tests; `Loader`, `StageDataset` for training
    api                      `Pipeline`; a run to its end, with a sink and a state file
    engine                   runs a plan: locally in processes, or inline; states, probes, and the data for reports
    runtime                  the processes of the local engine: supervisor, workers, consumer, and their protocol
    bench, forecast          the cost of a message on this machine; the cost of a run, before it runs
    calibration              measures this machine's cost curves and caches them
    report                   recorded counters -> report, verdict, advice; and its renderers
    plan                     spec + machine -> plan; starts no process
    costs                    cost curves, and the choice between pipe and shared memory; starts no process
    machine, starters        the resources and limits of this machine; the projects that `stagepipe init` writes
    config                   YAML, mappings and overrides -> spec; reports all mistakes at once, each with its place
    spec                     the frozen description of a pipeline that every layer above reads
    shards                   makes shards, exactly once, from the parts that workers of a sink write
    stages, sources, sinks   the built-in ones
    transport                packet pipes, shared-memory arenas, codecs, hops; does not know stages
    timing                   phases, histograms, and the board of shared counters
    core                     errors, units, ids, imports, a stage's context

`stagepipe.worker` and `stagepipe.worker_server` are entry points of processes and stand outside the layers.

This module re-exports every name from a layer below. It imports `Pipeline` and the builder at their first use, because
workers and modules of stage functions do not need them.
"""

from typing import TYPE_CHECKING

from stagepipe.core import (
    SKIP,
    VERSION,
    ConfigError,
    Context,
    Deferred,
    RunError,
    Skip,
    StagepipeError,
    UsageError,
    context,
    defer,
    empty,
    lazy_names,
)

if TYPE_CHECKING:
    from stagepipe.api import Pipeline
    from stagepipe.builder import PipelineBuilder, from_dataset, from_source

__version__ = VERSION

__all__ = [
    "SKIP",
    "ConfigError",
    "Context",
    "Deferred",
    "Pipeline",
    "PipelineBuilder",
    "RunError",
    "Skip",
    "StagepipeError",
    "UsageError",
    "__version__",
    "context",
    "defer",
    "empty",
    "from_dataset",
    "from_source",
]

__getattr__ = lazy_names(__name__, __file__)
