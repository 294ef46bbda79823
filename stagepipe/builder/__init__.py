"""The Python builder: a pipeline as a chain of typed calls. Makes the same config as YAML; runs in the user's process.

pipeline_builder  `from_source` and `from_dataset`, which begin a builder; `PipelineBuilder`: the stages, and methods
                  that run, check and write the pipeline
targets           functions, classes and instances as targets of stages, as text, and as YAML
"""

from stagepipe.builder.pipeline_builder import PipelineBuilder, from_dataset, from_source

__all__ = ["PipelineBuilder", "from_dataset", "from_source"]
