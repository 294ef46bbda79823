"""Hypothesis strategies that damage a JSON document: a value of another type or size anywhere in it, or bytes."""

import contextlib
import copy
import json

from hypothesis import strategies as st

VALUES = st.one_of(
    st.sampled_from([None, True, -1, 0, 1, 3, 10**20, -(10**20), 1e30, -0.5, "", "3", "\ud800", [], {}, [[]], [-1]]),
    st.integers(),
    st.text(max_size=4),
    st.recursive(st.none() | st.integers(-3, 9), lambda inner: st.lists(inner, max_size=3), max_leaves=6),
)


def iter_paths(document, path=()):
    """Yield the path of each value; texts that hold JSON are looked into."""
    yield path
    document = unpack(document)
    if isinstance(document, dict | list):
        for key, child in document.items() if isinstance(document, dict) else enumerate(document):
            yield from iter_paths(child, (*path, key))


def unpack(value):
    """Return what a text of JSON holds, and any other value as it is."""
    if isinstance(value, str) and value[:1] in {"{", "["}:
        with contextlib.suppress(ValueError):
            return json.loads(value)
    return value


def replace(document, path, change):
    """Return the document with the value at `path` changed."""
    if not path:
        return change(document)
    inner = copy.copy(unpack(document))
    inner[path[0]] = replace(inner[path[0]], path[1:], change)
    return json.dumps(inner) if isinstance(document, str) else inner


@st.composite
def damaged_documents(draw, document):
    """A document with one to three values replaced, taken out or put deeper."""
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(list(iter_paths(document))))
        edit = draw(st.sampled_from(["replace", "drop", "wrap"]))
        if edit == "drop" and path:
            document = replace(
                document,
                path[:-1],
                lambda outer, key=path[-1]: (
                    json.dumps(_without(unpack(outer), key)) if isinstance(outer, str) else _without(outer, key)
                ),
            )
        elif edit == "wrap":
            document = replace(document, path, lambda value: [value])
        else:
            value = draw(VALUES)
            document = replace(document, path, lambda _, value=value: value)
        if not isinstance(document, dict):
            break
    return document


def _without(document, key):
    document = copy.copy(document)
    del document[key]
    return document


@st.composite
def damaged_files(draw, document):
    """The bytes of a damaged document: its values are damaged, or the bytes themselves."""
    if draw(st.booleans()):
        return json.dumps(draw(damaged_documents(document))).encode()
    data = bytearray(json.dumps(document).encode())
    for _ in range(draw(st.integers(1, 4))):
        position = draw(st.integers(0, len(data)))
        data[position : position + draw(st.integers(0, 20))] = draw(st.binary(max_size=3))
    return bytes(data)
