"""Where code was defined: in a module that can be imported or not, and the name to show for it. Pure."""

from __future__ import annotations

import sys
from typing import Any

from stagepipe.core import get_recorded_module, is_installed


def is_importable(definition: Any) -> bool:
    """Whether a function or class can be imported by its name, so that it travels to workers by name.

    >>> import json
    >>> is_importable(json.dumps), is_importable(lambda: 0)
    (True, False)
    """
    if definition.__module__ in {None, "__main__"}:
        return False
    found: Any = sys.modules.get(definition.__module__)
    for name in definition.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is definition


def get_display_name(value: Any) -> str:
    """Return the name of a function or class, or of an object's class, with the module if it is installed.

    >>> import json
    >>> get_display_name(json.dumps), get_display_name([])
    ('json.dumps', 'list')
    """
    definition = value if hasattr(value, "__qualname__") and hasattr(value, "__name__") else type(value)
    module = getattr(definition, "__module__", None) or ""
    if module == "builtins":
        return str(definition.__qualname__)
    if module and is_installed(module):
        return f"{get_recorded_module(module)}.{definition.__qualname__}"
    return str(definition.__name__)
