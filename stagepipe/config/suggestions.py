"""Suggests the right key or value for a wrong one: first by the names of other tools, then by similar spellings.

The other tools: torch's DataLoader, Ray Data, Hydra, jsonargparse, tf.data, WebDataset, SPDL, Kubernetes. Runs in the
process that loads the config.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from typing import Any, Final

from stagepipe.config.document import write_flow_yaml
from stagepipe.core import closest_match
from stagepipe.spec import KEY_SYNONYMS, PipelineSpec, StageSpec, iter_options

_BATCH_HINT: Final = "add a stage: {name: batch, uses: stagepipe.stages.Batch, with: {size: N}}, in Python `.batch(N)`"
_DROP_LAST_HINT: Final = (
    "add a stage: {name: batch, uses: stagepipe.stages.Batch, with: {size: N, drop_last: true}}, in Python "
    "`.batch(N, drop_last=True)`"
)
_LIST_HINT: Final = (
    "write `batch: {size: N}`, in Python `.map_batches(function, batch_size=N)`, or add a stage that uses "
    "`stagepipe.stages.Batch`"
)
_RANGE_HINT: Final = (
    "write `workers: {min: 1, max: 8}`, in Python `workers={'min': 1, 'max': 8}`; `workers: 8` for a fixed number"
)
_WORKERS_HINT: Final = "it is a key of `source`, next to `uses`: `workers: N`"

UNKNOWN_KEY_HINTS: Final = {
    **{("source", key): "set it on a stage" for key in ("when", "field", "as", "into", "mutable", "transport")},
    **{
        (place, key): _RANGE_HINT
        for place in ("source", "stages[]", "sink", "sink[]")
        for key in ("min_workers", "max_workers")
    },
    ("stages[]", "batch_size"): _LIST_HINT,
    ("stages[]", "batchsize"): _LIST_HINT,
    ("", "batch_size"): _BATCH_HINT,
    ("", "shuffle"): (
        "add a stage: {name: shuffle, uses: stagepipe.stages.Shuffle, with: {size: N}}, in Python `.shuffle(N)`"
    ),
    ("", "epochs"): "remove it: the training loop counts the epochs",
    ("", "workers"): "`workers` belongs in `source`, or in an entry of `stages`; in Python, in the call of a stage",
    ("source", "batch_size"): "it is an argument: `with: {batch_size: N}`",
}
"""Hints for keys that need more than another name, by mapping and key; "" is the top level."""

DATALOADER_ARGUMENT_HINTS: Final[dict[object, str]] = {
    "batch_size": _BATCH_HINT,
    "drop_last": _DROP_LAST_HINT,
    "num_workers": _WORKERS_HINT,
    "workers": _WORKERS_HINT,
    "prefetch_factor": "set the pipeline's `window`, or leave it at `auto`",
    "generator": "set the pipeline's `seed`, or pass a `sampler`",
    "timeout": "it is a key of `source`, next to `uses`: `timeout: 30s`",
    "pin_memory": "pass it to `stagepipe.torch.Loader`",
    "persistent_workers": "remove it: workers always keep their loaded state",
    "multiprocessing_context": "remove it: workers always start as new processes",
    "worker_init_fn": "give it to the source of a dataset, or write a class: each worker calls its `__init__` once",
}
"""Arguments of torch's DataLoader that `stagepipe.sources.dataset` does not accept, and what to write instead."""


def find_intended_key(key: str, known_keys: Iterable[str]) -> str | None:
    """Return the intended key for an unknown one: by a name of another tool, or by a similar spelling.

    >>> find_intended_key("num_workers", ["workers", "uses"]), find_intended_key("colour", ["workers"])
    ('workers', None)
    """
    known_keys = sorted(known_keys)
    folded = _fold(key)
    synonyms = (known for known, words in KEY_SYNONYMS.items() if known in known_keys and folded in words)
    return next(synonyms, None) or closest_match(key, known_keys)


def find_option_key(name: str) -> str | None:
    """Return the override path of a key that was given as an option of a command; None if there is no such key.

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
) -> str:
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
    return f"known keys: {', '.join(sorted(known_keys))}"


_CALL: Final = re.compile(r"(?P<target>[^\s(]+)\((?P<arguments>.*)\)", re.DOTALL)
_PARTIALS: Final = ("partial", "functools.partial")
_CODE_HINT: Final = (
    "name a function by its import path: write it in a file next to the config, and set `uses: ./file.py:name`"
)


def explain_code(text: str) -> tuple[str, str] | None:
    """Return the message and the hint for Python code in place of an import path; None for any other text.

    >>> message, hint = explain_code("my_ops.Resize(224)")
    >>> message
    '`my_ops.Resize(224)` is a call, not an import path'
    >>> hint
    'name it, and give its arguments by name in `with`: `{uses: my_ops.Resize, with: {ARGUMENT: 224}}`'
    """
    code = text.strip()
    call = _CALL.fullmatch(code)
    parsed = _parse(f"f({call['arguments']})") if call else None
    if call and isinstance(parsed, ast.Call):
        return f"`{code}` is a call, not an import path", _make_call_hint(call["target"], parsed)
    if isinstance(_parse(code), ast.Name | ast.Attribute | None):
        return None
    return f"`{code}` is Python code, not an import path", _CODE_HINT


def _parse(code: str) -> ast.AST | None:
    try:
        body = ast.parse(code).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return body[0].value if len(body) == 1 and isinstance(body[0], ast.Expr) else ast.Module(body, [])


def _make_call_hint(target: str, call: ast.Call) -> str:
    positional = list(call.args)
    if target in _PARTIALS and positional:
        target = ast.unparse(positional.pop(0))
    arguments: dict[Any, Any] = {f"ARGUMENT{i or ''}": _to_value(node) for i, node in enumerate(positional)}
    arguments |= {keyword.arg or "...": _to_value(keyword.value) for keyword in call.keywords}
    path = target if "." in target or ":" in target else f"pkg.module.{target}"
    entry = write_flow_yaml({"uses": path, **({"with": arguments} if arguments else {})})
    return f"name it, and give its arguments by name in `with`: `{entry}`" if arguments else f"write `{entry}`"


def _to_value(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except ValueError:
        return ast.unparse(node)


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
"""Values of keys with a fixed set of values, and their names in other tools."""


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
