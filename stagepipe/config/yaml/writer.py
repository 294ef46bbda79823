"""Writes plain values as YAML that `parser` reads back unchanged. Pure.

Runs in the process that writes the config.
"""

from __future__ import annotations

from typing import Any

import yaml

from stagepipe.config.yaml.scalars import parse_scalar


def write_yaml(value: Any) -> str:
    """Return the YAML of dicts, lists, strings, numbers, booleans and None.

    >>> print(write_yaml({"size": [224, 224], "text": "1e3"}), end="")
    size: [224, 224]
    text: "1e3"
    """
    return yaml.dump(
        value, Dumper=_PlainDumper, sort_keys=False, default_flow_style=None, allow_unicode=True, width=120
    )


def write_flow_yaml(value: Any) -> str:
    """Return the YAML of a value in one line.

    >>> write_flow_yaml({"glob": "data/*.jpg", "sizes": [1, 2]})
    '{glob: data/*.jpg, sizes: [1, 2]}'
    """
    text = yaml.dump(
        value, Dumper=_PlainDumper, sort_keys=False, default_flow_style=True, allow_unicode=True, width=10**6
    )
    return text.removesuffix("\n").removesuffix("\n...")  # the end that YAML puts after a lone scalar


_UNICODE_LINE_BREAKS = frozenset("\x85\u2028\u2029")
"""YAML 1.1 reads them as the end of a line, and folds them: they need an escape, which only double quotes have."""


class _PlainDumper(yaml.SafeDumper):
    """Quotes what `parse_scalar` would read as another type, and repeats a value instead of naming it."""

    def ignore_aliases(self, data: Any) -> bool:
        del data
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    is_plain = isinstance(parse_scalar(text), str) and _UNICODE_LINE_BREAKS.isdisjoint(text)
    style = None if is_plain else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style)


_PlainDumper.add_representer(str, _represent_text)
