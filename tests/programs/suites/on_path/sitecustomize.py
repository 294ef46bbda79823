"""Python imports this at its start, in each process of a suite: other libraries' classes become our adapters.

`STAGEPIPE_ADAPTERS` holds lines of `module:Class adapter-module:Adapter`. The class is replaced when its module is
imported, also in the processes that a test starts. The adapter itself is imported with the first object.
"""

import importlib
import importlib.abc
import importlib.machinery
import os
import sys
from types import ModuleType
from typing import Any

_REPLACED = [line.split() for line in os.environ.get("STAGEPIPE_ADAPTERS", "").splitlines()]
_IS_BROKEN = os.environ.get("STAGEPIPE_ADAPTERS_BROKEN") == "1"


class BrokenAdapterError(Exception):
    """Raised by each adapter of a run that shows which tests reach one."""


_ORIGINALS: dict[tuple[str, str], Any] = {}


def _make_stand_in(path: str) -> type:
    module, name = path.split(":")

    def make(_: type, *args: Any, **options: Any) -> Any:
        if _IS_BROKEN:
            raise BrokenAdapterError(path)
        return getattr(_import_adapter(module), name)(*args, **options)

    return type(name, (), {"__new__": make, "__class_getitem__": classmethod(lambda cls, _: cls)})


def _import_adapter(name: str) -> ModuleType:
    """Import an adapter, which may need the classes that it replaces: meanwhile they are in their places."""
    if name not in sys.modules:
        stand_ins = {place: getattr(sys.modules[place[0]], place[1]) for place in _ORIGINALS}
        for (where, attribute), original in _ORIGINALS.items():
            setattr(sys.modules[where], attribute, original)
        importlib.import_module(name)
        for (where, attribute), stand_in in stand_ins.items():
            setattr(sys.modules[where], attribute, stand_in)
    return sys.modules[name]


class _Loader(importlib.abc.Loader):
    def __init__(self, loader: importlib.abc.Loader) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:  # what importers ask a loader of files
        return getattr(self._loader, name)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        for target, path in _REPLACED:
            where, name = target.split(":")
            if where == module.__name__:
                _ORIGINALS[where, name] = getattr(module, name)
                setattr(module, name, _make_stand_in(path))


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, fullname: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if not any(fullname == replaced.split(":")[0] for replaced, _ in _REPLACED):
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


if _REPLACED:
    sys.meta_path.insert(0, _Finder())
