"""Hostile input through the command line: exact counts, one sentence, and never a traceback."""

import gzip
import json
import os
import random
import subprocess
import sys
import textwrap

import pytest
import zstandard
from conftest import assistant, pair, system, user, write_lines
from fuzz_logs import damaged, valid_logs
from fuzz_runs import FATES, check

from clawcli.store import location, table


def record(uid, **extra):
    return pair([user("u")], assistant(uid), uid=uid, **extra)


def line(uid, **extra):
    return json.dumps(record(uid, **extra)).encode() + b"\n"


def odd(text):
    """A record with any text in the place of a value."""
    return line("odd", note="@").replace(b'"@"', text)


def rows(output, part="steps"):
    return table.read(location.parse(str(output)), part).to_pylist()


def tree(folder):
    return {path.relative_to(folder) for path in folder.rglob("*")}


def ingest(claw, output, *arguments, code=0):
    """Ingest, and check what holds for every input; gives the report."""
    outside = output.parent
    before = tree(outside)
    done = claw("ingest", *arguments, "-o", output, "--json")
    assert "Traceback" not in done.err
    assert done.code == code, done.err
    assert {p for p in tree(outside) - before if p.parts[0] != output.name} == set()
    report = done.report
    assert tuple(report["records_by_fate"]) == FATES
    assert sum(report["records_by_fate"].values()) == report["records"]
    assert report["rejects"] == sum(report["rejects_by_reason"].values())
    # of all other fates no row is kept: a duplicate is in seen_in, what is pending may go on
    aside = report["records"] - sum(
        report["records_by_fate"][fate] for fate in ("used", "duplicate", "pending")
    )
    kept = rows(output, "rejects") if (output / "rejects").exists() else []
    assert len(kept) == aside
    num_empty = report["warnings_by_code"].get("empty_source", 0)
    assert len(done.err.splitlines()) == len(report["problems"]) + num_empty
    return report


def fates(report):
    return {fate: n for fate, n in report["records_by_fate"].items() if n}


# -- lines ---------------------------------------------------------------------------------------

FIRST, LAST = line("first"), line("last")
MANY = b"".join(line(f"m{n}", note="text") for n in range(3_000))
CASES = {
    # file, fates, reasons of rejects, warnings, steps
    "nan": (odd(b"NaN"), {"used": 3}, {}, {"non_finite_to_null": 1}, 3),
    "infinity": (odd(b"-Infinity"), {"used": 3}, {}, {"non_finite_to_null": 1}, 3),
    "float_1e999": (odd(b"1e999"), {"used": 3}, {}, {"non_finite_to_null": 1}, 3),
    "lone_surrogate": (odd(rb'"a\ud800b"'), {"used": 3}, {}, {"surrogate_replaced": 1}, 3),
    "invalid_utf8": (odd(b'"\xff\xfe"'), {"used": 3}, {}, {"invalid_utf8_replaced": 1}, 3),
    "nul_raw": (odd(b'"a\0b"'), {"used": 3}, {}, {"control_characters_escaped": 1}, 3),
    "nul_run": (odd(b'"a' + b"\0" * 2_000_000), {"used": 2, "rejected": 1}, {"cut_off": 1}, {}, 2),
    "nul_escape": (odd(rb'"a\u0000b"'), {"used": 3}, {}, {}, 3),
    "nul_fill": (b"\0" * 512 + b"\n", {"used": 2}, {}, {}, 2),
    "trunc_last": (b"", {"used": 2, "pending": 1}, {}, {"truncated_tail": 1}, 2),
    "trunc_mid": (odd(b'"x')[:-30] + b"\n", {"used": 2, "rejected": 1}, {"cut_off": 1}, {}, 2),
    "mixed_content": (
        json.dumps(pair([user([{"type": "text", "text": "u"}])], assistant("a"))).encode() + b"\n",
        {"used": 3},
        {},
        {},
        3,
    ),
    "huge_int": (odd(b"123456789012345678901234567890"), {"used": 3}, {}, {}, 3),
    "int_5000_digits": (
        odd(b"9" * 5000),
        {"used": 2, "rejected": 1},
        {"number_out_of_range": 1},
        {},
        2,
    ),
    "duplicate_keys": (odd(b'1, "note": 2'), {"used": 3}, {}, {}, 3),
    "deep_100k": (
        odd(b"[" * 100_000 + b"]" * 100_000),
        {"used": 2, "rejected": 1},
        {"too_deep": 1},
        {},
        2,
    ),
    "blank_lines": (b"\n \t\n\r\n", {"used": 2}, {}, {}, 2),
    "crlf": (odd(b"1").replace(b"\n", b"\r\n"), {"used": 3}, {}, {}, 3),
    "bom": (odd(b"1"), {"used": 3}, {}, {}, 3),
    "trailer": (
        odd(b"1")[:-1] + b"TRAILER\n",
        {"used": 3, "rejected": 1},
        {"trailing_bytes": 1},
        {},
        3,
    ),
    "two_objects": (odd(b"1")[:-1] + line("next"), {"used": 4}, {}, {}, 4),
    "splice": (
        odd(b"1")[:60] + line("next"),
        {"used": 3, "rejected": 1},
        {"spliced_head": 1},
        {},
        3,
    ),
    "scalar": (b"42\n", {"used": 2, "rejected": 1}, {"bad_record": 1}, {}, 2),
    "line_20_mb": (odd(b'"' + b"x" * 20_000_000 + b'"'), {"used": 3}, {}, {}, 3),
    "late_type_change": (MANY + odd(b"[1.5]"), {"used": 3_003}, {}, {}, 3_003),
    "line_separators": (odd('"a\u2028b\u2029c\u0085d"'.encode()), {"used": 3}, {}, {}, 3),
}


@pytest.mark.parametrize("case", CASES)
def test_hostile_line_costs_itself_at_most(tmp_path, claw, case):
    between, wanted, reasons, warnings, steps = CASES[case]
    path = tmp_path / "a.jsonl"
    begin = b"\xef\xbb\xbf" if case == "bom" else b""
    end = odd(b"1")[:50] if case == "trunc_last" else b""
    path.write_bytes(begin + FIRST + between + LAST + end)
    report = ingest(claw, tmp_path / "d", path)
    assert (fates(report), report["rejects_by_reason"]) == (wanted, reasons)
    assert (report["warnings_by_code"], report["steps"]) == (warnings, steps)
    answers = [row["response"] for row in rows(tmp_path / "d")]
    assert (answers[0], answers[-1]) == ("first", "last")
    again = ingest_again(claw, tmp_path / "d", path)
    assert (again["files_unchanged"], again["records"]) == (1, 0)


def ingest_again(claw, output, *arguments, code=0):
    """Ingest what was ingested: nothing may come of it, and what is damaged is told again."""
    before = {part: rows(output, part) for part in ("steps", "rejects") if (output / part).exists()}
    done = claw("ingest", *arguments, "-o", output, "--json")
    assert done.code == code, done.err
    for part, found in before.items():
        assert rows(output, part) == found
    return done.report


def test_hostile_values_are_kept_exactly(tmp_path, claw):
    numbers = odd(b"123456789012345678901234567890"), odd(b'1, "note": 2').replace(b"odd", b"two")
    (tmp_path / "a.jsonl").write_bytes(b"".join(numbers))
    ingest(claw, tmp_path / "d", tmp_path / "a.jsonl")
    first, second = (json.loads(row["metadata"]) for row in rows(tmp_path / "d"))
    assert (first["note"], second["note"]) == (123456789012345678901234567890, 2)


@pytest.mark.slow
def test_line_of_more_than_256_mib_is_set_aside_and_the_others_are_read(tmp_path, claw):
    path = tmp_path / "a.jsonl"
    with path.open("wb") as file:
        file.write(FIRST + b'{"request": "')
        file.seek((1 << 28) + 1_000)  # a hole reads as NUL bytes and needs no disk
        file.write(b'"}\n' + LAST)
    report = ingest(claw, tmp_path / "d", path)
    assert fates(report) == {"used": 2, "rejected": 1}
    assert report["rejects_by_reason"] == {"oversize": 1}
    (aside,) = rows(tmp_path / "d", "rejects")
    assert aside["source_offset"] == len(FIRST)
    assert aside["first_bytes"].startswith('{"request": "')
    assert len(aside["first_bytes"].encode()) <= 200


@pytest.mark.parametrize("part", [b'{"', b"[{", b'{"a":', b'"}{"', b"\\", b'{"a":"\\ud800"}x'])
def test_megabytes_of_beginnings_take_seconds_and_no_more(tmp_path, claw, part):
    path = tmp_path / "a.jsonl"
    path.write_bytes(FIRST + b"{" + part * (4_000_000 // len(part)) + b"\n" + LAST)
    report = ingest(claw, tmp_path / "d", path)
    assert fates(report).items() >= {"used": 2}.items()
    assert report["steps"] == 2
    assert report["rejects"] >= 1


# -- compressed streams --------------------------------------------------------------------------

LINES = [line(f"n{number:04}", note=os.urandom(20).hex()) for number in range(2_000)]
WHOLE = b"".join(LINES)


def zipped(data):
    return gzip.compress(data, 1)


def zstd(data):
    return zstandard.ZstdCompressor().compress(data)


def cut_within(pack):
    # flushed half-way, so that what is left of the stream is known to hold whole lines
    packed = pack(WHOLE)
    return packed[: len(packed) * 2 // 3]


STREAMS = {
    # file, exit code, records (None = some, not all), word of the problem
    "gzip": (zipped(WHOLE), 0, 2_000, None),
    "zstd": (zstd(WHOLE), 0, 2_000, None),
    "gzip_cut": (cut_within(zipped), 3, None, "breaks off"),
    "zstd_cut": (cut_within(zstd), 3, None, "breaks off"),
    "gzip_two_members": (zipped(WHOLE[:-1] + b"\n") + zipped(FIRST), 0, 2_001, None),
    "zstd_two_frames": (zstd(WHOLE) + zstd(FIRST), 0, 2_001, None),
    "gzip_trailing_zeros": (zipped(WHOLE) + b"\0" * 100, 0, 2_000, None),
    "gzip_bad_crc": (zipped(WHOLE)[:-8] + b"\1\2\3\4" + zipped(WHOLE)[-4:], 3, None, "breaks off"),
    "gzip_trailing_bytes": (zipped(WHOLE) + b"garbage", 3, 2_000, "breaks off"),
    "zstd_trailing_bytes": (zstd(WHOLE) + b"garbage", 3, 2_000, "breaks off"),
    "plain_named_gz": (WHOLE, 0, 2_000, None),
}


@pytest.mark.parametrize("case", STREAMS)
def test_compressed_stream_gives_what_is_whole_and_says_what_is_not(tmp_path, claw, case):
    data, code, num_records, word = STREAMS[case]
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(data)
    report = ingest(claw, tmp_path / "d", path, code=code)
    assert len(report["problems"]) == (word is not None)
    assert all(word in problem for problem in report["problems"])
    num_used = report["records_by_fate"]["used"]
    if num_records is None:
        assert 0 < num_used <= 2_000
    else:
        assert num_used == num_records
    answers = [row["response"] for row in rows(tmp_path / "d")]
    assert answers == [*(f"n{n:04}" for n in range(2_000)), "first"][:num_used]
    again = ingest_again(claw, tmp_path / "d", path, code=code)
    assert len(again["problems"]) == len(report["problems"])
    if "cut" in case:
        path.write_bytes(zipped(WHOLE))  # the rest was fetched
        ingest(claw, tmp_path / "d", path)
        assert len(rows(tmp_path / "d")) == 2_000


@pytest.mark.parametrize("pack", [zipped, zstd])
def test_bomb_is_read_to_64_mib_and_told(tmp_path, claw, pack):
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(pack(FIRST) + pack(odd(b'"' + b"x" * (96 << 20) + b'"')))
    report = ingest(claw, tmp_path / "d", path, code=3)
    assert fates(report).items() >= {"used": 1}.items()
    assert "as bombs do" in report["problems"][0]


def test_bomb_that_holds_nothing_else_is_one_sentence(tmp_path, claw):
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(zipped(b"\0" * (96 << 20)))
    done = claw("ingest", path, "-o", tmp_path / "d")
    assert (done.code, done.out) == (3, "")
    assert "as bombs do" in done.err
    assert len(done.err.splitlines()) == 1


# -- files and folders ---------------------------------------------------------------------------


def test_folder_of_all_that_is_no_log_gives_its_one_log_and_names_the_rest(tmp_path, claw):
    logs = tmp_path / "logs"
    (logs / "x.jsonl").mkdir(parents=True)
    (logs / "x.jsonl" / "y.jsonl").symlink_to("../x.jsonl/y.jsonl")
    (logs / "round").symlink_to("..")
    os.mkfifo(logs / "pipe.jsonl")
    (logs / "gone.jsonl").symlink_to("nowhere")
    (logs / "out.jsonl").symlink_to("/etc/passwd")
    (logs / "empty.jsonl").touch()
    (logs / "binary.jsonl").write_bytes(os.urandom(5_000))
    (logs / "good.jsonl").write_bytes(FIRST)
    report = ingest(claw, tmp_path / "d", logs, code=3)
    assert (report["files_read"], report["steps"]) == (1, 1)
    named = " ".join(report["problems"])
    for name in ("x.jsonl", "y.jsonl", "round", "pipe.jsonl", "gone.jsonl", "out.jsonl", "binary"):
        assert f"{name} " in named or f"{name}." in named
    assert len(report["problems"]) == 7
    assert report["warnings_by_code"] == {"empty_source": 1}


@pytest.mark.parametrize("name", ["pipe.jsonl", "loop.jsonl", "gone.jsonl"])
def test_named_input_that_cannot_be_read_is_one_sentence(tmp_path, claw, name):
    path = tmp_path / name
    if name == "pipe.jsonl":
        os.mkfifo(path)
    elif name == "loop.jsonl":
        path.symlink_to(path)
    done = claw("ingest", path, "-o", tmp_path / "d", "--json")
    assert (done.code, done.out) == (4, "")
    assert name in done.error["message"]
    assert not (tmp_path / "d").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="drops the privileges of root, which this is not")
def test_unreadable_file_is_a_problem_and_the_others_are_read(tmp_path):
    logs, output = tmp_path / "logs", tmp_path / "out"
    logs.mkdir()
    output.mkdir(mode=0o777)
    output.chmod(0o777)
    (logs / "good.jsonl").write_bytes(FIRST)
    (logs / "closed.jsonl").write_bytes(LAST)
    (logs / "closed.jsonl").chmod(0)
    for folder in (logs, tmp_path, *tmp_path.parents[:3]):
        folder.chmod(folder.stat().st_mode | 0o755)
    script = f"""
        import os, sys
        from clawcli.cli import app
        # what is imported late may lie where only root can read
        app.run(["ingest", {str(logs / "good.jsonl")!r}, "-o", {str(tmp_path / "root")!r}, "-q"])
        os.setegid(65534)
        os.seteuid(65534)
        sys.exit(app.run(["ingest", {str(logs)!r}, "-o", {str(output / "d")!r}, "--json"]))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True
    )
    assert done.stdout, done.stderr
    report = json.loads(done.stdout)
    assert (done.returncode, report["steps"]) == (3, 1)
    (problem,) = report["problems"]
    assert "closed.jsonl cannot be read: Permission denied." in problem
    assert "Traceback" not in done.stderr


NAMES = [
    "a\nb.jsonl",
    "'; drop table steps; --.jsonl",
    'a"b\\.jsonl',
    "-o.jsonl",
    "\u202egnp.jsonl",
    "\x1b[31mred.jsonl",
    "log_date=2026-01-01.jsonl",
    "%2e%2e%2fx.jsonl",
    os.fsdecode(b"\xff\xfe.jsonl"),
    "\U0001f40d" * 50 + ".jsonl",
    "*.jsonl",
]


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_odd_file_name_is_stored_as_it_is_and_printed_harmless(tmp_path, claw, name):
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / name).write_bytes(FIRST + b"42\n")
    report = ingest(claw, tmp_path / "d", logs)
    assert (report["steps"], report["rejects"]) == (1, 1)
    shown = os.fsencode(str(logs / name)).decode(errors="backslashreplace")
    assert rows(tmp_path / "d")[0]["source_path"] == shown
    assert rows(tmp_path / "d", "rejects")[0]["source_path"] == shown
    assert ingest_again(claw, tmp_path / "d", logs)["files_unchanged"] == 1
    (logs / name).write_bytes(LAST)
    done = claw("ingest", logs, "-o", tmp_path / "d")
    assert done.code in (0, 3)
    assert all(c.isprintable() or c == "\n" for c in done.err)


# -- values --------------------------------------------------------------------------------------

VALUES = [
    "../x",
    "/etc/passwd",
    "a\0b",
    "x" * 300,
    "__HIVE_DEFAULT_PARTITION__",
    "log_date=2026-01-01",
    "",
    " ",
    "null",
    ".",
    "..",
    "a/b\\c",
    "%2F",
    "\U0001f40d",
    "\u202e",
    "line\nbreak",
    "'\"--;",
    "CON",
]


@pytest.mark.parametrize("column", ["task_id", "model", "native_id"])
def test_value_that_looks_like_a_path_or_a_partition_stays_a_value(tmp_path, claw, column):
    records = []
    for number, value in enumerate(VALUES):
        made = record(f"n{number}", at=1_700_000_000 + number)
        if column == "task_id":
            made["task_id"] = value
        elif column == "model":
            made["request"]["model"] = made["response"]["model"] = value
        else:
            made["response"]["id"] = value
        records.append(made)
    report = ingest(claw, tmp_path / "d", write_lines(tmp_path / "a.jsonl", records))
    assert report["records_by_fate"]["used"] == len(VALUES)
    found = {row["response"]: row[column] for row in rows(tmp_path / "d")}
    assert [found[f"n{n}"] or "" for n in range(len(VALUES))] == VALUES
    for path in tree(tmp_path / "d"):
        assert all(character.isascii() and character.isprintable() for character in str(path))


@pytest.mark.parametrize(
    "at",
    [
        -1,
        0,
        1e18,
        1e308,
        10**40,
        253402300800,
        "9999-12-31T23:59:59.999999Z",
        "10000-01-01T00:00:00Z",
        "0001-01-01T00:00:00+14:00",
        "../x",
        "__HIVE_DEFAULT_PARTITION__",
        "2026-02-30",
        True,
        {},
        [],
    ],
)
def test_time_out_of_range_costs_the_time_alone(tmp_path, claw, at):
    records = [record("first", at=1_700_000_000), record("odd", at=at)]
    path = write_lines(tmp_path / "a.jsonl", records)
    assert fates(ingest(claw, tmp_path / "d", path)) == {"used": 2}
    found = {row["response"]: row for row in rows(tmp_path / "d")}
    assert found["first"]["log_date"] == "2023-11-14"
    # steps of one prompt are not one trajectory, so each has a day of its own
    moment = found["odd"]["started_at"]
    assert found["odd"]["log_date"] == ("unknown" if moment is None else str(moment)[:10])
    ingest_again(claw, tmp_path / "d", path)


def test_response_id_that_is_used_again_for_another_call_gives_both(tmp_path, claw):
    records = [
        pair([user("u")], assistant("a"), uid="r"),
        pair([user("v")], assistant("b"), uid="r"),
        pair([user("u")], assistant("a"), uid="r"),
        pair([system("s"), user("u")], assistant("a"), uid="r"),
    ]
    report = ingest(claw, tmp_path / "d", write_lines(tmp_path / "a.jsonl", records))
    assert fates(report) == {"used": 2, "duplicate": 2}
    assert report["warnings_by_code"] == {"duplicate_differs": 1}
    assert sorted(row["response"] for row in rows(tmp_path / "d")) == ["a", "b"]


# -- damage at random ----------------------------------------------------------------------------

LOGS = valid_logs()


@pytest.mark.parametrize("name", LOGS)
def test_valid_log_is_read_as_its_format(tmp_path, claw, name):
    report = check(claw, LOGS[name], tmp_path)
    assert report["steps_by_format"].keys() == {name}
    assert report["problems"] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", LOGS)
def test_damaged_log_costs_its_records_at_most(tmp_path, claw, name):
    others = list(LOGS.values())
    for seed in range(5):
        folder = tmp_path / str(seed)
        folder.mkdir()
        check(claw, damaged(LOGS[name], random.Random(f"{name}-{seed}"), others), folder)
