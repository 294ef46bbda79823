"""From the words of a config to the object that a stage calls. Runs in workers (and inline); imports user code.

A path is `pkg.mod.name`, `pkg.mod:name.attr` or `./ops.py:name`. A file is loaded once a process, under a module name
from which any process can find the file again: so instances of its classes pickle between workers, whether or not the
receiver has loaded the file itself.
"""

from __future__ import annotations

import base64
import binascii
import difflib
import functools
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NamedTuple

from stagepipe.core.errors import StagepipeError

FILE_PREFIX: Final = "_stagepipe_file_"
"""Module names of files begin so; the file's stem and its path in base 32 follow."""


class TargetError(StagepipeError):
    """A target that cannot be imported or built; the message says what, and the nearest right word."""


def nearest(word: str, choices: Iterable[str]) -> str | None:
    """The one of `choices` that `word` was most likely meant to be, or None.

    >>> nearest("decod", ["encode", "decode"])
    'decode'
    """
    by_folded = {choice.casefold(): choice for choice in choices}
    found = difflib.get_close_matches(word.casefold(), list(by_folded), n=1, cutoff=0.6)
    return by_folded[found[0]] if found else None


def split_path(path: str) -> tuple[str, str | None]:
    """The part that names a module or a file, and what comes after the colon (None without one).

    >>> split_path("./ops.py:decode"), split_path("pkg.mod.name")
    (('./ops.py', 'decode'), ('pkg.mod.name', None))
    """
    head, colon, tail = path.rpartition(":")
    return (head, tail) if colon else (path, None)


def is_file(module: str) -> bool:
    """Whether the module part of a path names a file rather than a module."""
    return module.endswith(".py") or "/" in module


def resolve(path: str, config_dir: Path | None = None) -> object:
    """The object that `path` names. `config_dir` (put on the import path) is where relative files are looked for.

    >>> resolve("os.path:join").__name__
    'join'

    Raises TargetError; errors of the imported code itself are its cause.
    """
    module, attributes = split_path(path)
    _check_words(path, module, attributes)
    if config_dir is not None:
        add_import_path(config_dir)
    if is_file(module):
        return _walk(path, load_file(module, config_dir), (attributes or "").split("."))
    if attributes is not None:
        return _walk(path, _import(path, module), attributes.split("."))
    first, *rest = module.split(".")
    return _walk(path, _import(path, first), rest)


def _check_words(path: str, module: str, attributes: str | None) -> None:
    if module.partition(".")[0] == "__main__":
        raise TargetError(_itself(path))
    words = [] if is_file(module) else module.split(".")
    words += [] if attributes is None else attributes.split(".")
    if is_file(module) and attributes is None:
        message = f"`{path}` names a file only; add what to take from it: `{path}:function`"
        raise TargetError(message)
    if not all(word.isidentifier() for word in words):
        message = f"`{path}` is not an import path; write pkg.module.name, pkg.module:name or ./file.py:name"
        raise TargetError(message)


def _itself(path: str) -> str:
    return f"`{path}` is the running script itself; move the function to a module of its own"


def is_running_script(file: Path) -> bool:
    """Whether `file` is what runs as `__main__`: importing it again would run it again, in every worker."""
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    return main is not None and Path(main).resolve() == file.resolve()


def import_paths(config_dir: Path | None) -> list[str]:
    """`sys.path` with the config's folder before the installed packages and behind the standard library.

    Behind it, so that a `queue.py` beside a config does not break every library that imports `queue`.
    """
    if config_dir is None:
        return list(sys.path)
    folder = str(config_dir.resolve())
    if folder in sys.path:
        return list(sys.path)
    installed = (i for i, entry in enumerate(sys.path) if Path(entry).name in {"site-packages", "dist-packages"})
    at = next(installed, len(sys.path))
    return [*sys.path[:at], folder, *sys.path[at:]]


def add_import_path(config_dir: Path) -> None:
    """Put the config's folder on this process's import path, once."""
    sys.path[:] = import_paths(config_dir)


def is_there(file: Path) -> bool:
    """Whether there is such a file; a path that no file can have (one that is too long) has none."""
    try:
        return file.is_file()
    except OSError:
        return False


def file_path(file: str, config_dir: Path | None) -> Path:
    """Where the file of a target lies."""
    return ((config_dir or Path.cwd()) / file).resolve()


def load_file(file: str, config_dir: Path | None) -> ModuleType:
    """The module of a file, loaded once a process. Raises TargetError."""
    path = file_path(file, config_dir)
    if not is_there(path):
        near = nearest(path.name, (p.name for p in path.parent.glob("*.py")))
        message = f"no file `{path}`{_meant(near)}"
        raise TargetError(message)
    return _import(file, file_module_name(path))


def file_module_name(path: Path) -> str:
    """The module name of a file: the same in every process, and the path can be read back from it."""
    stem = re.sub(r"\W", "_", path.stem)
    code = base64.b32encode(str(path.resolve()).encode()).decode().rstrip("=").lower()
    return f"{FILE_PREFIX}{stem}_{code}"


class _FileFinder(importlib.abc.MetaPathFinder):
    """Finds modules named by `file_module_name`, so that unpickling in another process can import them."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        del path, target
        if not fullname.startswith(FILE_PREFIX):
            return None
        code = fullname.rpartition("_")[2].upper()
        try:
            file = Path(base64.b32decode(code + "=" * (-len(code) % 8)).decode())
        except (binascii.Error, UnicodeDecodeError):
            return None
        return importlib.util.spec_from_file_location(fullname, file) if file.is_file() else None


if not any(type(finder).__name__ == _FileFinder.__name__ for finder in sys.meta_path):
    sys.meta_path.append(_FileFinder())


def _import(path: str, name: str) -> ModuleType:
    if name not in sys.modules:
        _refuse_script(path, name)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            message = f"`{path}`: no module named `{error.name}`"
            raise TargetError(message) from error
        raise TargetError(_broken(path, name, error)) from error
    except Exception as error:
        raise TargetError(_broken(path, name, error)) from error


def _refuse_script(path: str, name: str) -> None:
    try:
        spec = importlib.util.find_spec(name) if "." not in name else None
    except (ValueError, ImportError):
        return
    if spec is not None and spec.origin is not None and is_running_script(Path(spec.origin)):
        raise TargetError(_itself(path))


def _broken(path: str, name: str, error: Exception) -> str:
    shown = "its file" if name.startswith(FILE_PREFIX) else f"`{name}`"
    return f"`{path}`: importing {shown} failed: {type(error).__name__}: {error}"


def _walk(path: str, found: object, words: Sequence[str]) -> object:
    """Follow attributes; what is no attribute of a package may be a module of it."""
    for word in words:
        try:
            found = getattr(found, word)
        except AttributeError as error:
            submodule = _submodule(path, found, word)
            if submodule is None:
                owner = getattr(found, "__name__", type(found).__name__)
                shown = Path(str(getattr(found, "__file__", owner))).name if owner.startswith(FILE_PREFIX) else owner
                message = f"`{path}`: {shown} has no `{word}`{_meant(nearest(word, dir(found)))}"
                raise TargetError(message) from error
            found = submodule
    return found


def _submodule(path: str, package: object, word: str) -> ModuleType | None:
    if not isinstance(package, ModuleType) or not hasattr(package, "__path__"):
        return None
    name = f"{package.__name__}.{word}"
    return None if importlib.util.find_spec(name) is None else _import(path, name)


def _meant(word: str | None) -> str:
    return f"; did you mean `{word}`?" if word else ""


def build(uses: object, arguments: Mapping[str, Any] | None = None, config_dir: Path | None = None) -> Any:
    """What a target runs: `uses` is an import path or an object, `arguments` its keyword arguments.

    A function gets its arguments bound; a class is built; a classmethod (`transformers.AutoTokenizer.from_pretrained`)
    is called once and its result is taken. Anything else (a dtype, an enum member) stands for itself. A mapping
    `{"uses": ..., "with": ...}` inside the arguments, at any depth, is built first by the same rule.

    >>> build("shutil.copy", {"follow_symlinks": False}).keywords
    {'follow_symlinks': False}

    Raises TargetError; what a class raises passes through, with a note that names it.
    """
    target = resolve(uses, config_dir) if isinstance(uses, str) else uses
    late = getattr(target, "built_late", ()) if inspect.isclass(target) else ()
    built = {
        key: Late(value, config_dir) if key in late else argument(value, config_dir)
        for key, value in (arguments or {}).items()
    }
    if is_called_once(target):
        return call_once(uses, target, built)
    if isinstance(target, ModuleType):
        message = f"`{uses}` is a module; name a function or a class in it"
        raise TargetError(message)
    if not built:
        return target
    if not callable(target):
        message = f"`{uses}` is {type(target).__name__}, which takes no arguments; remove `with`"
        raise TargetError(message)
    return functools.partial(target, **built)


class Late(NamedTuple):
    """An argument as the config holds it, for a class that names it in `built_late` and builds it itself."""

    value: Any
    config_dir: Path | None


def argument(value: Any, config_dir: Path | None) -> Any:
    """An argument with every mapping `{"uses": ..., "with": ...}` inside it built."""
    if isinstance(value, Mapping) and "uses" in value:
        extra = set(value) - {"uses", "with"}
        if extra:
            message = f"a mapping with `uses` takes only `with` besides it, found {sorted(map(str, extra))}"
            raise TargetError(message)
        return build(value["uses"], value.get("with"), config_dir)
    if isinstance(value, Mapping):
        return {key: argument(inner, config_dir) for key, inner in value.items()}
    if type(value) in {list, tuple}:
        return type(value)(argument(inner, config_dir) for inner in value)
    return value


def is_called_once(target: object) -> bool:
    """Whether a target is a class or a classmethod, which are called once with their arguments."""
    is_classmethod = inspect.isroutine(target) and inspect.isclass(getattr(target, "__self__", None))
    return inspect.isclass(target) or is_classmethod


def call_once(uses: object, target: Any, arguments: dict[str, Any]) -> Any:
    """The target called; what it raises passes through, with a note that names it."""
    try:
        return target(**arguments)
    except Exception as error:
        error.add_note(f"while building `{uses if isinstance(uses, str) else getattr(uses, '__qualname__', uses)}`")
        raise


def require_callable(stage: object, uses: object) -> Callable[..., Any]:
    """`stage` itself, if it can be called with an item. Raises TargetError."""
    if callable(stage):
        return stage
    message = f"`{uses}` gives {type(stage).__name__}, which cannot be called with an item; give it `__call__`"
    raise TargetError(message)


def is_generator(stage: object) -> bool:
    """Whether a stage gives many items for one: a generator function, a partial of one, or `__call__` being one.

    >>> def halves(item):
    ...     yield item / 2
    >>> is_generator(functools.partial(halves)), is_generator(len)
    (True, False)
    """
    while isinstance(stage, functools.partial):
        stage = stage.func
    call = inspect.getattr_static(type(stage), "__call__", None)
    return inspect.isgeneratorfunction(stage) or inspect.isgeneratorfunction(call)
