"""The public Python API, which a user's script imports. Runs in the user's process.

pipeline    `Pipeline`: a pipeline from a config or from Python objects; iterating yields its items
options     `StageOptions`, `SourceOptions`, `SinkOptions`, `RunOptions`: keyword arguments of the Python builder
shard_output  `ShardOutput`: the shards from sinks with workers, and their journal
run_to_end  runs a pipeline into its sink, for `stagepipe run`, and keeps the file of `--resume`
"""

from typing import TYPE_CHECKING

from stagepipe.core import lazy_names

if TYPE_CHECKING:
    from stagepipe.api.options import RunOptions, SinkOptions, SourceOptions, StageOptions
    from stagepipe.api.pipeline import Pipeline
    from stagepipe.api.run_to_end import StateFile, run_to_sink
    from stagepipe.api.shard_output import ShardOutput, has_part_sinks, open_shards

__all__ = [
    "Pipeline",
    "RunOptions",
    "ShardOutput",
    "SinkOptions",
    "SourceOptions",
    "StageOptions",
    "StateFile",
    "has_part_sinks",
    "open_shards",
    "run_to_sink",
]

__getattr__ = lazy_names(__name__, __file__)
