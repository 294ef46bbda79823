"""The identity of a pipeline as lines of text: equal lines mean equal items. Imports and runs no user code.

Config lines hold the settings: an import path as text, an object from Python as its fingerprint. Code lines hold the
contents of the user's files and the versions of installed packages. The code follows imports from file to file; it does
not walk folders or read installed packages. Users of the lines:

- a state, and the ranks that share a pipeline: the config. A stage with fixed code can resume.
- the `cache` of a stage: the config up to it, the code, and the data. The plan holds their digest as the fingerprint.
- the measured costs of a probe: the config and the code (`stagepipe.engine.cost_cache`).
- a journal: the file of each stage in the config, one by one, to warn of a change.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import importlib.metadata
import json
import os
import platform
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from sys import stdlib_module_names
from typing import Any, Final, NamedTuple

import numpy as np

from stagepipe.config import ModuleLocation, ModuleLocator, find_in_folders, find_installed_package, find_target_files
from stagepipe.core import PACKAGE_DIR, VERSION, UsageError, import_paths
from stagepipe.fingerprint import compute_fingerprint, describe_fingerprint, get_display_name, get_unknown_reason
from stagepipe.plan import UNSHARDED, CachePlan, Plan, Shard, StagePlan, split_source
from stagepipe.sources import ListedItems, identify_items
from stagepipe.spec import SOURCE_NAME, CacheSpec, PipelineSpec, StageSpec, Target

# ------------------------------------------------------------------ the config

PYTHON_KEY: Final = "python"
"""The line with the Python version, in descriptions with bytecode, which differs between versions."""

ORDER_POINTS_KEY: Final = "order_points"
"""The line with the number of order points, which determines the number of cursors in a position."""

_MAX_VALUE_CHARS: Final = 96
"""Maximum length of a config value. A longer value becomes its beginning and a hash."""

_PLAIN_TYPES: Final = (type(None), str, bytes, bool, int, float, range)

_ITEM_KEYS: Final = frozenset({"seed", "limit", "stages", PYTHON_KEY})
"""Lines for the whole pipeline that change the items, but not the meaning of a position."""


def describe_config(
    spec: PipelineSpec, limit: int | None, shard: Shard, *, with_contents: bool = True
) -> dict[str, str]:
    """Return a line for each setting, by the path of the setting.

    An object from Python has a line for each part of its fingerprint. Without `with_contents`, the description has only
    the object's name, and takes microseconds.
    """
    lines = {"seed": str(spec.seed), "order": spec.order, "limit": str(limit)}
    lines |= {key: str(value) for key, value in asdict(shard).items() if key != "rank"}
    lines[ORDER_POINTS_KEY] = str(sum(stage.is_order_point for stage in spec.stages))
    lines["stages"] = _shorten_value(" ".join(stage.name for stage in spec.stages if not stage.part_of))
    for stage in (spec.source, *spec.stages):
        path = SOURCE_NAME if stage.row == SOURCE_NAME else f"stages.{stage.name}"
        target = stage.target
        if stage.sink_path:  # `overwrite` is about the files of an earlier run
            target = Target(target.uses, {key: target.arguments[key] for key in target.arguments if key != "overwrite"})
        lines |= _describe_target(target, path, with_contents=with_contents)
        options = {"field": stage.field, "as": stage.as_, "into": stage.into, "batch": stage.batch and stage.batch.size}
        lines |= {f"{path}.{key}": _shorten_value(str(value)) for key, value in options.items() if value is not None}
        if isinstance(stage.when, Target):
            lines |= _describe_target(stage.when, f"{path}.when", with_contents=with_contents)
        elif stage.when is not None:
            lines[f"{path}.when"] = _describe_plain(stage.when)
        if stage.cache is not None and stage.cache.is_deterministic:
            lines[f"{path}.cache"] = "deterministic"
        if not stage.reseed:
            lines[f"{path}.reseed"] = "False"
    return lines


def is_position_key(path: str) -> bool:
    """Return whether a line changes the meaning of a position: the order, the shard, the number of order points.

    >>> is_position_key("order"), is_position_key("stages.decode.uses: code")
    (True, False)
    """
    return "." not in path and path not in _ITEM_KEYS


def _describe_target(target: Target, path: str, *, with_contents: bool) -> dict[str, str]:
    if isinstance(target.uses, str):
        lines = {f"{path}.uses": target.uses}
    else:
        lines = _describe_object(target.uses, f"{path}.uses", with_contents=with_contents)
    for key, value in target.arguments.items():
        place = f"{path}.with.{key}"
        is_plain = _is_plain(value)
        lines |= (
            {place: _describe_plain(value)} if is_plain else _describe_object(value, place, with_contents=with_contents)
        )
    return lines


def _describe_object(value: Any, path: str, *, with_contents: bool) -> dict[str, str]:
    if not with_contents:
        return {path: get_display_name(value)}
    fingerprint = compute_fingerprint(value)
    lines = describe_fingerprint(fingerprint, path)
    if fingerprint.has_bytecode:
        lines[PYTHON_KEY] = f"{sys.version_info.major}.{sys.version_info.minor}"
    return lines


def _is_plain(value: Any) -> bool:
    """Return whether a value could come from YAML."""
    if isinstance(value, Mapping):
        return all(map(_is_plain, value.values()))
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return type(value) in _PLAIN_TYPES


def _describe_plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return _shorten_value("{" + ", ".join(f"{key}: {_describe_plain(inner)}" for key, inner in value.items()) + "}")
    if isinstance(value, list | tuple):
        return _shorten_value(f"[{', '.join(map(_describe_plain, value))}]")
    return _shorten_value(repr(value))


def _shorten_value(text: str) -> str:
    if len(text) <= _MAX_VALUE_CHARS:
        return text
    return f"{text[: _MAX_VALUE_CHARS // 2]}... #{hashlib.sha256(text.encode()).hexdigest()[:12]}"


# ------------------------------------------------------------------ the code

MAX_FILES: Final = 2_000
"""Maximum number of user files to follow. Reading and parsing a file takes some milliseconds, which delays a start."""

_IMPORT_CALLS: Final = frozenset({"import_module", "__import__"})


class TooManyFilesError(Exception):
    """Code imports more than `MAX_FILES` files that are not installed."""


class _ImportedName(NamedTuple):
    """A name in an import. `level` is the number of leading dots. The last part may be a function or class."""

    level: int
    parts: tuple[str, ...]


class _ImportFollower:
    """Reads each user file once, into `digests`. `packages` are the top-level names of all other imported code."""

    def __init__(self, locator: ModuleLocator) -> None:
        self.digests: dict[Path, str] = {}
        self.packages: set[str] = set()
        self._locator = locator
        self._import_folders = [Path(os.path.abspath(folder)) for folder in locator.search_paths]  # noqa: PTH100
        self._pending: list[Path] = []
        self._is_own: dict[Path, bool] = {}
        self._package_folders: set[Path] = set()
        """Folders that were already searched for an `__init__`."""

    def follow(self, files: Iterable[Path]) -> None:
        for file in files:
            self._add(file)
        while self._pending:
            if sum(self._is_own.values()) > MAX_FILES:
                message = f"it imports more than {MAX_FILES:,} files that are not installed"
                raise TooManyFilesError(message)
            file = self._pending.pop()
            stat = file.stat()
            self.digests[file] = hashlib.sha256(file.read_bytes()).hexdigest()
            for name in _read_imports(file, stat.st_mtime_ns, stat.st_size):
                self._add_import(name, file)
            self._add_packages(file)

    def _add(self, file: Path) -> bool:
        """Add a file, and return whether it belongs to the user."""
        file = Path(os.path.abspath(file))  # noqa: PTH100 - relative imports start at a link, not at its target
        if file not in self._is_own:
            package = find_installed_package(file)
            self._is_own[file] = package is None
            if package is None:
                self._pending.append(_find_archive(file))
            else:
                self.packages |= {package} - stdlib_module_names
        return self._is_own[file]

    def _add_import(self, name: _ImportedName, importer: Path) -> None:
        """Add the file of a module and of the packages around it, because an import runs their `__init__` first."""
        is_found = False
        for location in self._iter_locations(name, importer):
            is_found = True
            if not (location.is_namespace if location.file is None else self._add(location.file)):
                return  # installed, or built into Python
        if not is_found and not name.level:
            self.packages |= {name.parts[0]} - stdlib_module_names

    def _iter_locations(self, name: _ImportedName, importer: Path) -> Iterator[ModuleLocation]:
        """Yield the location of each module in a dotted name, from the outermost package to the innermost module."""
        folders: Sequence[str] | None = None
        if name.level:
            folders = self._find_package_folders(importer, name.level)
        elif self._locator.find(name.parts[0]) is None:  # probably a script that extends `sys.path` at run time
            folders = [str(importer.parent), str(_find_top_folder(importer))]
        for number, part in enumerate(name.parts, start=1):
            dotted = ".".join(name.parts[:number])
            location = self._locator.find(dotted) if folders is None else find_in_folders(part, folders)
            if location is None:
                return
            yield location
            if folders is not None:
                folders = location.search_paths or ()

    def _find_package_folders(self, importer: Path, level: int) -> list[str]:
        """Return the package folders at which a relative import starts; without `__init__` there may be several."""
        if level > len(importer.parents):
            return []
        package = importer.parents[level - 1]
        if (package / "__init__.py").is_file():
            return [str(package)]
        portions = [
            folder / package.relative_to(inner)
            for inner in self._import_folders
            if package != inner and package.is_relative_to(inner)
            for folder in self._import_folders
        ]
        return [str(portion) for portion in dict.fromkeys([package, *portions])]

    def _add_packages(self, file: Path) -> None:
        """Add the `__init__` of each package around a file, up to the outermost import folder."""
        outermost = min((folder for folder in self._import_folders if folder in file.parents), key=_depth, default=None)
        for folder in file.parents:
            if folder == outermost or folder in self._package_folders:
                return
            self._package_folders.add(folder)
            init = folder / "__init__.py"
            if init.is_file():
                self._add(init)
            elif outermost is None:
                return


def _depth(folder: Path) -> int:
    return len(folder.parts)


def _find_archive(file: Path) -> Path:
    """Return the file itself, or the archive that contains it."""
    return next((path for path in (file, *file.parents) if path.is_file()), file)


def _find_top_folder(file: Path) -> Path:
    """Return the folder that contains the file's top-level package, or the file itself."""
    return next(folder for folder in file.parents if not (folder / "__init__.py").is_file() or folder == folder.parent)


@functools.lru_cache(maxsize=2 * MAX_FILES)
def _read_imports(file: Path, mtime_ns: int, size_bytes: int) -> frozenset[_ImportedName]:
    """Return the imported names of a file, including those in functions; nothing for a file that is not Python."""
    del mtime_ns, size_bytes  # cache keys: a changed file is parsed again
    with contextlib.suppress(SyntaxError, ValueError, RecursionError, MemoryError), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escapes; Python warns about them on import
        names = (name for node in ast.walk(ast.parse(file.read_bytes())) for name in _iter_names(node))
        return frozenset(name for name in names if name.parts and all(part.isidentifier() for part in name.parts))
    return frozenset()


def _iter_names(node: ast.AST) -> Iterator[_ImportedName]:
    match node:
        case ast.Import(names=names):
            yield from (_ImportedName(0, tuple(alias.name.split("."))) for alias in names)
        case ast.ImportFrom(module=module, names=names, level=level):
            parts = tuple(module.split(".")) if module else ()
            yield from (
                _ImportedName(level, (*parts, alias.name)[: -1 if alias.name == "*" else None]) for alias in names
            )
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=[ast.Constant(value=str(text)), *_]) if (
            name in _IMPORT_CALLS
        ):
            stripped = text.lstrip(".")
            yield _ImportedName(len(text) - len(stripped), tuple(stripped.split(".")))
        case ast.Assign(targets=[ast.Name(id="__all__")], value=ast.List(elts=parts) | ast.Tuple(elts=parts)):
            # `from package import *` imports the modules in the `__all__` of the package.
            texts = (part.value for part in parts if isinstance(part, ast.Constant))
            yield from (_ImportedName(1, (text,)) for text in texts if isinstance(text, str))


def describe_code(files: Iterable[Path], locator: ModuleLocator) -> dict[str, str]:
    """Return a line for each user file that `files` import, and for each imported installed package.

    Paths start at the common folder of all files, so a project may move. Swapping two files changes the lines.
    Raises OSError and `TooManyFilesError`.
    """
    follower = _ImportFollower(locator)
    follower.follow(files)
    digests = follower.digests
    shared = os.path.commonpath([file.parent for file in digests]) if digests else ""
    named = sorted((file.relative_to(shared).as_posix(), digest) for file, digest in digests.items())
    lines = {f"code.{number}": f"{name} {digest}" for number, (name, digest) in enumerate(named)}
    lines |= {f"version.{name}": version for name, version in _find_versions(follower.packages)}
    return lines | {
        "version.python": platform.python_version(),
        "version.stagepipe": VERSION,
        "version.numpy": np.__version__,
    }


def hash_lines(lines: Mapping[str, str]) -> str:
    """Return a digest of the lines, for the name of a file or folder."""
    return hashlib.sha256(json.dumps(lines, sort_keys=True).encode()).hexdigest()[:32]


def find_code_files(spec: PipelineSpec) -> tuple[Path, ...]:
    """Return the files that define the source, the stages and their conditions. The config's lines cover other code."""
    conditions = [stage.when for stage in spec.stages if isinstance(stage.when, Target)]
    targets = [spec.source.target, *(stage.target for stage in spec.stages), *conditions]
    return find_target_files(targets, spec.config_dir)


def _find_versions(packages: set[str]) -> Iterator[tuple[str, str]]:
    distributions = _map_packages(_read_path_times()) if packages else {}
    for package in sorted(packages):
        for distribution in sorted(set(distributions.get(package, []))):
            yield distribution, importlib.metadata.version(distribution)


def _read_path_times() -> tuple[tuple[str, int], ...]:
    """Return the import folders, and the time at which an entry in each was last added, renamed or removed."""
    times = []
    for folder in sys.path:
        with contextlib.suppress(OSError):
            times.append((folder, Path(folder).stat().st_mtime_ns))
    return tuple(times)


@functools.lru_cache(maxsize=1)
def _map_packages(_path_times: tuple[tuple[str, int], ...]) -> Mapping[str, list[str]]:
    """Return the distributions that provide each package. With hundreds of distributions, this takes half a second."""
    return importlib.metadata.packages_distributions()


# ------------------------------------------------------------------ the code of a stage, in a journal

_DIGEST_BYTES: Final = 8


def describe_stage_code(spec: PipelineSpec) -> dict[str, tuple[str, str]]:
    """Return the file of the source and of each stage, with its digest. Leaves out the files of this package."""
    targets = {"source": spec.source.target, **{f"stage {stage.name}": stage.target for stage in spec.stages}}
    code: dict[str, tuple[str, str]] = {}
    for place, target in targets.items():
        named = [Target(target.uses)] if isinstance(target.uses, str) else []
        for file in find_target_files(named, spec.config_dir):
            if not file.is_relative_to(PACKAGE_DIR) and (digest := _hash_file(file)):
                code[place] = (str(file), digest)
    return code


def find_changed_code(saved: Mapping[str, str], current: Mapping[str, tuple[str, str]]) -> list[str]:
    """Return the stages, with their file, whose file has another digest than in `saved`.

    >>> find_changed_code({"stage a": "12", "stage b": "34"}, {"stage a": ("a.py", "12"), "stage b": ("b.py", "56")})
    ['stage b (b.py)']
    """
    return [f"{place} ({file})" for place, (file, digest) in current.items() if saved.get(place, digest) != digest]


def _hash_file(file: Path) -> str:
    try:
        return hashlib.blake2b(file.read_bytes(), digest_size=_DIGEST_BYTES).hexdigest()
    except OSError:  # a module in an archive
        return ""


# ------------------------------------------------------------------ the cached outputs of a stage

_FETCH_STAGE: Final = "stagepipe.stages.Fetch"
_FORMAT_VERSION: Final = 1
_LINES_OF_ALL: Final = frozenset({"order", "limit", "world_size", "even", "items", "order_points", "stages"})
"""Lines of a description that do not change the output of a stage for an item."""


def plan_caches(spec: PipelineSpec, plan: Plan) -> Plan:
    """Return the plan with a `cache_plan` for each stage that has a `cache`.

    Reads the names and dates of the source's files, and the code of the stages. Raises UsageError for an object from
    Python that has no fingerprint.
    """
    spec = split_source(spec)
    if all(stage.cache is None for stage in spec.stages):
        return plan
    try:
        items = identify_items(spec.source.target.uses, spec.source.target.arguments)
    except Exception:  # noqa: BLE001 - the source raises it again in its own process, which reports it
        return plan
    locator = ModuleLocator(import_paths(spec.config_dir))
    processes = tuple(
        replace(process, stages=tuple(_plan_stage(stage, spec, items, locator) for stage in process.stages))
        for process in plan.processes
    )
    return replace(plan, processes=processes)


def _plan_stage(stage: StagePlan, spec: PipelineSpec, items: ListedItems | None, locator: ModuleLocator) -> StagePlan:
    cache = stage.cache
    if cache is None:
        return stage
    fingerprint = _compute_fingerprint(stage, cache, spec, items, locator)
    cache_plan = CachePlan(
        folder=Path(cache.path).expanduser().absolute() / f"{stage.name}-{fingerprint}",
        fingerprint=fingerprint,
        is_deterministic=cache.is_deterministic,
        identities=items,
        identifies_by_input=items is None and cache.is_deterministic and stage.target.label == _FETCH_STAGE,
    )
    return replace(stage, cache_plan=cache_plan)


def _compute_fingerprint(
    stage: StagePlan, cache: CacheSpec, spec: PipelineSpec, items: ListedItems | None, locator: ModuleLocator
) -> str:
    """Return the fingerprint of everything that determines the output of a stage for an item."""
    stages = spec.stages[: stage.index]
    until_here = replace(spec, stages=stages, sinks=())
    description = describe_config(until_here, None, UNSHARDED, with_contents=cache.key is None)
    lines = {key: line for key, line in description.items() if key not in _LINES_OF_ALL}
    if cache.is_deterministic:
        del lines["seed"]
    lines |= {f"stages.{number}": line for number, line in enumerate(map(_describe_settings, stages))}
    lines |= {"format": str(_FORMAT_VERSION), "data": "" if items is None else items.digest}
    example = f"`{stage.config_path}.cache={{path: {cache.path}, key: ...}}`"
    try:
        lines |= describe_code(find_code_files(until_here), locator) if cache.key is None else {"key": cache.key}
    except OSError as error:
        message = f"stage {stage.name}: its `cache` cannot read the code that it depends on: {error}"
        raise UsageError(message) from error
    except TooManyFilesError as error:
        raise UsageError(
            f"stage {stage.name}: its `cache` cannot tell whether its code has changed: {error}; set `key` to a "
            f"version that changes with the code: {example}"
        ) from error
    if unknown := [f"{key}: {reason}" for key, line in lines.items() if (reason := get_unknown_reason(line))]:
        raise UsageError(
            f"stage {stage.name}: its `cache` cannot tell whether this has changed:\n  "
            + "\n  ".join(unknown)
            + f"\nbuild such an object inside the stage, or set `key` to a version that changes with it: {example}"
        )
    return hash_lines(lines)


def _describe_settings(stage: StageSpec) -> str:
    """Describe the other settings that change a stage's results."""
    settings = (stage.name, stage.device, sorted(stage.env.items()), stage.allow_none, stage.mutable)
    return repr(settings if stage.group == 1 else (*settings, stage.group))
