"""Suggests the right key or value for a wrong one: names that other tools use, then similar spellings.

The other tools: torch's DataLoader, Ray Data, Hydra, jsonargparse, tf.data, WebDataset, SPDL, Kubernetes.
Runs in the process that loads the config.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from typing import Any, Final

from stagepipe.core import AdviceText, ConfigSyntax, Placeholder, closest_match
from stagepipe.spec import KEY_SYNONYMS, PipelineSpec, StageSpec, iter_options

_N: Final = Placeholder("N")


def _make_stage_hint(name: str, **arguments: Any) -> AdviceText:
    """Advise to add a built-in stage."""

    def write(syntax: ConfigSyntax) -> str:
        stage = syntax.format_built_in_stage(name, _N, **arguments)
        return f"call `{stage}`" if syntax is ConfigSyntax.BUILDER else f"add a stage: {stage}"

    return write


def _make_source_hint(key: str, value: Any) -> AdviceText:
    """Advise to set a key of the source."""

    def write(syntax: ConfigSyntax) -> str:
        setting = syntax.format_setting(key, value)
        if syntax is ConfigSyntax.BUILDER:
            return f"write `from_dataset(..., {setting})`"
        return f"it is a key of `source`, next to `uses`: `{setting}`"

    return write


def _write_list_hint(syntax: ConfigSyntax) -> str:
    if syntax is ConfigSyntax.BUILDER:
        return "call `.map_batches(function, batch_size=N)`, or add `.batch(N)`"
    batch = syntax.format_setting("batch", {"size": _N})
    return f"write `{batch}`, or add a stage that uses `stagepipe.stages.Batch`"


def _write_workers_hint(syntax: ConfigSyntax) -> str:
    if syntax is ConfigSyntax.BUILDER:
        return "`workers` belongs in the call of a stage: `.map(decode, workers=N)`"
    return "`workers` belongs in `source`, or in an entry of `stages`"


UNKNOWN_KEY_HINTS: Final[dict[tuple[str, str], AdviceText]] = {
    **{("source", key): "set it on a stage" for key in ("when", "field", "as", "into", "mutable", "transport")},
    ("stages[]", "batch_size"): _write_list_hint,
    ("stages[]", "batchsize"): _write_list_hint,
    ("", "batch_size"): _make_stage_hint("Batch"),
    ("", "shuffle"): _make_stage_hint("Shuffle"),
    ("", "epochs"): "remove it: the training loop counts the epochs",
    ("", "workers"): _write_workers_hint,
    ("source", "batch_size"): lambda syntax: (
        f"it is an argument: `{syntax.format_setting('with', {'batch_size': _N})}`"
    ),
}
"""Hints for keys that need more than another word, by mapping and key; "" is the top level."""

DATALOADER_ARGUMENT_HINTS: Final[dict[object, AdviceText]] = {
    "batch_size": _make_stage_hint("Batch"),
    "drop_last": _make_stage_hint("Batch", drop_last=True),
    "num_workers": _make_source_hint("workers", _N),
    "workers": _make_source_hint("workers", _N),
    "prefetch_factor": "set the pipeline's `window`, or leave it at `auto`",
    "generator": "set the pipeline's `seed`, or pass a `sampler`",
    "timeout": _make_source_hint("timeout", "30s"),
    "pin_memory": "pass it to `stagepipe.torch.Loader`",
    "persistent_workers": "remove it: workers always keep their loaded state",
    "multiprocessing_context": "remove it: workers always start as new processes",
    "worker_init_fn": "give it to the source of a dataset, or write a class: each worker calls its `__init__` once",
}
"""Arguments of torch's DataLoader that `stagepipe.sources.dataset` does not accept, and what to write instead."""


def find_intended_key(key: str, known_keys: Iterable[str]) -> str | None:
    """Return the key that an unknown one stands for: a name of another tool, or a similar spelling.

    >>> find_intended_key("num_workers", ["workers", "uses"]), find_intended_key("colour", ["workers"])
    ('workers', None)
    """
    known_keys = sorted(known_keys)
    folded = _fold(key)
    synonyms = (known for known, words in KEY_SYNONYMS.items() if known in known_keys and folded in words)
    return next(synonyms, None) or closest_match(key, known_keys)


def find_option_key(name: str) -> str | None:
    """Return the override's path for a key that was written as an option of a command; None if there is no such key.

    >>> find_option_key("num_workers"), find_option_key("seed"), find_option_key("colour")
    ('stages.NAME.workers', 'seed', None)
    """
    for spec_type, prefix in ((PipelineSpec, ""), (StageSpec, "stages.NAME.")):
        keys = [key.key for key in iter_options(spec_type)]
        found = next((key for key in keys if key == name or name in KEY_SYNONYMS.get(key, ())), None)
        if found is not None:
            return f"{prefix}{found}"
    return None


def make_key_hint(
    key: str, known_keys: Iterable[str], mapping_path: str, other_mappings: Iterable[tuple[str, frozenset[str]]] = ()
) -> AdviceText:
    """Say what to write instead of an unknown key.

    `other_mappings` are the keys of the config's other mappings, each with a label such as "in `transport`".

    >>> make_key_hint("num_workers", ["workers", "uses"], "stages[]")
    'did you mean `workers`?'
    """
    if (mapping_path, key) in UNKNOWN_KEY_HINTS:
        return UNKNOWN_KEY_HINTS[mapping_path, key]
    intended = find_intended_key(key, known_keys)
    if intended is not None:
        return f"did you mean `{intended}`?"
    if mapping_path in {"source", "stages[]"} and key in DATALOADER_ARGUMENT_HINTS:
        return DATALOADER_ARGUMENT_HINTS[key]
    intended_keys = {known for known, words in KEY_SYNONYMS.items() if _fold(key) in words} | {key}
    for label, keys in other_mappings:
        for intended_key in sorted(intended_keys & keys):
            return f"`{intended_key}` belongs {label}"
    listed = ", ".join(sorted(known_keys))
    return lambda syntax: f"known {'options' if syntax is ConfigSyntax.BUILDER else 'keys'}: {listed}"


_CALL: Final = re.compile(r"(?P<target>[^\s(]+)\((?P<arguments>.*)\)", re.DOTALL)
_PARTIALS: Final = ("partial", "functools.partial")


def explain_code(text: str) -> tuple[str, AdviceText] | None:
    """Return the message and the hint for Python code where a config has an import path; None for any other text.

    >>> message, hint = explain_code("my_ops.Resize(224)")
    >>> message
    '`my_ops.Resize(224)` is a call, not an import path'
    >>> hint(ConfigSyntax.YAML)
    'name it, and give its arguments by name in `with`: `{uses: my_ops.Resize, with: {ARGUMENT: 224}}`'
    """
    code = text.strip()
    call = _CALL.fullmatch(code)
    parsed = _parse(f"f({call['arguments']})") if call else None
    if call and isinstance(parsed, ast.Call):
        return f"`{code}` is a call, not an import path", _make_call_hint(call["target"], parsed)
    if isinstance(_parse(code), ast.Name | ast.Attribute | None):
        return None
    return f"`{code}` is Python code, not an import path", _write_code_hint


def _parse(code: str) -> ast.AST | None:
    try:
        body = ast.parse(code).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return body[0].value if len(body) == 1 and isinstance(body[0], ast.Expr) else ast.Module(body, [])


def _write_code_hint(syntax: ConfigSyntax) -> str:
    if syntax is not ConfigSyntax.YAML:
        return "pass the function itself, or write pkg.module.name"
    return "a function is named by its import path: write it in a file next to the config, and `uses: ./file.py:name`"


def _make_call_hint(target: str, call: ast.Call) -> AdviceText:
    positional = list(call.args)
    if target in _PARTIALS and positional:
        target = ast.unparse(positional.pop(0))
    arguments: dict[Any, Any] = {
        Placeholder(f"ARGUMENT{i or ''}"): _to_value(node) for i, node in enumerate(positional)
    }
    arguments |= {keyword.arg or "...": _to_value(keyword.value) for keyword in call.keywords}
    path = target if "." in target or ":" in target else f"pkg.module.{target}"

    def write(syntax: ConfigSyntax) -> str:
        if syntax is ConfigSyntax.BUILDER:
            return "pass the function itself, or defer(Class, ...)"
        entry = syntax.format_value({"uses": path, **({"with": arguments} if arguments else {})})
        return f"name it, and give its arguments by name in `with`: `{entry}`" if arguments else f"write `{entry}`"

    return write


def _to_value(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except ValueError:
        return Placeholder(ast.unparse(node))


def _fold(key: str) -> str:
    return key.casefold().replace("-", "_")


VALUE_SYNONYMS: Final[dict[str, tuple[str, ...]]] = {
    "shared_memory": ("shm", "shmem", "sharedmemory", "memfd", "arena"),
    "pipe": ("queue", "socket", "fifo", "pickle"),
    "tensor": ("torch", "pt", "pytorch", "torch.tensor"),
    "numpy": ("np", "ndarray", "array"),
    "pil": ("image", "pillow", "pil.image"),
    "skip": ("ignore", "drop", "continue", "warn"),
    "fail": ("raise", "abort", "stop", "error"),
    "source": ("ordered", "strict", "input", "fifo", "true"),
    "any": ("unordered", "none", "completion", "false"),
}
"""Values of keys with a fixed set of values, and what other tools call them."""


def make_value_hint(value: object, choices: Iterable[str]) -> str:
    """Say what to write instead of a value that is not in `choices`.

    >>> make_value_hint("shm", ["auto", "pipe", "shared_memory"])
    'did you mean `shared_memory`?'
    """
    choices = list(choices)
    folded = str(value).casefold()
    for choice in choices:
        if folded in VALUE_SYNONYMS.get(choice, ()):
            return f"did you mean `{choice}`?"
    closest = closest_match(folded, choices)
    return f"did you mean `{closest}`?" if closest else f"write one of {', '.join(f'`{choice}`' for choice in choices)}"
