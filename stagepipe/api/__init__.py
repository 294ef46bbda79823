"""The public Python API: what a user's script imports. Runs in the user's process.

pipeline    `Pipeline`: a pipeline from a config or from Python objects; iterating yields its items
options     `StageOptions`, `SourceOptions`, `RunOptions`: keyword arguments of the Python builder
run_to_end  runs a pipeline into its sink, for `stagepipe run`
state_file  the file of `stagepipe run --resume`
"""

from typing import TYPE_CHECKING

from stagepipe.core import lazy_names

if TYPE_CHECKING:
    from stagepipe.api.options import RunOptions, SourceOptions, StageOptions
    from stagepipe.api.pipeline import Pipeline
    from stagepipe.api.run_to_end import run_to_sink
    from stagepipe.api.state_file import StateFile

__all__ = ["Pipeline", "RunOptions", "SourceOptions", "StageOptions", "StateFile", "run_to_sink"]

__getattr__ = lazy_names(
    __name__,
    {
        "Pipeline": "pipeline",
        "RunOptions": "options",
        "SourceOptions": "options",
        "StageOptions": "options",
        "StateFile": "state_file",
        "run_to_sink": "run_to_end",
    },
)
