"""Refuses a missing torch, and one that is older than the oldest that is tested. In the training process."""

from __future__ import annotations

import re
from typing import Final

from stagepipe.core import install_command

MIN_TORCH_VERSION: Final = (2, 6)
"""As in the extra `torch` of pyproject.toml, which most installations do not read."""


def require_torch(version: str = "") -> None:
    """Raise ImportError if torch is missing or too old. `version` is by default that of the torch that is installed.

    >>> require_torch("2.5.1+cpu")
    Traceback (most recent call last):
    ...
    ImportError: stagepipe.torch needs torch 2.6 or newer, found 2.5.1+cpu; install it with `pip install 'torch>=2.6'`
    """
    try:
        import torch
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ImportError(f"stagepipe.torch needs torch; install it with `{install_command('torch')}`") from error
    version = version or torch.__version__
    numbers = tuple(map(int, re.findall(r"\d+", version)[:2]))
    if numbers < MIN_TORCH_VERSION:
        minimum = ".".join(map(str, MIN_TORCH_VERSION))
        raise ImportError(
            f"stagepipe.torch needs torch {minimum} or newer, found {version}; install it with "
            f"`pip install 'torch>={minimum}'`"
        )
