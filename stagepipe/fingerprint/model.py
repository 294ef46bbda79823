"""`Fingerprint`: the identity of a value, as a digest, a text and named parts; and its lines, which a state keeps."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

MAX_TEXT_CHARS = 96
"""Maximum length of a text. A longer value shows its beginning and is compared by its digest."""


class UnknownPart(NamedTuple):
    """A part of a value without a fingerprint: the labels that lead to it, and the reason."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """Values with equal digests behave in the same way.

    `text` is short. If `is_exact`, it identifies the value; otherwise text and `parts` do, and so does the digest.
    `unknown` is the first part without a fingerprint. `has_bytecode` is set if another Python version would compute
    another digest.
    """

    text: str
    digest: bytes
    is_exact: bool = False
    parts: tuple[tuple[str, Fingerprint], ...] = ()
    unknown: UnknownPart | None = None
    has_bytecode: bool = False


Build = Callable[[Any], Fingerprint]
"""Returns the fingerprint of any value: the functions for one kind of value call it for the parts."""


def make_exact(kind: str, text: str) -> Fingerprint:
    """Return the fingerprint of a value with a complete text. `kind` separates equal texts of different types."""
    if len(text) > MAX_TEXT_CHARS:
        return make_opaque(kind, f"{text[: MAX_TEXT_CHARS // 2]}...", text.encode())
    return Fingerprint(text=text, digest=_hash_fields(kind.encode(), text.encode()), is_exact=True)


def make_opaque(kind: str, text: str, content: bytes | memoryview, *, has_bytecode: bool = False) -> Fingerprint:
    """Return the fingerprint of a value by its bytes: a long text, an array, bytecode."""
    digest = _hash_fields(kind.encode(), text.encode(), content)
    return Fingerprint(text=text, digest=digest, has_bytecode=has_bytecode)


def make_composite(kind: str, text: str, parts: Iterable[tuple[str, Fingerprint]]) -> Fingerprint:
    """Return the fingerprint of a value that consists of `text` and its parts. Labels are unique."""
    parts = tuple(parts)
    fields = [field for label, part in parts for field in (label.encode(), part.digest)]
    unknowns = ((label, part.unknown) for label, part in parts if part.unknown is not None)
    label, unknown = next(unknowns, ("", None))
    return Fingerprint(
        text=text,
        digest=_hash_fields(kind.encode(), text.encode(), *fields),
        parts=parts,
        unknown=unknown and UnknownPart(f"{label}: {unknown.path}" if unknown.path else label, unknown.reason),
        has_bytecode=any(part.has_bytecode for _, part in parts),
    )


def make_unknown(reason: str) -> Fingerprint:
    """Return the fingerprint of a value that cannot be compared. The digest omits the reason, which may vary."""
    return Fingerprint(text="unknown", digest=_hash_fields(b"unknown"), unknown=UnknownPart("", reason))


def _hash_fields(*fields: bytes | memoryview) -> bytes:
    """Hash the fields with their lengths. SHA-256 is faster than BLAKE2 on CPUs with instructions for it."""
    digest = hashlib.sha256()
    for field in fields:
        view = memoryview(field)
        digest.update(view.nbytes.to_bytes(8, "little"))
        digest.update(view)
    return digest.digest()


_MAX_LINES = 24
"""Maximum number of lines of a value, so that a state stays small. A digest stands for further parts."""

_DIGEST_DIGITS = 12
"""Hexadecimal digits of a digest in a state: 48 bits make accidental collisions unlikely."""

_EMPTY_TEXTS = frozenset({"{}", "OrderedDict()"})
"""A torch module has a dozen private attributes with these values. They get no line."""

_UNKNOWN_PREFIX = "no fingerprint: "


def describe_fingerprint(fingerprint: Fingerprint, path: str) -> dict[str, str]:
    """Return the lines of a fingerprint: from `path` and a part's labels to its text. Equal lines mean equal values.

    Parts near the top get separate lines, the state of an object before its class. A digest stands for deeper parts.

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
    """Yield the path of each differing line, with a sentence. Parts without a fingerprint do not count as different.

    Without `with_digests`, lines that differ only in their digests are equal.

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
