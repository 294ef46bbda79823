"""Stages that run a model. Run in any worker; they import torch.

module     `Module`: any torch.nn.Module
pipeline   `HuggingFacePipeline`: a pipeline of transformers, from a folder on this machine
inputs     stacks the values of several items into tensors
outputs    splits what a module returns into a result for each item
"""

from stagepipe.stages.optional_packages import requires

with requires("stagepipe.stages.model", extra="torch"):
    from stagepipe.stages.model.module import Module
    from stagepipe.stages.model.pipeline import HuggingFacePipeline

__all__ = ["HuggingFacePipeline", "Module"]
