"""Loads a config: runs every step from its source to a spec. Has no side effects; runs in the caller's process.

read -> extends -> overrides -> references (OmegaConf's first) -> long form of the source -> keys and values
-> key combinations -> targets -> spec

The source is a file, a mapping, an OmegaConf object, or the calls of a Python builder. The hash covers the config as
written: a function or an object from Python counts by its name. Loading a state compares its code and content.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal, Protocol, runtime_checkable

from stagepipe.config.dataset_source import (
    LOADER_ARGUMENTS,
    SHORTHAND_ARGUMENTS,
    is_dataset_source,
    is_record_source,
    normalize_source,
)
from stagepipe.config.document import (
    ListNode,
    MapEntry,
    MapNode,
    Node,
    ReferenceResolver,
    ScalarNode,
    SourceLocation,
    apply_overrides,
    check_size,
    from_plain,
    iter_children,
    map_children,
    parse_mapping,
    read_file,
    resolve_environment,
    to_plain,
)
from stagepipe.config.schema import ConfigPath
from stagepipe.config.source_code import DefinitionLookup, ModuleFinder
from stagepipe.config.target_checks import (
    SinkTraits,
    StageTraits,
    TargetChecker,
    get_sinks,
    get_stages,
    read_sink_traits,
    read_stage_traits,
    uses_torch,
)
from stagepipe.config.text_edits import edit_text
from stagepipe.config.validation import check_key_combinations, check_option_names, check_sinks, validate
from stagepipe.config.value_types import format_value
from stagepipe.core import (
    ConfigError,
    Deferred,
    Problem,
    UsageError,
    file_exists,
    get_recorded_module,
    names_file,
    split_target_path,
)
from stagepipe.spec import PipelineSpec, SinkSpec, SourceReading, StageSpec, get_common_fields


def is_omegaconf(source: object) -> bool:
    """Return whether `source` is a config of OmegaConf, without importing OmegaConf."""
    omegaconf = sys.modules.get("omegaconf")
    return omegaconf is not None and omegaconf.OmegaConf.is_config(source)


class OmegaConfResolver:
    """Resolves the interpolations of one OmegaConf object.

    The object may be part of a larger one, such as Hydra's, and refer to values outside itself.
    """

    def __init__(self, source: Any) -> None:
        """`source` is not modified."""
        import omegaconf

        self._omegaconf = omegaconf.OmegaConf
        self._resolution_error = omegaconf.errors.OmegaConfBaseException
        self._source = source
        self.unresolved_values = self._omegaconf.to_container(source, resolve=False)

    def resolve(self, root: MapNode) -> MapNode:
        """Return `root` (`unresolved_values` plus overrides) with every interpolation resolved that OmegaConf knows."""
        conf = self._update_source(to_plain(root))
        return map_children(root, lambda key, child: self._resolve_child(child, conf, key))  # type: ignore[return-value]

    def _update_source(self, values: Any) -> Any:
        """Return a copy of the OmegaConf object with new values, inside a copy of its parent config."""
        key = self._source._get_full_key(None)  # noqa: SLF001 - the only way to get a node's path; Hydra uses it too
        if not key:
            return self._omegaconf.create(values, flags={"allow_objects": True})
        parent_config = copy.deepcopy(self._source._get_root())  # noqa: SLF001 - likewise
        self._omegaconf.set_readonly(parent_config, value=False)
        updated = self._omegaconf.create(values, flags={"allow_objects": True})
        self._omegaconf.update(parent_config, key, updated, merge=False)
        return self._omegaconf.select(parent_config, key)

    def _resolve_child(self, node: Node, conf: Any, key: Any) -> Node:
        if isinstance(node, MapNode | ListNode):
            return map_children(node, lambda inner_key, child: self._resolve_child(child, conf[key], inner_key))
        if not isinstance(node.value, str) or "${" not in node.value:
            return node
        try:
            value = conf[key]
            if self._omegaconf.is_config(value):
                value = self._omegaconf.to_container(value, resolve=True)
        except self._resolution_error:
            return node
        return from_plain(value, node.location)


def read_with_bases(path: Path) -> MapNode:
    """Read a file and merge it over the files that it extends. Raises ConfigError."""
    return apply_extends(read_file(path), path.parent, (path.resolve(),))


def apply_extends(root: MapNode, folder: Path, ancestors: tuple[Path, ...] = ()) -> MapNode:
    """Merge `root` over the file that its `extends` names, relative to `folder`. Raises ConfigError.

    `ancestors` are the files that led here, to detect a cycle.
    """
    node = root.get("extends")
    if node is None:
        return root
    node = resolve_environment(node)
    if not isinstance(node, ScalarNode) or not isinstance(node.value, str):
        message = f"`extends`: expected the path of one file, found {format_value(to_plain(node))}"
        raise ConfigError([node.location.make_problem(message, "write `extends: base.yaml`")])
    base_path = folder / node.value
    resolved = base_path.resolve()
    if resolved in ancestors:
        cycle = " -> ".join(path.name for path in (*ancestors[ancestors.index(resolved) :], resolved))
        raise ConfigError([node.location.make_problem(f"circular `extends`: {cycle}", "remove one of these `extends`")])
    if not file_exists(base_path):
        raise ConfigError(
            [node.location.make_problem(f"no such file: {base_path}", "the path is relative to this file")]
        )
    display_path = os.path.normpath(base_path)
    base = apply_extends(read_file(base_path, display_path), base_path.parent, (*ancestors, resolved))
    return _merge_maps(_rebase_paths(base, os.path.relpath(resolved.parent, folder.resolve())), root.without("extends"))


def _rebase_paths(node: Any, prefix: str) -> Any:
    """Rewrite a base's relative files (`uses: ./ops.py:decode`) relative to the folder of the extending file."""
    if prefix == ".":
        return node
    rebased = map_children(node, lambda _, child: _rebase_paths(child, prefix))
    if not isinstance(rebased, MapNode):
        return rebased
    arguments = rebased.get("with")
    if is_dataset_source(rebased) and isinstance(arguments, MapNode):
        rebased = rebased.with_entry("with", _rebase_path_values(arguments, SHORTHAND_ARGUMENTS, prefix))
    elif is_record_source(rebased) and isinstance(arguments, MapNode):
        rebased = rebased.with_entry("with", _rebase_path_values(arguments, LOADER_ARGUMENTS, prefix))
    return _rebase_path_values(rebased, ("uses",), prefix)


def _rebase_path_values(node: MapNode, keys: Sequence[str], prefix: str) -> MapNode:
    for key in keys:
        path = node.get_text(key)
        if path is not None and names_file(split_target_path(path)[0]) and not Path(path).is_absolute():
            rebased_path = os.path.normpath(f"{prefix}/{path}")
            node = node.with_entry(key, ScalarNode(rebased_path, node.entries[key].node.location))
    return node


def merge(base: Node, overlay: Node) -> Node:
    """Merge `overlay` over `base`: mappings by key, lists of named entries (stages) by name; replace anything else."""
    if isinstance(base, MapNode) and isinstance(overlay, MapNode):
        return _merge_maps(base, overlay)
    if isinstance(base, ListNode) and isinstance(overlay, ListNode) and _entry_names(base) and _entry_names(overlay):
        return _merge_by_name(base, overlay)
    return overlay


def _merge_maps(base: MapNode, overlay: MapNode) -> MapNode:
    base_uses = base.get("uses")
    overlay_uses = overlay.get("uses")
    if (
        isinstance(base_uses, ScalarNode)
        and isinstance(overlay_uses, ScalarNode)
        and base_uses.value != overlay_uses.value
    ):
        base = base.without("with")  # its arguments belong to another target
    entries = dict(base.entries)
    for key, entry in overlay.entries.items():
        base_entry = entries.get(key)
        entries[key] = MapEntry(entry.key_location, merge(base_entry.node, entry.node) if base_entry else entry.node)
    return MapNode(entries, overlay.location)


def _entry_names(entries: ListNode) -> list[str]:
    """Return the names of a list's entries; empty if any entry has no name."""
    names = [item.get_text("name") if isinstance(item, MapNode) else None for item in entries.items]
    return [] if None in names else [name for name in names if name is not None]


def _merge_by_name(base: ListNode, overlay: ListNode) -> ListNode:
    merged = dict(zip(_entry_names(base), base.items, strict=True))
    repeated = []
    for index, (name, item) in enumerate(zip(_entry_names(overlay), overlay.items, strict=True)):
        if name in _entry_names(overlay)[:index]:
            repeated.append(item)  # kept, so that `validation` reports the duplicate name
        else:
            merged[name] = merge(merged[name], item) if name in merged else item
    return ListNode((*merged.values(), *repeated), overlay.location)


_ARGUMENTS_KEY: Final = "with"


@dataclass(frozen=True)
class PythonCall:
    """One call of a builder: its text for messages, and the settings that it adds to the config.

    `section` is the key of the config to which it adds; "" is the top level. In `settings`, the values of `with` are
    the arguments themselves: strings in them may contain `${`, and a tuple stays a tuple.
    """

    text: str
    section: Literal["", "source", "stages", "sink"]
    settings: Mapping[str, Any]


@runtime_checkable
class SupportsPythonCalls(Protocol):
    """An object that describes a pipeline by calls: the Python builder."""

    @property
    def python_calls(self) -> Sequence[PythonCall]:
        """The calls in order."""
        ...


def from_python_calls(calls: Sequence[PythonCall]) -> MapNode:
    """Return the config that the calls describe. A later top-level setting replaces an earlier one.

    >>> root = from_python_calls([PythonCall("from_source(range(3))", "source", {"uses": range(3)})])
    >>> root.get("source").location.call
    'from_source(range(3))'
    """
    entries: dict[str, MapEntry] = {}
    lists: dict[str, list[Node]] = {"stages": [], "sink": []}
    for call in calls:
        stage = str(call.settings.get("name", "")) if call.section else ""
        location = SourceLocation(call=call.text, stage=stage)
        node = MapNode(
            {key: MapEntry(location, _to_setting_node(key, value, location)) for key, value in call.settings.items()},
            location,
        )
        if call.section in lists:
            lists[call.section].append(node)
        elif call.section:
            entries[call.section] = MapEntry(location, node)
        else:
            entries |= node.entries
    for section, nodes in lists.items():
        if nodes:
            is_single = section == "sink" and len(nodes) == 1
            entries[section] = MapEntry(SourceLocation(), nodes[0] if is_single else ListNode(tuple(nodes)))
    return MapNode(entries)


def check_call(call: PythonCall, parameters: Iterable[str] = ()) -> None:
    """Raise ConfigError if a call has unknown options. `parameters` are further parameters of its method.

    >>> check_call(PythonCall(".map(len, worker=2)", "stages", {"name": "len", "uses": len, "worker": 2}))
    Traceback (most recent call last):
    ...
    stagepipe.core.errors.ConfigError: .map(len, worker=2), stage `len`: unknown option `worker`
        did you mean `workers`?
    """
    paths: dict[str, ConfigPath] = {"": (), "stages": ("stages", 0)}
    path = paths.get(call.section, (call.section,))
    problems = check_option_names(from_python_calls([call]), path, parameters)
    if problems:
        raise ConfigError(problems)


def _to_setting_node(key: str, value: Any, location: SourceLocation) -> Node:
    if key == "uses":
        return ScalarNode(value, location)
    if key == _ARGUMENTS_KEY:
        return _to_map_node({name: _to_argument_node(inner, location) for name, inner in value.items()}, location)
    if isinstance(value, Deferred):  # the predicate of `when`
        return _to_argument_node(value, location)
    return from_plain(_escape_references(value), location)


def _to_argument_node(value: Any, location: SourceLocation) -> Node:
    """Return the node of an argument. Only containers of a `Deferred` become nodes; other values stay unchanged."""
    if isinstance(value, Deferred):
        target = {"uses": ScalarNode(value.target, location)}
        arguments = _to_setting_node(_ARGUMENTS_KEY, value.arguments, location)
        return _to_map_node({**target, _ARGUMENTS_KEY: arguments} if value.arguments else target, location)
    if type(value) is list and _contains_deferred(value):
        return ListNode(tuple(_to_argument_node(inner, location) for inner in value), location)
    if type(value) is dict and _contains_deferred(value):
        return _to_map_node({key: _to_argument_node(inner, location) for key, inner in value.items()}, location)
    return ScalarNode(_escape_references(value) if isinstance(value, str) else _replace_deferred(value), location)


def _to_map_node(nodes: Mapping[Any, Node], location: SourceLocation) -> MapNode:
    return MapNode({key: MapEntry(location, node) for key, node in nodes.items()}, location)


def _contains_deferred(value: Any) -> bool:
    if type(value) in {list, tuple}:
        return any(map(_contains_deferred, value))
    if type(value) is dict:
        return any(map(_contains_deferred, value.values()))
    return isinstance(value, Deferred)


def _replace_deferred(value: Any) -> Any:
    """Return a value with each `Deferred` in it replaced by the mapping that workers build."""
    if not _contains_deferred(value):
        return value
    if isinstance(value, Deferred):
        return {"uses": value.target, _ARGUMENTS_KEY: {k: _replace_deferred(v) for k, v in value.arguments.items()}}
    if type(value) is dict:
        return {key: _replace_deferred(inner) for key, inner in value.items()}
    return type(value)(map(_replace_deferred, value))


def _escape_references(value: Any) -> Any:
    """Return the value with `${` in its strings escaped, because a config reads it as a reference."""
    if isinstance(value, str):
        return value.replace("${", "$${")
    if type(value) is dict:
        return {key: _escape_references(inner) for key, inner in value.items()}
    return [_escape_references(inner) for inner in value] if type(value) in {list, tuple} else value


def hash_source(resolved: MapNode) -> str:
    """Return the SHA-256 of the keys that determine the source's items, their numbers and their seeds."""
    source = resolved.get("source")
    selected = resolved.without(*(key for key in resolved.entries if key not in {"source", "seed"}))
    if isinstance(source, MapNode):
        target = source.without(*(key for key in source.entries if key not in {"uses", "with"}))
        arguments = target.get("with")
        if isinstance(arguments, MapNode):
            target = target.with_entry("with", arguments.without("collate_fn"))
        selected = selected.with_entry("source", target)
    return hash_config(selected)


def hash_config(resolved: MapNode) -> str:
    """Return the SHA-256 of a config with bases, overrides and variables resolved. Its layout does not matter."""
    value = _to_json_value(to_plain(resolved.without("vars", "extends")))
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _to_json_value(value: Any) -> Any:
    """Convert a value to JSON types. A Python object becomes its name, because its address varies between runs."""
    if isinstance(value, dict):
        return {key if isinstance(key, str) else f"\0{key!r}": _to_json_value(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_to_json_value(item) for item in value]
    if value is None or isinstance(value, str | bool | int | float):
        return value
    definition = value if hasattr(value, "__qualname__") and hasattr(value, "__module__") else type(value)
    name = definition.__qualname__
    return f"\0{get_recorded_module(str(definition.__module__), name)}.{name}"


def load(
    source: str | Path | Mapping[str, Any] | SupportsPythonCalls | object, overrides: Sequence[str] = ()
) -> PipelineSpec:
    """Load and check a config. Imports no target.

    `source` is the path of a YAML file, a mapping, an OmegaConf object, or a Python builder. `overrides` replace values
    in it, such as `["stages.decode.workers=8", "vars.size=128"]`. A config without a `name` is named after its file, or
    `pipeline`.

    >>> load({"source": {"uses": "itertools.repeat", "with": {"object": 1}}}, ["window=8"]).window
    8

    Raises:
        ConfigError: the config is wrong; `problems` holds every problem with its location.
        UsageError: `source` is none of these.
    """
    interpolations = OmegaConfResolver(source) if is_omegaconf(source) else None
    root, path = _read_source(source if interpolations is None else interpolations.unresolved_values)
    return _load_root(root, path, overrides, interpolations)


def edit_config(path: Path, changes: Sequence[str], overrides: Sequence[str] = ()) -> str:
    """Return the text of a config file with the overrides `changes` written into it. Its comments stay.

    In a file that `extends` another, they go into this file. `overrides` are other ones, which stay on the command
    line. Raises UsageError if the edited file would not have the same meaning as the file with the overrides.

    >>> edit_config(Path("train.yaml"), ["stages.decode.workers=3"])  # doctest: +SKIP
    """
    text = path.read_bytes().decode("utf-8")
    extends = parse_mapping(text.removeprefix("\ufeff"), str(path)).get("extends") is not None
    edited = edit_text(text, changes, keeps_null=extends)
    wanted = load(path, (*overrides, *changes))
    try:
        root = parse_mapping(edited.removeprefix("\ufeff"), str(path))
        found = _load_root(apply_extends(root, path.parent, (path.resolve(),)), path, overrides, None)
    except ConfigError as error:
        found, reason = None, f": {error.problems[0].message}"
    else:
        reason = ""
    if found is None or replace(found, config_sha256="") != replace(wanted, config_sha256=""):
        raise UsageError(
            f"{path}: cannot write {' '.join(changes)} so that the file means the same{reason}; nothing was written: "
            "set it by hand"
        )
    return edited


def _load_root(
    root: MapNode, path: Path | None, overrides: Sequence[str], interpolations: OmegaConfResolver | None
) -> PipelineSpec:
    problems: list[Problem] = []
    root = apply_overrides(root, overrides, problems)
    if interpolations is not None:
        root = interpolations.resolve(root)
    root = _fill_in_name(root, path)
    resolver = ReferenceResolver(variables=root.get("vars"))
    resolved: MapNode = resolver.resolve(root)  # type: ignore[assignment]  # a mapping stays one
    config_dir = None if path is None else path.resolve().parent
    resolved, reading = normalize_source(resolved, config_dir, problems)
    check_size(resolved)
    lookup = DefinitionLookup(ModuleFinder(config_dir))
    stage_traits = read_stage_traits(get_stages(resolved), lookup)
    sink_traits = read_sink_traits(get_sinks(resolved), lookup)
    problems += check_sinks(resolved, sink_traits)
    found_problems: list[Problem] = []
    values = validate(resolved, _derive_fields(resolved, reading, stage_traits, sink_traits), found_problems)
    found_problems += check_key_combinations(resolved, stage_traits, reading)
    found_problems += TargetChecker(config_dir).check_config(resolved, stage_traits)
    problems += _drop_misleading(found_problems, resolver.problems)
    if problems or values is None:
        raise ConfigError(_sort_problems(problems, "" if path is None else str(path)))
    return PipelineSpec(
        **values,
        config_dir=config_dir,
        config_path=path,
        config_sha256=hash_config(resolved),
        source_sha256=hash_source(resolved),
        uses_torch=uses_torch(resolved, lookup),
    )


def _derive_fields(
    root: MapNode, reading: SourceReading, stage_traits: Sequence[StageTraits], sink_traits: Sequence[SinkTraits]
) -> dict[ConfigPath, dict[str, Any]]:
    """Return the fields of specs that no key sets, by the path of the spec's mapping."""
    is_list = isinstance(root.get("sink"), ListNode)
    return {
        ("source",): {"reading": reading},
        **{("stages", index): get_common_fields(stage, StageSpec) for index, stage in enumerate(stage_traits)},
        **{
            ("sink", index) if is_list else ("sink",): get_common_fields(sink, SinkSpec)
            for index, sink in enumerate(sink_traits)
        },
    }


def locate_targets(path: Path, overrides: Sequence[str] = ()) -> list[tuple[str, SourceLocation]]:
    """Return the import paths of a config that `load` accepts, each with its location."""
    root = apply_overrides(read_with_bases(path), overrides, [])
    return list(_iter_uses(ReferenceResolver(variables=root.get("vars")).resolve(root)))


def _iter_uses(node: Node) -> Iterator[tuple[str, SourceLocation]]:
    for key, child in iter_children(node):
        if key == "uses" and isinstance(child, ScalarNode) and isinstance(child.value, str):
            yield child.value, child.location
        else:
            yield from _iter_uses(child)


def _drop_misleading(problems: list[Problem], reference_problems: list[Problem]) -> list[Problem]:
    """Return the problems of bad references, and other problems elsewhere: the value of a bad reference is unknown."""
    bad_locations = {(p.file, p.line, p.column) for p in reference_problems}
    others = [p for p in problems if (p.file, p.line, p.column) not in bad_locations or not p.line]
    return [*reference_problems, *others]


def _sort_problems(problems: list[Problem], main_file: str) -> list[Problem]:
    """Remove duplicates and sort by position: the main file first, then other files, overrides and Python values."""
    unique_problems = list(dict.fromkeys(problems))
    return sorted(unique_problems, key=lambda p: (p.file != main_file, not p.line, p.file, p.line, p.column))


def _read_source(source: object) -> tuple[MapNode, Path | None]:
    if isinstance(source, str | os.PathLike):
        path = Path(os.fspath(source))
        return read_with_bases(path), path
    if isinstance(source, SupportsPythonCalls):
        return from_python_calls(source.python_calls), None
    if not isinstance(source, Mapping):
        raise UsageError(
            f"a config must be a path, a mapping, an OmegaConf object or a builder, found {type(source).__name__}"
        )
    root = from_plain(source)
    if not isinstance(root, MapNode):  # pragma: no cover - a mapping stays one
        return MapNode(), None
    return apply_extends(_locate_stages(root), Path.cwd()), None


def _locate_stages(root: MapNode) -> MapNode:
    """Return the config of a mapping with the name of its stage in each location, because there are no lines."""
    stages = root.get("stages")
    if not isinstance(stages, ListNode):
        return root

    def locate(_: Any, stage: Node) -> Node:
        name = stage.get_text("name") if isinstance(stage, MapNode) else None
        return from_plain(to_plain(stage), replace(stage.location, stage=name)) if name else stage

    return root.with_entry("stages", map_children(stages, locate))


def _fill_in_name(root: MapNode, path: Path | None) -> MapNode:
    if root.get("name") is not None:
        return root
    stem = "" if path is None else re.sub(r"[^A-Za-z0-9_-]+", "-", path.stem).strip("-")
    return root.with_entry("name", ScalarNode(stem or "pipeline"))
