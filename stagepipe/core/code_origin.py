"""Whether code is an installed package's or the user's own. Pure."""

from __future__ import annotations

import os
import sys

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
