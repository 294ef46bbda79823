"""Classes and functions of the caller's script or notebook (`__main__`), for the `__main__` of the workers.

cloudpickle sends them by value, so in a worker they belong to a module `__main__` that lacks them. Items are pickled by
name, so a worker could neither send nor receive an instance of these classes. Therefore each worker gets, under their
names, the objects to which its own stages refer, and pickles of the objects that items of other stages may need. It
unpickles these when an item needs one. Runs in the caller's process; workers must not import this module or
cloudpickle.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Container, Mapping
from pickle import PickleBuffer
from types import CodeType, FunctionType
from typing import Any, BinaryIO, Final

import cloudpickle

from stagepipe.core import SCRIPT_MODULES
from stagepipe.plan import Plan
from stagepipe.spec import Target
from stagepipe.transport import reduce_storage

_MAX_PICKLE_BYTES: Final = 1 << 20
"""A larger object of a script, such as a function with its model, goes only to the stages that refer to it."""


_UNKNOWN_FILE: Final = "<dynamic-code>"
"""cloudpickle's placeholder for the file of a function."""


class _CodePickler(cloudpickle.Pickler):  # type: ignore[misc]  # it has no types
    """Pickles as cloudpickle does, and keeps the files of functions: tracebacks name the files and show their lines."""

    def reducer_override(self, obj: Any) -> Any:
        """Restore the file of a code object, and let a tensor's memory be a buffer."""
        if not isinstance(obj, CodeType):
            return reduce_storage(obj) or super().reducer_override(obj)
        make_code, arguments = self.dispatch_table[CodeType](obj)
        return make_code, tuple(obj.co_filename if each == _UNKNOWN_FILE else each for each in arguments)


class MainObjectPickler(_CodePickler):
    """Pickles as cloudpickle does, and records the objects of `__main__` that it meets in `main_objects`.

    It uses qualified names, because cloudpickle loses the names of nested classes.
    """

    def __init__(self, file: Any, **options: Any) -> None:
        super().__init__(file, protocol=5, **options)
        script = sys.modules["__main__"]
        if script.__name__ == "__mp_main__":  # cloudpickle would send its objects by name
            cloudpickle.register_pickle_by_value(script)
        self.main_objects: dict[str, Any] = {}

    def reducer_override(self, obj: Any) -> Any:
        """Record a class or a function of `__main__`, and the class in which it is defined."""
        if isinstance(obj, type | FunctionType) and obj.__module__ in SCRIPT_MODULES:
            found: Any = sys.modules["__main__"]
            found_objects: dict[str, Any] = {}
            for part in obj.__qualname__.split("."):
                found = vars(found).get(part)
                if not isinstance(found, type | FunctionType) or found.__module__ not in SCRIPT_MODULES:
                    break
                found_objects[found.__qualname__] = found
            if found is obj:
                self.main_objects |= found_objects
        return super().reducer_override(obj)


class _KeepingPickler(MainObjectPickler):
    """Writes only the identity of objects that the reader already has."""

    def __init__(self, file: Any, kept: Container[int], **options: Any) -> None:
        super().__init__(file, **options)
        self._kept = kept

    def persistent_id(self, obj: Any) -> int | None:
        return id(obj) if id(obj) in self._kept else None


def dump_with_main_objects(
    value: Any,
    file: BinaryIO,
    keep_buffer: Callable[[PickleBuffer], Any] | None = None,
    kept: Container[int] = (),
) -> None:
    """Write two pickles, one after the other: `value`, and the objects of `__main__` in it by name.

    `keep_buffer` is called with each buffer. If it returns a false value, the buffer stays out of the file. If the
    identity of an object is in `kept`, only the identity is written.
    """
    options = {"buffer_callback": keep_buffer}
    pickler = _KeepingPickler(file, kept, **options) if kept else MainObjectPickler(file, **options)
    pickler.dump(value)
    pickler.dump(dict(pickler.main_objects))  # with the memo of the first, so that both have the same objects


def pickle_main_objects(plan: Plan) -> Mapping[str, bytes]:
    """Return a pickle of each top-level class and function of `__main__` to which the plan's stages refer.

    The stages themselves are left out, and so are objects that are large or cannot be pickled separately.
    """
    stages = [stage for process in plan.processes for stage in process.stages]
    targets = [stage.target for stage in stages]
    targets += [stage.when for stage in stages if isinstance(stage.when, Target)]
    if all(isinstance(target.uses, str) for target in targets) or not _has_classes():
        return {}
    pickler = MainObjectPickler(_LimitedFile(None), buffer_callback=lambda _: None)
    try:
        pickler.dump([(target.uses, target.arguments) for target in targets])
    except Exception:  # noqa: BLE001 - a user's pickling may raise anything; the start of that stage's worker reports it
        return {}
    stage_ids = {id(target.uses) for target in targets}
    objects_by_root: dict[str, dict[str, Any]] = {}
    for name, value in pickler.main_objects.items():
        if id(value) not in stage_ids:
            objects_by_root.setdefault(name.partition(".")[0], {})[name] = value
    pickles = {root: _pickle_limited(objects) for root, objects in objects_by_root.items()}
    return {root: data for root, data in pickles.items() if data}


def _has_classes() -> bool:
    """Whether the script or notebook defines a class."""
    return any(isinstance(value, type) and value.__module__ in SCRIPT_MODULES for value in _main_values())


def _main_values() -> list[Any]:
    return list(vars(sys.modules["__main__"]).values())


def _pickle_limited(value: Any) -> bytes:
    file = _LimitedFile(_MAX_PICKLE_BYTES)
    try:
        _CodePickler(file, protocol=5).dump(value)
    except Exception:  # noqa: BLE001 - too large, or a user's pickling may raise anything
        return b""
    return b"".join(file.parts)


class _LimitedFile:
    """Keeps written data, up to `max_bytes`. With None it keeps nothing and has no limit."""

    def __init__(self, max_bytes: int | None) -> None:
        self._bytes_left = max_bytes
        self.parts: list[bytes] = []

    def write(self, data: Any) -> None:
        """Keep `data`. Raises ValueError above the limit."""
        if self._bytes_left is None:
            return
        self._bytes_left -= len(data)
        if self._bytes_left < 0:
            message = "too large"
            raise ValueError(message)
        self.parts.append(bytes(data))
