"""Pipelines as torch data loaders. Everything here runs in the training process, behind the pipeline's last hop.

loader            `Loader`: one epoch per iteration, tensors over shared memory, state_dict
dataset           `StageDataset`: a `Loader` for `torch.utils.data.DataLoader`
rank_choice       which part of the source a loader takes: `rank="auto"`
tensors           turns the NumPy arrays of an item into tensors without a copy
transfer          moves tensors to pinned memory and to the device
pinning           page-locks shared-memory blocks for the GPU
minimum_version   refuses a torch that is too old
shared_pipeline/  `share="node"`: one pipeline for all ranks of a machine
"""

from stagepipe.torch.minimum_version import require_torch  # first: the others import torch

require_torch()

from stagepipe.torch.dataset import StageDataset  # noqa: E402
from stagepipe.torch.loader import Loader  # noqa: E402

__all__ = ["Loader", "StageDataset"]
