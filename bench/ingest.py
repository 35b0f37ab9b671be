"""How fast ingest reads, how much memory it takes, and how large the table becomes.

    python bench/ingest.py [--quick] [--json]

The baseline is what a competent user would write first: read with 1 MiB reads, decode each line
with msgspec, messages left as raw JSON. Baseline and command take turns in processes of their own,
on one file, and a ratio is of CPU time: baseline / command, so 1 is as fast as decoding alone.
Inputs are generated (logs.py) into bench/out and removed.
"""

from __future__ import annotations

import json
import shutil
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import logs
import msgspec
import zstandard
from figures import Figure
from tasks import OUT, Run, main, run, timed


class _Request(msgspec.Struct):
    messages: list[msgspec.Raw]


class _Record(msgspec.Struct):
    request: _Request
    response: msgspec.Raw


def decode(path: str) -> None:
    """Be the baseline: decode each line, messages raw."""
    of_line = msgspec.json.Decoder(_Record).decode
    messages = 0
    with open(path, "rb", buffering=1 << 20) as lines:  # noqa: PTH123 - the baseline is plain
        for line in lines:
            messages += len(of_line(line).request.messages)


def hash_and_link(path: str) -> None:
    """Do what chaining needs and no more: no rows, no table."""
    from clawcli.engine import without_gc
    from clawcli.ingest import chain, index, steps
    from clawcli.ingest.calls import Context
    from clawcli.ingest.formats import openai_chat
    from clawcli.ingest.read.find import Found
    from clawcli.ingest.read.lines import Lines

    with without_gc():
        context, found = Context(), []
        for record in Lines(Found(path)):
            for call in openai_chat.calls(record.raw, context):
                call.source_uid, call.record, call.log_format = "", record.ordinal, "openai_chat"
                found.extend(steps.of_call(call, grows=False))
        chain.link(found, index.Index())


def whole(path: str, *flags: str) -> None:
    """Run the verb."""
    from clawcli.cli import app

    target = OUT / "data"
    shutil.rmtree(target, ignore_errors=True)
    code = app.run(["ingest", path, "-o", str(target), "--quiet", *flags])
    if code:
        raise SystemExit(code)


TASKS: dict[str, Callable[[str], None]] = {
    "decode": decode,
    "hash_and_link": hash_and_link,
    "whole": lambda path: whole(path, "--workers", "1", "--no-redact"),
    "redacted": lambda path: whole(path, "--workers", "1"),
    "one": lambda path: whole(path, "--workers", "1"),
    "two": lambda path: whole(path, "--workers", "2"),
}


def serve(task: str, path: str) -> Run:
    """Be the process of one task; start-up does not count."""
    if task != "decode":
        import clawcli.cli.app
        import clawcli.ingest.formats.openai_chat
        import clawcli.ingest.run  # noqa: F401 - loading libraries is start-up
    return timed(lambda: TASKS[task](path))


def ratios(path: Path, tasks: list[str], rounds: int) -> dict[str, tuple[float, list[Run]]]:
    """Measure tasks against the baseline, by turns; the median ratio of each."""
    base: list[Run] = []
    runs: dict[str, list[Run]] = {task: [] for task in tasks}
    for _ in range(rounds):
        base.append(run("decode", path, kind=Run))
        for task in tasks:
            runs[task].append(run(task, path, kind=Run))
    found = {}
    for task, taken in runs.items():
        each = [b.cpu_s / r.cpu_s for b, r in zip(base, taken, strict=True)]
        found[task] = statistics.median(each), taken
    return found


def distinct_zstd(path: Path) -> tuple[int, int, int]:
    """Compress each distinct message of a log once, in the order of the log.

    Returns:
        Bytes of the distinct messages, the same under zstd-3, and the number of records.
    """
    of_line = msgspec.json.Decoder(_Record).decode
    seen: set[bytes] = set()
    compressor = zstandard.ZstdCompressor(level=3).compressobj()
    plain = packed = records = 0
    with path.open("rb", buffering=1 << 20) as lines:
        for line in lines:
            record = of_line(line)
            records += 1
            answer = msgspec.json.decode(record.response)["choices"][0]["message"]
            for raw in [*map(bytes, record.request.messages), json.dumps(answer).encode()]:
                if raw not in seen:
                    seen.add(raw)
                    plain += len(raw)
                    packed += len(compressor.compress(raw))
    return plain, packed + len(compressor.flush()), records


def size_of(table: Path) -> int:
    """Add up the bytes of the data files of a table's newest version."""
    from deltalake import DeltaTable

    return sum(Path(file).stat().st_size for file in DeltaTable(table).file_uris())


def request_log_figures(*, quick: bool) -> list[Figure]:
    """Measure the full-history log."""
    path, rounds = OUT / "requests.jsonl", 3
    logs.request_log(path, 300_000_000 if quick else 2_000_000_000)
    size = f"{path.stat().st_size / 1e9:.1f} GB"
    found = ratios(path, ["hash_and_link", "whole", "redacted", "two"], rounds)
    base = f"msgspec decode, messages raw, {size}"
    figures = [
        _ratio("ingest_hash_and_link", found["hash_and_link"], 0.5, base),
        _ratio("ingest_whole", found["whole"], 0.3, base, "--no-redact"),
        _ratio("ingest_redacted", found["redacted"], 0.25, base),
    ]
    walls = [
        one.wall_s / two.wall_s
        for one, two in zip(found["redacted"][1], found["two"][1], strict=True)
    ]
    figures.append(
        Figure(
            figure="ingest_speedup_of_two_processes",
            value=statistics.median(walls),
            asked=1.7,
            better="higher",
            baseline="--workers 1",
            note="wall",
        )
    )
    plain, packed, records = distinct_zstd(path)
    table = size_of(OUT / "data" / "steps")
    figures.append(
        Figure(
            figure="ingest_table_size",
            value=(table - 120 * records) / packed,
            asked=1.15,
            better="lower",
            baseline="zstd-3 of the distinct messages",
            note=f"120 B a step off; text compresses {plain / packed:.1f} times",
        )
    )
    path.unlink()
    logs.request_log(path, 300_000_000, spellings=4)
    found = ratios(path, ["hash_and_link", "redacted"], rounds)
    base = "msgspec decode, 0.3 GB, 4 spellings of each message"
    figures += [
        _ratio("ingest_hash_and_link_respelt", found["hash_and_link"], None, base),
        _ratio("ingest_redacted_respelt", found["redacted"], None, base),
    ]
    path.unlink()
    return figures


def _ratio(
    name: str, found: tuple[float, list[Run]], asked: float | None, baseline: str, note: str = ""
) -> Figure:
    return Figure(
        figure=name,
        value=found[0],
        asked=asked,
        better="higher",
        baseline=baseline,
        note=f"CPU, median of {len(found[1])}{', ' if note else ''}{note}",
    )


def short_log_figures(*, quick: bool) -> list[Figure]:
    """Measure calls of 2 KB."""
    path, records = OUT / "short.jsonl", 50_000 if quick else 200_000
    logs.short_log(path, records)
    found = ratios(path, ["whole", "redacted"], 3)
    figures = []
    for task, asked in (("whole", 30_000), ("redacted", None)):
        cpu_s = statistics.median(run.cpu_s for run in found[task][1])
        figures.append(
            Figure(
                figure=f"ingest_short_calls_per_cpu_s_{task}",
                value=records / cpu_s,
                asked=asked,
                better="higher",
                baseline=f"decoding alone is {1 / found[task][0]:.1f} times as fast",
                note="2 KB records",
            )
        )
    path.unlink()
    return figures


def memory_figures(*, quick: bool) -> list[Figure]:
    """Measure the memory that a long log takes."""
    path = OUT / "long.jsonl"
    size = 1_000_000_000 if quick else 5_000_000_000
    logs.request_log(path, size)
    taken = run("one", path, kind=Run)
    path.unlink()
    return [
        Figure(
            figure="ingest_resident_mb",
            value=taken.resident_mb,
            asked=700,
            better="lower",
            baseline=f"a log of {size / 1e9:.0f} GB",
            note="highest, one process",
        )
    ]


def sessions_figures(*, quick: bool) -> list[Figure]:
    """Measure many small files."""
    folder, files = OUT / "sessions", 4_000 if quick else 40_000
    size = logs.sessions(folder, files)
    taken = run("one", folder, kind=Run)
    from deltalake import DeltaTable

    parquet_files = len(DeltaTable(OUT / "data" / "steps").file_uris())
    started = time.process_time()
    for path in folder.rglob("*.jsonl"):
        for line in path.read_bytes().splitlines():
            msgspec.json.decode(line)
    plain_s = time.process_time() - started
    shutil.rmtree(folder)
    base = f"reading and decoding alone: {files / plain_s:,.0f} a CPU second"
    values = {
        "ingest_session_files_per_cpu_s": (files / taken.cpu_s, "higher"),
        "ingest_session_files_resident_mb": (taken.resident_mb, "lower"),
        "ingest_session_parquet_files": (parquet_files, "lower"),
    }
    return [
        Figure(
            figure=name,
            value=float(value),
            asked=None,
            better=better,
            baseline=base,
            note=f"{files:,} files, {size / 1e6:.0f} MB, 365 dates",
        )
        for name, (value, better) in values.items()
    ]


def figures(quick: bool) -> Iterator[Figure]:
    """Measure all that ingest is asked for."""
    yield from request_log_figures(quick=quick)
    yield from short_log_figures(quick=quick)
    yield from memory_figures(quick=quick)
    yield from sessions_figures(quick=quick)


if __name__ == "__main__":
    main(__doc__, serve, figures)
