"""The config change to try for each kind of limit, or the reason why no change will help. Pure.

config_advice  `ConfigAdvice`: an override and its explanation
more_workers   as many workers as CPUs are free, or as the waiting allows
hop_changes    the other mode, fusing, less data
other_changes  the window, `memory`, threads, and what only a change of the code helps
"""

from stagepipe.report.advice.config_advice import NO_CHANGE, ConfigAdvice, count_workers, find_config_path, is_writer
from stagepipe.report.advice.hop_changes import advise_on_hop, advise_on_spilling
from stagepipe.report.advice.more_workers import advise_on_stage, advise_on_stages, can_have_workers
from stagepipe.report.advice.other_changes import (
    advise_on_full_machine,
    advise_on_item_sink,
    advise_on_memory,
    advise_on_order,
    advise_on_repeated_attempts,
    advise_on_source,
    advise_on_window,
)

__all__ = [
    "NO_CHANGE",
    "ConfigAdvice",
    "advise_on_full_machine",
    "advise_on_hop",
    "advise_on_item_sink",
    "advise_on_memory",
    "advise_on_order",
    "advise_on_repeated_attempts",
    "advise_on_source",
    "advise_on_spilling",
    "advise_on_stage",
    "advise_on_stages",
    "advise_on_window",
    "can_have_workers",
    "count_workers",
    "find_config_path",
    "is_writer",
]
