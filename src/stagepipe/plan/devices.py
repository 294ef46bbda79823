"""Which GPU each worker of a stage sees. Pure."""

from __future__ import annotations

from stagepipe.core import UsageError


def devices_of(stage: str, device: str | None, workers: int, found: tuple[str, ...]) -> tuple[str, ...] | None:
    """For each worker what its CUDA_VISIBLE_DEVICES is to be; None leaves it as it is.

    `cuda` spreads the workers over all of `found`, one visible to each, which it calls `cuda`; `cuda:1` gives all of
    them the second one; `cpu` shows them none. UsageError if there is no such device.

    >>> devices_of("detect", "cuda", 3, ("0", "1"))
    ('0', '1', '0')
    """
    if device is None:
        return None
    if device == "cpu":
        return ("",) * workers
    _, _, number = device.partition(":")
    if not found:
        raise UsageError(
            f"stages.{stage}.device: {device}, but no CUDA device is to be seen here (CUDA_VISIBLE_DEVICES, "
            "/proc/driver/nvidia/gpus); write `device: cpu`, or leave it out"
        )
    if not number:
        return tuple(found[worker % len(found)] for worker in range(workers))
    if int(number) >= len(found):
        seen = f"cuda:{len(found) - 1}" if len(found) > 1 else "one device, cuda:0"
        raise UsageError(f"stages.{stage}.device: {device}, but there is {'up to ' * (len(found) > 1)}{seen}")
    return (found[int(number)],) * workers
