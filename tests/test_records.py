import gzip
import io
import json
import os
import subprocess
import sys
import textwrap
import zipfile
import zlib
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
import zstandard
from conftest import shared
from hypothesis import example, given
from hypothesis import strategies as st

from clawcli.errors import DataError, StoreError
from clawcli.ingest.read import records, whole
from clawcli.ingest.read.find import Found, find
from clawcli.ingest.read.records import Events, Lines, fingerprint, head, reader
from clawcli.ingest.read.salvage import salvage


def source_of(tmp_path, data, name="a.jsonl"):
    path = tmp_path / name
    path.write_bytes(data)
    return Found(str(path), len(data))


def read(source):
    """All of a source: its head, what iterates, and the records."""
    begin = head(source)
    all_of = reader(source, begin)
    return begin, all_of, list(all_of)


def raws(found):
    return [record.raw.strip() for record in found]


# -- lines ---------------------------------------------------------------------------------------

G1, G2 = b'{"id":"a","n":1,"content":"hello"}\n', b'{"id":"z","n":2,"content":"bye"}\n'
BAD = b'{"id":"b","n":%b,"content":%b}\n'
DEEP = b'{"id":"b","n":1,"content":"x","d":' + b"[" * 100_000 + b"]" * 100_000 + b"}\n"
LATE = b"".join(b'{"id":"a%d","n":1,"content":"x"}\n' % i for i in range(30_000))

HOSTILE = {
    # file, whole records, codes of what was mended, reasons of what was rejected, pending
    "nan": (G1 + BAD % (b"NaN", b'"x"') + G2, 3, ["non_finite_to_null"], [], 0),
    "infinity": (G1 + BAD % (b"-Infinity", b'"x"') + G2, 3, ["non_finite_to_null"], [], 0),
    "lone_surrogate": (
        G1 + BAD % (b"1", rb'"bad \ud800 x"') + G2,
        3,
        ["surrogate_replaced"],
        [],
        0,
    ),
    "trunc_last": (G1 + G2 + b'{"id":"b","n":1,"conte', 2, [], [], 1),
    "trunc_mid": (G1 + b'{"id":"b","n":1,"conte\n' + G2, 2, [], ["cut_off"], 0),
    "invalid_utf8": (G1 + BAD % (b"1", b'"\xff\xfe"') + G2, 3, ["invalid_utf8_replaced"], [], 0),
    "mixed_content": (G1 + BAD % (b"1", b'[{"type":"text","text":"x"}]') + G2, 3, [], [], 0),
    "nul_escape": (G1 + BAD % (b"1", rb'"a\u0000b"') + G2, 3, [], [], 0),
    "nul_raw": (G1 + BAD % (b"1", b'"a\0b"') + G2, 3, ["control_characters_escaped"], [], 0),
    "nul_fill": (G1 + b"\0" * 512 + b"\n" + G2, 2, [], [], 0),
    "huge_int": (G1 + BAD % (b"123456789012345678901234567890", b'"x"') + G2, 3, [], [], 0),
    "float_1e999": (G1 + BAD % (b"1e999", b'"x"') + G2, 3, ["non_finite_to_null"], [], 0),
    "int_5000digits": (G1 + BAD % (b"9" * 5000, b'""') + G2, 2, [], ["number_out_of_range"], 0),
    "dup_keys": (G1 + b'{"id":"b","n":1,"n":7}\n' + G2, 3, [], [], 0),
    "deep_100k": (G1 + DEEP + G2, 2, [], ["too_deep"], 0),
    "blank_line": (G1 + b"\n" + G2, 2, [], [], 0),
    "crlf": (G1 + BAD.replace(b"\n", b"\r\n") % (b"1", b'"x"') + G2, 3, [], [], 0),
    "bom": (b"\xef\xbb\xbf" + G1 + G2, 2, [], [], 0),
    "trailer": (G1 + b'{"id":"b"}TRAILER\n' + G2, 3, [], ["trailing_bytes"], 0),
    "two_objs": (G1 + b'{"id":"b"}{"id":"c"}\n' + G2, 4, [], [], 0),
    "scalar": (G1 + b"42\n" + G2, 3, [], [], 0),
    "line_20MB": (G1 + BAD % (b"1", b'"' + b"x" * 20_000_000 + b'"') + G2, 3, [], [], 0),
    "late_type_change": (G1 + LATE + BAD % (b"1.5", b"[]") + G2, 30_003, [], [], 0),
}


def decoded(found):
    """Records as ingest decodes them: values, codes, reasons."""
    values, codes, reasons = [], [], []
    for record in found:
        try:
            values.append(msgspec.json.decode(record.raw))
        except (msgspec.DecodeError, RecursionError):
            salvaged = salvage(record.raw)
            values += [msgspec.json.decode(piece) for _, piece, _ in salvaged.pieces]
            codes += [code for *_, mended in salvaged.pieces for code in mended]
            reasons += [reason for _, _, reason, _ in salvaged.rejects]
    return values, codes, reasons


@pytest.mark.parametrize("case", HOSTILE)
def test_lines_hostile_case_has_exact_counts(tmp_path, case):
    data, num_whole, codes, reasons, num_pending = HOSTILE[case]
    begin, lines, found = read(source_of(tmp_path, data))
    assert begin.container == "lines"
    values, found_codes, found_reasons = decoded(found)
    assert (len(values), found_codes, found_reasons) == (num_whole, codes, reasons)
    assert (lines.pending is not None) == bool(num_pending)
    assert (lines.problem, lines.oversize) == (None, [])
    assert values[0]["id"], values[-1]["id"] == ("a", "z")
    if case == "dup_keys":
        assert values[1]["n"] == 7
    if case == "huge_int":
        assert values[1]["n"] == 123456789012345678901234567890


def test_lines_unicode_line_separators_inside_strings_do_not_cut(tmp_path):
    text = "x" + "".join(chr(c) for c in (0x2028, 0x2029, 0x85, 0x0B, 0x0C, 0x1C)) + "y"
    data = (json.dumps({"a": text}, ensure_ascii=False) + "\n").encode()
    assert raws(read(source_of(tmp_path, data * 2))[2]) == [data.strip()] * 2


def test_lines_records_lie_at_their_offsets_which_are_their_ordinals(tmp_path):
    data = b'\xef\xbb\xbf{"a":1}\r\n\n\0\0\n {"b":2}\r\n[3]\n{"c":3}'
    _, lines, found = read(source_of(tmp_path, data))
    assert raws(found) == [b'{"a":1}', b'{"b":2}', b"[3]", b'{"c":3}']
    assert all(data[r.offset :].startswith(r.raw) for r in found)
    assert [r.ordinal for r in found] == [r.offset for r in found] == [3, 16, 26, 30]
    assert (lines.consumed, lines.pending) == (len(data), None)


@pytest.mark.parametrize(
    ("last", "is_pending"),
    [(b'{"a":', True), (b"12", True), (b"tru", True), (b'{"a":1}', False), (b'{"a":NaN}', False),
     (b"[1]", False), (b'{"a":1}{"b":2', True), (b'{"a":1}{"b":2}', False)],
)  # fmt: skip
def test_lines_last_line_that_might_go_on_is_pending_and_not_consumed(tmp_path, last, is_pending):
    _, lines, found = read(source_of(tmp_path, G1 + last))
    assert len(found) == 2 - is_pending
    assert lines.consumed == len(G1) + (0 if is_pending else len(last))
    assert lines.fingerprint == xxhash.xxh3_128_hexdigest((G1 + last)[: lines.consumed])
    if is_pending:
        assert (lines.pending.offset, lines.pending.raw) == (len(G1), last)


@pytest.mark.parametrize("tail", [b"\0" * 100, b"  ", b"\r"])
def test_lines_blank_tail_without_newline_is_left_for_the_next_time(tmp_path, tail):
    _, lines, found = read(source_of(tmp_path, G1 + tail))
    assert (len(found), lines.pending, lines.consumed) == (1, None, len(G1))


SOME_LINES = st.lists(
    st.sampled_from(
        [b'{"a":1}', b'{"b":"xxxxxxxxxxxxxxxxxxxxxxxxxxxx"}', b"", b"\0\0\0", b"garbage", b" \r",
         b'{"c":', b'\xef\xbb\xbf{"d":1}', b'["e"]']
    ),
    max_size=12,
)  # fmt: skip


@pytest.fixture(scope="module")
def scratch(tmp_path_factory):
    return tmp_path_factory.mktemp("lines")


@given(lines=SOME_LINES, ended=st.booleans(), splits=st.lists(st.integers(0, 200)))
@example(lines=[b'{"a":1}'], ended=True, splits=[8])
def test_lines_ranges_together_give_what_the_whole_gives(scratch, lines, ended, splits):
    data = b"\n".join(lines) + b"\n" * ended
    source = source_of(scratch, data)
    at_once = Lines(source)
    expected = list(at_once)
    borders = sorted({0, len(data), *(split % (len(data) + 1) for split in splits)})
    found, consumed = [], 0
    for begin, end in pairwise(borders):
        part = Lines(source, begin, end)
        records_of_part = list(part)
        for record in records_of_part:
            place_of_line = record.offset - 3 if record.raw.startswith(b'{"d"') else record.offset
            assert begin <= place_of_line < end
        found += records_of_part
        assert part.fingerprint == xxhash.xxh3_128_hexdigest(data[begin : part.consumed])
        if part.consumed > begin:
            # what is consumed has no gap
            assert begin <= consumed
            consumed = part.consumed
        assert end < len(data) or part.pending in (at_once.pending, None)
    assert (found, consumed) == (expected, at_once.consumed)


@given(lines=SOME_LINES, cut=st.integers(0, 300))
def test_lines_of_a_file_that_grew_are_those_of_the_grown_file(scratch, lines, cut):
    data = b"".join(line + b"\n" for line in lines)
    before = Lines(source_of(scratch, data[: cut % (len(data) + 1)]))
    found = list(before)
    source = source_of(scratch, data)
    assert fingerprint(source, before.consumed).hexdigest() == before.fingerprint
    after = Lines(source, before.consumed)
    found += list(after)
    at_once = Lines(source)
    assert [r.offset for r in found] == [r.offset for r in at_once]
    assert after.consumed == at_once.consumed
    assert after.fingerprint == fingerprint(source, after.consumed, before.consumed).hexdigest()


def test_lines_rest_of_a_line_that_was_whole_is_a_record_of_its_own(tmp_path):
    source = source_of(tmp_path, b'{"a":1}{"b":2}\n{"c":3}\n')
    assert raws(Lines(source, 7)) == [b'{"b":2}', b'{"c":3}']
    assert raws(Lines(source, 7, 23, resumed=True)) == [b'{"b":2}', b'{"c":3}']
    assert raws(Lines(source, 7, 23)) == [b'{"c":3}']


def test_lines_fingerprint_keeps_up_with_the_records(tmp_path):
    data = G1 + b"\n" + G2 + b"garbage\n" + G1
    lines = Lines(source_of(tmp_path, data))
    for record in lines:
        through = record.offset + len(record.raw)
        assert lines.fingerprint == xxhash.xxh3_128_hexdigest(data[:through])


@pytest.mark.parametrize("limit", [40, 100])
def test_lines_that_are_too_long_are_set_aside_and_the_rest_goes_on(tmp_path, monkeypatch, limit):
    monkeypatch.setattr("clawcli.ingest.read.lines.MAX_RECORD_BYTES", limit)
    long = b'{"x":"' + b"x" * 3_000_000 + b'"}'
    for tail in (b"\n" + G2, b""):
        data = G1 + long + tail
        _, lines, found = read(source_of(tmp_path, data))
        assert raws(found) == [G1.strip(), G2.strip()][: 1 + bool(tail)]
        assert [(r.offset, r.raw) for r in lines.oversize] == [
            (len(G1), long[: min(limit + 1, 1024)])
        ]
        assert (lines.consumed, lines.pending) == (len(data), None)
        assert lines.fingerprint == xxhash.xxh3_128_hexdigest(data)


def test_lines_as_long_as_may_be_are_records(tmp_path, monkeypatch):
    monkeypatch.setattr("clawcli.ingest.read.lines.MAX_RECORD_BYTES", len(G1) - 1)
    _, lines, found = read(source_of(tmp_path, G1 + G1[:-1]))
    assert (len(found), lines.oversize) == (2, [])


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_lines_of_300_mib_are_set_aside_in_bounded_memory(tmp_path):
    path = tmp_path / "a.jsonl"
    with path.open("wb") as file:
        file.write(G1 + b'{"x":"')
        file.seek(300 << 20, os.SEEK_CUR)  # a hole of NUL
        file.write(b'"}\n' + G2)
    script = f"""
        from pathlib import Path
        from clawcli.ingest.read.find import Found
        from clawcli.ingest.read.lines import Lines
        lines = Lines(Found({str(path)!r}))
        print(len(list(lines)), len(lines.oversize), lines.consumed)
        # ru_maxrss would count what the tests' own process held when it forked
        status = Path("/proc/self/status").read_text()
        print(int(status.split("VmHWM:")[1].split()[0]) >> 10)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=True
    )
    counts, rss_mib = done.stdout.splitlines()
    assert counts == f"2 1 {path.stat().st_size}"
    assert int(rss_mib) < 700


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.ZstdCompressor().compress])
def test_lines_of_a_stream_that_breaks_off_are_the_complete_ones(tmp_path, pack):
    data = b"".join(
        b'{"a":%d,"b":"%b"}\n' % (i, os.urandom(20).hex().encode()) for i in range(9000)
    )
    packed = pack(data)
    begin, lines, found = read(source_of(tmp_path, packed[: len(packed) // 2]))
    assert begin.compression in ("gzip", "zstd")
    assert "breaks off: it ends early." in lines.problem
    assert 0 < len(found) < 9000
    assert b"".join(r.raw for r in found) == data[: lines.consumed]
    rest = data[lines.consumed :]
    assert lines.pending is None or (rest.startswith(lines.pending.raw) and lines.pending.raw)


def test_lines_of_a_missing_file_are_an_error(tmp_path):
    with pytest.raises(StoreError, match=r"gone\.jsonl cannot be read"):
        list(Lines(Found(str(tmp_path / "gone.jsonl"))))


def test_lines_of_events_in_files_are_one_a_file_however_it_was_printed(tmp_path):
    for number in range(3):
        text = json.dumps({"n": number}, indent=2 if number == 1 else None)
        (tmp_path / f"event-{number}-x.json").write_text(text + "\n" * number)
    (source,), _ = find([str(tmp_path)])
    begin, lines, found = read(source)
    assert (begin.container, lines.consumed) == ("lines", source.size + 2)
    assert decoded(found) == ([{"n": 0}, {"n": 1}, {"n": 2}], [], [])
    (tmp_path / "event-3-x.json").write_text('{"n": 3}')
    (grown,), _ = find([str(tmp_path)])
    assert fingerprint(grown, lines.consumed).hexdigest() == lines.fingerprint
    assert decoded(Lines(grown, lines.consumed))[0] == [{"n": 3}]


# -- server-sent events --------------------------------------------------------------------------


def test_events_are_the_json_behind_data_and_nothing_else(tmp_path):
    data = (
        b': ping\n\nevent: message_start\nid: 1\nretry: 5\ndata: {"a": 1}\r\n\r\n'
        b'data:{"a": NaN}\n\ndata:\n\n{"bare": 1}\nwhat is this\ndata: [DONE]\n\n'
    )
    begin, events, found = read(source_of(tmp_path, data, "a.sse"))
    assert (begin.container, begin.first) == ("sse", b'{"a": 1}')
    assert raws(found) == [b'{"a": 1}', b'{"a": NaN}', b'{"bare": 1}', b"what is this"]
    assert all(data[r.offset :].startswith(r.raw) for r in found)
    assert isinstance(events, Events)
    assert (events.consumed, begin.decoded()) == (len(data), [{"a": 1}, {"a": None}, {"bare": 1}])


def test_events_last_one_that_is_cut_is_pending(tmp_path):
    _, events, found = read(source_of(tmp_path, b'data: {"a": 1}\n\ndata: {"b'))
    assert (raws(found), events.pending.raw) == ([b'{"a": 1}'], b' {"b')


# -- arrays and documents ------------------------------------------------------------------------


@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"])
def test_array_gives_elements_at_their_offsets(tmp_path, bom):
    data = bom + b' [ {"a": 1},\n {"a": "]}"} , 3, [4]\t]\r\n'
    begin, array, found = read(source_of(tmp_path, data, "a.json"))
    assert begin.container == "array"
    assert [r.raw for r in found] == [b'{"a": 1}', b'{"a": "]}"}', b"3", b"[4]"]
    assert all(data[r.offset :].startswith(r.raw) for r in found)
    assert [r.ordinal for r in found] == [0, 1, 2, 3]
    assert (array.pending, array.problem) == (None, None)
    assert data[array.consumed :] == b"\t]\r\n"
    assert array.fingerprint == xxhash.xxh3_128_hexdigest(data[: array.consumed])


def test_array_damaged_elements_harm_no_other(tmp_path):
    data = b'[{"a": NaN}, {"a": "\xff"}, {"a" 1}, 5, "x", {"a": 4}]\0\n'
    _, array, found = read(source_of(tmp_path, data, "a.json"))
    assert [r.raw for r in found] == [
        b'{"a": NaN}', b'{"a": "\xff"}', b'{"a" 1}', b'5, "x"', b'{"a": 4}',
    ]  # fmt: skip
    assert all(data[r.offset :].startswith(r.raw) for r in found)
    assert array.problem is None


@pytest.mark.parametrize(
    "rest", [b', {"b"', b', {"b": "}, {"', b', {"b": "}]', b', {"b": {}', b",", b""]
)
def test_array_that_is_cut_keeps_whole_elements_and_grows(tmp_path, rest):
    data = b'[{"a": 1}, {"a": 2}'
    begin, array, found = read(source_of(tmp_path, data + rest, "a.json"))
    assert (begin.container, len(begin.samples)) == ("array", 2)
    assert raws(found) == [b'{"a": 1}', b'{"a": 2}']
    assert array.problem == (
        f"{tmp_path}/a.json is a JSON array that is not complete: "
        "it breaks off after 2 whole elements."
    )
    assert (array.pending is not None) == (len(rest) > 1)
    assert array.consumed == len(data)
    grown = read(source_of(tmp_path, data + b', {"b": 3}]', "a.json"))[1]
    assert fingerprint(grown.source, array.consumed).hexdigest() == array.fingerprint


def test_array_what_follows_its_end_is_told(tmp_path):
    _, array, found = read(source_of(tmp_path, b'[{"a":\n1}] x\n', "a.json"))
    assert raws(found) == [b'{"a":\n1}']
    assert array.problem.endswith("goes on behind its JSON array, at byte 10: that was not read.")


@pytest.mark.parametrize("data", [b"[]", b"[ ]\n", b"[\n]"])
def test_array_that_is_empty_has_no_record(tmp_path, data):
    begin, array, found = read(source_of(tmp_path, data, "a.json"))
    assert (begin.container, found, array.problem, begin.first) == ("array", [], None, b"")


def test_array_deep_nesting_is_one_element(tmp_path):
    data = b"[{}, " + b"[" * 100_000 + b"]" * 100_000 + b", {}]"
    _, _, found = read(source_of(tmp_path, data, "a.json"))
    assert [len(r.raw) for r in found] == [2, 200_000, 2]


def test_array_first_elements_are_enough_for_the_head(tmp_path):
    element = json.dumps({"text": "x" * 300_000}).encode()
    data = b"[" + b",\n".join([element] * 40) + b"]"
    begin = head(source_of(tmp_path, data, "a.json"))
    assert (len(begin.samples), begin.first) == (20, element)


def test_document_over_several_lines_is_one_record(tmp_path):
    data = b"\n" + json.dumps({"a": [1, {"b": "}"}]}, indent=2).encode() + b"\n"
    begin, document, found = read(source_of(tmp_path, data, "a.json"))
    assert begin.container == "document"
    assert [(r.ordinal, r.offset, r.raw) for r in found] == [(0, 1, data.strip())]
    assert (document.consumed, begin.first) == (len(data) - 1, data.strip())


def test_documents_one_after_the_other_are_a_record_each(tmp_path):
    data = b"\n".join(json.dumps({"a": i}, indent=2).encode() for i in range(3))
    begin, _, found = read(source_of(tmp_path, data, "a.json"))
    assert (begin.container, begin.decoded()) == ("document", [{"a": 0}, {"a": 1}, {"a": 2}])
    assert decoded(found)[0] == [{"a": 0}, {"a": 1}, {"a": 2}]


@pytest.mark.parametrize("value", [b"NaN", b'"\xff"', rb'"\ud800"'])
def test_document_that_wants_mending_is_one_record_and_a_sample(tmp_path, value):
    data = b'{\n "a": %b,\n "b": [\n  1\n ]\n}\n' % value
    begin, _, found = read(source_of(tmp_path, data, "a.json"))
    assert (begin.container, raws(found)) == ("document", [data.strip()])
    assert begin.decoded()[0]["b"] == [1]


@pytest.mark.parametrize("end", [-2, 20, 12, 6])
def test_document_that_is_cut_is_pending_and_told(tmp_path, end):
    data = b'{\n "a": 1,\n "b": [\n  1\n ]\n}\n'[:end]
    begin, document, found = read(source_of(tmp_path, data, "a.json"))
    assert (begin.container, found, begin.samples) == ("document", [], [])
    assert document.problem == f"{tmp_path}/a.json is a JSON document that is not complete."
    assert (document.pending.raw, document.consumed) == (data, 0)


@pytest.mark.parametrize(
    "first",
    [
        b'{"id":"b","conte',
        b'{"a":1,',
        b'{"a":',
        b"{",
        b"garbage",
        b'{"a":1}TRAILER',
        b'{"a":}',
        b"x",
    ],
)
def test_lines_whose_first_is_damaged_are_no_document(tmp_path, first):
    begin, _, found = read(source_of(tmp_path, first + b"\n" + G1 * 3))
    assert (begin.container, len(found)) == ("lines", 4)
    assert msgspec.json.decode(G1) in begin.decoded()


def test_lines_that_are_arrays_are_no_array(tmp_path):
    begin, _, found = read(source_of(tmp_path, b'["a"]\n["b"]\n'))
    assert (begin.container, raws(found)) == ("lines", [b'["a"]', b'["b"]'])


@pytest.mark.parametrize("name", ["array", "document"])
def test_whole_too_large_for_memory_is_refused_with_a_way_out(tmp_path, monkeypatch, name):
    monkeypatch.setattr(whole, "MAX_WHOLE_BYTES", 3 << 20)
    monkeypatch.setattr(records, "MAX_WHOLE_BYTES", 3 << 20)
    begin, end = (b"[", b"]") if name == "array" else (b'{\n"a":[', b"]}")
    data = begin + b",\n".join([b'{"a": "%b"}' % (b"x" * 1000)] * 5000) + end
    with pytest.raises(DataError, match=f"is a JSON {name} of more than"):
        read(source_of(tmp_path, data, "a.json"))


@pytest.mark.parametrize("data", [b"", b"\n \r\n", b"\0" * 100, b"\xef\xbb\xbf"])
def test_head_of_nothing_is_empty(tmp_path, data):
    begin, lines, found = read(source_of(tmp_path, data))
    assert (begin.container, begin.first, begin.samples) == ("empty", b"", [])
    assert (found, lines.pending, lines.problem) == ([], None, None)


def test_head_first_is_the_first_record_without_blanks_however_it_ends(tmp_path):
    for data in (b'{"a":1}\n{"b":2}\n', b'\xef\xbb\xbf\n{"a":1} \r\n', b'{"a":1}'):
        assert head(source_of(tmp_path, data)).first == b'{"a":1}'
    assert head(source_of(tmp_path, b'{"a":')).first == b""


def test_head_has_20_samples_that_decode_whatever_is_between(tmp_path):
    data = b"".join(b'garbage\n{"a":%d,"b":NaN}\n' % i for i in range(30))
    begin = head(source_of(tmp_path, data))
    assert begin.decoded() == [{"a": i, "b": None} for i in range(20)]
    assert begin.first == b"garbage"


def test_head_samples_are_20_even_of_glued_records(tmp_path):
    assert len(head(source_of(tmp_path, b'{"a":1}' * 25 + b"\n")).samples) == 20


def test_head_of_many_blanks_before_the_first_line_is_lines(tmp_path):
    begin, _, found = read(source_of(tmp_path, b"\n" * (1 << 20) + G1))
    assert (begin.container, begin.first, len(found)) == ("lines", G1.strip(), 1)


def test_head_of_standard_input_loses_nothing(monkeypatch):
    data = G1 * 50_000
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(gzip.compress(data))))
    _, lines, found = read(Found("-"))
    assert (len(found), lines.consumed) == (50_000, len(data))


# -- archives and Parquet ------------------------------------------------------------------------


def archive(tmp_path, entries, method=zipfile.ZIP_DEFLATED, name="a.eval"):
    path = tmp_path / name
    with zipfile.ZipFile(path, "w", method) as file:
        for entry, content in entries.items():
            file.writestr(entry, content)
    return Found(str(path), path.stat().st_size)


SAMPLES = {f"samples/{i}_epoch_1.json": b'{"id": %d}' % i for i in (2, 10, 1)}


@pytest.mark.parametrize("header", ["header.json", "_journal/start.json"])
def test_archive_of_inspect_gives_samples_with_the_header_as_written(tmp_path, header):
    entries = {**SAMPLES, header: b'{"status": "x"}', "summaries.json": b"[]"}
    begin, all_of, found = read(archive(tmp_path, entries))
    assert begin.container == "zip"
    expected = [{"inspect_header": {"status": "x"}, "sample": {"id": i}} for i in (2, 10, 1)]
    assert decoded(found)[0] == begin.decoded() == expected
    # the header changes while a log grows, and identity must not
    assert begin.first == b'{"id": 2}'
    assert [r.ordinal for r in found] == [0, 1, 2]
    assert all_of.consumed == all_of.source.size
    assert all_of.fingerprint == fingerprint(all_of.source, all_of.consumed).hexdigest()


def test_archive_header_of_a_finished_log_wins(tmp_path):
    entries = {"_journal/start.json": b"1", "header.json": b"2", **SAMPLES}
    assert decoded(read(archive(tmp_path, entries))[2])[0][0]["inspect_header"] == 2


def zstd_entries(path):
    """Rewrite the stored entries of an archive as zstd ones, which zipfile cannot write."""
    data = bytearray(path.read_bytes())
    for signature, at in ((b"PK\x03\x04", 8), (b"PK\x01\x02", 10)):
        place = -1
        while (place := data.find(signature, place + 1)) >= 0:
            data[place + at : place + at + 2] = (93).to_bytes(2, "little")
    path.write_bytes(data)


def test_archive_of_zstd_entries_is_read_and_damage_in_one_is_told(tmp_path):
    plain = {"header.json": b"{}", **SAMPLES}
    packed = {name: zstandard.ZstdCompressor().compress(data) for name, data in plain.items()}
    source = archive(tmp_path, packed, zipfile.ZIP_STORED)
    zstd_entries(tmp_path / "a.eval")
    data = (tmp_path / "a.eval").read_bytes()
    for name, content in plain.items():
        # sizes and checksums are those of the plain bytes
        data = data.replace(
            zlib.crc32(packed[name]).to_bytes(4, "little"),
            zlib.crc32(content).to_bytes(4, "little"),
        )
    (tmp_path / "a.eval").write_bytes(data)
    assert [value["sample"]["id"] for value in decoded(read(source)[2])[0]] == [2, 10, 1]
    entry = packed["samples/10_epoch_1.json"]
    checksum = zlib.crc32(plain["samples/10_epoch_1.json"]).to_bytes(4, "little")
    for good, bad, reason in (
        (entry, bytes(len(entry)), "the zstd stream breaks off"),
        (checksum, b"abcd", "its checksum is wrong"),
    ):
        (tmp_path / "a.eval").write_bytes(data.replace(good, bad))
        _, all_of, found = read(source)
        assert len(found) == 1
        assert f"samples/10_epoch_1.json cannot be read: {reason}" in all_of.problem


def test_archive_entry_that_is_damaged_is_told_and_those_before_are_kept(tmp_path):
    noise = os.urandom(3000).hex().encode()
    entries = {"header.json": b"{}", **SAMPLES, "samples/7_epoch_1.json": b'"%b"' % noise}
    source = archive(tmp_path, entries)
    data = (tmp_path / "a.eval").read_bytes()
    at = data.rindex(b"samples/7_epoch_1.json", 0, data.rindex(b"samples/7")) + 500
    (tmp_path / "a.eval").write_bytes(data[:at] + b"\0" * 20 + data[at + 20 :])
    begin, all_of, found = read(source)
    assert (len(begin.samples), len(found)) == (3, 3)
    assert "samples/7_epoch_1.json cannot be read" in all_of.problem


@pytest.mark.slow
def test_archive_bomb_is_told(tmp_path):
    entries = {"header.json": b"{}"}
    entries |= {f"samples/{i}.json": b'"' + b" " * (30 << 20) + b'"' for i in range(5)}
    _, all_of, found = read(archive(tmp_path, entries))
    assert "unpacks to more than 200 times its size" in all_of.problem
    assert len(found) == 2


def test_archive_sample_that_is_too_large_is_set_aside(tmp_path, monkeypatch):
    monkeypatch.setattr(whole, "MAX_RECORD_BYTES", 2000)
    entries = {"header.json": b"{}", "samples/a.json": b'"' + b"x" * 5000, **SAMPLES}
    _, all_of, found = read(archive(tmp_path, entries))
    assert (len(found), len(all_of.oversize), all_of.problem) == (3, 1, None)
    assert [r.ordinal for r in found] == [1, 2, 3]


def test_archive_that_is_no_inspect_log_or_is_cut_or_piped_is_refused(tmp_path, monkeypatch):
    with pytest.raises(DataError, match=r"a\.zip is a zip archive, but no Inspect log"):
        head(archive(tmp_path, {"x.json": b"{}"}, name="a.zip"))
    source = archive(tmp_path, {"header.json": b"{}", **SAMPLES})
    data = (tmp_path / "a.eval").read_bytes()
    (tmp_path / "a.eval").write_bytes(data[:-30])
    with pytest.raises(DataError, match=r"a\.eval is a zip archive that is not complete"):
        head(source)
    with pytest.raises(DataError, match="is zip inside gzip"):
        head(source_of(tmp_path, gzip.compress(data), "b.eval"))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    with pytest.raises(DataError, match="cannot be read from standard input"):
        head(Found("-"))


def test_parquet_rows_are_json_without_null_keys_at_any_depth(tmp_path):
    rows = [
        {"id": 1, "reward": 0.5, "messages": [{"role": "user", "name": None, "content": "é"}]},
        {"id": None, "reward": float("nan"), "messages": []},
        {"id": 3, "reward": None, "messages": None},
    ]
    path = tmp_path / "a.parquet"
    table = pa.Table.from_pylist(rows).append_column(
        "at", pa.array([1_700_000_000_123_456_789, None, 0], pa.timestamp("ns", "UTC"))
    )
    pq.write_table(table, path, row_group_size=2)
    begin, all_of, found = read(Found(str(path), path.stat().st_size))
    assert begin.container == "parquet"
    values, codes, _ = decoded(found)
    at = datetime.fromtimestamp(1_700_000_000, UTC).replace(microsecond=123456).isoformat()
    assert values[0] == {
        "id": 1, "reward": 0.5, "messages": [{"role": "user", "content": "é"}],
        "at": at.replace("+00:00", "Z"),
    }  # fmt: skip
    assert values[1:] == [{"reward": None, "messages": []}, {"id": 3, "at": "1970-01-01T00:00:00Z"}]
    assert codes == ["non_finite_to_null"]
    assert [(r.ordinal, r.offset) for r in found] == [(0, 0), (1, 1), (2, 2)]
    assert all_of.consumed == path.stat().st_size


def test_parquet_that_is_cut_or_damaged_is_told(tmp_path):
    path = tmp_path / "a.parquet"
    table = pa.table({"text": [os.urandom(500).hex() for _ in range(1000)]})
    pq.write_table(table, path, row_group_size=500, use_dictionary=False, write_page_checksum=False)
    data = path.read_bytes()
    with pytest.raises(DataError, match=r"a\.parquet is Parquet that cannot be read"):
        head(source_of(tmp_path, data[:-10], "a.parquet"))
    at = len(data) * 3 // 4
    _, all_of, found = read(
        source_of(tmp_path, data[:at] + b"\xff" * 2000 + data[at + 2000 :], "a.parquet")
    )
    assert all_of.problem is None or "is damaged" in all_of.problem
    assert len(found) >= 500


# -- the corpus ----------------------------------------------------------------------------------


def test_corpus_every_log_is_read_through():
    root = shared()
    found, problems = find([str(root)])
    assert problems == []
    damaged = {}
    for source in found:
        begin, all_of, of_source = read(source)
        assert all_of.problem is None, source.path
        assert begin.samples or begin.container == "empty", source.path
        values, _, reasons = decoded(of_source)
        assert len(values) == len(of_source) - len(reasons)
        if reasons or all_of.pending:
            damaged[source.path.removeprefix(f"{root}/")] = reasons, all_of.pending is not None
    assert damaged == {
        "claude-code/agentsview/truncated.jsonl": (["cut_off"], False),
        "hostile-derived/garbage_and_nul_middle.jsonl": (["cut_off"], False),
        "hostile-derived/truncated_last_line.jsonl": ([], True),
        "openclaw/pi/agentsview_session.jsonl": (["bad_json"], False),
    }


@pytest.mark.parametrize(
    ("path", "container", "num_records"),
    [
        ("tau-bench/gpt-4o-airline.json", "array", 200),
        ("hostile-derived/truncated_last_line.jsonl", "lines", 112),
        ("hostile-derived/replayed_lines_same_uuid.jsonl", "lines", 133),
        ("hostile-derived/chat_stream_n2_interleaved.sse", "sse", 9),
        ("inspect/log_message_deduplication.eval", "zip", 1),
        ("swe-agent/marshmallow_fc.traj", "document", 1),
    ],
)
def test_corpus_known_counts(path, container, num_records):
    begin, _, found = read(Found(str(shared(*path.split("/")))))
    assert (begin.container, len(found)) == (container, num_records)
