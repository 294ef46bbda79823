"""Which transport a hop takes, and why in words. Pure: cost curves in, choice and reason out."""

from __future__ import annotations

from dataclasses import dataclass

from stagepipe.core.units import format_bytes, format_ns
from stagepipe.plan.curves import Curves
from stagepipe.transport import PACKET_BYTES

FITS_BYTES = PACKET_BYTES - 512
"""What a packet holds beside its head and the pickle of a small dict."""
FORCED_PIPE = 1 << 62


@dataclass(frozen=True)
class Choice:
    """The mode of a hop, the size from which a buffer goes to shared memory, and the reason."""

    mode: str
    threshold_bytes: int
    reason: str
    large_in_pipe: bool = False


def negotiate(mode: str, threshold_bytes: int | None, workers: tuple[int, int], curves: Curves) -> Choice:
    """Choose for a hop between `workers` processes on its two sides.

    >>> curves = Curves((512, 2048, 4096), (9000, 9500, 40000), (15000, 15000, 15000))
    >>> negotiate("auto", None, (1, 1), curves).mode
    'auto'
    """
    if mode == "pipe":
        single = workers == (1, 1)
        reason = "forced by the config" + ("" if single else "; what does not fit a packet takes shared memory")
        return Choice("pipe", FORCED_PIPE, reason, large_in_pipe=single)
    if mode == "shared_memory":
        return Choice("shared_memory", 1, "forced by the config")
    if threshold_bytes is not None:
        return Choice("auto", max(threshold_bytes, 1), f"threshold {format_bytes(threshold_bytes)} from the config")
    threshold = min(curves.crossing_bytes(), FITS_BYTES)
    return Choice("auto", threshold, f"from {format_bytes(threshold)} up: {_compared(curves, threshold)}")


def _compared(curves: Curves, nbytes: float) -> str:
    return (
        f"shared memory {format_ns(curves.shared_memory(nbytes))}, pipe {format_ns(curves.pipe(nbytes))} "
        "measured on this machine"
    )


def explain(choice_reason: str, mode: str, mean_bytes: int, curves: Curves) -> str:
    """The reason once the sizes are known: `1.2 MB a message: shared memory 46 us, pipe 2.1 ms`."""
    figures = (
        f"{format_bytes(mean_bytes)} a message: shared memory {format_ns(curves.shared_memory(mean_bytes))}, "
        f"pipe {format_ns(curves.pipe(mean_bytes))}"
    )
    return figures if mode == "auto" else f"{choice_reason}; {figures}"
