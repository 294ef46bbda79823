"""Engines: they run a Plan, yield its items and record the run. Runs in the process that uses the pipeline.

local          runs the stages in worker processes on this machine
inline         runs all stages in the calling process
iteration      the epochs of a pipeline: which is next, which is under way
state          an iteration's position as a state dict, and back
state_schema   the types and ranges of what a state dict holds
config_description  what a state is compared by
auto_settings  chooses `workers: auto` from a probe; the forecast of `stagepipe plan`
probe          runs the first few items through real workers and measures them
monitor        memory and rates during the run
recording      a snapshot of the run -> RunRecord
hop_records    the hops of a RunRecord
item_rate      the rate that a progress bar shows
dead_letters   files of dead letters, and the source items to retry from one
"""

from stagepipe.engine.auto_settings import AutoWorkersResult, forecast_pipeline, resolve_auto_workers
from stagepipe.engine.config_description import describe_config
from stagepipe.engine.dead_letters import load_retry_selection, write_dead_letters
from stagepipe.engine.inline import InlineRun
from stagepipe.engine.iteration import EpochIterator, IterationState, PipelineState
from stagepipe.engine.local import LocalRun
from stagepipe.engine.state import EpochPosition, make_state_dict, parse_state_dict

__all__ = [
    "AutoWorkersResult",
    "EpochIterator",
    "EpochPosition",
    "InlineRun",
    "IterationState",
    "LocalRun",
    "PipelineState",
    "describe_config",
    "forecast_pipeline",
    "load_retry_selection",
    "make_state_dict",
    "parse_state_dict",
    "resolve_auto_workers",
    "write_dead_letters",
]
