import json
import math
import re
import time

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clawcli.ingest.read.salvage import salvage


def pieces(raw):
    return [(offset, piece, codes) for offset, piece, codes in salvage(raw).pieces]


def reasons(raw):
    return [(offset, length, reason) for offset, length, reason, _ in salvage(raw).rejects]


MENDED = [
    (b'{"a":NaN,"b":-Infinity,"c":1e999}', b'{"a":null,"b":null,"c":null}', "non_finite_to_null"),
    (b'{"a":"\\ud800 x"}', b'{"a":"\\ufffd x"}', "surrogate_replaced"),
    (b'{"a":"\\uDC00\\ud83d\\ude00"}', b'{"a":"\\ufffd\\ud83d\\ude00"}', "surrogate_replaced"),
    (b'{"\\udcb2":1}', b'{"\\ufffd":1}', "surrogate_replaced"),
    (b'{"a":"\xff"}', '{"a":"\ufffd"}'.encode(), "invalid_utf8_replaced"),
    (b'{"a":"x\0y\tz"}', b'{"a":"x\\u0000y\\u0009z"}', "control_characters_escaped"),
]


@pytest.mark.parametrize(("raw", "mended", "code"), MENDED)
def test_salvage_mends_what_careless_writers_do_and_names_it(raw, mended, code):
    assert pieces(raw) == [(0, mended, [code])]
    assert reasons(raw) == []


def test_salvage_names_each_code_once_and_all_of_them():
    raw = b'\0{"a":[NaN,NaN],"b":"\\ud800\\ud800","c":"\xff\0"}'
    ((offset, _, codes),) = pieces(raw)
    assert offset == 1
    assert codes == [
        "invalid_utf8_replaced",
        "non_finite_to_null",
        "surrogate_replaced",
        "control_characters_escaped",
        "nul_bytes_dropped",
    ]


def test_salvage_leaves_all_else_byte_for_byte():
    kept = (
        rb'{"a":1.10 , "a":-0,"big":123456789012345678901234567890,"e":"\\ud800 \/ \u00e9 NaN",'
        rb'"t":[true, null ,1E5]'
    )
    assert pieces(kept + b',"x":NaN}') == [(0, kept + b',"x":null}', ["non_finite_to_null"])]


@pytest.mark.parametrize("blank", [b"\0" * 512, b"\xef\xbb\xbf", b" \r\n", b""])
def test_salvage_blanks_alone_are_nothing(blank):
    assert (pieces(blank), reasons(blank)) == ([], [])


def test_salvage_bom_and_carriage_return_go_without_a_word():
    assert pieces(b'\xef\xbb\xbf{"a":1}\r') == [(3, b'{"a":1}', [])]


@pytest.mark.parametrize("between", [b"", b" ", b"\0\0", b"\r\n"])
def test_salvage_glued_records_come_apart(between):
    raw = b'{"a":1}' + between + b'{"b":2}'
    codes = ["nul_bytes_dropped"] if b"\0" in between else []
    assert pieces(raw) == [(0, b'{"a":1}', codes), (7 + len(between), b'{"b":2}', codes)]
    assert reasons(raw) == []


@pytest.mark.parametrize(
    "head",
    [
        b'{"a":1,"text":"cut he',
        b'{"a":1,"text":"cut he\0\0\0\0\0',
        b'{"a":1,"te',
        b'{"a":1,"text"',
        b'{"a":1,',
        b'{"a":12',
        b'{"a":tr',
        b'{"a":"x\\',
        b'{"a":"x\\u00',
        b'{"a":{"b":[{"c":1}],"d":"{',
        b"2026-11-30 12:00 INFO ",
    ],
)
@pytest.mark.parametrize("tail", [b'{"b":2}', b'{"b":[{"c":"}"}]}{"d":NaN}'])
def test_salvage_splice_keeps_the_tail_and_rejects_the_head(head, tail):
    salvaged = salvage(head + tail)
    assert salvaged.pieces[0][0] == len(head)
    assert len(salvaged.pieces) == tail.count(b'"d"') + 1
    assert reasons(head + tail) == [(0, len(head), "spliced_head")]


def test_salvage_splice_behind_many_objects_is_found():
    raw = b'junk{"a":[' + b'{"b":1},' * 300 + b'!{"z":1}'
    assert pieces(raw) == [(len(raw) - 7, b'{"z":1}', [])]


def test_salvage_splice_of_three_keeps_the_last():
    raw = b'{"a":"x{"b":"y{"c":1}'
    assert pieces(raw) == [(14, b'{"c":1}', [])]
    assert reasons(raw) == [(0, 14, "spliced_head")]


@pytest.mark.parametrize(
    "raw",
    [
        b'{"messages":[{"role":"user","content":"hi"}',
        b'{"request":{"messages":[]},"response":{"id":"x"}',
        b'{"a":"',
        b'{"a":"x\\u00',
        b'{"a":tr',
        b'{"a":-',
        b'{"a"',
        b"{",
        b"[1,",
    ],
)
def test_salvage_record_that_is_cut_is_never_mined(raw):
    assert (pieces(raw), reasons(raw)) == ([], [(0, len(raw), "cut_off")])


@pytest.mark.parametrize(
    "raw",
    [
        b"{'role': 'user', 'content': '{\"a\": 1}'}",
        b'{"a": undefined, "b": {"c": 1}}',
        b'{"a":[{"x":1},],"b":{"y":2}}',
        b"42",
        b"NaN",
        b'"text"',
        b"garbage",
        b"\x93\x00\xff" * 10 + b"}",
    ],
)
def test_salvage_other_languages_are_rejected_whole(raw):
    assert (pieces(raw), reasons(raw)) == ([], [(0, len(raw), "bad_json")])


def test_salvage_trailer_is_rejected_and_the_record_before_it_kept():
    raw = b'{"a":1}{"b":2} TRAILER {"c":3}'
    assert pieces(raw) == [(0, b'{"a":1}', []), (7, b'{"b":2}', [])]
    assert reasons(raw) == [(15, 15, "trailing_bytes")]


def test_salvage_deep_nesting_is_rejected_without_a_crash():
    for raw in (b"[" * 100_000 + b"]" * 100_000, b'{"a":' * 100_000 + b"1" + b"}" * 100_000):
        assert reasons(raw) == [(0, len(raw), "too_deep")]


def test_salvage_numbers_beyond_any_use_are_rejected_and_large_ones_kept():
    raw = b'{"a":' + b"9" * 5_000 + b"}"
    assert reasons(raw) == [(0, len(raw), "number_out_of_range")]
    raw = b'{"x":NaN,"a":' + b"9" * 300 + b"}"
    ((_, piece, _),) = pieces(raw)
    assert msgspec.json.decode(piece)["a"] == 10**300 - 1


@pytest.mark.parametrize("part", [b'{"a":[', b'{"a":1},', b'{"', b'{"a":1}x', b"{'"])
def test_salvage_many_beginnings_that_lead_nowhere_take_no_time(part):
    raw = b"x" + part * 100_000 + b"!"
    begin = time.process_time()
    salvage(raw)
    assert time.process_time() - begin < 2


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), values, max_size=4), st.booleans())
def test_salvage_whatever_python_writes_is_one_piece(record, ensure_ascii):
    raw = json.dumps(record, ensure_ascii=ensure_ascii).encode("utf-8", "surrogatepass")
    salvaged = salvage(raw)
    assert salvaged.rejects == []
    ((offset, piece, _),) = salvaged.pieces
    assert offset == 0
    assert msgspec.json.decode(piece) == as_json_has_it(json.loads(raw))


def as_json_has_it(value):
    if isinstance(value, dict):
        return {as_json_has_it(key): as_json_has_it(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [as_json_has_it(inner) for inner in value]
    if isinstance(value, str):
        return re.sub("[\ud800-\udfff]", "\ufffd", value)
    return None if isinstance(value, float) and not math.isfinite(value) else value


@given(st.lists(st.sampled_from([b'{"', b'a":1}', b'"', b"{", b"}", b"[", b"]", b",", b":", b"\\",
                                 b"\0", b"x", b"NaN", b"1", b" ", b"\xff", b"\xef\xbb\xbf"])))  # fmt: skip
def test_salvage_pieces_and_rejects_lie_apart_and_leave_only_blanks(tokens):
    raw = b"".join(tokens)
    salvaged = salvage(raw)
    places = [offset for offset, *_ in salvaged.pieces]
    lengths = {offset: length for offset, length, *_ in salvaged.rejects}
    places = sorted([*places, *lengths])
    assert len(places) == len(set(places))
    assert raw[: places[0] if places else len(raw)].strip(b" \0\xef\xbb\xbf") == b""
    for offset, piece, codes in salvaged.pieces:
        assert isinstance(msgspec.json.decode(piece), dict | list)
        assert codes or raw[offset : offset + len(piece)] == piece
    for offset, length in lengths.items():
        assert 0 < length <= len(raw) - offset
