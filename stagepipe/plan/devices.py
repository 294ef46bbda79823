"""Assigns GPUs to the workers of a stage. Pure; runs in the caller's process, while it plans."""

from __future__ import annotations

from stagepipe.core import UsageError
from stagepipe.spec import StageSpec


def assign_devices(stage: StageSpec, workers: int, available_devices: tuple[str, ...]) -> tuple[str, ...] | None:
    """Return the CUDA_VISIBLE_DEVICES of each worker, or None to leave the variable unchanged.

    `cuda` spreads the workers over all `available_devices`; each worker sees one, as its device `cuda`. `cuda:1` gives
    every worker the second device. `cpu` hides all devices.

    >>> from stagepipe.spec import Target
    >>> assign_devices(StageSpec(name="detect", target=Target("a.b"), device="cuda"), 3, ("0", "1"))
    ('0', '1', '0')

    Raises UsageError if the device does not exist.
    """
    device = stage.device
    if device is None:
        return None
    if device == "cpu":
        return ("",) * workers
    _, _, index = device.partition(":")
    if not available_devices:
        raise UsageError(
            f"{stage.config_path}.device: {device}, but no CUDA device is visible (looked at CUDA_VISIBLE_DEVICES and "
            f"/proc/driver/nvidia/gpus); set `{stage.syntax.format_setting('device', 'cpu')}`, or set no device"
        )
    if not index:
        return tuple(available_devices[worker % len(available_devices)] for worker in range(workers))
    if int(index) >= len(available_devices):
        last = len(available_devices) - 1
        existing = f"cuda:0 to cuda:{last} exist" if last else "cuda:0 exists"
        raise UsageError(f"{stage.config_path}.device: {device}, but only {existing}; choose an existing device")
    return (available_devices[int(index)],) * workers
