"""Writes a fingerprint as lines of text, and compares lines: what a state keeps of a fingerprint. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping

from stagepipe.fingerprint.model import Fingerprint

_MAX_LINES = 24
"""Maximum number of lines of a value, so that a state stays small. What has more parts is summed up in a digest."""

_DIGEST_DIGITS = 12
"""Hexadecimal digits of a digest that a state keeps: 48 bits against an accident."""

_EMPTY_TEXTS = frozenset({"{}", "OrderedDict()"})
"""A torch module has a dozen private attributes with these values. They have no line."""

_UNKNOWN_PREFIX = "no fingerprint: "


def describe_fingerprint(fingerprint: Fingerprint, path: str) -> dict[str, str]:
    """Return the lines of a fingerprint: from `path` and a part's labels to its text. Equal lines mean equal values.

    Parts near the top have a line of their own, the state of an object before its class. Deeper ones are summed up.

    >>> from stagepipe.fingerprint import compute_fingerprint
    >>> describe_fingerprint(compute_fingerprint([1, 2]), "source.uses")
    {'source.uses': '[1, 2]'}
    """
    lines: dict[str, str] = {}
    queue = deque([(path, fingerprint)])
    classes: deque[tuple[str, Fingerprint]] = deque()
    while queue or classes:
        path, part = (queue or classes).popleft()
        shown_parts = [(label, inner) for label, inner in part.parts if not _is_empty_private(label, inner)]
        if part.is_exact:
            lines[path] = part.text
        elif part.unknown is not None and not part.unknown.path:
            lines[path] = _UNKNOWN_PREFIX + part.unknown.reason
        elif part.parts and len(lines) + len(queue) + len(classes) + len(shown_parts) < _MAX_LINES:
            lines[path] = part.text
            for label, inner in shown_parts:
                (classes if label == "class" else queue).append((f"{path}: {label}", inner))
        else:
            lines[path] = f"{part.text} #{part.digest.hex()[:_DIGEST_DIGITS]}".strip()
            if part.unknown is not None:
                lines[f"{path}: {part.unknown.path}"] = _UNKNOWN_PREFIX + part.unknown.reason
    return lines


def _is_empty_private(label: str, part: Fingerprint) -> bool:
    return label.startswith("attribute `_") and part.text in _EMPTY_TEXTS


def find_differences(
    saved: Mapping[str, str], current: Mapping[str, str], *, with_digests: bool = True
) -> Iterator[tuple[str, str]]:
    """Yield the path of each line that differs, with a sentence. Parts without a fingerprint are no difference.

    Without `with_digests`, lines that differ in their digests alone are equal.

    >>> dict(find_differences({"seed": "3"}, {"seed": "4"}))
    {'seed': 'seed: saved 3, now 4'}
    """
    for path in [*saved, *(path for path in current if path not in saved)]:
        old, new = saved.get(path, "not set"), current.get(path, "not set")
        if old == new or get_unknown_reason(old) or get_unknown_reason(new):
            continue
        if _remove_digest(old) != _remove_digest(new):
            yield path, f"{path}: saved {old}, now {new}"
        elif with_digests:
            yield path, f"{path}: changed"


def get_unknown_reason(value: str) -> str:
    """Return why a part of a value has no fingerprint; empty if it has one.

    >>> get_unknown_reason("no fingerprint: an open file")
    'an open file'
    """
    return value.removeprefix(_UNKNOWN_PREFIX) if value.startswith(_UNKNOWN_PREFIX) else ""


def _remove_digest(value: str) -> str:
    """Return a value without the digest at its end."""
    return value[: -_DIGEST_DIGITS - 1].rstrip() if value[-_DIGEST_DIGITS - 1 : -_DIGEST_DIGITS] == "#" else value
