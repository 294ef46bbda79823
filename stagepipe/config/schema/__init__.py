"""Says what a config accepts: the keys of the specs, and the types of their values. Pure.

Runs in the process that loads the config.

models       a pydantic model of each mapping, made from the keys of its spec
fields       the types of their values: validator, error messages and JSON Schema of each
json_schema  the JSON Schema of the models, for editors
"""

from typing import TYPE_CHECKING

from stagepipe.core import lazy_names

if TYPE_CHECKING:
    from stagepipe.config.schema.fields import InvalidValueError, format_value
    from stagepipe.config.schema.json_schema import build_json_schema
    from stagepipe.config.schema.models import (
        BatchModel,
        ConfigModel,
        PipelineModel,
        ReportModel,
        SourceModel,
        StageModel,
        TargetModel,
        TransportModel,
    )

__all__ = [
    "BatchModel",
    "ConfigModel",
    "InvalidValueError",
    "PipelineModel",
    "ReportModel",
    "SourceModel",
    "StageModel",
    "TargetModel",
    "TransportModel",
    "build_json_schema",
    "format_value",
]

__getattr__ = lazy_names(
    __name__,
    {
        "BatchModel": "models",
        "ConfigModel": "models",
        "InvalidValueError": "fields",
        "PipelineModel": "models",
        "ReportModel": "models",
        "SourceModel": "models",
        "StageModel": "models",
        "TargetModel": "models",
        "TransportModel": "models",
        "build_json_schema": "json_schema",
        "format_value": "fields",
    },
)
