"""Where code was defined: in an installed package, in a module that can be imported, or neither. Pure."""

from __future__ import annotations

import os
import sys
from typing import Any

_PACKAGE_FOLDERS = tuple(f"{os.sep}{name}{os.sep}" for name in ("site-packages", "dist-packages"))
_OWN_ROOT = __name__.partition(".")[0]


def is_installed(module_name: str) -> bool:
    """Whether a module belongs to the standard library or an installed package, so that only its version changes it.

    >>> is_installed("json.decoder"), is_installed("__main__")
    (True, False)
    """
    root = module_name.partition(".")[0]
    if root in sys.stdlib_module_names or root == _OWN_ROOT:
        return True
    if root in {"__main__", "__mp_main__"}:  # the script; its file may be that of an installed command
        return False
    module = sys.modules.get(module_name) or sys.modules.get(root)
    file = str(getattr(module, "__file__", None) or "")
    return any(folder in file for folder in _PACKAGE_FOLDERS)


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
    return f"{module}.{definition.__qualname__}" if module and is_installed(module) else str(definition.__name__)
