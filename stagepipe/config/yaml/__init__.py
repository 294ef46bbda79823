"""Parses configs into nodes that keep their source location. Knows no stages.

Runs in the process that loads the config.

parser      YAML text -> nodes, with syntax errors at their line and column
nodes       scalars, lists and mappings with a location; size limits
scalars     the type of an unquoted scalar (YAML 1.2)
overrides   `stages.decode.workers=8`
references  `${vars.x}` and `${env:NAME,default}`
text_edits  overrides -> the text of a file, whose comments stay
writer      plain values -> YAML
omegaconf   resolves the interpolations of an OmegaConf object
"""

from stagepipe.config.yaml.nodes import (
    ListNode,
    MapEntry,
    MapNode,
    Node,
    ScalarNode,
    SourceLocation,
    check_size,
    find_location,
    find_node,
    from_plain,
    is_null,
    iter_children,
    to_plain,
)
from stagepipe.config.yaml.omegaconf import OmegaConfResolver, is_omegaconf
from stagepipe.config.yaml.overrides import apply_overrides
from stagepipe.config.yaml.parser import parse_mapping, parse_value, read_file
from stagepipe.config.yaml.references import ReferenceResolver, resolve_environment
from stagepipe.config.yaml.text_edits import edit_text
from stagepipe.config.yaml.writer import write_flow_yaml, write_yaml

__all__ = [
    "ListNode",
    "MapEntry",
    "MapNode",
    "Node",
    "OmegaConfResolver",
    "ReferenceResolver",
    "ScalarNode",
    "SourceLocation",
    "apply_overrides",
    "check_size",
    "edit_text",
    "find_location",
    "find_node",
    "from_plain",
    "is_null",
    "is_omegaconf",
    "iter_children",
    "parse_mapping",
    "parse_value",
    "read_file",
    "resolve_environment",
    "to_plain",
    "write_flow_yaml",
    "write_yaml",
]
