"""Reads configs: YAML, mappings and OmegaConf objects become a checked PipelineSpec.

`load` reports all problems at once, each with its location. It imports no target, writes nothing and changes nothing.
It runs in the process that loads the config: the command line, or the program that builds the `Pipeline`. Workers never
import this package. Lower modules do not import higher ones; the list goes from top to bottom.

loading          `load`: all steps from a source to a spec; `edit_config`: overrides into the file
python_calls     the calls of the Python builder as a config
merging          `extends`: merges a config over its base files
dataset_source   expands `stagepipe.sources.dataset` into a source of indices and a stage
record_sources   rewrites `stagepipe.sources.jsonl` and others as a dataset source
target_checks    checks `uses` and `with` against source files, without importing them
call_checks      checks the names and values of arguments against the signature of a target
argument_values  compares values with what a parameter accepts
dataset_arguments checks the arguments of `stagepipe.sources.dataset`
stage_traits     reads from source files whether a stage is an order point, and what it takes
missing_packages  finds what targets import and this machine lacks
target_files     finds the files that hold the code of targets
torch_use        reads from source files whether a target imports torch
cross_checks     checks combinations of keys
validation       checks keys and values, and words the problems
spec_builder     makes the spec of a checked config
config_hash      hashes a config, and its source
summary          prints a pipeline in one line, and warns about risky settings
catalog/         what is built in, with its arguments, for `stagepipe list`
suggestions      hints for misspelt and foreign keys and values
schema/          every key with the type of its value, and the JSON Schema
static_analysis/ resolves import paths through source files
yaml/            parses YAML, overrides and references; knows no stages
"""

from typing import TYPE_CHECKING

from stagepipe.core import lazy_names

if TYPE_CHECKING:
    from stagepipe.config.catalog import (
        BuiltIn,
        BuiltInArgument,
        BuiltInDescription,
        BuiltInKind,
        describe_built_in,
        list_built_ins,
    )
    from stagepipe.config.loading import edit_config, load, locate_targets
    from stagepipe.config.missing_packages import find_missing_packages
    from stagepipe.config.python_calls import PythonCall, check_call
    from stagepipe.config.schema import build_json_schema, check_address, check_trace_path
    from stagepipe.config.static_analysis import ModuleLocation, ModuleLocator, find_in_folders
    from stagepipe.config.suggestions import find_option_key
    from stagepipe.config.summary import find_spec_warnings, summarize_spec
    from stagepipe.config.target_files import NoFileError, find_target_files
    from stagepipe.config.yaml import write_yaml

__all__ = [
    "BuiltIn",
    "BuiltInArgument",
    "BuiltInDescription",
    "BuiltInKind",
    "ModuleLocation",
    "ModuleLocator",
    "NoFileError",
    "PythonCall",
    "build_json_schema",
    "check_address",
    "check_call",
    "check_trace_path",
    "describe_built_in",
    "edit_config",
    "find_in_folders",
    "find_missing_packages",
    "find_option_key",
    "find_spec_warnings",
    "find_target_files",
    "list_built_ins",
    "load",
    "locate_targets",
    "summarize_spec",
    "write_yaml",
]

__getattr__ = lazy_names(
    __name__,
    {
        "BuiltIn": "catalog",
        "BuiltInArgument": "catalog",
        "BuiltInDescription": "catalog",
        "BuiltInKind": "catalog",
        "ModuleLocation": "static_analysis",
        "ModuleLocator": "static_analysis",
        "NoFileError": "target_files",
        "PythonCall": "python_calls",
        "build_json_schema": "schema",
        "check_address": "schema",
        "check_call": "python_calls",
        "check_trace_path": "schema",
        "describe_built_in": "catalog",
        "edit_config": "loading",
        "find_in_folders": "static_analysis",
        "find_missing_packages": "missing_packages",
        "find_option_key": "suggestions",
        "find_spec_warnings": "summary",
        "find_target_files": "target_files",
        "list_built_ins": "catalog",
        "load": "loading",
        "locate_targets": "loading",
        "summarize_spec": "summary",
        "write_yaml": "yaml",
    },
)
