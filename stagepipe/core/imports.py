"""Imports the targets that a config names. Runs in workers and inline, and imports user code.

A target path is `pkg.mod.name`, `pkg.mod:name.attr` or `./ops.py:name`. A process loads a file once, under a module
name that contains the file's path. Another process can therefore unpickle instances of its classes, even if it has not
loaded the file.
"""

from __future__ import annotations

import base64
import binascii
import difflib
import functools
import importlib
import importlib.machinery
import importlib.util
import itertools
import os
import re
import shlex
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Final

from stagepipe.core.errors import StagepipeError, UsageError
from stagepipe.core.package import DISTRIBUTION

FILE_MODULE_PREFIX: Final = "_stagepipe_file_"
"""The prefix of a file's module name, before the file's stem and its path in base 32."""


class TargetError(StagepipeError):
    """A target cannot be imported or built. The message names it, and the closest existing name if there is one."""


def closest_match(word: str, choices: Iterable[str]) -> str | None:
    """The closest of `choices` to a misspelled `word`; None if none is close.

    >>> closest_match("decod", ["encode", "decode"])
    'decode'
    """
    by_folded = {choice.casefold(): choice for choice in choices}
    matches = difflib.get_close_matches(word.casefold(), list(by_folded), n=1, cutoff=0.6)
    return by_folded[matches[0]] if matches else None


def closest_file_name(name: str, choices: Iterable[str]) -> str | None:
    """The closest of `choices` to a misspelled file name; None if none is close. Suffixes are ignored.

    >>> closest_file_name("trian.yaml", ["train.yml"]), closest_file_name("nope.yaml", ["07none.yaml"])
    ('train.yml', None)
    """
    name_by_stem = {Path(choice).stem.casefold(): choice for choice in choices}
    stems = difflib.get_close_matches(Path(name).stem.casefold(), list(name_by_stem), n=1, cutoff=0.7)
    return name_by_stem[stems[0]] if stems else None


def split_target_path(path: str) -> tuple[str, str | None]:
    """Split a target path into its module or file and the attributes after the colon (None without a colon).

    >>> split_target_path("./ops.py:decode"), split_target_path("pkg.mod.name")
    (('./ops.py', 'decode'), ('pkg.mod.name', None))
    """
    module_path, colon, attributes = path.rpartition(":")
    return (module_path, attributes) if colon else (path, None)


def names_file(module_path: str) -> bool:
    """Whether the module part of a target path is a file rather than a module."""
    return module_path.endswith(".py") or "/" in module_path


def import_target(path: str, config_dir: Path | None = None) -> object:
    """The object that a target path names.

    `config_dir` is added to the import path, and relative file paths start there.

    >>> import_target("os.path:join").__name__
    'join'

    Raises TargetError; if the imported code raised, that exception is its cause.
    """
    module, attributes = split_target_path(path)
    _check_target_path(path, module, attributes)
    if config_dir is not None:
        add_import_path(config_dir)
    if names_file(module):
        return _get_attributes(path, import_file(module, config_dir), (attributes or "").split("."))
    if attributes is not None:
        return _get_attributes(path, _import_module(path, module), attributes.split("."))
    first, *rest = module.split(".")
    return _get_attributes(path, _import_module(path, first), rest)


def _check_target_path(path: str, module: str, attributes: str | None) -> None:
    if module.partition(".")[0] == "__main__":
        raise TargetError(_main_script_message(path))
    names = [] if names_file(module) else module.split(".")
    names += [] if attributes is None else attributes.split(".")
    if names_file(module) and attributes is None:
        message = f"`{path}` names a file but no object in it; write `{path}:function`"
        raise TargetError(message)
    if not all(name.isidentifier() for name in names):
        message = f"`{path}` is not an import path; write pkg.module.name, pkg.module:name or ./file.py:name"
        raise TargetError(message)


def _main_script_message(path: str) -> str:
    return f"`{path}` is the running script itself; move the function to its own module"


def is_main_script(file: Path) -> bool:
    """Whether `file` is running as `__main__`. Importing it would run it again, in every worker."""
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    return main is not None and Path(main).resolve() == file.resolve()


def import_paths(config_dir: Path | None) -> list[str]:
    """`sys.path` with the config's folder after the standard library and before the installed packages.

    The standard library comes first, so that a `queue.py` next to a config does not break libraries that import
    `queue`.
    """
    if config_dir is None:
        return list(sys.path)
    folder = str(config_dir.resolve())
    if folder in sys.path:
        return list(sys.path)
    installed = (i for i, entry in enumerate(sys.path) if Path(entry).name in {"site-packages", "dist-packages"})
    position = next(installed, len(sys.path))
    return [*sys.path[:position], folder, *sys.path[position:]]


def add_import_path(config_dir: Path) -> None:
    """Add the config's folder to this process's import path, unless it is there."""
    sys.path[:] = import_paths(config_dir)


def file_exists(file: Path) -> bool:
    """Whether `file` exists and is a file; False for a path that is too long."""
    try:
        return file.is_file()
    except OSError:
        return False


def resolve_file(file: str, config_dir: Path | None) -> Path:
    """The absolute path of a target's file."""
    return ((config_dir or Path.cwd()) / file).resolve()


def import_file(file: str, config_dir: Path | None) -> ModuleType:
    """The module of a file, loaded once per process. Raises TargetError."""
    path = resolve_file(file, config_dir)
    if not file_exists(path):
        match = closest_file_name(path.name, (sibling.name for sibling in path.parent.glob("*.py")))
        message = f"no file `{path}`{_did_you_mean(match)}"
        raise TargetError(message)
    return _import_module(file, file_module_name(path))


def file_module_name(path: Path) -> str:
    """The module name of a file: the same in every process, and it contains the path."""
    stem = re.sub(r"\W", "_", path.stem)
    encoded_path = base64.b32encode(str(path.resolve()).encode()).decode().rstrip("=").lower()
    return f"{FILE_MODULE_PREFIX}{stem}_{encoded_path}"


class _FileFinder:
    """Finds modules by their `file_module_name`, so that unpickling in another process can import them."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        del path, target
        if not fullname.startswith(FILE_MODULE_PREFIX):
            return None
        encoded_path = fullname.rpartition("_")[2].upper()
        try:
            file = Path(base64.b32decode(encoded_path + "=" * (-len(encoded_path) % 8)).decode())
        except (binascii.Error, UnicodeDecodeError):
            return None
        return importlib.util.spec_from_file_location(fullname, file) if file.is_file() else None


if not any(type(finder).__name__ == _FileFinder.__name__ for finder in sys.meta_path):
    sys.meta_path.append(_FileFinder())


def _import_module(path: str, name: str) -> ModuleType:
    if name not in sys.modules:
        _reject_main_script(path, name)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            message = f"`{path}`: no module named `{error.name}`"
            raise TargetError(message) from error
        raise TargetError(_import_failure_message(path, name, error)) from error
    except Exception as error:
        raise TargetError(_import_failure_message(path, name, error)) from error


def _reject_main_script(path: str, name: str) -> None:
    try:
        spec = importlib.util.find_spec(name) if "." not in name else None
    except (ValueError, ImportError):
        return
    if spec is not None and spec.origin is not None and is_main_script(Path(spec.origin)):
        raise TargetError(_main_script_message(path))


def _import_failure_message(path: str, name: str, error: Exception) -> str:
    module = "its file" if name.startswith(FILE_MODULE_PREFIX) else f"`{name}`"
    return f"`{path}`: importing {module} failed: {type(error).__name__}: {error}"


def _get_attributes(path: str, value: object, names: Sequence[str]) -> object:
    """Follow a chain of attributes. A missing attribute of a package may be a submodule."""
    for name in names:
        try:
            value = getattr(value, name)
        except AttributeError as error:
            submodule = _import_submodule(path, value, name)
            if submodule is None:
                owner: str = getattr(value, "__name__", type(value).__name__)
                if owner.startswith(FILE_MODULE_PREFIX):
                    owner = Path(str(getattr(value, "__file__", owner))).name
                message = f"`{path}`: {owner} has no `{name}`{_did_you_mean(closest_match(name, dir(value)))}"
                raise TargetError(message) from error
            value = submodule
    return value


def _import_submodule(path: str, package: object, name: str) -> ModuleType | None:
    if not isinstance(package, ModuleType) or not hasattr(package, "__path__"):
        return None
    full_name = f"{package.__name__}.{name}"
    return None if importlib.util.find_spec(full_name) is None else _import_module(path, full_name)


def _did_you_mean(match: str | None) -> str:
    return f"; did you mean `{match}`?" if match else ""


_PACKAGES: Final = ("stagepipe.sources.", "stagepipe.stages.", "stagepipe.sinks.")
_RECORDED_PLACES: Final = {
    name: place
    for place, names in {
        "sinks.npy_sink": ("NpySink", "NpzShardSink"),
        "sinks.npz_sink": ("NpzSink",),
        "sinks.zarr_sink": ("ZarrSink",),
        "sinks.jsonl_sink": ("JsonlSink",),
        "sinks.webdataset_sink": ("WebDatasetSink",),
        "sinks.hugging_face_sink": ("HuggingFaceSink",),
        "sources.arrow_source": ("ArrowSource",),
        "sources.batched_order": ("BatchedOrder",),
        "sources.block_shuffled_order": ("BlockShuffledOrder",),
        "sources.concat_source": ("ConcatOrder", "ConcatSource"),
        "sources.csv_source": ("CsvSource",),
        "sources.hdf5_source": ("Hdf5Source",),
        "sources.joined_stream": ("IndexedPart", "JoinedStream", "StreamedPart"),
        "sources.jsonl_source": ("JsonlSource",),
        "sources.lance_source": ("LanceSource",),
        "sources.mix_order": ("MixOrder",),
        "sources.mix_schedule": ("Phase",),
        "sources.mix_source": ("MixSource",),
        "sources.npy_source": ("NpySource",),
        "sources.numbers_source": ("NumbersSource",),
        "sources.parquet_source": ("ParquetSource",),
        "sources.sampler_order": ("SamplerOrder",),
        "sources.shuffled_order": ("ShuffledOrder",),
        "sources.source_parts": ("PartOrder", "SourcePart"),
        "sources.stream_turns": ("SequentialTurns", "WeightedTurns"),
        "sources.text_source": ("TextSource",),
        "sources.zarr_source": ("ZarrSource",),
        "sources.zip_source": ("ZipSource",),
        "stages.bucket": ("Bucket",),
        "stages.fetch_shard": ("FetchShard",),
        "stages.filter": ("Filter",),
        "stages.flat_map": ("FlatMap",),
        "stages.model.module": ("Module",),
        "stages.model.pipeline": ("HuggingFacePipeline",),
        "stages.select_fields": ("Drop", "Rename", "Select"),
        "stages.shuffle": ("Shuffle",),
        "stages.table.grouping": ("FromRows",),
        "stages.table.stages": ("Apply", "Convert", "ToRows"),
        "stages.text.pack": ("Pack",),
        "stages.text.quality": ("QualityFilter",),
        "stages.text.tokenize": ("Tokenize",),
        "stages.unbatch": ("Unbatch",),
    }.items()
    for name in names
}
"""The modules under which saved files record built-in classes (of configs, and inside those), if the classes moved."""


def find_import_path(value: object, module: str, names: Sequence[str]) -> str | None:
    """The shortest import path of an object of `module`, from the outermost package that has it. None if none has it.

    >>> import json
    >>> find_import_path(json.JSONDecoder, "json.decoder", ["JSONDecoder"])
    'json.JSONDecoder'
    """
    packages = itertools.accumulate(module.split("."), "{}.{}".format)
    paths = ((package, name) for package in packages for name in names)
    return next((f"{package}.{name}" for package, name in paths if has_object(package, name, value)), None)


def get_class_path(cls: type) -> str:
    """The shortest import path of a class; its module and name if it cannot be imported by that.

    >>> from fractions import Fraction
    >>> get_class_path(Fraction)
    'fractions.Fraction'
    """
    path = find_import_path(cls, cls.__module__, [cls.__qualname__])
    return f"{cls.__module__}.{cls.__qualname__}" if path is None else path


def has_object(module: str, name: str, value: object) -> bool:
    """Whether a loaded module has the value under this name. Triggers no lazy import."""
    first, *others = name.split(".")
    found = getattr(sys.modules.get(module), "__dict__", {}).get(first)
    return functools.reduce(lambda owner, attribute: getattr(owner, attribute, None), others, found) is value


def get_recorded_module(module: str, name: str) -> str:
    """The module name under which states, journals and dead letters record a class or function.

    Saved files name a built-in class by the module that first defined it, so that they remain readable.

    >>> get_recorded_module("stagepipe.sources.line_sources", "JsonlSource"), get_recorded_module("json", "dumps")
    ('stagepipe.sources.jsonl_source', 'json')
    """
    place = _RECORDED_PLACES.get(name.partition(".")[0]) if module.startswith(_PACKAGES) else None
    return module if place is None else f"stagepipe.{place}"


SCRIPT_MODULES: Final = frozenset({"__main__", "__mp_main__"})
"""Names of the running script or notebook: the second in a process that `multiprocessing` has spawned."""
_PACKAGE_FOLDERS = tuple(f"{os.sep}{name}{os.sep}" for name in ("site-packages", "dist-packages"))
_OWN_ROOT = __name__.partition(".")[0]


def is_installed(module_name: str) -> bool:
    """Whether a module is in the standard library or an installed package: it changes only with its version.

    >>> is_installed("json.decoder"), is_installed("__main__")
    (True, False)
    """
    root = module_name.partition(".")[0]
    if root in sys.stdlib_module_names or root == _OWN_ROOT:
        return True
    if root in SCRIPT_MODULES:  # its file may belong to an installed command
        return False
    module = sys.modules.get(module_name) or sys.modules.get(root)
    file = str(getattr(module, "__file__", None) or "")
    return any(folder in file for folder in _PACKAGE_FOLDERS)


def import_extra(module: str, extra: str, needed_by: str) -> ModuleType:
    """Import `module`, a package of the extra `extra`.

    >>> import_extra("json", "example", "the source `example`").__name__
    'json'

    Raises UsageError if it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        if error.name != package:
            raise
        raise UsageError(f"{needed_by} needs {package}: {install_command(extra)}") from error


_DISTRIBUTIONS = {
    "PIL": "pillow",
    "bs4": "beautifulsoup4",
    "cv2": "opencv-python-headless",
    "lance": "pylance",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "turbojpeg": "PyTurboJPEG",
    "yaml": "pyyaml",
}
"""Packages whose name on the index differs from the name of their module."""


def find_install_command(module: str) -> str:
    """Return the command that installs the package of a top-level module, in a version that works with stagepipe.

    >>> find_install_command("pyarrow"), find_install_command("cv2")
    ("pip install 'pyarrow>=15'", 'pip install opencv-python-headless')
    """
    from importlib import metadata  # as below

    package = _DISTRIBUTIONS.get(module, module)
    try:
        requirements = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        requirements = []
    pattern = re.compile(rf"({re.escape(package)}(?![\w.-])[^;]*?)\s*(;.*)?")
    found = next((match[1] for text in requirements if (match := pattern.fullmatch(text))), package)
    return f"pip install {shlex.quote(found)}"


def install_command(extra: str, package: str = "") -> str:
    """Return the command that installs the packages of an extra, or only its package `package`.

    >>> install_command("zarr")
    "pip install 'zarr>=3'"
    >>> install_command("table", "pyarrow")
    "pip install 'pyarrow>=15'"

    It names the packages themselves, so it works for every way of installing stagepipe.
    """
    from importlib import metadata  # slow, and only for a message

    try:
        requirements = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        requirements = []
    name = re.escape(package) if package else r"[\w.-]+"
    pattern = re.compile(rf"({name}(?![\w.-])[^;]*?)\s*;.*\bextra == ['\"]{extra}['\"]")
    packages = [match[1] for requirement in requirements if (match := pattern.fullmatch(requirement))]
    if not packages:
        return f"pip install -e '.[{extra}]' in a clone of the repository"
    return f"pip install {shlex.join(packages)}"
