"""Says what a config accepts: the keys of the specs, and the types of their values. Pure.

Runs in the process that loads the config.

models       a pydantic model of each mapping, made from the keys of its spec
fields       the types of their values: validator, error messages and JSON Schema of each
json_schema  the JSON Schema of the models, for editors
"""

from stagepipe.config.schema.fields import InvalidValueError, format_kind, format_value, make_boolean_hint
from stagepipe.config.schema.json_schema import build_json_schema
from stagepipe.config.schema.models import MODEL_BY_MAPPING_PATH, ConfigModel, PipelineModel

__all__ = [
    "MODEL_BY_MAPPING_PATH",
    "ConfigModel",
    "InvalidValueError",
    "PipelineModel",
    "build_json_schema",
    "format_kind",
    "format_value",
    "make_boolean_hint",
]
