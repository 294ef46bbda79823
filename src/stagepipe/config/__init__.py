"""Configs: YAML, mappings and OmegaConf objects -> a checked PipelineSpec, or all that is wrong, each at its place.

Reading a config imports no target, writes nothing and changes nothing; `validate` and `run` both call `load`.

reading     YAML 1.2 words, positions, bounds       static/     import paths followed through source files
nodes       values that know where they stand       targets     `uses` and `with` against those
merging     `extends`                               checks      keys that do not go together
references  `${vars.x}`, `${env:X,default}`         later       what is not available yet
overrides   `stages.decode.workers=8`               words       the right word for a wrong one
models      every key (fields: every kind of value) validation  pydantic's findings in our words
schema      the JSON Schema of the models           convert     models -> spec
"""

import importlib
from typing import TYPE_CHECKING, Any

from stagepipe.config.spec import BatchSpec, Mode, PipelineSpec, ReportSpec, StageSpec, Target, TransportSpec

if TYPE_CHECKING:
    from stagepipe.config.json_schema import schema
    from stagepipe.config.loading import load
    from stagepipe.config.outlining import outline, remarks

__all__ = [
    "BatchSpec",
    "Mode",
    "PipelineSpec",
    "ReportSpec",
    "StageSpec",
    "Target",
    "TransportSpec",
    "load",
    "outline",
    "remarks",
    "schema",
]

# None of these modules is named as its function is: importing a module puts it into its package under its own name.
_READERS = {"load": "loading", "outline": "outlining", "remarks": "outlining", "schema": "json_schema"}


def __getattr__(name: str) -> Any:
    """The readers are loaded when they are asked for: workers need the spec's words, not pydantic and YAML."""
    if name in _READERS:
        return getattr(importlib.import_module(f"stagepipe.config.{_READERS[name]}"), name)
    message = f"module 'stagepipe.config' has no attribute {name!r}"
    raise AttributeError(message)
