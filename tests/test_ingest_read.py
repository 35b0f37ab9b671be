import gzip
import json

import pytest
import zstandard

from clawcli.errors import DataError, NotFoundError
from clawcli.ingest import read


def lines(tmp_path, data, name="a.jsonl"):
    path = tmp_path / name
    path.write_bytes(data)
    return read.split(read.read(str(path)))


def raws(records):
    return [bytes(record.raw) for record in records.records]


def test_split_unicode_line_separators_inside_strings_do_not_cut(tmp_path):
    text = "x" + "".join(chr(c) for c in (0x2028, 0x2029, 0x85)) + "y"
    data = (json.dumps({"a": text}, ensure_ascii=False) + "\n").encode()
    assert raws(lines(tmp_path, data + data)) == [data.strip(), data.strip()]


def test_split_bom_crlf_blank_and_nul_lines_are_no_records(tmp_path):
    data = b'\xef\xbb\xbf{"a":1}\r\n\r\n\0\0\0\n{"a":2}\r\n'
    records = lines(tmp_path, data)
    assert raws(records) == [b'{"a":1}', b'{"a":2}']
    assert [data[r.offset :].lstrip(b"\xef\xbb\xbf")[:7] for r in records.records] == raws(records)


def test_split_last_line_cut_off_is_pending(tmp_path):
    records = lines(tmp_path, b'{"a":1}\n{"a":')
    assert raws(records) == [b'{"a":1}']
    assert records.pending.offset == 8


def test_split_last_line_without_newline_but_whole_is_a_record(tmp_path):
    records = lines(tmp_path, b'{"a":1}\n{"a":2}')
    assert (len(records.records), records.pending) == (2, None)


def test_split_array_gives_elements_at_their_offsets(tmp_path):
    data = b' [ {"a": 1},\n {"a": 1}, 3 ]\n'
    records = lines(tmp_path, data, "a.json")
    assert records.container == "array"
    assert [data[r.offset :][: len(r.raw)] for r in records.records] == raws(records)
    assert raws(records) == [b'{"a": 1}', b'{"a": 1}', b"3"]


def test_split_pretty_printed_document_is_one_record(tmp_path):
    data = json.dumps({"a": [1, 2]}, indent=2).encode()
    records = lines(tmp_path, data, "a.json")
    assert (records.container, len(records.records)) == ("document", 1)


@pytest.mark.parametrize("data", [b'[{"a": 1}, {"a"', b'{\n "a": 1,\n "b"'])
def test_split_document_that_is_cut_off_is_refused(tmp_path, data):
    with pytest.raises(DataError, match="not complete"):
        lines(tmp_path, data, "a.json")


@pytest.mark.parametrize("frames", [1, 2])
@pytest.mark.parametrize("kind", ["gz", "zst"])
def test_read_compressed_gives_the_plain_bytes(tmp_path, kind, frames):
    pieces = [b'{"a":1}\n' * 1000, b'{"a":2}\n' * 1000][:frames]
    pack = gzip.compress if kind == "gz" else zstandard.ZstdCompressor().compress
    path = tmp_path / f"a.jsonl.{kind}"
    path.write_bytes(b"".join(map(pack, pieces)))
    source = read.read(str(path))
    assert (source.data, source.problem, source.name) == (b"".join(pieces), None, "a.jsonl")


@pytest.mark.parametrize("kind", ["gz", "zst"])
def test_read_stream_that_breaks_off_keeps_what_came_and_says_so(tmp_path, kind):
    data = b"".join(json.dumps({"a": i}).encode() + b"\n" for i in range(200_000))
    pack = gzip.compress if kind == "gz" else zstandard.ZstdCompressor().compress
    packed = pack(data)
    path = tmp_path / f"a.jsonl.{kind}"
    path.write_bytes(packed[: len(packed) // 2])
    source = read.read(str(path))
    assert "breaks off" in source.problem
    assert 0 < len(source.data) < len(data)
    assert data.startswith(source.data)


def test_find_folder_glob_and_repeats(tmp_path):
    (tmp_path / "sub").mkdir()
    for name in ("a.jsonl", "b.json.gz", "sub/c.jsonl.zst", "notes.txt", ".hidden.jsonl"):
        (tmp_path / name).write_text("{}")
    found = read.find([str(tmp_path), str(tmp_path / "*.jsonl")])
    names = [p.removeprefix(str(tmp_path) + "/") for p in found]
    assert names == ["a.jsonl", "b.json.gz", "sub/c.jsonl.zst"]


def test_find_missing_is_an_error_that_names_it(tmp_path):
    with pytest.raises(NotFoundError, match=r"nowhere\.jsonl does not exist"):
        read.find([str(tmp_path / "nowhere.jsonl")])


def test_find_glob_of_folders_only_is_an_error(tmp_path):
    (tmp_path / "sub").mkdir()
    with pytest.raises(NotFoundError, match="names folders only"):
        read.find([str(tmp_path / "*")])


def test_find_folder_without_logs_is_an_error(tmp_path):
    with pytest.raises(NotFoundError, match="holds no log"):
        read.find([str(tmp_path)])
