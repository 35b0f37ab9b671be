"""What a worker does: pieces of sources to calls and steps, and linked calls to Parquet files.

Between the two the calls wait here for chaining, which needs their hashes alone. So messages never
travel between processes, and each distinct message of a log is decoded once per worker.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from clawcli import schema
from clawcli.errors import ClawError, DataError, StoreError
from clawcli.ingest import formats, links, rows, sources, steps
from clawcli.ingest.cache import MessageCache
from clawcli.ingest.calls import Call, Choice
from clawcli.ingest.formats import plugin
from clawcli.ingest.parts import Part, Piece, Setting, Taken, Written
from clawcli.ingest.read.find import Found
from clawcli.ingest.read.records import head, reader
from clawcli.ingest.reading import Reading
from clawcli.ingest.rows import Linked, Row
from clawcli.ingest.secrets.redact import Redactor
from clawcli.ingest.sources import KnownSources
from clawcli.ingest.stepgraph import Request, Step
from clawcli.messages import Message
from clawcli.store import table

logger = logging.getLogger(__name__)

_FIRST_BYTES = 200
_MOST_KNOWN = 1 << 20


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
        self._secret: dict[bytes, bool] = {}
        """By the digest of a message, whether it holds one."""
        self._redactor = None
        if setting.redaction is not None:
            key, rules, command = setting.redaction
            self._redactor = Redactor(key, rules, command=command)

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
                yield from Reading(self, module, found, piece.identity, taken).lines(
                    piece.start, piece.end
                )
                return
            begin = head(found)
            if not begin.samples:
                # what cannot be read through has a better reason than that no format fits
                records = reader(found, begin)
                for _ in records:
                    pass
                if records.problem:
                    raise DataError(records.problem, "Fetch the file again.")
            if begin.container == "empty":
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
                taken.problem = identity.problem
                yield taken, False
                return
            module = self._forced or formats.detect(
                found.label, (msgspec.json.decode(raw) for raw in begin.samples)
            )
            reading = Reading(self, module, found, identity, taken)
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
            self._redactor.tainted.update(self._spelt_again(found, self._redactor))
        built = rows.build(found) if found else None
        hidden: dict[str, dict[str, Any]] = {}
        if built is not None and self._redactor is not None:
            plain, built = built, self._redactor.steps(built)
            hidden = links.hidden_by_redaction(found, plain, built, self._redactor.tainted)
        files: list[Any] = []
        said_again = kept = None
        if built is not None:
            if again:
                said_again = built.filter(pa.array([row.uid in again for row in found]))
                built = built.filter(pa.array([row.uid not in again for row in found]))
            if self.setting.keep:
                kept = built.select(self.setting.keep)
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
            kept,
        )

    def _spelt_again(self, found: Sequence[Row], redactor: Redactor) -> Iterator[str]:
        """List parents of steps whose logged prompt ids go on from ids that spell a secret.

        Those of the parent may be in the hands of another worker, or of an earlier commit.
        """
        for row in found:
            prefix, parent = row.linked.placed.prefix_messages, row.linked.placed.parent_step_uid
            if row.call.prompt_ids is None or not prefix or parent is None:
                continue
            texts = [text for text in (row.call.system, row.call.tools) if text]
            shared = row.call.state.after()[:prefix]
            if any(
                self._is_secret(steps.text_hash(text), [text], redactor) for text in texts
            ) or any(
                self._is_secret(item.exact, _texts(item.message), redactor) for item in shared
            ):
                yield parent

    def _is_secret(self, key: bytes, texts: Iterable[str], redactor: Redactor) -> bool:
        """Tell whether some text holds a secret; each is looked at once, for histories repeat."""
        if (known := self._secret.get(key)) is None:
            if len(self._secret) > _MOST_KNOWN:
                self._secret.clear()
            known = self._secret[key] = redactor.found_in(list(texts))
        return known

    def _label(self, found: Found) -> str:
        return found.label if self._redactor is None else self._redactor.text(found.label)

    def request_of(self, call: Call) -> Request:
        """Return what chaining knows of a call that waits."""
        return self._waiting[call.step_uid][-1][0].request

    def wait(self, step: Step, call: Call, choice: Choice) -> None:
        """Keep a call until it is linked."""
        self._waiting.setdefault(step.uid, []).append((step, call, choice))


def _texts(message: Message) -> Iterator[str]:
    yield from filter(None, (message.content, message.parts, message.reasoning, message.name))
    yield from (call.arguments for call in message.tool_calls or ())


def _codes(built: pa.Table | None) -> Counter[str]:
    if built is None:
        return Counter()
    return Counter(code for codes in built["warnings"].drop_null().to_pylist() for code in codes)
