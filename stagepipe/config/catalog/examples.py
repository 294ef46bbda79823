"""Writes the entry of a config that uses a built-in, from its arguments. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from stagepipe.config.catalog.arguments import BuiltInArgument
from stagepipe.config.yaml import write_flow_yaml


def write_example(section: str, path: str, arguments: Sequence[BuiltInArgument]) -> str:
    """Return the YAML of an entry of `section` with the required arguments.

    >>> print(write_example("stages", "stagepipe.stages.Unbatch", ()))
    stages:
      - {name: unbatch, uses: stagepipe.stages.Unbatch}
    """
    values = {argument.name: argument.sample for argument in arguments if argument.is_required}
    entry: Mapping[str, Any] = {"uses": path, **({"with": values} if values else {})}
    if section == "stages":
        name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", path.rpartition(".")[2]).lower()
        return f"stages:\n  - {write_flow_yaml({'name': name, **entry})}"
    return f"{section}: {write_flow_yaml(entry)}"
