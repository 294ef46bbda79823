"""Measures the cost of carrying a message on this machine, on a real hop to another process and back.

round_trip      the hop: the side in the caller's process, and the echo process that sends messages back
measurement     measures all transfer kinds and sizes within a second and fits the curves
cache           keeps the curves in the user's cache folder
"""

from typing import TYPE_CHECKING

from stagepipe.core import lazy_names

if TYPE_CHECKING:
    from stagepipe.calibration.cache import load_cached_curves, load_curves, make_cache_key, save_curves
    from stagepipe.calibration.measurement import (
        TIMING_OVERHEAD_METHOD,
        fit_curves,
        make_multi_buffer_item,
        select_single_buffer,
    )
    from stagepipe.calibration.round_trip import RESPONSE_TIMEOUT_S, WORK_BUFFER_BYTES, RoundTrip, simulate_stage_work

__all__ = [
    "RESPONSE_TIMEOUT_S",
    "TIMING_OVERHEAD_METHOD",
    "WORK_BUFFER_BYTES",
    "RoundTrip",
    "fit_curves",
    "load_cached_curves",
    "load_curves",
    "make_cache_key",
    "make_multi_buffer_item",
    "save_curves",
    "select_single_buffer",
    "simulate_stage_work",
]

__getattr__ = lazy_names(__name__, __file__)
