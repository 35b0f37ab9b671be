"""Take sources in: each is identified, compared with what was ingested before, and decoded.

What comes out is calls, for chaining, and the records that gave none, each with its fate. A source
is known by its name and its first record, and unchanged where its bytes are, under whatever name.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import msgspec

from clawcli.errors import DataError
from clawcli.ingest import formats, read
from clawcli.ingest.calls import Call, Fate, Context
from clawcli.messages import hash128

logger = logging.getLogger(__name__)

_SAMPLES = 20
_FIRST_BYTES = 200


@dataclass(slots=True)
class Intake:
    """What the sources of one run hold."""

    known: dict[str, dict[str, Any]]
    """Sources by source_uid: those of earlier commits, then also those of this run."""
    source_name: str | None = None
    """Name that the identity of the one source rests on, in place of its file name."""
    calls: list[Call] = field(default_factory=list)
    sources: list[dict[str, Any]] = field(default_factory=list)
    """Sources to commit: source_uid, path, bytes, blake2b of the bytes that were consumed."""
    unused: list[dict[str, Any]] = field(default_factory=list)
    """Records that gave no step, as values of schema.REJECTS."""
    warnings: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    files_unchanged: int = 0
    bytes_read: int = 0
    known_bytes: set[str] = field(init=False)
    """Hashes of the consumed bytes of the sources in known."""
    known_paths: dict[str, dict[str, Any]] = field(init=False)
    """The sources in known by the path that they were read from."""

    def __post_init__(self) -> None:
        """Index what is known, so that each further source costs one look-up."""
        self.known_bytes = {source["blake2b"] for source in self.known.values()}
        self.known_paths = {source["path"]: source for source in self.known.values()}

    def add(self, source: dict[str, Any]) -> None:
        """Take a new source into what is known and what is to be committed."""
        self.known[source["source_uid"]] = self.known_paths[source["path"]] = source
        self.known_bytes.add(source["blake2b"])
        self.sources.append(source)


def take(path: str, intake: Intake) -> None:
    """Read one source into calls, or count it as unchanged.

    Raises:
        DataError: it cannot be read, is in no known format, or has changed since it was ingested.
        StoreError: it cannot be opened.
    """
    source = read.read(path)
    intake.bytes_read += len(source.data)
    if source.problem and not source.data:
        raise DataError(f"{source.problem}.", "Fetch the file again.")
    if not source.data.strip(b"\0 \t\r\n"):
        intake.warnings["empty_source"] += 1
        logger.warning("%s is empty: it holds no record.", path)
        return
    records = read.split(source)
    module = formats.detect(path, _samples(records))
    uid = _source_uid(source, records, intake.source_name)
    consumed = source.data[: records.pending.offset] if records.pending else source.data
    entry = {
        "source_uid": uid,
        "path": source.label,
        "bytes": len(consumed),
        "blake2b": hash128(consumed),
    }
    if entry["blake2b"] in intake.known_bytes:
        # under whatever name it came before
        intake.files_unchanged += 1
        return
    known = intake.known.get(uid) or _rewritten(source, records, intake)
    if known is not None:
        raise DataError(
            f"{path} was ingested before (as {known['path']}, {known['bytes']:,} bytes) and has "
            f"changed since ({entry['bytes']:,} bytes now).",
            "Ingest it into a new data directory, or name it as another log with --source-name.",
        )
    intake.add(entry)
    _decode(source, records, module, uid, intake)
    if source.problem:
        intake.problems.append(
            f"{source.problem}. The {len(records.records):,} records before were kept."
        )


def drop_known(intake: Intake, known: dict[str, dict[str, Any]]) -> None:
    """Leave out sources that another run committed while this one was reading."""
    hashes = {source["blake2b"] for source in known.values()}
    late = {s["source_uid"] for s in intake.sources if s["blake2b"] in hashes}
    intake.files_unchanged += len(late)
    intake.sources = [source for source in intake.sources if source["source_uid"] not in late]
    intake.calls = [call for call in intake.calls if call.source_uid not in late]
    intake.unused = [row for row in intake.unused if row["source_uid"] not in late]


def _samples(records: read.Records) -> list[Any]:
    """Decode the first records that can be decoded; damaged ones may come first."""
    samples: list[Any] = []
    for record in records.records:
        try:
            samples.append(json.loads(bytes(record.raw)))
        except (ValueError, RecursionError):
            continue
        if len(samples) == _SAMPLES:
            break
    return samples


def _source_uid(source: read.Source, records: read.Records, name: str | None) -> str:
    """Identify a source by its name and what it began with, however much is appended later."""
    first = bytes(records.records[0].raw) if records.records else b""
    return hash128(first, name or source.name)


def _rewritten(source: read.Source, records: read.Records, intake: Intake) -> dict[str, Any] | None:
    """Find the earlier state of a file that is one document: it is written anew when it grows."""
    is_document = records.container != "lines" or len(records.records) == 1
    if not is_document or source.path == "-" or intake.source_name:
        return None
    return intake.known_paths.get(source.label)


def _decode(
    source: read.Source, records: read.Records, module: ModuleType, uid: str, intake: Intake
) -> None:
    context = Context(path=source.label)
    if hasattr(module, "session"):
        _decode_session(source, records, module, uid, intake, context)
    for record in () if hasattr(module, "session") else records.records:
        try:
            calls = _calls(module, bytes(record.raw), context, intake)
        except Fate as fate:
            _set_aside(intake, source, module, uid, record, fate)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            fate = Fate("rejected", "bad_json", f"the record is not JSON: {error}")
            _set_aside(intake, source, module, uid, record, fate)
        except (OverflowError, TypeError, AttributeError, KeyError) as error:
            # whatever a log can hold in a wrong place is that record's fault and no other's
            fate = Fate("rejected", "bad_record", f"the record has another shape: {error}")
            _set_aside(intake, source, module, uid, record, fate)
        else:
            for call in calls:
                call.source_uid, call.source_path = uid, source.label
                call.record, call.offset = record.ordinal, record.offset
                call.first_bytes, call.log_format = _first_bytes(record), module.NAME
            intake.calls.extend(calls)
    if records.pending is not None:
        intake.warnings["truncated_tail"] += 1
        fate = Fate("pending", "truncated_tail", "the last line is cut off")
        _set_aside(intake, source, module, uid, records.pending, fate)


def _decode_session(
    source: read.Source,
    records: read.Records,
    module: ModuleType,
    uid: str,
    intake: Intake,
    context: Context,
) -> None:
    by_ordinal = {record.ordinal: record for record in records.records}
    values: dict[int, dict[str, Any]] = {}
    mended: dict[int, list[str]] = {}
    for record in records.records:
        try:
            try:
                value = msgspec.json.decode(record.raw)
            except msgspec.DecodeError:
                raw, mended[record.ordinal] = read.salvage(bytes(record.raw))
                value = msgspec.json.decode(raw)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            fate = Fate("rejected", "bad_json", f"the record is not JSON: {error}")
            _set_aside(intake, source, module, uid, record, fate)
            continue
        if not isinstance(value, dict):
            fate = Fate("rejected", "bad_record", "the record is no object")
            _set_aside(intake, source, module, uid, record, fate)
            continue
        values[record.ordinal] = value
    session = module.session(values, context)
    for ordinal, fate in session.fates.items():
        _set_aside(intake, source, module, uid, by_ordinal[ordinal], fate)
    for call in session.calls:
        record = by_ordinal[call.record]
        call.source_uid, call.source_path = uid, source.label
        call.offset = record.offset
        call.first_bytes, call.log_format = _first_bytes(record), module.NAME
        call.warnings.extend(mended.get(call.record, ()))
    intake.calls.extend(session.calls)


def _calls(module: ModuleType, raw: bytes, context: Context, intake: Intake) -> list[Call]:
    try:
        return module.calls(raw, context)
    except msgspec.DecodeError:
        raw, codes = read.salvage(raw)
        if not codes:
            raise
        calls = module.calls(raw, context)
        for call in calls:
            call.warnings.extend(codes)
        return calls


def _set_aside(
    intake: Intake,
    source: read.Source,
    module: ModuleType,
    uid: str,
    record: read.Record,
    fate: Fate,
) -> None:
    intake.unused.append(
        {
            "source_uid": uid,
            "source_path": source.label,
            "source_offset": record.offset,
            "log_format": module.NAME,
            "fate": fate.fate,
            "reason": fate.reason,
            "detail": fate.detail,
            **fate.known,
            "first_bytes": _first_bytes(record),
        }
    )


def _first_bytes(record: read.Record) -> str:
    return bytes(record.raw)[:_FIRST_BYTES].decode(errors="replace")
