"""Read one source with one format: records to calls, each record with a fate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import msgspec

from clawcli.errors import ClawError, DataError
from clawcli.ingest import sources, steps
from clawcli.ingest.cache import MessageCache
from clawcli.ingest.calls import Call, Choice, Context, Session
from clawcli.ingest.fates import Fate
from clawcli.ingest.formats import plugin
from clawcli.ingest.parts import Setting, Taken
from clawcli.ingest.read.find import Found
from clawcli.ingest.read.records import Head, Lines, Record, Whole, reader
from clawcli.ingest.read.salvage import salvage
from clawcli.ingest.sources import Identity
from clawcli.ingest.stepgraph import Request, Step

_PART_CALLS = 8_192
_PART_BYTES = 32 << 20
_CONTEXT_BYTES = 8_192
_NO_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class Holder(Protocol):
    """Where calls wait for being linked: a Batch."""

    setting: Setting
    messages: MessageCache

    def wait(self, step: Step, call: Call, choice: Choice) -> None:
        """Keep a call until it is linked."""
        ...

    def request_of(self, call: Call) -> Request:
        """Return what chaining knows of a call that waits."""
        ...


class Reading:
    """Reads one source with one format."""

    def __init__(
        self, batch: Holder, module: plugin.Format, found: Found, identity: Identity, taken: Taken
    ) -> None:
        self.batch, self.module, self.found, self.identity = batch, module, found, identity
        self.taken = taken
        self.context = Context(batch.messages, found.label)
        self.grows = bool(getattr(module, "GROWS", False))
        self.counted = 0
        """Byte up to which bytes_read of the parts before count."""
        self.stored = 0

    def lines(self, start: int | None, end: int | None) -> Iterator[tuple[Taken, bool]]:
        """Read lines that stand for themselves, a part at a time."""
        begin = self.identity.consumed if start is None else start
        # what was consumed ends with a record, so that whatever comes there is one
        is_resumed = end is None or begin == self.identity.consumed
        lines = Lines(self.found, begin, end, resumed=is_resumed)
        self.counted = begin
        for record in lines:
            self._record(record)
            through = record.offset + len(record.raw)
            if end is None and (
                len(self.taken.steps) >= _PART_CALLS or through - self.counted >= _PART_BYTES
            ):
                self._close(lines, through)
                yield self.taken, True
                self.taken = self._next_taken()
        self._finish(lines)
        self._close(lines, lines.consumed)
        yield self.taken, False

    def whole(self, begin: Head) -> Iterator[tuple[Taken, bool]]:
        """Read a source all of whose records belong together, or that is written as one."""
        source = reader(self.found, begin)
        self.taken.is_whole = True
        if hasattr(self.module, "session"):
            self._session(list(source))
        else:
            for record in source:
                self._record(record)
                if self.identity.state == "new" and len(self.taken.steps) >= _PART_CALLS:
                    yield self.taken, True
                    self.taken = self._next_taken()
                    self.taken.is_whole = True
        self._finish(source)
        self._close(source, source.consumed)
        yield self.taken, False

    def _next_taken(self) -> Taken:
        before = self.taken
        return Taken(
            self.found, before.state, before.label, before.source_uid, before.head, is_first=False
        )

    def _close(self, source: Lines | Whole, end: int) -> None:
        """Say what was consumed up to here."""
        taken, identity = self.taken, self.identity
        taken.bytes_read += end - self.counted
        taken.new_bytes = self.batch.messages.take_count()
        self.counted = end
        taken.stored_bytes = source.stored_bytes - self.stored
        self.stored = source.stored_bytes
        start = source.start if isinstance(source, Lines) else 0
        piece = (start, end, source.fingerprint) if end > start else None
        is_cut = source.pending is not None
        if piece is not None or is_cut or identity.state == "moved":
            taken.entry = sources.entry(
                identity,
                self.found,
                piece,
                label=taken.label,
                is_whole=taken.is_whole,
                is_cut=is_cut,
            )

    def _finish(self, source: Lines | Whole) -> None:
        for record in source.oversize:
            self._set_aside(record, Fate("rejected", "oversize", "the line is too long to be read"))
        if source.pending is not None:
            self.taken.warnings["truncated_tail"] += 1
            self.taken.pending += 1
        if source.problem is not None:
            self.taken.problem = source.problem

    def _record(self, record: Record, mended: Sequence[str] | None = None) -> None:
        """Turn one record into calls, or set it aside.

        Args:
            record: the record.
            mended: codes of what was mended in it; null = it is as it was logged.
        """
        try:
            calls = self.module.calls(record.raw, self.context)
        except Fate as fate:
            self._set_aside(record, fate)
        except Exception as error:
            if mended is None and isinstance(error, _NO_JSON):
                for part, codes in self._salvaged(record):
                    self._record(part, codes)
            else:
                self._set_aside(record, self._odd(error))
        else:
            self._accept(record, calls, mended or ())
            self._tie(calls)

    def _odd(self, error: Exception) -> Fate:
        if isinstance(error, ClawError):
            return Fate("rejected", "bad_record", str(error))
        if getattr(self.module, "IS_PLUGIN", False):
            return Fate("rejected", "plugin_error", f"{type(error).__name__} in the plug-in")
        return Fate("rejected", "bad_record", f"it has another shape ({type(error).__name__})")

    def _salvaged(self, record: Record) -> Iterator[tuple[Record, Sequence[str]]]:
        """Set aside what is lost of a record that is no JSON; gives the rest, and what was mended."""
        salvaged = salvage(record.raw)
        for offset, length, reason, detail in salvaged.rejects:
            raw = record.raw[offset : offset + length]
            part = Record(record.ordinal + offset, record.offset + offset, raw)
            self._set_aside(part, Fate("rejected", reason, detail))
        for offset, raw, codes in salvaged.pieces:
            yield Record(record.ordinal + offset, record.offset + offset, raw), codes

    def _session(self, records: list[Record]) -> None:
        by_ordinal: dict[int, Record] = {}
        values: dict[int, dict[str, Any]] = {}
        codes_by_ordinal: dict[int, Sequence[str]] = {}
        for record in records:
            for part, value, codes in self._decoded(record):
                if isinstance(value, dict):
                    by_ordinal[part.ordinal], values[part.ordinal] = part, value
                    codes_by_ordinal[part.ordinal] = codes
                else:
                    fate = Fate("rejected", "bad_record", "the record is no object")
                    self._set_aside(part, fate)
        session = self._made(values)
        for ordinal, fate in session.fates.items():
            self._set_aside(by_ordinal[ordinal], fate)
        for call in session.calls:
            self._accept(by_ordinal[call.record], [call], codes_by_ordinal[call.record])
        self._tie(session.calls)
        others = values.keys() - session.fates.keys() - {call.record for call in session.calls}
        self.taken.joined += len(others)

    def _made(self, values: dict[int, dict[str, Any]]) -> Session:
        try:
            return self.module.session(values, self.context)  # type: ignore[union-attr]
        except ClawError:
            raise
        except Exception as error:
            raise DataError(
                f"{self.found.label} cannot be read as {self.module.NAME}: its records are not "
                f"what they should be ({type(error).__name__}).",
                "Leave it out, and report it with a record that shows it.",
            ) from error

    def _decoded(self, record: Record) -> Iterator[tuple[Record, Any, Sequence[str]]]:
        try:
            yield record, msgspec.json.decode(record.raw), ()
        except _NO_JSON:
            for part, codes in self._salvaged(record):
                yield part, msgspec.json.decode(part.raw), codes

    def _accept(self, record: Record, calls: Sequence[Call], codes: Sequence[str]) -> None:
        if not calls:
            self._set_aside(record, Fate("ignored", "no_call", "no call of a model is in it"))
            return
        taken, setting = self.taken, self.batch.setting
        taken.begun.add(record.ordinal)
        for call in calls:
            call.source_uid, call.source_path = taken.source_uid, taken.label
            call.record, call.offset = record.ordinal, record.offset
            call.log_format = self.module.NAME
            if codes:
                call.warnings.extend(codes)
            if setting.system is not None or setting.tools is not None:
                _supply(call, setting)
            made = steps.of_call(call, grows=self.grows)
            for step, choice in zip(made, call.choices, strict=True):
                self.batch.wait(step, call, choice)
                taken.places[step.uid] = record.ordinal, record.offset
            taken.steps.extend(made)

    def _tie(self, calls: Sequence[Call]) -> None:
        """Turn explicit keys into uids, now that all calls of the record or session have one."""
        for call in calls:
            if call.follows is not None:
                self.batch.request_of(call).follows = call.follows.step_uid or None

    def _set_aside(self, record: Record, fate: Fate) -> None:
        self.taken.unused.append(
            {
                "source_uid": self.taken.source_uid,
                "source_path": self.taken.label,
                "source_offset": record.offset,
                "log_format": self.module.NAME,
                "fate": fate.fate,
                "reason": fate.reason,
                "detail": fate.detail,
                **fate.known,
                "first_bytes": bytes(record.raw[:_CONTEXT_BYTES]).decode(errors="replace"),
            }
        )


def _supply(call: Call, setting: Setting) -> None:
    """Give a call what its log does not hold; a logged request holds all there was."""
    if call.state_kind == "full":
        return
    given = False
    if setting.system is not None and not call.system:
        call.system, given = setting.system, True
    if setting.tools is not None and call.tools is None:
        call.tools, given = setting.tools, True
    if given:
        call.state_kind = "supplied"
