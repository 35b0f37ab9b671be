"""Take secrets out of rows before they are written, and leave placeholders that tell them apart.

The placeholder [REDACTED:github:3f9a1c] holds a keyed hash of the secret, so equal secrets stay equal
within a data directory and nothing is learned across directories. secret_rules.py says what a
secret is, secret_search.py where it stands. Only hit texts change, and of them only the secret: JSON
stays JSON, byte for byte. Columns without a hit are returned as they came. Where a text was hit, the
token ids that spell it once more go (spelled.py).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clawcli.errors import StoreError
from clawcli.ingest.secrets import spelled
from clawcli.ingest.secrets.leaves import Leaf, leaves, rebuilt
from clawcli.ingest.secrets.rules import RULES, Rule
from clawcli.ingest.secrets.scanner import Scanner
from clawcli.ingest.secrets.search import SecretSearch, Span, meets_placeholder
from clawcli.store import table
from clawcli.store.artefact import sync
from clawcli.store.location import REDACTION_KEY

_KEY_BYTES = 32
_BATCH_BYTES = 1 << 25
_MAX_ROUNDS = 4
# uids and hashes are of the text before redaction, and chaining rests on them
_UNTOUCHED = frozenset(
    {
        "step_uid",
        "source_uid",
        "trajectory_uid",
        "parent_trajectory_uid",
        "group_uid",
        "parent_step_uid",
        "state_hash",
        "next_hash",
        "log_format",
        "log_date",
    }
)
_STATE = frozenset({"system", "tools", "observation", "final_observation"})
_ACTION = frozenset({"response", "reasoning", "response_parts", "tool_calls"})
_JSON = frozenset({"tools", "response_parts", "sampling", "metadata", "parts", "arguments"})
_JSON_SCALAR = re.compile(rb'"(?:[^"\\]|\\.)*"|-?\d[0-9.eE+-]*', re.DOTALL)


class Redactor:
    """Takes secrets out of texts and tables, and counts them."""

    def __init__(
        self, key: bytes, rules: Sequence[Rule] = RULES, *, command: str | None = None
    ) -> None:
        """Prepare the rules.

        Args:
            key: key of the placeholders' hash, that of the data directory (key_of).
            rules: what to look for; RULES, and those of read_rules.
            command: an outside scanner that looks at every text as well (scanner.py).

        Raises:
            ConfigError: the rules are together too large.
            SetupError: the command is none.
        """
        self.hits: Counter[str] = Counter()
        """Secrets taken out, by the name of the rule."""
        self.tainted: set[str] = set()
        """Uids of steps whose state or action held a secret, as far as this Redactor has seen.
        Logged prompt ids of a step that continues one of them may spell that secret, so they go
        too. Steps of the table that were committed with the warning ids_dropped_redacted belong
        here as well, if a step that is new may continue them."""
        self._key = key
        self._search = SecretSearch(rules)
        self._scanner = None if command is None else Scanner(command)

    def text(self, text: str) -> str:
        """Return a text without its secrets; for many texts, strings is faster.

        Example:
            >>> Redactor(b"k").text("clone https://ada:9xk2-Lovelace@example.org/x.git")
            'clone https://ada:[REDACTED:url_password:ce789b]@example.org/x.git'
        """
        if self._scanner is None and not self._search.is_suspect(text.encode()):
            return text
        return self.strings([text])[0][0].as_py()

    def strings(self, texts: Sequence[str | None] | pa.Array) -> tuple[pa.Array, np.ndarray]:
        """Take the secrets out of some texts.

        Returns:
            The texts (the given array itself where nothing was found), and which changed (bool).

        Raises:
            SetupError: the outside scanner failed.
        """
        array = texts if isinstance(texts, pa.Array) else pa.array(texts, pa.string())
        return next(self._leaves([Leaf(array, "")]))

    def steps(self, table: pa.Table) -> pa.Table:
        """Take the secrets out of all strings of schema.STEPS rows, nested ones too.

        A row's observation_ids and prefix_tokens go where its state held one, or the state or
        action that it continues did; its response_ids and rollout_logprobs where its action did.
        Rows that continue others must come in the same table or a later one.

        Raises:
            SetupError: the outside scanner failed.
        """
        table, hits = self._table(table)
        in_state, in_action = (_any_of(hits, names, len(table)) for names in (_STATE, _ACTION))
        inherited = spelled.spread(table, in_state | in_action, self.tainted)
        return spelled.without_ids(table, in_state | inherited, in_action)

    def rejects(self, table: pa.Table) -> pa.Table:
        """Take the secrets out of all strings of schema.REJECTS rows.

        Raises:
            SetupError: the outside scanner failed.
        """
        return self._table(table)[0]

    def columns(self, table: pa.Table) -> pa.Table:
        """Take the secrets out of all strings of a table, whatever its columns are called.

        Texts that are JSON stay so.

        Raises:
            SetupError: the outside scanner failed.
        """
        # by the name of metadata each is looked at, and may be JSON
        alike = table.rename_columns(["metadata"] * table.num_columns)
        return self._table(alike)[0].rename_columns(table.column_names)

    def found_in(self, texts: Iterable[str]) -> bool:
        """Tell whether a text holds a secret by the rules; nothing is counted."""
        array = pa.array(texts, pa.string()).cast(pa.large_binary())
        suspects = array.take(pa.array(self._search.suspects(array))).to_pylist()
        return any(self._search.spans(suspects))

    def close(self) -> None:
        """End the outside scanner, if one runs."""
        if self._scanner is not None:
            self._scanner.close()

    # -- columns ---------------------------------------------------------------------------------

    def _table(self, table: pa.Table) -> tuple[pa.Table, dict[str, np.ndarray]]:
        """Return a table without secrets, and for each column that had some the rows (bool)."""
        fields = [
            (place, field)
            for place, field in enumerate(table.schema)
            if field.name not in _UNTOUCHED
        ]
        redacted = self._leaves(
            leaf
            for place, field in fields
            for chunk in table.column(place).chunks
            for leaf in leaves(chunk, field.name)
        )
        hits: dict[str, np.ndarray] = {}
        new = table
        for place, field in fields:
            chunks = [rebuilt(chunk, redacted) for chunk in table.column(place).chunks]
            changed = np.concatenate([np.zeros(0, bool), *(changed for _, changed in chunks)])
            if changed.any():
                hits[field.name] = changed
                column = pa.chunked_array([chunk for chunk, _ in chunks], field.type)
                new = new.set_column(place, field, column)
        return new, hits

    def _leaves(self, given: Iterable[Leaf]) -> Iterator[tuple[pa.Array, np.ndarray]]:
        """Redact arrays of strings, many in one search: its automaton takes a while to build."""
        for batch in _batches(given):
            lengths = [len(leaf.array) for leaf in batch]
            texts = pa.concat_arrays([leaf.array.cast(pa.large_binary()) for leaf in batch])
            are_json = np.repeat([leaf.name in _JSON for leaf in batch], lengths)
            redacted = self._texts(texts, are_json)
            rows = np.array(sorted(redacted), np.int64)
            start = 0
            for leaf, length in zip(batch, lengths, strict=True):
                own = rows[np.searchsorted(rows, start) : np.searchsorted(rows, start + length)]
                yield _replaced(leaf.array, own - start, [redacted[row] for row in own])
                start += length

    # -- texts -----------------------------------------------------------------------------------

    def _texts(self, texts: pa.Array, are_json: np.ndarray) -> dict[int, bytes]:
        """Redact UTF-8 texts (binary); returns those that changed, by row."""
        rows = self._search.suspects(texts)
        current = dict(zip(rows.tolist(), texts.take(pa.array(rows)).to_pylist(), strict=True))
        changed: set[int] = set()
        pending = list(current)
        # what one secret hid may come to light when it is gone
        for _ in range(_MAX_ROUNDS):
            if not pending:
                break
            found = self._search.spans([current[row] for row in pending])
            pending = [row for row, spans in zip(pending, found, strict=True) if spans]
            for row, spans in zip(pending, filter(None, found), strict=True):
                current[row] = self._without(current[row], spans, bool(are_json[row]))
            changed.update(pending)
        redacted = {row: current[row] for row in changed}
        if self._scanner is not None:
            self._scan(self._scanner, texts, are_json, redacted)
        return redacted

    def _scan(
        self, scanner: Scanner, texts: pa.Array, are_json: np.ndarray, redacted: dict[int, bytes]
    ) -> None:
        """Show each text once to the scanner, without what the rules found in it."""
        rows_by_text: dict[bytes, list[int]] = defaultdict(list)
        for row in np.flatnonzero(texts.is_valid().to_numpy(zero_copy_only=False)).tolist():
            data: bytes = redacted[row] if row in redacted else texts[row].as_py()
            if data:
                rows_by_text[data].append(row)
        shown = [data.decode() for data in rows_by_text]
        rank = len(self._search.rules)
        for data, text, answers in zip(rows_by_text, shown, scanner.find(shown), strict=True):
            spans = []
            for answer in answers:
                start, end = (len(text[:edge].encode()) for edge in (answer.start, answer.end))
                if not meets_placeholder(start, end, data):
                    spans.append(Span(start, end, answer.rule, rank, 0, data[start:end]))
            if spans:
                for row in rows_by_text[data]:
                    redacted[row] = self._without(data, spans, bool(are_json[row]))

    def _without(self, data: bytes, spans: Sequence[Span], is_json: bool) -> bytes:
        """Put placeholders where the spans are."""
        holes = []
        for start, end, named in _merged(spans):
            self.hits[named.rule] += 1
            holes.append((start, end, self._placeholder(named)))
        text = _filled(data, holes)
        # rules and scanners of others may run over the ends of JSON's strings, or hit a number
        if is_json and _is_json(data) and not _is_json(text):
            return _filled(data, _scalars(data, holes))
        return text

    def _placeholder(self, span: Span) -> bytes:
        digest = hashlib.blake2b(span.secret, key=self._key, digest_size=3).hexdigest()
        return f"[REDACTED:{span.rule}:{digest}]".encode()


def key_of(directory: Path | str) -> bytes:
    """Return the key of a data directory's placeholders; a directory without one gets one.

    Args:
        directory: a path, or a URL that fsspec knows.

    Raises:
        StoreError: the key cannot be read or written, or is none.
    """
    place = f"{str(directory).rstrip('/')}/{REDACTION_KEY}"
    try:
        key = _remote_key(place) if "://" in place else _local_key(Path(place))
    except OSError as error:
        raise StoreError(
            f"The key of the placeholders, {place}, can be neither read nor made "
            f"({error.strerror or type(error).__name__}).",
            "Make the directory writable, or run with --no-redact.",
        ) from error
    if len(key) != _KEY_BYTES:
        raise StoreError(
            f"{place} holds {len(key):,} bytes, and a key has {_KEY_BYTES}.",
            "Restore it, or remove it: then secrets get other placeholders than before.",
        )
    return key


def _local_key(path: Path) -> bytes:
    """Read the key, or put a whole new one into its place, which only one of two runs can."""
    if not path.exists():
        with table.lock(path.parent):
            if not path.exists():
                _make_key(path)
    return path.read_bytes()


def _make_key(path: Path) -> None:
    for left in path.parent.glob(f"{path.name}.*"):
        left.unlink()  # of a run that was killed; nobody else is here
    fresh = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(secrets.token_bytes(_KEY_BYTES))
    sync(fresh)
    fresh.replace(path)
    sync(path.parent)


def _remote_key(place: str) -> bytes:
    from fsspec.core import url_to_fs

    files, path = url_to_fs(place)
    if not files.exists(path):
        with contextlib.suppress(FileExistsError):
            files.pipe_file(path, secrets.token_bytes(_KEY_BYTES), mode="create")
        files.invalidate_cache(path)
    return files.cat_file(path)


def _batches(given: Iterable[Leaf]) -> Iterator[list[Leaf]]:
    batch: list[Leaf] = []
    size = 0
    for leaf in given:
        if batch and size + leaf.array.nbytes > _BATCH_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(leaf)
        size += leaf.array.nbytes
    if batch:
        yield batch


def _replaced(
    array: pa.Array, rows: np.ndarray, texts: Sequence[bytes]
) -> tuple[pa.Array, np.ndarray]:
    changed = np.zeros(len(array), bool)
    if not len(rows):
        return array, changed
    changed[rows] = True
    new = pa.array([text.decode() for text in texts], array.type)
    return pc.call_function("replace_with_mask", [array, pa.array(changed), new]), changed


def _merged(spans: Iterable[Span]) -> list[tuple[int, int, Span]]:
    """Join spans that meet; the first rule names the whole, as it reads without escapes."""
    merged: list[tuple[int, int, Span]] = []
    for span in sorted(spans, key=lambda span: span.start):
        if merged and span.start < merged[-1][1]:
            start, end, named = merged[-1]
            merged[-1] = start, max(end, span.end), min(named, span, key=_precedence)
        else:
            merged.append((span.start, span.end, span))
    return merged


def _precedence(span: Span) -> tuple[int, int, int, bytes]:
    return span.rank, -span.depth, -len(span.secret), span.secret


def _filled(data: bytes, holes: Iterable[tuple[int, int, bytes]]) -> bytes:
    pieces, done = [], 0
    for start, end, placeholder in holes:
        pieces += [data[done:start], placeholder]
        done = end
    return b"".join([*pieces, data[done:]])


def _scalars(
    data: bytes, holes: Sequence[tuple[int, int, bytes]]
) -> Iterator[tuple[int, int, bytes]]:
    """Widen holes in a JSON text to the whole strings and numbers that they meet."""
    for scalar in _JSON_SCALAR.finditer(data):
        met = [hole for start, end, hole in holes if start < scalar.end() and scalar.start() < end]
        if met:
            yield scalar.start(), scalar.end(), b'"' + met[0] + b'"'


def _is_json(data: bytes) -> bool:
    try:
        msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def _any_of(hits: dict[str, np.ndarray], names: frozenset[str], length: int) -> np.ndarray:
    """Tell in which rows one of some columns was hit (bool)."""
    found = np.zeros(length, bool)
    for name in names & hits.keys():
        found |= hits[name]
    return found
