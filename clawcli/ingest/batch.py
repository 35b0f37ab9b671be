"""What a worker does: pieces of sources to calls and steps, and linked calls to Parquet files.

Between the two the calls wait here for chaining, which needs their hashes alone. So messages never
travel between processes, and each distinct message of a log is decoded once per worker.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute

from clawcli import schema
from clawcli.errors import ClawError, DataError, StoreError
from clawcli.ingest import formats, links, rows, sources, steps
from clawcli.ingest.cache import MessageCache
from clawcli.ingest.calls import Call, Choice, Context, Session
from clawcli.ingest.chain import Request, Step
from clawcli.ingest.fates import Fate
from clawcli.ingest.formats import plugin
from clawcli.ingest.read.find import Found
from clawcli.ingest.read.records import Head, Lines, Record, Whole, head, reader
from clawcli.ingest.read.salvage import salvage
from clawcli.ingest.rows import Linked, Row
from clawcli.ingest.secrets.redact import Redactor
from clawcli.ingest.secrets.rules import Rule
from clawcli.ingest.sources import Identity, KnownSources
from clawcli.messages import Message
from clawcli.store import table
from clawcli.store.location import Location

logger = logging.getLogger(__name__)

_PART_CALLS = 8_192
_PART_BYTES = 32 << 20
_FIRST_BYTES = 200
_CONTEXT_BYTES = 8_192


@dataclass(frozen=True, slots=True)
class Setting:
    """What all workers of a run share."""

    place: Location
    source_name: str | None = None
    format: str | None = None
    """Name of a format, or path of a plug-in; null = found by content."""
    mapping: Mapping[str, str] | None = None
    """Column -> path in a record."""
    system: str | None = None
    """System text of logs that hold none."""
    tools: str | None = None
    """Tool schemas (JSON list) of logs that hold none."""
    redaction: tuple[bytes, Sequence[Rule], str | None] | None = None
    """Key, rules and command of a Redactor; null = none."""
    dry_run: bool = False
    is_remote: bool = False
    """Steps travel to another process, so they go without their messages."""


@dataclass(slots=True)
class Piece:
    """A task: sources as a whole, or a range of one."""

    number: int
    found: list[Found]
    start: int | None = None
    """With end: the lines that begin in this range of the one source; None = all of it."""
    end: int | None = None
    identity: Identity | None = None
    """Of a source in ranges; those that are read as a whole are identified by the worker."""
    format: str | None = None
    """NAME of the format of a source in ranges."""


@dataclass(slots=True)
class Taken:
    """What one source, or a part of it, gave."""

    found: Found
    state: str = "new"
    """As Identity.state, or failed."""
    label: str = ""
    """Path of the source as it is stored, without a secret in it."""
    source_uid: str = ""
    head: str = ""
    """As Identity.head."""
    is_first: bool = True
    """The first part of its source, or all of it."""
    entry: dict[str, Any] | None = None
    """The source for the commit info; null = it is not read through yet, or there is none."""
    is_whole: bool = False
    """All that the source says is here, and it may have been known."""
    steps: list[Step] = field(default_factory=list)
    places: dict[str, tuple[int, int]] = field(default_factory=dict)
    """step_uid -> ordinal and offset of its record."""
    begun: set[int] = field(default_factory=set)
    """Ordinals of the records that calls begin in."""
    joined: int = 0
    """Records that are in a state or an action without beginning a call."""
    unused: list[dict[str, Any]] = field(default_factory=list)
    """Records that gave no step, as values of schema.REJECTS."""
    pending: int = 0
    warnings: Counter[str] = field(default_factory=Counter)
    problem: str | None = None
    """Why it could not be read through; what came before counts."""
    error: ClawError | None = None
    """Why nothing of it counts."""
    bytes_read: int = 0
    stored_bytes: int = 0
    """Of bytes_read, what that was before decompression, about: for progress."""
    new_bytes: int = 0
    """Bytes of messages that were not seen before: about what the rows will hold."""


@dataclass(slots=True)
class Part:
    """What a worker gives back of a piece."""

    number: int
    taken: list[Taken]
    more: bool = False
    """The piece goes on."""


@dataclass(slots=True)
class Written:
    """What became of linked steps."""

    files: list[Any]
    """Parquet files that no commit names yet."""
    said_again: pa.Table | None
    """Rows of steps that the table may hold already; they are in no file."""
    warnings: Counter[str]
    formats: Counter[str]
    restated: tuple[int, int]
    """Characters of observations that repeat the state before, and of all."""
    secrets: Counter[str]
    hidden: dict[str, dict[str, Any]]
    """step_uid -> digests of messages that lost a secret: columns of the sidecar `links`."""


class Batch:
    """The calls of a worker that wait to be linked."""

    def __init__(self, setting: Setting, known: KnownSources) -> None:
        """Begin without calls; known are the sources of earlier commits."""
        self.setting, self.known = setting, known
        self.messages = MessageCache()
        self._waiting: dict[str, list[tuple[Step, Call, Choice]]] = {}
        """By step_uid, in the order of the log: a log may hold one call several times."""
        self._going: dict[int, Iterator[Part]] = {}
        self._forced = plugin.choose(setting.format, setting.mapping)
        self._redactor = None if setting.redaction is None else _redactor(*setting.redaction)

    def take(self, piece: Piece, learnt: Sequence[Mapping[str, Any]] = ()) -> Part:
        """Read a piece, or as much of it as fits into one part; learnt = sources since then."""
        for entry in learnt:
            self.known.add(entry)
        self._going[piece.number] = self._parts(piece)
        return self.more(piece.number)

    def more(self, number: int) -> Part:
        """Read on in a piece that was taken."""
        part = next(self._going[number])
        if not part.more:
            del self._going[number]
        return part

    def close(self) -> None:
        """End what runs beside: an outside scanner."""
        if self._redactor is not None:
            self._redactor.close()

    def drop(self, uids: Sequence[str]) -> None:
        """Let go of steps that are not to be written."""
        for uid in uids:
            waiting = self._waiting[uid]
            step, _, _ = waiting.pop(0)
            if not waiting:
                del self._waiting[uid]
            if self.setting.is_remote:
                step.request.choices = []  # the other process has steps of its own

    # -- pieces to calls -------------------------------------------------------------------------

    def _parts(self, piece: Piece) -> Iterator[Part]:
        done: list[Taken] = []
        for found in piece.found:
            for taken, more in self._source(piece, found):
                if self.setting.is_remote:
                    for step in taken.steps:
                        step.request.let_go()
                done.append(taken)
                if more:
                    self._hide(done)
                    yield Part(piece.number, done, more=True)
                    done = []
        self._hide(done)
        yield Part(piece.number, done)

    def _hide(self, done: Sequence[Taken]) -> None:
        """Take secrets out of what is kept of records that gave no step."""
        rows_ = [row for taken in done for row in taken.unused]
        if not rows_:
            return
        if self._redactor is not None:
            unused = pa.Table.from_pylist(rows_, schema=schema.arrow_schema(schema.REJECTS))
            for row, hidden in zip(rows_, self._redactor.rejects(unused).to_pylist(), strict=True):
                row.update(hidden)
        for row in rows_:
            # cut last: a cut might leave half of a secret, which no rule knows
            first = row["first_bytes"].encode(errors="replace")[:_FIRST_BYTES]
            row["first_bytes"] = first.decode(errors="replace")

    def _source(self, piece: Piece, found: Found) -> Iterator[tuple[Taken, bool]]:
        """Read one source; pairs of what a part of it gave and whether it goes on."""
        taken = Taken(found, label=self._label(found))
        try:
            if piece.identity is not None and piece.format is not None:
                module = self._forced or plugin.named(piece.format)
                taken.state, taken.source_uid = piece.identity.state, piece.identity.source_uid
                taken.is_first = False  # it was identified when all before it was committed
                yield from _Reader(self, module, found, piece.identity, taken).lines(
                    piece.start, piece.end
                )
                return
            begin = head(found)
            if begin.container == "empty":
                nothing = reader(found, begin)
                if list(nothing) or nothing.problem:
                    raise DataError(nothing.problem or "", "Fetch the file again.")
                taken.warnings["empty_source"] += 1
                taken.state = "unchanged"
                logger.warning("%s is empty: it holds no record.", found.label)
                yield taken, False
                return
            identity = sources.identify(
                found, begin, self.known, self.setting.source_name, label=taken.label
            )
            taken.state, taken.source_uid = identity.state, identity.source_uid
            taken.head = identity.head
            if identity.state == "unchanged":
                yield taken, False
                return
            module = self._forced or formats.detect(
                found.label, (msgspec.json.decode(raw) for raw in begin.samples)
            )
            reading = _Reader(self, module, found, identity, taken)
            known = identity.known if identity.state == "rewritten" else None
            if known is not None and not sources.is_document(begin):
                raise sources.changed(found, known)
            is_rewritten = known is not None
            if begin.container == "lines" and not is_rewritten and not hasattr(module, "session"):
                yield from reading.lines(None, None)
            else:
                yield from reading.whole(begin)
        except ClawError as error:
            yield Taken(found, "failed", error=error), False
        except OSError as error:
            reason = error.strerror or str(error)
            failed = StoreError(f"{found.label} cannot be read: {reason}.", "Check the file.")
            yield Taken(found, "failed", error=failed), False

    # -- linked calls to files -------------------------------------------------------------------

    def write(self, linked: Mapping[str, Linked], again: frozenset[str]) -> Written:
        """Write the rows of linked steps.

        Args:
            linked: step_uid -> what linking found; steps of this worker.
            again: of these, the ones that the table holds already.
        """
        found = [
            Row(uid, step.request.state_hash, step.next_hash, call, choice, linked[uid])
            for uid, (step, call, choice) in ((uid, self._waiting[uid][0]) for uid in linked)
        ]
        # by partition; a trajectory's steps lie together, and trajectories in the order of the log
        first: dict[str, int] = {}
        for place, row in enumerate(found):
            first.setdefault(row.linked.placed.trajectory_uid, place)
        found.sort(
            key=lambda r: (
                r.linked.placed.log_date,
                first[r.linked.placed.trajectory_uid],
                r.linked.placed.step_index,
            )
        )
        before = Counter(self._redactor.hits) if self._redactor else Counter()
        if self._redactor is not None:
            self._redactor.tainted.update(_spelling_again(found, self._redactor))
        built = rows.build(found) if found else None
        hidden: dict[str, dict[str, Any]] = {}
        if built is not None and self._redactor is not None:
            plain, built = built, self._redactor.steps(built)
            hidden = links.hidden_by_redaction(found, plain, built, self._redactor.tainted)
        files: list[Any] = []
        said_again = None
        if built is not None:
            if again:
                said_again = built.filter(pa.array([row.uid in again for row in found]))
                built = built.filter(pa.array([row.uid not in again for row in found]))
            if built.num_rows and not self.setting.dry_run:
                files = table.write_files(self.setting.place.steps, built, schema.PARTITION_COLUMNS)
        return Written(
            files,
            said_again,
            _codes(built),
            Counter(row.call.log_format for row in found if row.uid not in again),
            rows.restated_chars(found),
            (Counter(self._redactor.hits) if self._redactor else Counter()) - before,
            hidden,
        )

    def _label(self, found: Found) -> str:
        return found.label if self._redactor is None else self._redactor.text(found.label)

    def request_of(self, call: Call) -> Request:
        """Return what chaining knows of a call that waits."""
        return self._waiting[call.step_uid][-1][0].request

    def wait(self, step: Step, call: Call, choice: Choice) -> None:
        """Keep a call until it is linked."""
        self._waiting.setdefault(step.uid, []).append((step, call, choice))


class _Reader:
    """Reads one source with one format."""

    def __init__(
        self, batch: Batch, module: plugin.Format, found: Found, identity: Identity, taken: Taken
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

    def _record(self, record: Record) -> None:
        """Turn one record into calls, or set it aside."""
        try:
            calls = self.module.calls(record.raw, self.context)
        except Fate as fate:
            self._set_aside(record, fate)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self._mend(record)
        except Exception as error:
            self._set_aside(record, self._odd(error))
        else:
            self._accept(record, calls, ())
            self._tie(calls)

    def _odd(self, error: Exception) -> Fate:
        if isinstance(error, ClawError):
            return Fate("rejected", "bad_record", str(error))
        if getattr(self.module, "IS_PLUGIN", False):
            return Fate("rejected", "plugin_error", f"{type(error).__name__} in the plug-in")
        return Fate("rejected", "bad_record", f"it has another shape ({type(error).__name__})")

    def _mend(self, record: Record) -> None:
        mended = salvage(record.raw)
        for offset, length, reason, detail in mended.rejects:
            raw = record.raw[offset : offset + length]
            part = Record(record.ordinal + offset, record.offset + offset, raw)
            self._set_aside(part, Fate("rejected", reason, detail))
        for offset, raw, codes in mended.pieces:
            part = Record(record.ordinal + offset, record.offset + offset, raw)
            try:
                calls = self.module.calls(raw, self.context)
            except Fate as fate:
                self._set_aside(part, fate)
            except Exception as error:
                self._set_aside(part, self._odd(error))
            else:
                self._accept(part, calls, codes)
                self._tie(calls)

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
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            mended = salvage(record.raw)
            for offset, length, reason, detail in mended.rejects:
                raw = record.raw[offset : offset + length]
                part = Record(record.ordinal + offset, record.offset + offset, raw)
                self._set_aside(part, Fate("rejected", reason, detail))
            for offset, raw, codes in mended.pieces:
                part = Record(record.ordinal + offset, record.offset + offset, raw)
                yield part, msgspec.json.decode(raw), codes

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


def _spelling_again(found: Sequence[Row], redactor: Redactor) -> Iterator[str]:
    """List parents of steps whose logged prompt ids spell more of the state than is new in it.

    Where ids do not go on exactly from the parent's, as after another tokenisation, they spell
    messages of the parent once more, and a secret that was taken out of these would be in them.
    """
    for row in found:
        ids, linked = row.call.prompt_ids, row.linked
        prefix, parent = linked.placed.prefix_messages, linked.placed.parent_step_uid
        if ids is None or not prefix or parent is None:
            continue
        known = linked.parent_tokens
        if known is not None and steps.shared_tokens(ids, known) == known.total:
            continue
        shared = [item.message for item in row.call.state.after()[:prefix]]
        if redactor.found_in([row.call.system, *_texts(shared)]):
            yield parent


def _texts(messages: Sequence[Message]) -> Iterator[str]:
    for message in messages:
        yield from filter(None, (message.content, message.parts, message.reasoning, message.name))
        yield from (call.arguments for call in message.tool_calls or ())


def _codes(built: pa.Table | None) -> Counter[str]:
    if built is None:
        return Counter()
    return Counter(code for codes in built["warnings"].drop_null().to_pylist() for code in codes)


def _redactor(key: bytes, rules: Sequence[Rule], command: str | None) -> Redactor:
    return Redactor(key, rules, command=command)


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
