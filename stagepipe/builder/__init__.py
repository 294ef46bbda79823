"""The Python builder: a pipeline as a chain of typed calls. Makes the same config as YAML; runs in the user's process.

sources           `from_source` and `from_dataset`, which begin a builder
pipeline_builder  `PipelineBuilder`: the stages, and what can be done with the pipeline
parameters        the types of the builder's parameters
targets           functions, classes and instances as targets of stages
yaml_writer       the YAML of a builder
"""

from typing import TYPE_CHECKING

from stagepipe.core import lazy_names

if TYPE_CHECKING:
    from stagepipe.builder.pipeline_builder import PipelineBuilder
    from stagepipe.builder.sources import from_dataset, from_source

__all__ = ["PipelineBuilder", "from_dataset", "from_source"]

__getattr__ = lazy_names(
    __name__,
    {
        "PipelineBuilder": "pipeline_builder",
        "from_dataset": "sources",
        "from_source": "sources",
    },
)
