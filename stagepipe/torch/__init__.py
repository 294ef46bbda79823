"""Pipelines as torch data loaders. All code here runs in the training process, after the pipeline's last hop.

loader           `Loader`: one epoch per iteration, tensors over shared memory, state_dict; `StageDataset`: a `Loader`
                 for `torch.utils.data.DataLoader`
data_loader      `DataLoader`: torch's class with our workers, for scripts that keep their own loop
ranks            the rank and machine of this process, and the part of the source for a loader (`rank="auto"`)
transfer         turns arrays into tensors without a copy, page-locks their blocks, moves them to the device

`share="node"`: one pipeline per machine feeds all ranks of the machine. The first rank is the leader: it owns the
pipeline and dispatches its items. The other ranks are followers.

shared_pipeline  `SharedPipeline`: the pipeline of such a `Loader`      on every rank, training thread
leader           the first rank's endpoint, and the item dispatcher     leader, training and dispatcher thread
follower         every other rank's endpoint                            followers, training thread
rank_connection  the connections of ranks, and their messages           on every rank, training and listener thread

Items never travel on the connection. Each follower has its own packet pipe, and data in shared memory is passed on
without a copy. When a rank dies, the others notice immediately and report it by name.
"""

import re
from typing import Final

from stagepipe.core import install_command

MIN_TORCH_VERSION: Final = (2, 6)
"""As in the extra `torch` of pyproject.toml, which most installations do not use."""


def require_torch(version: str = "") -> None:
    """Raise ImportError if torch is missing or too old. `version` defaults to the version of the installed torch.

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


require_torch()  # first, because the modules below import torch

from stagepipe.torch.data_loader import DataLoader  # noqa: E402
from stagepipe.torch.loader import Loader, StageDataset  # noqa: E402

__all__ = ["DataLoader", "Loader", "StageDataset"]
