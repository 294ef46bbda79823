"""The training side: pipelines as data loaders, on the training process's side of the last hop.

loader    `Loader`: an epoch an iteration, tensors over shared memory, state_dict
node      `share="node"`: one pipeline for all ranks of a machine
dataset   `StageDataset`: the same for `torch.utils.data.DataLoader`
tensors   NumPy arrays in an item become tensors without a copy
transfer  from there to pinned memory and to the device
"""

from stagepipe.torch.dataset import StageDataset
from stagepipe.torch.loader import Loader

__all__ = ["Loader", "StageDataset"]
