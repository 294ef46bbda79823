"""Lines, JSON Lines and CSV: where records begin, what they hold, and what is wrong with a bad one."""

import bz2
import gzip
import lzma
import pickle
from pathlib import Path

import pytest

from stagepipe.sources import CsvSource, JsonlSource, TextSource, line_sources, source_cache

WITH_MARK = b"\xef\xbb\xbf"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(name: str, data: bytes) -> str:
    Path(name).write_bytes(data)
    return name


def lines(data: bytes, **arguments: bool) -> list[str]:
    return [item["text"] for item in TextSource(write("a.txt", data), **arguments)]


@pytest.mark.parametrize("read_bytes", [1, 2, 3, 1000])
def test_lines_end_as_in_any_editor(monkeypatch, read_bytes):
    monkeypatch.setattr(line_sources, "_READ_BYTES", read_bytes)
    assert lines(b"one\ntwo\r\n\r\n\nlast") == ["one", "two", "", "", "last"]
    assert lines(b"one\r\n\r\n\n\nlast\n", skip_blank=True) == ["one", "last"]
    assert lines(b"") == lines(b"\n\r\n", skip_blank=True) == []
    assert lines(b"\n\n") == ["", ""]


def test_a_byte_order_mark_is_no_text():
    assert lines(WITH_MARK + "é\n".encode()) == ["é"]
    assert CsvSource(write("a.csv", WITH_MARK + b"a\n1\n"))[0] == {"a": "1"}


@pytest.mark.parametrize("suffix, compress", [("gz", gzip.compress), ("bz2", bz2.compress), ("xz", lzma.compress)])
def test_a_compressed_file_is_decompressed_once(folder, suffix, compress):
    path = write(f"a.jsonl.{suffix}", compress(b'{"a": 1}\n{"a": 2}\n'))
    assert [item["a"] for item in JsonlSource(path)] == [1, 2]
    (copy,) = folder.glob("cache/stagepipe/sources/*.decompressed")
    copy.write_bytes(b'{"a": 3}\n')
    assert JsonlSource(path)[0] == {"a": 3}


def test_damaged_and_other_compressions_are_refused():
    with pytest.raises(ValueError, match=r"a\.jsonl\.gz: damaged or not a \.gz file"):
        JsonlSource(write("a.jsonl.gz", gzip.compress(b'{"a": 1}\n' * 99)[:-20]))
    with pytest.raises(ValueError, match=r"a\.jsonl\.zst: \.zst files cannot be read; decompress it: zstd -d"):
        JsonlSource(write("a.jsonl.zst", b""))


def test_without_a_cache_folder_a_compressed_file_names_the_setting(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/none")
    with pytest.raises(OSError, match="set XDG_CACHE_HOME"):
        JsonlSource(write("a.jsonl.gz", gzip.compress(b"1")))


def test_a_bad_line_is_named_with_its_file_and_line():
    source = JsonlSource(write("a.jsonl", b'{"a": 1}\n\n{"a": \n{"a": 3}'))
    assert source.__getitems__([2, 0]) == [{"a": 3}, {"a": 1}]
    with pytest.raises(ValueError, match=r"jsonl: a\.jsonl:3: column 6: not JSON: Expecting value; .* '\{\"a\":'"):
        source[1]
    with pytest.raises(ValueError, match=r"text: b\.txt:2: byte 3 of the line is not UTF-8; convert the file to UTF-8"):
        TextSource(write("b.txt", b"a\nab\xff\n"))[1]


def test_indices_count_from_both_ends_and_stop():
    source = JsonlSource(write("a.jsonl", b"1\n2\n3\n"))
    assert (source[-1], list(source)) == (3, [1, 2, 3])
    with pytest.raises(IndexError, match="index 3 of 3 records"):
        source[3]


def test_a_file_that_has_become_shorter_is_noticed():
    source = JsonlSource(write("a.jsonl", b"1\n2\n3\n"))
    assert len(source) == 3
    write("a.jsonl", b"1\n")
    with pytest.raises(ValueError, match=r"a\.jsonl changed since its index was built"):
        source[2]


def test_a_source_is_pickled_without_its_open_files():
    source = JsonlSource(write("a.jsonl", b"1\n2\n"), shuffle=True)
    before = pickle.dumps(source)
    assert source[1] == 2
    assert pickle.dumps(source) == before
    assert list(pickle.loads(before)) == [1, 2]


@pytest.mark.parametrize("path", ["no/*.jsonl", ["a.jsonl", "no/*.jsonl"]])
def test_a_pattern_without_files_says_where_it_looked(folder, path):
    write("a.jsonl", b"1")
    with pytest.raises(ValueError, match=r"jsonl: no file matches 'no/\*\.jsonl' in the current directory") as caught:
        JsonlSource(path)
    assert str(folder) in str(caught.value)


def test_a_folder_and_an_empty_list_are_no_path(folder):
    with pytest.raises(ValueError, match=r"is a folder; write a pattern: '.*/\*'"):
        JsonlSource(str(folder))
    with pytest.raises(ValueError, match="`path` is an empty list"):
        JsonlSource([])


@pytest.mark.parametrize("read_bytes", [1, 5, 1000])
def test_quoted_csv_fields_hold_line_ends(monkeypatch, read_bytes):
    monkeypatch.setattr(line_sources, "_READ_BYTES", read_bytes)
    data = b'id,"a\nb"\r\n1,"x\r\n\r\ny ""z"""\r\n\r\n2,plain\n'
    rows = list(CsvSource(write("a.csv", data), types={"id": "int"}))
    assert rows == [{"id": 1, "a\nb": 'x\r\n\r\ny "z"'}, {"id": 2, "a\nb": "plain"}]


def test_csv_types_columns_and_names():
    path = write("a.tsv", b"1\t\t1.5\tyes\n2\tb\t\t0\n")
    types = {"id": "int", "score": "float", "is": "bool", "name": "str"}
    rows = CsvSource(
        path, names=["id", "name", "score", "is"], delimiter="\t", types=types, columns=["is", "id", "score"]
    )
    assert list(rows) == [{"is": True, "id": 1, "score": 1.5}, {"is": False, "id": 2, "score": None}]


def test_csv_without_quotes():
    path = write("a.csv", b'size\n5"\n6"7\n8"\n')
    assert [row["size"] for row in CsvSource(path, quote="")] == ['5"', '6"7', '8"']
    source = CsvSource(write("b.csv", b'size\n"5"\n6"7"\n'))
    assert [row["size"] for row in source] == ["5", '6"7"']
    with pytest.raises(ValueError, match=r"a\.csv: a quoted string does not end: .* odd number of \" characters"):
        len(CsvSource(write("a.csv", b'size\n5"\n6\n')))


@pytest.mark.parametrize(
    "data, arguments, message",
    [
        (b"a,b\r1,2\r3,4\r", {}, r"csv: a\.csv: `\\r` without `\\n` does not end a line here; convert the line ends"),
        (b"1\r2\r3", {"names": ["a"]}, r"csv: a\.csv:1: `\\r` without `\\n` does not end a line here"),
        (b"a,b,a\n1,2,3\n", {}, r"csv: a\.csv: two columns have the name `a`; rename one, or name the others in"),
        (b"1,2\n", {"names": ["a", "a"]}, r"csv: a\.csv: two columns have the name `a`"),
        (b"a,b\n1,2\n3\n", {}, r"csv: a\.csv:3: 1 fields, where the header has 2: a, b"),
        (b"a,b\n1,2\nx,2\n", {"types": {"a": "int"}}, r"csv: a\.csv:3: column `a`: 'x' is not of type int"),
        (
            b"a,b\n1,2\n1,2\n",
            {"types": {"a": "bool", "b": "bool"}},
            r"csv: a\.csv:2: column `b`: '2' is not of type bool",
        ),
        (b"a,b\n1,2\n", {"types": {"a": "integer"}}, "csv: types: `a` is 'integer'; give one of int, float, str, bool"),
        (
            b"label,b\n",
            {"columns": ["lable"]},
            "csv: a.csv has no column `lable`; did you mean `label`. It has label, b",
        ),
        (b"a,b\n", {"delimiter": ";;"}, "delimiter is ';;'; give one ASCII character"),
    ],
)
def test_bad_csv_is_reported_with_its_place_and_value(data, arguments, message):
    with pytest.raises(ValueError, match=message):
        list(CsvSource(write("a.csv", data), **arguments))


def test_csv_columns_that_are_read_need_a_name_of_their_own():
    assert list(CsvSource(write("a.csv", b"a,b,,\r\n1,2,,\r\n"), columns=["b"])) == [{"b": "2"}]
    assert list(CsvSource(write("b.csv", b'"a\rb","c\r\nd"\n1,"2\r3"\n'))) == [{"a\rb": "1", "c\r\nd": "2\r3"}]


def test_a_quoted_csv_field_may_be_long():
    text = "word, " * 30_000
    assert CsvSource(write("a.csv", f'a\n"{text}"\n'.encode()))[0] == {"a": text}


def test_csv_files_have_one_header():
    write("a.csv", b"a,b\n1,2\n")
    write("b.csv", b"b,a\n1,2\n")
    with pytest.raises(ValueError, match=r"the header of b\.csv \(b, a\) differs from that of a\.csv"):
        list(CsvSource("*.csv"))


def test_blocks_of_lines_begin_each_mebibyte():
    line = b"x" * 99_999 + b"\n"
    source = TextSource([write("a.txt", line * 21), write("b.txt", line)], shuffle="blocks")
    assert source.get_block_starts() == [0, 11, 21]
    order = source.make_order("blocks")
    order.begin(1, 2)
    assert sorted(order[index] for index in range(22)) == list(range(22))


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be"])
@pytest.mark.parametrize("source", [JsonlSource, TextSource, CsvSource])
def test_other_encodings_are_refused_whole(source, encoding):
    data = '{"a": 1}\n{"a": 2}\n'.encode(encoding)
    with pytest.raises(ValueError, match=rf"a\.txt: it is in {encoding[:6].upper()}, not in UTF-8; convert .*iconv"):
        len(source(write("a.txt", data)))
    with pytest.raises(ValueError, match=r"a\.txt\.gz: it is in UTF"):
        len(source(write("a.txt.gz", gzip.compress(data))))


def test_a_line_of_json_is_utf8_with_zeros_too():
    source = JsonlSource(write("a.jsonl", WITH_MARK + b'{"a": 1}\n\0{\0"\0a\0"\0:\x001\0}\n' + WITH_MARK + b"3\n"))
    assert (source[0], source[2]) == ({"a": 1}, 3)
    with pytest.raises(ValueError, match=r"a\.jsonl:2: column 1: not JSON"):
        source[1]


def test_any_exception_of_a_line_names_its_place():
    with pytest.raises(ValueError, match=r"jsonl: a\.jsonl:2: RecursionError: "):
        JsonlSource(write("a.jsonl", b"1\n" + b"[" * 100_000))[1]


def test_a_csv_header_is_utf8_or_named():
    with pytest.raises(ValueError, match=r"csv: a\.csv: the column b'pr\\xe9nom' of the header is not UTF-8"):
        CsvSource(write("a.csv", "x,prénom\n1,2\n".encode("latin-1")))
    assert CsvSource(write("b.csv", "x,prénom\n1,2\n".encode()))[0] == {"x": "1", "prénom": "2"}


def test_a_full_disk_during_decompression_is_reported_with_a_fix(monkeypatch):
    name = write("a.jsonl.gz", gzip.compress(b"1\n"))
    monkeypatch.setattr(source_cache, "make_cached_file", lambda _key, write: write(Path("/dev/full")))
    with pytest.raises(OSError, match=r"a\.jsonl\.gz: its decompressed copy does not fit into /dev: No space left on"):
        JsonlSource(name)
