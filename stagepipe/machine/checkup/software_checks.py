"""Python, the required packages, torch and CUDA, and the folders that a run writes to. In `stagepipe doctor`."""

from __future__ import annotations

import importlib.util
import platform
import re
import sys
import tempfile
from collections.abc import Iterator
from importlib import metadata
from typing import Final

from stagepipe.core import DISTRIBUTION, VERSION, get_cache_dir, install_command
from stagepipe.machine.checkup.health_check import HealthCheck, failed, passed, warned
from stagepipe.machine.machine import detect_machine

_MIN_PYTHON: Final = (3, 11)
_MIN_TORCH: Final = (2, 6)
"""As in the extra `torch` of pyproject.toml."""
_REQUIREMENT: Final = re.compile(r"([\w.-]+)(?:>=([\d.]+))?")


def check_python() -> HealthCheck:
    """Check the version of the interpreter."""
    text = f"{platform.python_version()} ({sys.executable})"
    if sys.version_info < _MIN_PYTHON:  # a package of another Python may be on the path
        return failed("Python", text, f"use Python {'.'.join(map(str, _MIN_PYTHON))} or newer")
    return passed("Python", text)


def check_packages() -> HealthCheck:
    """Check that each required package is installed, in a version that is new enough."""
    shown, wrong = [f"stagepipe {VERSION}"], []
    for package, minimum in _iter_requirements():
        try:
            version = metadata.version(package)
        except metadata.PackageNotFoundError:
            wrong.append((f"{package} is missing", f"{package}>={minimum}"))
            continue
        if _split_version(version) < _split_version(minimum):
            wrong.append((f"{package} {version} is older than {minimum}", f"{package}>={minimum}"))
        shown.append(f"{package} {version}")
    if wrong:
        fix = f"pip install {' '.join(repr(requirement) for _, requirement in wrong)}"
        return failed("packages", "; ".join(text for text, _ in wrong), fix)
    return passed("packages", ", ".join(shown))


def check_torch() -> HealthCheck:
    """Import torch, if it is installed: a broken installation shows here and not in a worker."""
    if importlib.util.find_spec("torch") is None:
        return passed("torch", f"not installed; pipelines with tensors and models need it: {install_command('torch')}")
    try:
        import torch
    except (ImportError, OSError, RuntimeError) as error:
        return failed("torch", f"{type(error).__name__}: {error}", "pip install --force-reinstall 'torch>=2.6'")
    if _split_version(torch.__version__) < _MIN_TORCH:
        return warned("torch", f"{torch.__version__} is older than the oldest that is tested", install_command("torch"))
    build = "for the CPU" if torch.version.cuda is None else f"for CUDA {torch.version.cuda}"
    return passed("torch", f"{torch.__version__}, a build {build}")


def check_cuda() -> HealthCheck:
    """Compare the GPUs that the driver shows with those that torch can use."""
    name, devices = "CUDA", detect_machine().cuda_devices
    if not devices and importlib.util.find_spec("torch") is None:
        return passed(name, "no GPU; stages run on the CPU")
    try:
        import torch

        usable = torch.cuda.device_count() if torch.cuda.is_available() else 0
        names = [torch.cuda.get_device_name(index) for index in range(usable)]
    except (ImportError, OSError, RuntimeError) as error:
        return warned(name, f"{type(error).__name__}: {error}", "see the check of torch")
    if usable:
        return passed(name, ", ".join(names))
    if not devices:
        return passed(name, "no GPU; stages run on the CPU")
    if torch.version.cuda is None:
        fix = "install a build of torch for CUDA: https://pytorch.org/get-started/locally/"
        return warned(name, f"{len(devices)} GPUs, but torch is a build for the CPU", fix)
    fix = "check `nvidia-smi`: the driver may be older than torch's CUDA, or the container may lack the GPU"
    return warned(name, f"{len(devices)} GPUs, but torch can use none", fix)


def check_temporary_folder() -> HealthCheck:
    """Make a folder where the control channel binds its socket for a moment."""
    name = "temporary folder"
    try:
        with tempfile.TemporaryDirectory(prefix="stagepipe-doctor-") as folder:
            return passed(name, f"{folder.rpartition('/')[0]} is writable")
    except OSError as error:
        return warned(name, f"not writable: {error}", "set TMPDIR to a folder that is")


def check_cache_folder() -> HealthCheck:
    """Write a file where measured cost curves and indexes are kept."""
    name, folder = "cache folder", get_cache_dir()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return passed(name, f"{folder} is writable")
    except OSError as error:
        fix = "set XDG_CACHE_HOME to a folder that is; else each start measures the machine, which takes a second"
        return warned(name, f"{folder} is not writable: {error.strerror}", fix)


def _iter_requirements() -> Iterator[tuple[str, str]]:
    """Yield the name and the lowest version of each required package."""
    try:
        requirements = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:  # run from its folder, without an installation
        return
    for requirement in requirements:
        match = _REQUIREMENT.match(requirement)
        if match is not None and "extra ==" not in requirement:
            yield match[1], match[2] or "0"


def _split_version(version: str) -> tuple[int, ...]:
    """Return the numbers of a version, without what marks a build or a pre-release."""
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0])[:3])
