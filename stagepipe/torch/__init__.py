"""Pipelines as torch data loaders. Everything here runs in the training process, behind the pipeline's last hop.

loader           `Loader`: one epoch per iteration, tensors over shared memory, state_dict; `StageDataset`: a `Loader`
                 for `torch.utils.data.DataLoader`
data_loader      `DataLoader`: torch's class with our workers, for scripts that keep their own loop
ranks            which part of the source a loader takes: `rank="auto"`; which rank of which machine this process is
transfer         turns arrays into tensors without a copy, page-locks their blocks, moves them to the device

`share="node"`: one pipeline per machine that feeds all of the machine's ranks. The first rank is the leader: it owns
the pipeline and dispatches its items. The other ranks are followers.

shared_pipeline  `SharedPipeline`: what a `Loader` iterates over        on every rank, training thread
leader           the first rank's endpoint, and what sends the items    leader, training thread and the dispatcher's
follower         every other rank's endpoint                            followers, training thread
rank_connection  how ranks connect, and what they say to each other     on every rank, training and listener thread

Items never travel on the connection. Each follower has its own packet pipe, and what lies in shared memory is passed on
without a copy. When a rank dies, the others see it at once and report it by name.
"""

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


require_torch()  # first: the others import torch

from stagepipe.torch.data_loader import DataLoader  # noqa: E402
from stagepipe.torch.loader import Loader, StageDataset  # noqa: E402

__all__ = ["DataLoader", "Loader", "StageDataset"]
