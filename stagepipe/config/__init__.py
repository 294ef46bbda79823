"""Reads configs: YAML, mappings and OmegaConf objects become a checked PipelineSpec.

`load` reports all problems at once, each with its location. It imports no target, writes nothing and changes nothing.
It runs in the process that loads the config: the command line, or the program that builds the `Pipeline`. Workers never
import this package. In the list below, modules import only modules that follow them.

loading         `load`: all steps from a source to a spec; `edit_config`: overrides into the file
validation      checks keys, values and combinations of keys, and words the problems; summarizes a pipeline in one line
target_checks   checks `uses` and `with` against source files, without importing them
catalog         the built-ins with their arguments, for `stagepipe list`
dataset_source  the long form of `stagepipe.sources.dataset` and of record sources such as `stagepipe.sources.jsonl`
signatures      the parameters of a function or class, and the values that they accept
target_files    finds the files with the code of targets, and the packages that they import and this machine lacks
source_code     resolves import paths through source files
schema          every key with the type of its value, and the JSON Schema
value_types     the accepted values: validator, messages, JSON Schema
suggestions     hints for misspelt and foreign keys and values
text_edits      writes overrides into the text of a file, and keeps its comments
document        YAML -> nodes with locations, overrides and references; knows no stages
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
    from stagepipe.config.document import write_flow_yaml, write_yaml
    from stagepipe.config.loading import PythonCall, check_call, edit_config, load, locate_targets
    from stagepipe.config.schema import build_json_schema
    from stagepipe.config.source_code import ModuleLocation, ModuleLocator, find_in_folders
    from stagepipe.config.suggestions import find_option_key
    from stagepipe.config.target_files import find_installed_package, find_missing_packages, find_target_files
    from stagepipe.config.validation import find_spec_warnings, summarize_spec
    from stagepipe.config.value_types import check_address, check_trace_path

__all__ = [
    "BuiltIn",
    "BuiltInArgument",
    "BuiltInDescription",
    "BuiltInKind",
    "ModuleLocation",
    "ModuleLocator",
    "PythonCall",
    "build_json_schema",
    "check_address",
    "check_call",
    "check_trace_path",
    "describe_built_in",
    "edit_config",
    "find_in_folders",
    "find_installed_package",
    "find_missing_packages",
    "find_option_key",
    "find_spec_warnings",
    "find_target_files",
    "list_built_ins",
    "load",
    "locate_targets",
    "summarize_spec",
    "write_flow_yaml",
    "write_yaml",
]

__getattr__ = lazy_names(__name__, __file__)
