"""Sources whose records are lines of files: `TextSource`, `JsonlSource`, `CsvSource`.

`ByteRangeSource` is the base of all sources whose records are ranges of bytes. The source's process reads each file
once to find the bounds of its records. The source's process and all workers map the same index; a worker reads the
bytes of the records that it is sent.
"""

from __future__ import annotations

import functools
import io
import json
import re
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, ClassVar, Final, Literal

import numpy as np
from numpy.typing import NDArray

from stagepipe.sources.record_source import RecordSource, ShuffleMode, check_columns, check_unique_columns, name_place
from stagepipe.sources.source_cache import Bounds, RecordIndex, decompress_into_cache, load_index
from stagepipe.sources.stored_files import (
    REMOTE_BLOCK_BYTES,
    Paths,
    RangeReader,
    StoredFile,
    find_stored_files,
)

_MAX_MERGED_BYTES: Final = 4 << 20
"""Consecutive records are read together up to this size."""
_MAX_COUNTED_BYTES: Final = 1 << 28
"""In files up to this size, errors name the line of a bad record (counting takes 0.1 s); else its byte position."""


class ByteRangeSource(RecordSource):
    """Records that are consecutive ranges of bytes of files.

    A subclass defines `index_kind`, `find_bounds` and `parse`.

    Args:
        path: a path or pattern, or several. `**` matches folders at any depth. A URL is opened by fsspec.
        shuffle: see `RecordSource`. A block is about 1 MiB of records of one file.
        storage_options: for URLs, the options of fsspec's file system.
    """

    draws_nothing: ClassVar = True
    index_kind = ""
    """Names the method of finding bounds, for the cache."""

    def __init__(
        self,
        path: Paths,
        *,
        shuffle: ShuffleMode = False,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(shuffle=shuffle)
        self._files = [self.prepare_file(file) for file in find_stored_files(path, self.label, storage_options)]

    @abstractmethod
    def find_bounds(self, file: StoredFile) -> Bounds:
        """Read a file, and return the start of each record and the end of the last one.

        Exceptions get the file's name added.
        """

    @abstractmethod
    def parse(self, data: bytes, file_number: int) -> Any:
        """Return the record in the bytes. Exceptions get the record's file and place added."""

    def prepare_file(self, file: StoredFile) -> StoredFile:
        """Return the file to read instead of the given one."""
        return file

    @property
    def stored_files(self) -> Sequence[StoredFile]:
        """The files of the records."""
        return self._files

    def __len__(self) -> int:
        return len(self._index)

    def read_records(self, indices: Sequence[int]) -> list[Any]:
        """Return the records of several indices. Consecutive records are read together."""
        runs = self._index.iter_runs(indices, _MAX_MERGED_BYTES)
        return [record for file_number, bounds in runs for record in self._read_run(file_number, bounds)]

    def __getitem__(self, index: int) -> Any:
        count = len(self)
        if not 0 <= index < count:
            return super().__getitem__(index)
        file_number, start, stop = self._index.locate(index)
        file = self._files[file_number]
        data = self._reader.read(file, start, stop)
        try:
            return self.parse(data, file_number)
        except Exception as error:
            raise self._name_place(error, file, start) from error

    def get_block_starts(self) -> Sequence[int]:
        """Return the first record of each MiB of each file."""
        starts: list[int] = []
        for number, first in enumerate(self._index.first_records[:-1]):
            bounds = self._index.get_file_bounds(number)[:-1]
            if len(bounds):
                cuts = np.arange(bounds[0], bounds[-1] + 1, REMOTE_BLOCK_BYTES)
                starts += np.unique(first + np.searchsorted(bounds, cuts)).tolist()
        return starts

    def _read_run(self, file_number: int, bounds: Sequence[int]) -> Iterator[Any]:
        file, parse, first = self._files[file_number], self.parse, bounds[0]
        data = self._reader.read(file, first, bounds[-1])
        for start, stop in pairwise(bounds):
            try:
                yield parse(data[start - first : stop - first], file_number)
            except Exception as error:
                raise self._name_place(error, file, start) from error

    def _name_place(self, error: Exception, file: StoredFile, start: int) -> Exception:
        """Return the error of a record with its file and place. Raises ValueError if the file has changed."""
        self._reader.check_unchanged(file)
        return name_place(error, f"{self.label}: {file.name}{self.describe_place(file, start)}")

    def describe_place(self, file: StoredFile, start: int) -> str:
        """Return the place of a record in its file, for messages: `:12` for line 12."""
        if start > _MAX_COUNTED_BYTES:
            return f", byte {start}"
        line = self._reader.read(file, 0, start).count(b"\n") + 1
        return f":{line}"

    @functools.cached_property
    def _index(self) -> RecordIndex:
        return load_index(self._files, self.index_kind, self._find_bounds)

    def _find_bounds(self, file: StoredFile) -> Bounds:
        try:
            return self.find_bounds(file)
        except Exception as error:
            file.check_unchanged()
            raise name_place(error, f"{self.label}: {file.name}") from error

    @functools.cached_property
    def _reader(self) -> RangeReader:
        return RangeReader()


_READ_BYTES: Final = 16 << 20
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_OTHER_ENCODINGS: Final = (
    ("UTF-32", re.compile(rb"\xff\xfe\0\0|\0\0\xfe\xff|[^\0]\0\0\0|\0\0\0[^\0]")),
    ("UTF-16", re.compile(rb"\xff\xfe|\xfe\xff|[^\0]\0(?:[^\0]\0|\Z)|\0[^\0](?:\0[^\0]|\Z)")),
)
"""The first bytes of files in other encodings: a byte order mark, or ASCII characters and zeros."""


def find_line_bounds(file: StoredFile, *, keep_blank: bool, quote: str | None = None) -> Bounds:
    """Return the start of each line of a file, and the end of the file.

    Args:
        file: is read from start to end. A byte order mark belongs to no line.
        keep_blank: if False, a line that holds only its line end belongs to the line before.
        quote: a line end between two of these characters does not end the line, as in CSV.

    Raises ValueError if a quoted string does not end, and for UTF-16 and UTF-32, whose line ends are not single bytes.
    """
    starts = [np.zeros(1, np.int64)]
    returns = [np.zeros(0, np.bool_)]
    position = quote_count = 0
    last_char = 0
    with file.open() as content:
        while data := content.read(_READ_BYTES):
            chars = np.frombuffer(data, np.uint8)
            if not position:
                require_utf8(data)
            if not position and data.startswith(_BYTE_ORDER_MARK):
                starts[0][0] = len(_BYTE_ORDER_MARK)
            ends = np.flatnonzero(chars == ord("\n"))
            if quote is not None:
                quotes = np.flatnonzero(chars == ord(quote))
                ends = ends[(quote_count + np.searchsorted(quotes, ends)) % 2 == 0]
                quote_count += len(quotes)
            starts.append(ends + (position + 1))
            returns.append(_find_carriage_returns(chars, ends, last_char))
            last_char = data[-1]
            position += len(data)
    if quote_count % 2:
        raise ValueError(f"a quoted string does not end: the file has an odd number of {quote} characters")
    bounds = np.concatenate(starts)
    if not keep_blank:
        bounds = _without_blank_lines(bounds, np.concatenate(returns))
    return bounds if bounds[-1] >= position else np.append(bounds, position)


def require_utf8(data: bytes) -> None:
    """Raise ValueError if a file that begins with `data` is in UTF-16 or UTF-32, which would be misread."""
    for encoding, beginning in _OTHER_ENCODINGS:
        if beginning.match(data[:4]):
            hint = f"convert the file to UTF-8: `iconv -f {encoding} -t UTF-8`"
            raise ValueError(f"it is in {encoding}, not in UTF-8; {hint}")


def _find_carriage_returns(chars: NDArray[np.uint8], ends: NDArray[np.int64], last_char: int) -> NDArray[np.bool_]:
    """Return which line ends have a carriage return. `last_char` is the character before `chars`."""
    has_return: NDArray[np.bool_] = chars[ends - 1] == ord("\r")
    if len(ends) and ends[0] == 0:
        has_return[0] = last_char == ord("\r")
    return has_return


def _without_blank_lines(bounds: Bounds, has_return: NDArray[np.bool_]) -> Bounds:
    """Remove the bounds of lines that hold only their line end."""
    is_blank = np.diff(bounds) == 1 + has_return
    return np.append(bounds[:-1][~is_blank], bounds[-1])


class LineSource(ByteRangeSource):
    """Lines of text files, which may be compressed. Blank lines are skipped unless `keeps_blank_lines`."""

    index_kind = "lines"
    keeps_blank_lines = False

    def find_bounds(self, file: StoredFile) -> Bounds:
        """Return the start of each line of a file."""
        return find_line_bounds(file, keep_blank=self.keeps_blank_lines)

    def prepare_file(self, file: StoredFile) -> StoredFile:
        """Return the decompressed copy of a compressed file."""
        return decompress_into_cache(file)


class TextSource(LineSource):
    """Yield `{"text": str}` for each line of text files, without the line end, in file and line order.

    In YAML it is `uses: stagepipe.sources.text`.

    Args:
        path: one or several paths or patterns: `"books/*.txt"`. fsspec opens URLs (`s3://...`). Compressed files
            (`.gz`, `.bz2`, `.xz`) are decompressed once, into the cache folder.
        shuffle: use a different order in each epoch, drawn from the pipeline's seed and the epoch. `"blocks"` shuffles
            blocks of about 1 MiB, and the lines of four of them: quicker for URLs.
        skip_blank: skip lines that contain only their line end.
        storage_options: for URLs, the options of fsspec's file system, such as `{anon: true}`.

    >>> TextSource("LICENSE")[0]  # doctest: +SKIP
    {'text': '                                 Apache License'}

    Raises ValueError if no file matches or a line is not UTF-8.
    """

    def __init__(
        self,
        path: Paths,
        *,
        shuffle: ShuffleMode = False,
        skip_blank: bool = False,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(path, shuffle=shuffle, storage_options=storage_options)
        self.keeps_blank_lines = not skip_blank

    def parse(self, data: bytes, file_number: int) -> dict[str, str]:  # noqa: ARG002 - the signature of every source
        """Return a line."""
        return {"text": decode_line(data)}


def decode_line(data: bytes) -> str:
    r"""Return a line as text, without its line end.

    >>> decode_line(b"a line\r\n")
    'a line'

    Raises ValueError if it is not UTF-8.
    """
    try:
        return data.rstrip(b"\r\n").decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"byte {error.start + 1} of the line is not UTF-8; convert the file to UTF-8") from error


class JsonlSource(LineSource):
    """Yield the value of each non-empty line of JSON Lines files, in file and line order.

    In YAML it is `uses: stagepipe.sources.jsonl`.

    Args:
        path: one or several paths or patterns: `"data/*.jsonl"`. fsspec opens URLs (`s3://...`). Compressed files
            (`.gz`, `.bz2`, `.xz`) are decompressed once, into the cache folder.
        shuffle: use a different order in each epoch, drawn from the pipeline's seed and the epoch. `"blocks"` shuffles
            blocks of about 1 MiB, and the lines of four of them: quicker for URLs.
        storage_options: for URLs, the options of fsspec's file system, such as `{anon: true}`.

    >>> JsonlSource("train.jsonl")[0]  # doctest: +SKIP
    {'text': 'A line.', 'label': 1}

    Raises ValueError if no file matches or a line is not JSON.
    """

    def parse(self, data: bytes, file_number: int) -> Any:  # noqa: ARG002 - the signature of every source
        """Return the value of a line."""
        try:
            # Text instead of bytes, because `json` would guess UTF-16 for a line with zeros.
            return json.loads(decode_line(data.rstrip()).removeprefix("\ufeff"))
        except json.JSONDecodeError as error:
            shown = data[:80].decode(errors="replace").rstrip()
            raise ValueError(f"column {error.pos + 1}: not JSON: {error.msg}; the line begins {shown!r}") from error


ColumnType = Literal["int", "float", "bool", "str"]

_MAX_HEADER_BYTES: Final = 1 << 20
_RETURN_ENDS_LINE: Final = r"`\r` without `\n` does not end a line here; convert the line ends of the file to `\n`"
_NOT_UTF8: Final = re.compile("[\udc80-\udcff]")
"""Matches the characters that `surrogateescape` uses for bytes that are not UTF-8."""
_BOOLS: Final = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


class CsvSource(LineSource):
    """Yield a dict for each row of CSV files, in file and row order, without empty lines.

    In YAML it is `uses: stagepipe.sources.csv`.

    Args:
        path: one or several paths or patterns: `"data/*.csv"`. fsspec opens URLs (`s3://...`). Compressed files (`.gz`,
            `.bz2`, `.xz`) are decompressed once, into the cache folder.
        columns: the columns to read. None: all.
        names: the names of the columns, for files without a header. None: the first row of each file is the header.
        types: the type of columns: `int`, `float`, `bool` or `str`; an empty field is then None. Default: `str`.
        delimiter: the character between fields; a tab for TSV.
        quote: the character around fields that contain delimiters or line ends; `""` for none.
        shuffle: use a different order in each epoch, drawn from the pipeline's seed and the epoch. `"blocks"` shuffles
            blocks of about 1 MiB, and the rows of four of them; faster for URLs.
        storage_options: for URLs, the options of fsspec's file system, such as `{anon: true}`.

    >>> CsvSource("people.csv", types={"age": "int"})[0]  # doctest: +SKIP
    {'name': 'Ada', 'age': 36}

    Raises ValueError if no file matches, a column does not exist, or a row does not fit the header.
    """

    def __init__(
        self,
        path: Paths,
        *,
        columns: Sequence[str] | None = None,
        names: Sequence[str] | None = None,
        types: Mapping[str, ColumnType] | None = None,
        delimiter: str = ",",
        quote: str = '"',
        shuffle: ShuffleMode = False,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(path, shuffle=shuffle, storage_options=storage_options)
        for label, character, lengths in (("delimiter", delimiter, {1}), ("quote", quote, {0, 1})):
            if len(character.encode()) not in lengths:
                raise ValueError(f"csv: {label} is {character!r}; give one ASCII character")
        self._delimiter = delimiter
        self._quote = quote
        self._names = None if names is None else list(names)
        self._columns = None if columns is None else list(columns)
        self._type_names = dict(types or {})
        self._types = {column: _get_converter(column, name) for column, name in self._type_names.items()}
        all_names = self._get_names(0)
        check_columns([*(self._columns or []), *self._types], all_names, f"csv: {self._files[0].name}")
        check_unique_columns(self._columns, all_names, f"csv: {self._files[0].name}")
        self.index_kind = f"csv {quote} {names is None}"

    def find_bounds(self, file: StoredFile) -> Bounds:
        """Return the start of each row of a file, after its header."""
        bounds = find_line_bounds(file, keep_blank=False, quote=self._quote or None)
        return bounds[1:] if self._names is None and len(bounds) > 1 else bounds

    def parse(self, data: bytes, file_number: int) -> dict[str, Any]:
        """Return a row."""
        names = self._get_names(file_number)
        fields = self._split(decode_line(data))
        if len(fields) != len(names):
            raise ValueError(f"{len(fields)} fields, where the header has {len(names)}: {', '.join(names)}")
        row: dict[str, Any] = dict(zip(names, fields, strict=True))
        for column, convert in self._types.items():
            text = row[column]
            try:
                row[column] = convert(text) if text else None
            except (ValueError, KeyError):
                raise ValueError(f"column `{column}`: {text!r} is not of type {self._type_names[column]}") from None
        return row if self._columns is None else {column: row[column] for column in self._columns}

    def _split(self, line: str) -> list[str]:
        if "\r" in line and not (self._quote and self._quote in line):
            raise ValueError(_RETURN_ENDS_LINE)
        if not self._quote or self._quote not in line:
            return line.split(self._delimiter)
        rows = _read_rows(line, self._delimiter, self._quote)
        if len(rows) != 1:
            raise ValueError(f"a {self._quote} character is out of place; if it quotes nothing, set `quote: ''`")
        return rows[0]

    def _get_names(self, file_number: int) -> list[str]:
        if self._names is not None:
            return self._names
        names = self._headers.get(file_number)
        if names is None:
            file = self._files[file_number]
            try:
                names = self._headers[file_number] = self._read_header(file)
            except ValueError as error:
                raise ValueError(f"csv: {file.name}: {error}") from error
            if file_number and names != self._get_names(0):
                first = self._files[0].name
                raise ValueError(f"the header of {file.name} ({', '.join(names)}) differs from that of {first}")
        return names

    @functools.cached_property
    def _headers(self) -> dict[int, list[str]]:
        return {}

    def _read_header(self, file: StoredFile) -> list[str]:
        with file.open() as content:
            data = content.read(_MAX_HEADER_BYTES)
        require_utf8(data)
        text = data.decode("utf-8-sig", errors="surrogateescape").lstrip("\r\n")
        first_line = text.partition("\n")[0].removesuffix("\r")
        if "\r" in first_line and not (self._quote and self._quote in first_line):
            raise ValueError(_RETURN_ENDS_LINE)
        rows = [first_line.split(self._delimiter)] if text else []
        if self._quote:
            rows = _read_rows(text, self._delimiter, self._quote, max_rows=1)
        for name in rows[0] if rows else []:
            if _NOT_UTF8.search(name):
                shown = name.encode(errors="surrogateescape")
                raise ValueError(f"the column {shown!r} of the header is not UTF-8; convert the file to UTF-8")
        return rows[0] if rows else []


def _read_rows(text: str, delimiter: str, quote: str, max_rows: int = 2) -> list[list[str]]:
    """Return the first rows of a text. Raises ValueError if it is not CSV."""
    import csv  # its C module is needed only for quoted fields

    csv.field_size_limit(max(csv.field_size_limit(), len(text)))  # a field may hold a whole document
    rows: list[list[str]] = []
    try:
        for row in csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, quotechar=quote, strict=True):
            rows.append(row)
            if len(rows) == max_rows:
                break
    except csv.Error as error:
        raise ValueError(f"not CSV: {error}; if {quote} quotes nothing, set `quote: ''`") from error
    return rows


def _get_converter(column: str, name: str) -> Callable[[str], Any]:
    converters: dict[str, Callable[[str], Any]] = {"int": int, "float": float, "str": str, "bool": _to_bool}
    if name not in converters:
        raise ValueError(f"csv: types: `{column}` is {name!r}; give one of {', '.join(converters)}")
    return converters[name]


def _to_bool(text: str) -> bool:
    return _BOOLS[text.strip().lower()]
