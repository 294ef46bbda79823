"""Pipelines as torch data loaders. Everything here runs in the training process, behind the pipeline's last hop.

loader            `Loader`: one epoch per iteration, tensors over shared memory, state_dict
dataset           `StageDataset`: a `Loader` for `torch.utils.data.DataLoader`
tensors           turns the NumPy arrays of an item into tensors without a copy
transfer          moves tensors to pinned memory and to the device
pinning           page-locks shared-memory blocks for the GPU
shared_pipeline/  `share="node"`: one pipeline for all ranks of a machine
"""

from stagepipe.torch.dataset import StageDataset
from stagepipe.torch.loader import Loader

__all__ = ["Loader", "StageDataset"]
