"""Compiles `stagepipe/transport/_native.c` while a wheel is built, also an editable one.

Without a compiler, or without the headers of this Python, the wheel is pure Python and does the same, more slowly.
`STAGEPIPE_PURE=1` asks for that: such a wheel runs on every platform.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCE = Path("stagepipe/transport/_native.c")


class NativeHook(BuildHookInterface):
    """Adds the compiled module to the wheel if it can be compiled."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called before a wheel is built."""
        del version
        source = Path(self.root, SOURCE)
        compiled = source.with_name(source.stem + str(sysconfig.get_config_var("EXT_SUFFIX")))
        is_wanted = self.target_name == "wheel" and os.environ.get("STAGEPIPE_PURE", "0") in {"", "0"}
        if is_wanted and compile_module(source, compiled):
            build_data["artifacts"].append(str(compiled.relative_to(self.root)))
            build_data["pure_python"] = False
            build_data["infer_tag"] = True


def compile_module(source: Path, compiled: Path) -> bool:
    """Compile a C module with this Python's own compiler. Returns whether that was possible; if not, none is left."""
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    headers = sysconfig.get_path("include")
    if sysconfig.get_config_var("Py_GIL_DISABLED"):  # the module relies on the interpreter's lock
        return False
    made = compiled.with_suffix(".new")  # processes that run may have loaded the one before
    command = [*compiler, "-O2", "-shared", "-fPIC", f"-I{headers}", str(source), "-o", str(made)]
    compiled.unlink(missing_ok=True)
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        subprocess.run(command, capture_output=True, check=True)
        made.replace(compiled)
    return compiled.exists()
