"""stagepipe: data preparation in stages, each in its own process, with every hop measured.

The layers, from the top; imports point down only, and siblings never import each other:

    cli/         the commands, one file each; no logic
    torch/       Loader and StageDataset: the training side
    engine/      a Plan in, items and a Report out: local (processes), inline (calls)
    runtime/     processes: supervisor, worker loop, control channel
    plan/        spec + machine -> Plan; calibration; negotiator
    report/      counters -> Report -> verdict; table
    config/      YAML -> spec, with positions; targets; overrides; schema
    stages/ sources/ sinks/    what users write, and the built-in ones
    transport/   packet pipe, arena, lease, codec, reordering: knows nothing of stages
    timing/      clock, histogram, board
    core/        errors, units, ids, targets, the context of a stage

What stands here is only re-exported. `Pipeline` is loaded when it is first asked for: workers do not need it.
"""

from typing import TYPE_CHECKING, Any

from stagepipe.core import (
    SKIP,
    VERSION,
    ConfigError,
    Context,
    RunError,
    StagepipeError,
    UsageError,
    context,
    empty,
)

if TYPE_CHECKING:
    from stagepipe.engine import Pipeline

__version__ = VERSION

__all__ = [
    "SKIP",
    "ConfigError",
    "Context",
    "Pipeline",
    "RunError",
    "StagepipeError",
    "UsageError",
    "__version__",
    "context",
    "empty",
]


def __getattr__(name: str) -> Any:
    if name == "Pipeline":
        from stagepipe.engine import Pipeline

        return Pipeline
    message = f"module 'stagepipe' has no attribute {name!r}"
    raise AttributeError(message)
