"""Says what a config accepts: the keys of the specs, and the types of their values. Pure.

Runs in the process that loads the config.

models       a model of each mapping, made from the keys of its spec
fields       the types of the values that only some keys have
conditions   the type of `when`
outputs      the types of the trace and the address in `report`
engines      the types of `engine` and `resources`
value_types  what a type is: validator, error messages and JSON Schema; and the types that any key may have
checking     checks a config against the models
json_schema  the JSON Schema of the models, for editors
"""

from stagepipe.config.schema.checking import ConfigPath, Mistake, MistakeKind, check_pipeline
from stagepipe.config.schema.conditions import names_predicate
from stagepipe.config.schema.json_schema import build_json_schema
from stagepipe.config.schema.models import MODEL_BY_MAPPING_PATH
from stagepipe.config.schema.outputs import check_address, check_trace_path
from stagepipe.config.schema.value_types import InvalidValueError, format_kind, format_value, make_boolean_hint

__all__ = [
    "MODEL_BY_MAPPING_PATH",
    "ConfigPath",
    "InvalidValueError",
    "Mistake",
    "MistakeKind",
    "build_json_schema",
    "check_address",
    "check_pipeline",
    "check_trace_path",
    "format_kind",
    "format_value",
    "make_boolean_hint",
    "names_predicate",
]
