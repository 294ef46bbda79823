"""Checks the targets of a config: `uses` against source files, `with` against signatures. Imports no target.

Also reads from source files the properties of a stage or sink class that limit its keys, and whether a target imports
torch.
"""

from __future__ import annotations

import builtins
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from inspect import Parameter, Signature
from pathlib import Path
from typing import Final

from stagepipe.config.dataset_source import CALLED_ARGUMENTS, is_dataset_source
from stagepipe.config.document import (
    ListNode,
    MapEntry,
    MapNode,
    Node,
    ScalarNode,
    SourceLocation,
    find_location,
    iter_children,
    to_plain,
)
from stagepipe.config.signatures import (
    Annotation,
    Callee,
    CalleeKind,
    find_mismatch,
    inspect_definition,
    inspect_object,
    inspect_user_object,
    read_annotation,
    write_mismatch,
)
from stagepipe.config.source_code import (
    BrokenSourceError,
    ConstantName,
    Definition,
    DefinitionLookup,
    ImportedName,
    MissingName,
    ModuleFinder,
    ParsedModule,
    StdlibObject,
    find_stdlib_object,
    is_missing,
    read_class_attribute,
    read_is_async,
)
from stagepipe.config.suggestions import explain_code, find_intended_key
from stagepipe.config.value_types import format_value, names_predicate
from stagepipe.core import (
    ASYNC_GENERATOR_MESSAGE,
    Problem,
    closest_file_name,
    closest_match,
    file_exists,
    is_main_script,
    names_file,
    resolve_file,
    split_target_path,
)
from stagepipe.spec import Target


@dataclass(frozen=True, kw_only=True)
class StageTraits:
    """The properties that the class of a stage declares. `label` names the class in messages."""

    label: str = ""
    is_order_point: bool = False
    takes_whole_items: bool = False
    is_async: bool = False
    items_per_output: int = 1


def get_stages(root: MapNode) -> list[MapNode]:
    """Return the entries of `stages` that are mappings."""
    stages = root.get("stages")
    return [stage for stage in stages.items if isinstance(stage, MapNode)] if isinstance(stages, ListNode) else []


def get_sinks(root: MapNode) -> list[MapNode]:
    """Return the sinks that are mappings: `sink` itself, or its entries."""
    sink = root.get("sink")
    sinks = sink.items if isinstance(sink, ListNode) else [sink]
    return [entry for entry in sinks if isinstance(entry, MapNode)]


def read_stage_traits(stages: Sequence[MapNode], lookup: DefinitionLookup) -> list[StageTraits]:
    """Return the traits of each entry of `stages`; defaults if the source does not show them."""
    return [_read_traits(stage, lookup) for stage in stages]


@dataclass(frozen=True, kw_only=True)
class SinkTraits:
    """The properties that the class of a sink declares. `multiple_argument` sets `part_multiple`, if there is one.

    `is_missing`: there is no such class, so the others are unknown.
    """

    writes_parts: bool = False
    appends_parts: bool = True
    part_multiple: int = 1
    multiple_argument: str | None = None
    is_missing: bool = False


def read_sink_traits(sinks: Sequence[MapNode], lookup: DefinitionLookup) -> list[SinkTraits]:
    """Return the traits of each sink; defaults if the source does not show them."""

    def is_true(uses: object, name: str) -> bool:
        return isinstance(uses, ScalarNode) and read_class_attribute(uses.value, name, lookup) is True

    traits = []
    for sink in sinks:
        uses = sink.get("uses")
        part_multiple, multiple_argument = _read_count(sink, "part_multiple", lookup)
        traits.append(
            SinkTraits(
                writes_parts=is_true(uses, "writes_parts"),
                appends_parts=is_true(uses, "appends"),
                part_multiple=part_multiple,
                multiple_argument=multiple_argument,
                is_missing=isinstance(uses, ScalarNode) and is_missing(uses.value, lookup),
            )
        )
    return traits


def _read_count(entry: MapNode, attribute: str, lookup: DefinitionLookup) -> tuple[int, str | None]:
    """Return a class attribute, and the argument that it names; the attribute of that name has the default."""
    uses = entry.get("uses")
    if not isinstance(uses, ScalarNode):
        return 1, None
    count = read_class_attribute(uses.value, attribute, lookup)
    argument = count if isinstance(count, str) else None
    if argument is not None:
        default = read_class_attribute(uses.value, argument, lookup)
        arguments = entry.get("with")
        given = arguments.get(argument) if isinstance(arguments, MapNode) else None
        count = given.value if isinstance(given, ScalarNode) else getattr(uses.value, argument, default)
    return (count if isinstance(count, int) and count > 0 else 1), argument


def _read_traits(stage: MapNode, lookup: DefinitionLookup) -> StageTraits:
    uses = stage.get("uses")
    if not isinstance(uses, ScalarNode):
        return StageTraits()
    is_order_point = read_class_attribute(uses.value, "order_point", lookup) is True
    takes_whole_items = is_order_point or read_class_attribute(uses.value, "takes_whole_items", lookup) is True
    return StageTraits(
        label=Target(uses.value).label,
        is_order_point=is_order_point,
        takes_whole_items=takes_whole_items,
        is_async=not is_order_point and read_is_async(uses.value, lookup),
        items_per_output=_read_count(stage, "items_per_output", lookup)[0] if is_order_point else 1,
    )


_TORCH_PACKAGES: Final = frozenset({"torch", "torchvision", "torchaudio", "timm", "transformers"})
"""Packages that import torch."""
_TARGET_PATTERN: Final = re.compile(r"[\w./-]+[.:]\w+")


def uses_torch(config: MapNode, lookup: DefinitionLookup) -> bool:
    """Return whether a target in `config`, or in its arguments, belongs to torch or to a module that imports it."""
    return any(_imports_torch(path, lookup) for path in _iter_target_paths(config))


def _iter_target_paths(node: Node) -> Iterator[str]:
    if isinstance(node, ScalarNode):
        if isinstance(node.value, str) and _TARGET_PATTERN.fullmatch(node.value):
            yield node.value
        return
    for _, child in iter_children(node):
        yield from _iter_target_paths(child)


def _imports_torch(path: str, lookup: DefinitionLookup) -> bool:
    if path.partition(".")[0] in _TORCH_PACKAGES:
        return True
    module_path, attributes = split_target_path(path)
    if names_file(module_path) and attributes is None:
        return False  # a data file, because a target in a file has a colon
    try:
        target = lookup.find_target(path)
    except BrokenSourceError:  # target_checks reports it, if it is a target
        return False
    module = target.module if isinstance(target, Definition) else target
    if not isinstance(module, ParsedModule):
        return False
    bindings = (binding for entries in module.bindings.values() for binding in entries)
    return any(isinstance(b, ImportedName) and b.module.partition(".")[0] in _TORCH_PACKAGES for b in bindings)


_POSITIONAL_KINDS: Final = {Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD}


class TargetRole(Enum):
    """The role of a target. It decides which arguments `with` may omit."""

    STAGE = "stage"  # a function receives the item as its first argument
    PREDICATE = "predicate"  # of `when`: it receives the item, like a stage
    ORDER_POINT = "order point"  # built with the arguments of `with`; its methods receive the items
    SOURCE = "source"  # called with only the arguments of `with`
    SINK = "sink"
    ARGUMENT = "argument"  # nested: a function is passed on, and its caller may add arguments


@dataclass(frozen=True, kw_only=True)
class CallCheck:
    """Checks the arguments of one target against its signature."""

    label: str
    callee: Callee
    role: TargetRole
    arguments: Mapping[str, MapEntry]
    field_mapping: MapNode | None
    location: SourceLocation
    implicit_arguments: frozenset[str] = frozenset()
    lookup: DefinitionLookup
    checks_values: bool = True

    def check(self, signature: Signature) -> Iterator[Problem]:
        """Yield the problems of the call."""
        arguments = self.arguments
        parameters = dict(signature.parameters)
        is_called_with_item = self.callee.kind is CalleeKind.FUNCTION and self.role in {
            TargetRole.STAGE,
            TargetRole.PREDICATE,
            TargetRole.SINK,
        }
        field_names: set[str] = set()
        if self.callee.item_signature is not None and self.field_mapping is not None:
            called = dict(self.callee.item_signature.parameters)
            yield from self._check_unknown_arguments(self.field_mapping.entries, called, "field")
        if is_called_with_item and self.field_mapping is not None:
            field_names = {str(key) for key in self.field_mapping.entries}
            yield from self._check_unknown_arguments(self.field_mapping.entries, parameters, "field")
        elif is_called_with_item:
            item = next((p.name for p in parameters.values() if p.kind in _POSITIONAL_KINDS), None)
            yield from self._check_item_parameter(item, arguments, parameters)
            parameters.pop(item or "", None)
            arguments = {key: entry for key, entry in arguments.items() if key != item}
        yield from self._check_unknown_arguments(arguments, parameters, "with")
        if self.role is not TargetRole.ARGUMENT or self.callee.kind is CalleeKind.FACTORY:
            # Do not report a misspelt argument as missing too.
            misspelt = {closest_match(str(key), parameters) for key in arguments if key not in parameters}
            provided_names = {*arguments, *field_names, *misspelt, *self.implicit_arguments}
            yield from self._check_missing_arguments(provided_names, parameters)
        if self.checks_values:
            yield from self._check_values(arguments, parameters)

    def _check_item_parameter(
        self, item: str | None, arguments: Mapping[str, MapEntry], parameters: dict[str, Parameter]
    ) -> Iterator[Problem]:
        if item is None and not any(p.kind is Parameter.VAR_POSITIONAL for p in parameters.values()):
            message = f"`{self.label}` cannot receive an item: it has no positional parameter"
            yield self.location.make_problem(message, "add a parameter for the item")
        if item is not None and item in arguments:
            location = arguments[item].key_location
            message = f"`{self.label}` receives the item as `{item}`, so {self._name_setter('with')} cannot set it"
            setting = f'.map_field({{"{item}": NAME}}, ...)' if location.call else f"field: {{{item}: NAME}}"
            yield location.make_problem(message, f"remove `{item}`, or map it with `{setting}`")

    def _name_setter(self, config_key: str) -> str:
        """Name the setting of an argument: a key, or in a call the binding."""
        if not self.location.call:
            return f"`{config_key}`"
        return "an argument bound by name" if config_key == "with" else "`.map_field`"

    def _check_unknown_arguments(
        self, arguments: Mapping[str, MapEntry], parameters: dict[str, Parameter], config_key: str
    ) -> Iterator[Problem]:
        takes_any_name = any(p.kind is Parameter.VAR_KEYWORD for p in parameters.values())
        known = [
            p.name for p in parameters.values() if p.kind in {Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY}
        ]
        for key, entry in arguments.items():
            parameter = parameters.get(key)
            if parameter is not None and parameter.kind is Parameter.POSITIONAL_ONLY:
                message = (
                    f"`{key}` of `{self.label}` is positional-only, so {self._name_setter(config_key)} cannot set it"
                )
                yield entry.key_location.make_problem(message, f"wrap `{self.label}` in your own function")
            elif key not in known and not takes_any_name:
                closest = closest_match(str(key), known)
                takes = f"it takes {', '.join(f'`{name}`' for name in known)}" if known else "it takes no arguments"
                hint = f"did you mean `{closest}`?" if closest else takes
                yield entry.key_location.make_problem(f"`{self.label}` has no argument `{key}`", hint)

    def _check_missing_arguments(
        self, provided_names: set[str | None], parameters: dict[str, Parameter]
    ) -> Iterator[Problem]:
        variadic_kinds = {Parameter.VAR_KEYWORD, Parameter.VAR_POSITIONAL}
        for parameter in parameters.values():
            if (
                parameter.kind in variadic_kinds
                or parameter.default is not Parameter.empty
                or parameter.name in provided_names
            ):
                continue
            if parameter.kind is Parameter.POSITIONAL_ONLY:
                hint = f"wrap `{self.label}` in your own function: `{parameter.name}` is positional-only"
            elif self.implicit_arguments:
                hint = f"write {self._write_call(parameter.name, is_nested=True)}"
            else:
                hint = self._write_call(parameter.name, is_nested=False)
            yield self.location.make_problem(f"`{self.label}` needs the argument `{parameter.name}`", hint)

    def _write_call(self, name: str, *, is_nested: bool) -> str:
        """Write the config or the code that sets an argument of the target."""
        if self.location.call:
            maker = "functools.partial" if self.callee.kind is CalleeKind.FUNCTION else "defer"
            call = f"{maker}({self.label}, {name}=...)"
            return call if is_nested else f"write {call}"
        return f"{{uses: {self.label}, with: {{{name}: ...}}}}" if is_nested else f"add `with: {{{name}: ...}}`"

    def _check_values(
        self, arguments: Mapping[str, MapEntry], parameters: Mapping[str, Parameter]
    ) -> Iterator[Problem]:
        """Yield a problem for each argument that its parameter does not accept, as far as annotations show it."""
        for name, entry in arguments.items():
            annotation = parameters[name].annotation if name in parameters else None
            accepted = read_annotation(annotation, self.lookup) if isinstance(annotation, Annotation) else None
            mismatch = None if accepted is None else find_mismatch(to_plain(entry.node), accepted)
            if mismatch is not None:
                message = write_mismatch(name, self.label, mismatch)
                yield find_location(entry.node, mismatch.path).make_problem(message, mismatch.hint)


_FOREIGN_USES_KEYS: Final = ("_target_", "class_path")  # the keys of Hydra and jsonargparse for `uses`
_MAX_SHOWN_NAMES: Final = 8
_BUILT_IN_PACKAGES: Final = frozenset({"sinks", "sources", "stages"})
_SAMPLER_DATASET_PARAMETERS: Final = frozenset({"dataset", "data_source"})  # the parameter names of torch's samplers


_MAIN_SCRIPT_HINT: Final = "move the function to its own module; in Python you can also pass the function itself"


@dataclass
class TargetChecker:
    """Checks all targets of one config."""

    config_dir: Path | None = None
    problems: list[Problem] = field(default_factory=list)
    _implicit_arguments: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        """Use a new lookup: each lookup reports a broken file only once, and reading the traits ignores it."""
        self._lookup = DefinitionLookup(ModuleFinder(self.config_dir))

    def check_config(self, root: MapNode, stage_traits: Sequence[StageTraits]) -> list[Problem]:
        """Return the problems of source, sink and stages, and of the targets nested in their arguments."""
        stage_roles = [TargetRole.ORDER_POINT if t.is_order_point else TargetRole.STAGE for t in stage_traits]
        targets = [(root.get("source"), TargetRole.SOURCE), *((sink, TargetRole.SINK) for sink in get_sinks(root))]
        for node, role in [*targets, *zip(get_stages(root), stage_roles, strict=True)]:
            if isinstance(node, MapNode):
                self._check_target(node, role)
        for stage in (*get_stages(root), *get_sinks(root)):
            self._check_predicate(stage)
        return self.problems

    def _check_predicate(self, stage: MapNode) -> None:
        """Check the predicate of a `when`: it is called with an item, like a stage."""
        when = stage.get("when")
        if isinstance(when, MapNode) and "uses" in when.entries and when.entries.keys() <= {"uses", "with"}:
            self._check_nested_map(when, TargetRole.PREDICATE)
        elif isinstance(when, ScalarNode) and (callable(when.value) or names_predicate(when.value)):
            self._check_target(MapNode({"uses": stage.entries["when"]}, when.location), TargetRole.PREDICATE)

    def _check_target(self, node: MapNode, role: TargetRole) -> None:
        arguments = node.get("with")
        if isinstance(arguments, MapNode) and role is TargetRole.SOURCE and is_dataset_source(node):
            self._check_dataset_arguments(arguments)
        elif isinstance(arguments, MapNode):
            self._check_nested(arguments)
        arguments = self._check_argument_names(arguments)
        uses = node.get("uses")
        if not isinstance(uses, ScalarNode):
            return
        takes_arguments = callable(uses.value) or isinstance(uses.value, str)
        if isinstance(arguments, MapNode) and arguments.entries and not takes_arguments:
            message = f"`uses` is an object ({type(uses.value).__name__}), which takes no arguments"
            self.problems.append(node.entries["with"].key_location.make_problem(message, "remove `with`"))
        callee = self._find_callee(uses, role)
        if callee is None or not (arguments is None or isinstance(arguments, MapNode)):
            return
        label = Target(uses.value).label
        entries = arguments.entries if isinstance(arguments, MapNode) else {}
        is_dataset = is_dataset_source(node)  # `check_arguments` has checked its arguments
        if is_dataset:
            entries = {key: entry for key, entry in entries.items() if key == "dataset"}
        field_node = node.get("field") if role is TargetRole.STAGE else None
        field_mapping = field_node if isinstance(field_node, MapNode) else None
        if role in {TargetRole.STAGE, TargetRole.PREDICATE, TargetRole.SINK} and callee.has_call is False:
            message = f"`{label}` has no `__call__`, so it cannot be called with an item"
            self.problems.append(uses.location.make_problem(message, "use a function, or a class with `__call__`"))
        self._check_async(uses, label, callee, role)
        if callee.signature is not None:
            call_check = CallCheck(
                label=label,
                callee=callee,
                role=role,
                arguments=entries,
                field_mapping=field_mapping,
                location=uses.location,
                implicit_arguments=self._implicit_arguments,
                lookup=self._lookup,
                checks_values=not is_dataset,
            )
            self.problems += call_check.check(callee.signature)

    def _check_async(self, uses: ScalarNode, label: str, callee: Callee, role: TargetRole) -> None:
        """Refuse an `async def` anywhere but in a stage."""
        is_called_once = callee.kind is CalleeKind.FACTORY and role in {TargetRole.SOURCE, TargetRole.ORDER_POINT}
        if role is TargetRole.ARGUMENT or is_called_once:
            return
        if role is TargetRole.STAGE and callee.awaited == "generator":
            message, _, hint = ASYNC_GENERATOR_MESSAGE.format(label).partition("; ")
        elif role is not TargetRole.STAGE and callee.awaited:
            message = f"`{label}` is an async function, which nothing awaits here"
            hint = "await it in its own stage, or call it in a function with asyncio.run(...)"
        else:
            return
        self.problems.append(uses.location.make_problem(message, hint))

    def _check_argument_names(self, arguments: Node | None) -> Node | None:
        """Check that all keys are strings; return the arguments without other keys."""
        if not isinstance(arguments, MapNode):
            return arguments
        others = [key for key in arguments.entries if not isinstance(key, str)]
        for key in others:
            shown = format_value(key)
            message = f"`with`: expected the name of an argument, found the key {shown}"
            hint = "write the name of the parameter" if isinstance(key, bool | None) else f'quote it: "{key}"'
            self.problems.append(arguments.entries[key].key_location.make_problem(message, hint))
        return arguments.without(*others) if others else arguments

    def _check_dataset_arguments(self, arguments: MapNode) -> None:
        """Check the targets in the arguments of a dataset source. A sampler may receive the dataset as an argument."""
        for key, inner in iter_children(arguments):
            if isinstance(inner, MapNode) and "uses" in inner.entries:
                self._implicit_arguments = (
                    _SAMPLER_DATASET_PARAMETERS if key in {"sampler", "batch_sampler"} else frozenset()
                )
                is_called = key in CALLED_ARGUMENTS
                self._check_nested_map(inner, TargetRole.ARGUMENT if is_called else TargetRole.SOURCE)
        self._implicit_arguments = frozenset()

    def _check_nested(self, node: Node) -> None:
        for _, inner in iter_children(node):
            if isinstance(inner, MapNode):
                self._check_nested_map(inner)
            elif isinstance(inner, ListNode):
                self._check_nested(inner)

    def _check_nested_map(self, node: MapNode, role: TargetRole = TargetRole.ARGUMENT) -> None:
        for key in _FOREIGN_USES_KEYS:
            if key in node.entries and "uses" not in node.entries:
                location = node.entries[key].key_location
                message = f"`{key}` is a key of another tool"
                self.problems.append(location.make_problem(message, "did you mean `uses`?"))
        if "uses" not in node.entries:
            self._check_nested(node)
            return
        for key, entry in node.entries.items():
            if key not in {"uses", "with"}:
                message = f"a mapping with `uses` takes only `with` next to it, found `{key}`"
                intended = find_intended_key(str(key), ["uses", "with"])
                argument = f"if it is an argument: with: {{{key}: ...}}"
                hint = f"did you mean `{intended}`?" if intended else argument
                self.problems.append(entry.key_location.make_problem(message, hint))
        uses = node.get("uses")
        if not isinstance(uses, ScalarNode) or isinstance(uses.value, int | float):
            uses_node = node.entries["uses"].node
            found = format_value(to_plain(uses_node))
            message = f"`uses`: expected an import path, found {found}"
            self.problems.append(uses_node.location.make_problem(message, "write pkg.module.name"))
        self._check_target(node, role)

    def _find_callee(self, uses: ScalarNode, role: TargetRole) -> Callee | None:
        if not isinstance(uses.value, str):
            return inspect_user_object(uses.value, self._lookup) if callable(uses.value) else None
        try:
            return self._resolve_path(uses.value, uses.location, role)
        except BrokenSourceError as error:
            location = SourceLocation(
                file=_display_path(error.path), line=error.line, column=error.column, source_line=error.source_line
            )
            importer = f" (line {uses.location.line})" if uses.location.line else ""
            hint = f"fix this file: `{uses.value}`{importer} imports it"
            self.problems.append(location.make_problem(f"SyntaxError: {error.message}", hint))
            return None

    def _resolve_path(self, path: str, location: SourceLocation, role: TargetRole) -> Callee | None:
        module, attributes = split_target_path(path)
        names = attributes.split(".") if attributes is not None else []
        syntax_problem = self._check_bare_name(path, role) or _check_path_syntax(path, module, names)
        if syntax_problem is not None:
            self.problems.append(location.make_problem(*syntax_problem))
            return None
        start, names = self._find_start_module(module, names, location)
        if not names:
            return None
        result = self._lookup.resolve_path(start, names)
        last = result.module if isinstance(result, Definition) else result if isinstance(result, ParsedModule) else None
        first = start or self._lookup.module_finder.find(names[0])
        if any(m is not None and m.path is not None and is_main_script(m.path) for m in (first, last)):
            message = f"`{path}` is in the running script: every worker would run it again"
            self.problems.append(location.make_problem(message, _MAIN_SCRIPT_HINT))
            return None
        if isinstance(result, ConstantName):
            self.problems += _check_constant(path, location, result, role)
            return None
        return self._to_callee(path, location, result)

    def _check_bare_name(self, path: str, role: TargetRole) -> tuple[str, str] | None:
        """Return the message and hint for a known name without its module: a built-in, or in a nearby file."""
        if not path.isidentifier():
            return None
        from stagepipe.config.catalog import BuiltInKind, list_built_ins  # only here: the catalog loads configs

        kinds = {TargetRole.SOURCE: BuiltInKind.SOURCE, TargetRole.SINK: BuiltInKind.SINK}
        kind = kinds.get(role, BuiltInKind.STAGE)
        paths = [b.path for b in list_built_ins() if b.kind is kind and b.name.rpartition(".")[2] == path]
        folder = Path() if self.config_dir is None else self.config_dir
        paths += [f"./{file.name}:{path}" for file in sorted(folder.glob("*.py")) if _defines(file, path)]
        paths += [f"builtins.{path}"] if hasattr(builtins, path) else []
        return (f"`{path}` is not an import path", f"did you mean `{paths[0]}`?") if paths else None

    def _find_start_module(
        self, module: str, names: list[str], location: SourceLocation
    ) -> tuple[ParsedModule | None, list[str]]:
        if not names_file(module):
            return None, [*module.split("."), *names]
        file = resolve_file(module, self.config_dir)
        if not file_exists(file):
            closest = None
            with suppress(OSError):  # the folder's path may be too long
                closest = closest_file_name(file.name, (p.name for p in file.parent.glob("*.py")))
            base = "current folder" if self.config_dir is None else "config's folder"
            similar_path = f"{module[: -len(file.name)]}{closest}"
            hint = f"did you mean `{similar_path}`?" if closest else f"the path is relative to the {base}"
            self.problems.append(location.make_problem(f"no such file: `{_display_path(file)}`", hint))
            return None, []
        return self._lookup.module_finder.parse_file(file), names

    def _make_built_in_hint(self, path: str, missing: MissingName) -> str:
        """Name the full path of a built-in that was written without `stagepipe`, such as `sinks.npz`."""
        if missing.owner or missing.name not in _BUILT_IN_PACKAGES:
            return ""
        result = self._lookup.find_target(f"stagepipe.{path.replace(':', '.')}")
        if not isinstance(result, MissingName):
            return f"did you mean `stagepipe.{path}`?"
        closest = closest_match(result.name, result.choices)
        return (
            f"did you mean `{result.owner}.{closest}`?"
            if closest
            else f"`{result.owner}`: {_list_names(result.choices)}"
        )

    def _to_callee(self, path: str, location: SourceLocation, lookup_result: object) -> Callee | None:
        if isinstance(lookup_result, MissingName):
            self.problems.append(
                _missing_name_problem(path, location, lookup_result, self._make_built_in_hint(path, lookup_result))
            )
            return None
        if isinstance(lookup_result, ParsedModule):
            if lookup_result.tree is not None:
                hint = _list_names(lookup_result.bindings) or "add the name of a function in it"
                self.problems.append(location.make_problem(f"`{path}` is a module, not a function or class", hint))
            return None
        callee = inspect_definition(lookup_result, self._lookup) if isinstance(lookup_result, Definition) else None
        stdlib_object = find_stdlib_object(path)
        if isinstance(stdlib_object, MissingName) and (callee is None or callee.signature is None):
            self.problems.append(_missing_name_problem(path, location, stdlib_object))
            return None
        if not isinstance(stdlib_object, StdlibObject) or not callable(stdlib_object.value):
            return callee
        # Prefer the object over the source: a C implementation may take fewer arguments than its Python version.
        object_callee = inspect_object(stdlib_object.value)
        return object_callee if object_callee.signature is not None or callee is None else callee


_PATH_HINT: Final = "write pkg.module.name, or ./file.py:name"


def _defines(file: Path, name: str) -> bool:
    """Return whether a file defines a function or class `name` at its top level."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return False
    return re.search(rf"^(def|class) {name}\b", text, re.MULTILINE) is not None


def _check_path_syntax(path: str, module: str, names: list[str]) -> tuple[str, str] | None:
    """Return the message and hint for a path with wrong syntax, without any lookup."""
    if module.partition(".")[0] == "__main__":
        return f"`{path}` is in the running script", _MAIN_SCRIPT_HINT
    if names_file(module):
        if not names:
            return f"`{path}` names a file, not a function or class", f"write `{path}:function`"
    elif not names and "." not in module:
        return explain_code(path) or (f"`{path}` is not an import path", _PATH_HINT)
    parts = [*([] if names_file(module) else module.split(".")), *names]
    if not all(part.isidentifier() for part in parts):
        hint = "write pkg.module.name, pkg.module:name or ./file.py:name"
        return explain_code(path) or (f"`{path}` is not an import path", hint)
    return None


def _check_constant(path: str, location: SourceLocation, constant: ConstantName, role: TargetRole) -> Iterator[Problem]:
    """Yield the problem of a constant as a target. An argument may be a constant, and a source one that has items."""
    if role is TargetRole.ARGUMENT or (role is TargetRole.SOURCE and constant.is_iterable):
        return
    message = f"`{path}` is a constant ({constant.text}), not a function or class"
    yield location.make_problem(
        message, f"use a function, or a class{'' if role is TargetRole.SOURCE else ' with `__call__`'}"
    )


def _list_names(names: Iterable[str]) -> str:
    shown = [name for name in names if not name.startswith("_")][:_MAX_SHOWN_NAMES]
    return f"it has {', '.join(f'`{name}`' for name in shown)}" if shown else ""


def _missing_name_problem(
    path: str, location: SourceLocation, missing: MissingName, built_in_hint: str = ""
) -> Problem:
    choices = [name for name in missing.choices if not name.startswith("__")]
    same_kind = [name for name in choices if name[:1].isupper() == missing.name[:1].isupper()]
    closest = closest_match(missing.name, same_kind) or closest_match(missing.name, choices)
    if not missing.owner:
        place = "put it next to the config" if location.line else "add its folder to sys.path"
        hint = built_in_hint or (f"did you mean `{closest}`?" if closest else f"install it, or {place}")
        if hasattr(builtins, missing.name):
            hint = f"did you mean `builtins.{path}`?"
        return location.make_problem(f"`{path}`: no module named `{missing.name}`", hint)
    hint = f"did you mean `{closest}`?" if closest else _list_names(missing.choices)
    return location.make_problem(f"`{path}`: `{missing.owner}` has no `{missing.name}`", hint)


def _display_path(path: Path) -> str:
    """Return a path as the user would write it: relative to the current folder if possible."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)
