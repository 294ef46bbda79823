"""Resolves import paths by reading source files. Imports and runs no user code.

Runs in the process that loads the config.

Checking a config must be fast and free of side effects, even if importing its targets takes ten seconds. If the source
does not show the answer (C extensions, lazy modules, unknown decorators), the answer is UNDECIDED and the path passes.

locations        finds the files of modules by name
modules          parses modules, and lists the names that they bind
lookup           follows a dotted path to a definition, through re-exports and base classes
signatures       reads the parameters of a function or class
annotations      reads which plain values a parameter accepts
objects          looks up objects of the standard library, which are safe to import
streams          tells whether a dataset is iterable
class_attributes reads constants that a class has as attributes
"""

from stagepipe.config.static_analysis.annotations import (
    AcceptedValue,
    Annotation,
    Choice,
    ListOf,
    MappingOf,
    ValueKind,
    read_annotation,
)
from stagepipe.config.static_analysis.class_attributes import read_class_attribute
from stagepipe.config.static_analysis.locations import ModuleLocation, ModuleLocator, find_in_folders
from stagepipe.config.static_analysis.lookup import ConstantName, Definition, DefinitionLookup, MissingName
from stagepipe.config.static_analysis.modules import (
    BrokenSourceError,
    ImportedName,
    ModuleFinder,
    ParsedModule,
    resolve_relative_import,
)
from stagepipe.config.static_analysis.objects import StdlibObject, find_stdlib_object
from stagepipe.config.static_analysis.signatures import (
    Callee,
    CalleeKind,
    inspect_definition,
    inspect_object,
    inspect_user_object,
)
from stagepipe.config.static_analysis.streams import is_known_stream

__all__ = [
    "AcceptedValue",
    "Annotation",
    "BrokenSourceError",
    "Callee",
    "CalleeKind",
    "Choice",
    "ConstantName",
    "Definition",
    "DefinitionLookup",
    "ImportedName",
    "ListOf",
    "MappingOf",
    "MissingName",
    "ModuleFinder",
    "ModuleLocation",
    "ModuleLocator",
    "ParsedModule",
    "StdlibObject",
    "ValueKind",
    "find_in_folders",
    "find_stdlib_object",
    "inspect_definition",
    "inspect_object",
    "inspect_user_object",
    "is_known_stream",
    "read_annotation",
    "read_class_attribute",
    "resolve_relative_import",
]
