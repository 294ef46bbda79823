"""Engines: they run a Plan, yield its items and record the run. They run in the process that uses the pipeline.

engines        the interface of engines and their runs, and their capabilities
local          runs the stages in worker processes on this machine
inline         runs all stages in the calling process
inline_hops    the processes of a plan as function calls
ray/           runs the stages as operators of Ray Data
iteration      positions and iterations of a pipeline
state          converts a position to a state dict, and back
identity       config, code and data of a pipeline as lines of text, for states, caches and journals
auto_settings  chooses `workers: auto` from a probe; makes the forecast of `stagepipe plan`
cost_cache     keeps the measured costs of a probe for the next run with `auto`
determinism    runs the first few items several times and finds differences
probe          runs the first few items through real workers and measures them
metrics        the metrics of a run for Prometheus
recording      the live figures and histograms of a run -> RunRecord
scaling        moves workers between stages during a run
series         records a run over time, from its live figures
live_figures   a running run, from its board, in this or another process -> LiveRun
dead_letters   files of dead letters, and the source items to retry from them
"""

from typing import TYPE_CHECKING

from stagepipe.core import lazy_names

if TYPE_CHECKING:
    from stagepipe.engine.auto_settings import AutoWorkersResult, forecast_pipeline, resolve_auto_workers
    from stagepipe.engine.dead_letters import (
        decode_dead_letters,
        encode_dead_letters,
        load_retry_selection,
        write_dead_letters,
    )
    from stagepipe.engine.determinism import CHECKED_ITEMS, Nondeterminism, find_nondeterminism
    from stagepipe.engine.engines import (
        INLINE,
        Cluster,
        ClusterNode,
        Engine,
        EngineRun,
        EpochCancelledError,
        LostProcessError,
        RunOutputs,
        RunRequest,
        get_engine,
    )
    from stagepipe.engine.identity import describe_config, describe_stage_code, find_changed_code, plan_caches
    from stagepipe.engine.inline import InlineRun
    from stagepipe.engine.iteration import EpochIterator, EpochPosition, IterationState, PipelineState
    from stagepipe.engine.live_figures import LiveFigures
    from stagepipe.engine.local import LocalRun
    from stagepipe.engine.scaling import PolicyOverride, ScalingDecider
    from stagepipe.engine.state import (
        check_source,
        find_saved_skips,
        find_saved_source,
        make_state_dict,
        parse_state_dict,
    )

__all__ = [
    "CHECKED_ITEMS",
    "INLINE",
    "AutoWorkersResult",
    "Cluster",
    "ClusterNode",
    "Engine",
    "EngineRun",
    "EpochCancelledError",
    "EpochIterator",
    "EpochPosition",
    "InlineRun",
    "IterationState",
    "LiveFigures",
    "LocalRun",
    "LostProcessError",
    "Nondeterminism",
    "PipelineState",
    "PolicyOverride",
    "RunOutputs",
    "RunRequest",
    "ScalingDecider",
    "check_source",
    "decode_dead_letters",
    "describe_config",
    "describe_stage_code",
    "encode_dead_letters",
    "find_changed_code",
    "find_nondeterminism",
    "find_saved_skips",
    "find_saved_source",
    "forecast_pipeline",
    "get_engine",
    "load_retry_selection",
    "make_state_dict",
    "parse_state_dict",
    "plan_caches",
    "resolve_auto_workers",
    "write_dead_letters",
]

__getattr__ = lazy_names(__name__, __file__)
