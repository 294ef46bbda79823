"""Sinks of records: `JsonlSink`, lines of JSON; `WebDatasetSink`, samples of tar shards. Both encode in workers."""

from __future__ import annotations

import io
import json
import os
import struct
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Final

import msgspec
import numpy as np

from stagepipe.core import context
from stagepipe.sinks.part_sink import PartPlace, PartSink
from stagepipe.sinks.stored_values import encode_json, has_nulls, to_json_value, to_plain_array


class JsonlSink(PartSink):
    r"""Write each item as a line of JSON, to `path/000000.jsonl` ... In YAML it is `uses: stagepipe.sinks.jsonl`.

    Takes the arguments of `PartSink`. Arrays and tensors become lists, with null for masked values; NumPy numbers
    become numbers, `bytes` base64, dates ISO strings. Dataclasses and records of structured arrays become objects. NaN
    and infinity become `NaN` and `Infinity`, which are not JSON but which Python's `json`, pandas, pyarrow and
    `stagepipe.sources.jsonl` read.

    >>> import tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "part"
    >>> JsonlSink("out").write_part([{"x": 1}, {"x": 2}], path)
    >>> path.read_text()
    '{"x":1}\n{"x":2}\n'

    Raises TypeError, with the item and the field, for values that JSON cannot store, such as the keys 1 and "1".
    """

    appends: ClassVar[bool] = True
    extension: ClassVar[str] = ".jsonl"

    def write_part(self, items: Sequence[Any], path: Path) -> None:
        """Write a line for each item."""
        encoder = msgspec.json.Encoder(enc_hook=to_json_value)
        with path.open("wb") as file:
            for row, item in enumerate(items):
                try:
                    file.write(encode_json(item, encoder) + b"\n")
                except (TypeError, ValueError, RecursionError) as error:
                    place = _find_field(item, encoder)
                    raise TypeError(f"jsonl: row {row} of the part{place}: {error}") from error


def _find_field(item: Any, encoder: msgspec.json.Encoder) -> str:
    """Return the field of an item that JSON cannot store, for a message."""
    for name, value in item.items() if isinstance(item, Mapping) else ():
        try:
            encode_json(value, encoder)
        except (TypeError, ValueError, RecursionError):
            return f", field `{name}`"
    return ""


_KEY_FIELD: Final = "__key__"
_END_OF_ARCHIVE: Final = bytes(2 * tarfile.BLOCKSIZE)
_KEYS_LENGTH: Final = struct.Struct("<I")
_IMAGE_FORMATS: Final = {"jpg": "JPEG", "jpeg": "JPEG", "png": "PNG", "webp": "WEBP", "ppm": "PPM"}
_JSON_ENCODER: Final = msgspec.json.Encoder(enc_hook=to_json_value)
_DEEP_MODES: Final = ("I", "F")
"""Modes of 16 and 32 bits: `I`, `I;16`, `I;16B` and `F`."""


class WebDatasetSink(PartSink):
    """Write each item as a sample of `path/000000.tar` ... In YAML it is `uses: stagepipe.sinks.webdataset`.

    An item is a dict; each field becomes a file `<key>.<field>`. A field named after a file type is written as that
    type: `jpg` and `png` (bytes or PIL images), `npy`, `json`, `txt`, `cls`, also with a prefix (`left.png`). Other
    fields get an extension: arrays and tensors `.npy`, text `.txt`, numbers, lists and dicts `.json` (as in
    `stagepipe.sinks.jsonl`); `bytes` keep the name of the field. WebDataset's `decode()` reads all of them. `cls` must
    be an integer.

    Args:
        path: see `PartSink`.
        options: the other arguments of `PartSink`.
        key: the field with the sample's name. None: the field `__key__`, or else the numbers of the part and of the
            item in it.

    >>> import tarfile, tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "part"
    >>> WebDatasetSink("out", key="id").write_part([{"id": "7", "cls": 3, "x": [1, 2]}], path)
    >>> with tarfile.open(path) as file:
    ...     file.getnames()
    ['7.cls', '7.x.json']

    Raises TypeError and ValueError, with the item and the field, for values that cannot be written, an item without
    fields, two fields with the same file name (ignoring case), and an item with the name of the previous item.
    """

    appends: ClassVar[bool] = True
    extension: ClassVar[str] = ".tar"

    def __init__(self, path: str | os.PathLike[str], *, key: str | None = None, **options: Any) -> None:
        super().__init__(path, **options)
        self._key_field = key

    def write_part(self, items: Sequence[Any], path: Path) -> None:
        """Write the members of each item, without the end of the archive, then its first and last name."""
        part_number = context().item[0] if self._key_field is None else 0
        with path.open("wb") as file:
            first_key = last_key = None
            for row, item in enumerate(items):
                try:
                    last_key = self._write_sample(file, item, f"{part_number:06d}-{row:05d}", last_key)
                except (TypeError, ValueError) as error:
                    raise type(error)(f"webdataset: row {row} of the part: {error}") from error
                first_key = first_key or last_key
            keys = json.dumps([first_key, last_key]).encode()
            file.write(keys + _KEYS_LENGTH.pack(len(keys)))

    def prepare_part(self, path: Path, kept: dict[str, Any]) -> None:
        """Remove the names, and raise for the name of the last sample of the previous part."""
        with path.open("r+b") as file:
            end = file.seek(-_KEYS_LENGTH.size, os.SEEK_END)
            length: int = _KEYS_LENGTH.unpack(file.read())[0]
            file.seek(end - length)
            first_key, last_key = json.loads(file.read(length))
            if first_key == kept.get("last_key"):
                raise ValueError(_describe_repeated(first_key))
            file.truncate(end - length)
        kept["last_key"] = last_key

    def finish_shard(self, file: BinaryIO, parts: Sequence[PartPlace], kept: Mapping[str, Any]) -> None:
        """End the archive."""
        del parts, kept
        file.write(_END_OF_ARCHIVE)

    def _write_sample(self, file: BinaryIO, item: Any, default_key: str, last_key: str | None) -> str:
        """Write the members of an item, and return its key. `last_key` is the key of the previous item."""
        if not isinstance(item, Mapping):
            raise TypeError(
                f"an item must be a dict of files, found {type(item).__name__}; return a dict before the sink"
            )
        key_field = self._key_field or _KEY_FIELD
        if self._key_field is not None and key_field not in item:
            raise ValueError(f"there is no field `{key_field}` (`key`); it has {', '.join(map(str, item))}")
        key = str(item.get(key_field, default_key))
        if "." in key.rpartition("/")[2] or not key:
            raise ValueError(
                f"the name {key!r} of a sample must not contain a dot; the package ends it at the first dot"
            )
        if key == last_key:
            raise ValueError(_describe_repeated(key))
        field_by_extension: dict[str, Any] = {}
        for field, value in item.items():
            if field in {key_field, _KEY_FIELD}:
                continue
            if "/" in str(field):
                raise ValueError(f"field `{field}`: `/` would make it a file in a folder; rename it before the sink")
            extension, data = encode_field(str(field), value)
            other = field_by_extension.setdefault(extension.lower(), field)  # the package reads names in lower case
            if other is not field:
                raise ValueError(
                    f"the fields `{other}` and `{field}` are both the file `.{extension.lower()}` to the package; "
                    "rename one before the sink"
                )
            _write_member(file, f"{key}.{extension}", data)
        if not field_by_extension:
            raise ValueError("the item has no fields to write, so its sample would be missing; drop it before the sink")
        return key


def _describe_repeated(key: str) -> str:
    return f"the name {key!r} is also the name of the previous item; the package would merge both into one sample"


def encode_field(field: str, value: Any) -> tuple[str, bytes]:
    """Return the extension and the content of a field's file.

    >>> encode_field("cls", 3), encode_field("name", "a"), encode_field("size", [1, 2])
    (('cls', b'3'), ('name.txt', b'a'), ('size.json', b'[1,2]'))

    Raises TypeError for a value that the file type cannot store.
    """
    if isinstance(value, bytes | bytearray | memoryview):
        return field, bytes(value)
    file_type = field.rpartition(".")[2].lower()
    encode = _ENCODER_BY_TYPE.get(file_type)
    if encode is None:
        file_type = _find_type(field, value)
        encode = _ENCODER_BY_TYPE[file_type]
        field = f"{field}.{file_type}"
    try:
        return field, encode(value)
    except (TypeError, ValueError, AttributeError, OSError, RecursionError) as error:
        raise TypeError(f"field `{field}`: a .{file_type} file cannot hold {type(value).__name__}: {error}") from error


def _find_type(field: str, value: Any) -> str:
    if isinstance(value, str):
        return "txt"
    if isinstance(value, np.ndarray) or hasattr(value, "detach"):
        return "npy"
    if value is None or isinstance(value, bool | int | float | list | tuple | Mapping | np.generic):
        return "json"
    hint = "call it `jpg` or `png`" if hasattr(value, "getbands") else "convert it before the sink"
    raise TypeError(f"field `{field}`: no file type for {type(value).__name__}; {hint}")


def _encode_npy(value: Any) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, to_plain_array(value, "it"), allow_pickle=False)
    return buffer.getvalue()


def _encode_json(value: Any) -> bytes:
    return encode_json(value, _JSON_ENCODER)


def _encode_class(value: Any) -> bytes:
    if isinstance(value, str):
        return str(int(value)).encode()
    number = value.item() if hasattr(value, "item") and not has_nulls(value) else value
    if isinstance(number, float) and number.is_integer():
        number = int(number)
    if not isinstance(number, int):
        raise TypeError(
            f"it is {number!r}, and the package reads whole numbers from it; give the field another name, "
            "such as `score`, which makes it JSON"
        )
    return str(int(number)).encode()


def _encode_text(value: Any) -> bytes:
    if not isinstance(value, str):
        raise TypeError("expected str")
    return value.encode()


def _make_image_encoder(image_format: str) -> Callable[[Any], bytes]:
    def encode(image: Any) -> bytes:
        if not hasattr(image, "save"):
            raise TypeError("expected bytes or a PIL image")
        if image_format == "WEBP" and image.mode.startswith(_DEEP_MODES):
            raise TypeError(f"Pillow would clip a PIL image of mode {image.mode} to 8 bits; scale it before the sink")
        if image_format == "PPM" and image.mode == "RGBA":
            raise TypeError("Pillow would drop the alpha of a PIL image of mode RGBA; call the field `png` or `webp`")
        buffer = io.BytesIO()
        image.save(buffer, format=image_format)
        return buffer.getvalue()

    return encode


def _iter_encoders() -> Iterator[tuple[str, Callable[[Any], bytes]]]:
    yield from (("npy", _encode_npy), ("json", _encode_json), ("txt", _encode_text), ("text", _encode_text))
    yield from (("cls", _encode_class), ("index", _encode_class))
    yield from ((extension, _make_image_encoder(name)) for extension, name in _IMAGE_FORMATS.items())


_ENCODER_BY_TYPE: Final = dict(_iter_encoders())


def _write_member(file: BinaryIO, name: str, data: bytes) -> None:
    """Write a member: header, content, padding. Equal content gives equal bytes: there are no times and no owner."""
    info = tarfile.TarInfo(name)
    info.size = len(data)
    info.mode = 0o644
    file.write(info.tobuf(tarfile.GNU_FORMAT))
    file.write(data)
    file.write(bytes(-len(data) % tarfile.BLOCKSIZE))
