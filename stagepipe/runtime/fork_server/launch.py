"""Starts the fork server of a pipeline early: it and the caller import at the same time. In the caller's process."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from stagepipe.core import import_paths
from stagepipe.runtime.fork_server.registry import (
    Preload,
    end_spare_server,
    find_or_start_server,
    start_spare_server,
)

if TYPE_CHECKING:
    from stagepipe.plan import Plan
    from stagepipe.spec import PipelineSpec


def launch_spare_server() -> None:
    """Start a fork server while the config is still to be read, if this process has none yet. Waits for nothing."""
    if sys.platform == "linux" and sys.executable:
        with contextlib.suppress(OSError):  # the start of the workers meets it again, and says what to change
            start_spare_server()


def launch_fork_server(spec: PipelineSpec) -> None:
    """Start the server that will fork the workers of `spec`, if one does and it does not run yet. Waits for nothing."""
    if spec.start == "fork":
        with contextlib.suppress(OSError):  # as above
            find_or_start_server(find_preload(spec))
    else:
        end_spare_server()


def find_preload(plan: Plan | PipelineSpec) -> Preload:
    """Return what the plan's fork server imports: the modules of `preload`, and torch where a stage or the caller does.

    The user's modules are found where a worker finds them: on the caller's path and beside the config.
    """
    uses_torch = plan.uses_torch or "torch" in sys.modules
    modules = tuple(dict.fromkeys(["torch", *plan.preload] if uses_torch else plan.preload))
    import_path = tuple(entry or str(Path.cwd()) for entry in import_paths(plan.config_dir)) if plan.preload else ()
    return Preload(modules, import_path)
