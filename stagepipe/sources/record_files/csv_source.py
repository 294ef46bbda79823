"""`CsvSource`: the rows of CSV files. Runs in the source's process and in the workers of `dataset`."""

from __future__ import annotations

import functools
import io
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal

from stagepipe.sources.columns import check_columns, check_unique_columns
from stagepipe.sources.record_files.line_bounds import find_line_bounds, require_utf8
from stagepipe.sources.record_files.line_source import LineSource
from stagepipe.sources.record_files.text_source import decode_line
from stagepipe.sources.record_source import ShuffleMode
from stagepipe.sources.storage import Bounds, Paths, StoredFile

ColumnType = Literal["int", "float", "bool", "str"]

_MAX_HEADER_BYTES: Final = 1 << 20
_RETURN_ENDS_LINE: Final = r"`\r` without `\n` ends no line here; convert the line ends of the file to `\n`"
_NOT_UTF8: Final = re.compile("[\udc80-\udcff]")
"""What `surrogateescape` makes of bytes that are not UTF-8."""
_BOOLS: Final = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


class CsvSource(LineSource):
    """Yield a dict for each row of CSV files, in the order of the files and rows. Empty lines are left out.

    In YAML it is `uses: stagepipe.sources.csv`.

    Args:
        path: a path or pattern, or several: `"data/*.csv"`. A URL (`s3://...`) is opened by fsspec. A compressed file
            (`.gz`, `.bz2`, `.xz`) is decompressed once, into the cache folder.
        columns: the columns to read. None: all.
        names: the names of the columns, for files without a header. None: the first row of each file holds them.
        types: the types of columns: `int`, `float`, `bool` or `str`. An empty field is then None. Default: `str`.
        delimiter: the character between two fields: a tab for TSV.
        quote: the character around fields that contain delimiters or line ends; `""` if there is none.
        shuffle: use a different order in each epoch, drawn from the pipeline's seed and the epoch. `"blocks"` shuffles
            blocks of about 1 MiB, and the rows of four of them: quicker for URLs.
        storage_options: for URLs, the options of fsspec's file system, such as `{anon: true}`.

    >>> CsvSource("people.csv", types={"age": "int"})[0]  # doctest: +SKIP
    {'name': 'Ada', 'age': 36}

    Raises ValueError if no file matches, for a column that does not exist, and for a row that does not fit the header.
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
        """Return where the rows of a file begin, after its header."""
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
            try:
                row[column] = None if row[column] == "" else convert(row[column])
            except (ValueError, KeyError):
                raise ValueError(f"column `{column}`: {row[column]!r} is no {self._type_names[column]}") from None
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

    csv.field_size_limit(max(csv.field_size_limit(), len(text)))  # a field may be a whole document
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
