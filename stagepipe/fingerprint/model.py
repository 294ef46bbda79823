"""`Fingerprint`: what a value is, as a digest, a text and named parts. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

MAX_TEXT_CHARS = 96
"""Maximum length of a text. A longer value shows its beginning, and is compared by its digest."""


class UnknownPart(NamedTuple):
    """A part of a value that has no fingerprint: its labels from the value on, and the reason."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """Values with equal digests do the same.

    `text` is short. If `is_exact`, it alone tells the value; otherwise text and `parts` do, and so does the digest.
    `unknown` is the first part that has no fingerprint. `has_bytecode` is set if another Python version would compute
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
    """Return the fingerprint of a value that its text tells. `kind` separates equal texts of different types."""
    if len(text) > MAX_TEXT_CHARS:
        return make_opaque(kind, f"{text[: MAX_TEXT_CHARS // 2]}...", text.encode())
    return Fingerprint(text=text, digest=_hash_fields(kind.encode(), text.encode()), is_exact=True)


def make_opaque(kind: str, text: str, content: bytes | memoryview, *, has_bytecode: bool = False) -> Fingerprint:
    """Return the fingerprint of a value that its bytes tell: a long text, an array, bytecode."""
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
    """Return the fingerprint of a value that cannot be compared. The digest leaves out the reason: it may vary."""
    return Fingerprint(text="unknown", digest=_hash_fields(b"unknown"), unknown=UnknownPart("", reason))


def _hash_fields(*fields: bytes | memoryview) -> bytes:
    """Hash the fields with their lengths. SHA-256 is faster than BLAKE2 where the CPU has instructions for it."""
    digest = hashlib.sha256()
    for field in fields:
        view = memoryview(field)
        digest.update(view.nbytes.to_bytes(8, "little"))
        digest.update(view)
    return digest.digest()
