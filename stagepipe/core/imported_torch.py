"""Whether this process uses torch. A fork server imports it once for all workers, and most have no stage that uses it.

Code can use an imported torch only by an attribute of one of its modules, also from `sys.modules` and in unpickling.
So until the first use the class of its modules is one that notes that. An import statement alone is no use.
"""

from __future__ import annotations

import copyreg
import sys
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any


class _TorchUse:
    """What is known of this process."""

    is_unused = False
    """Whether torch is imported and nothing has used it since."""
    on_first_use: Callable[[], None] | None = None


def watch_torch_use() -> None:
    """Take torch for unused until something reads an attribute of one of its modules.

    Called after its import by a process that has no other references to it.
    """
    _TorchUse.is_unused = "torch" in sys.modules
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "torch" and type(module) is ModuleType:
            module.__class__ = _UnusedModule


def get_used_torch(name: str = "torch") -> Any:
    """The module `torch`, or one of its modules, if it is imported and used; else None. Does not count as a use.

    >>> get_used_torch("torch.no_such_module") is None
    True
    """
    return None if _TorchUse.is_unused else sys.modules.get(name)


def call_at_first_use_of_torch(function: Callable[[], None]) -> None:
    """Call `function` when torch, unused until now, is about to be used. Replaces the function of before."""
    _TorchUse.on_first_use = function


class _UnusedModule(ModuleType):
    """A module of torch that becomes an ordinary one at its first use."""

    def __getattribute__(self, name: str) -> Any:
        if name == "__spec__":  # an import statement reads it, and nothing is used by that
            return ModuleType.__getattribute__(self, name)
        ModuleType.__setattr__(self, "__class__", ModuleType)
        if _TorchUse.is_unused:
            _TorchUse.is_unused = False
            if _TorchUse.on_first_use is not None:
                _TorchUse.on_first_use()
        return getattr(self, name)


def reduce_module(module: ModuleType) -> tuple[Callable[[str], Any], tuple[str]]:
    """Reduce a module of a class of ours for pickle: it is imported by its name."""
    return import_module, (module.__name__,)


copyreg.pickle(_UnusedModule, reduce_module)  # cloudpickle reduces modules, but looks them up by their exact class
