"""Refuses a torch that is older than the oldest one that is tested. In the training process."""

from __future__ import annotations

import re
from typing import Final

import torch

MIN_TORCH_VERSION: Final = (2, 6)
"""As in pyproject.toml, which an installation without dependencies does not read."""


def require_torch(version: str = torch.__version__) -> None:
    """Raise ImportError if `version` is older than the oldest that is supported.

    >>> require_torch("2.5.1+cpu")
    Traceback (most recent call last):
    ...
    ImportError: stagepipe.torch needs torch 2.6 or newer, found 2.5.1+cpu; install it with `pip install 'torch>=2.6'`
    """
    numbers = tuple(map(int, re.findall(r"\d+", version)[:2]))
    if numbers < MIN_TORCH_VERSION:
        minimum = ".".join(map(str, MIN_TORCH_VERSION))
        raise ImportError(
            f"stagepipe.torch needs torch {minimum} or newer, found {version}; install it with "
            f"`pip install 'torch>={minimum}'`"
        )
