"""Take secrets out of rows before they are written, and leave a placeholder that tells them apart.

The placeholder [REDACTED:github:3f9a1c] holds a keyed hash of the secret, so equal secrets stay equal
within a data directory and nothing is learned across directories. What is a secret says
secret_rules.py, where it stands secret_search.py. Only hit texts change, and of them only the
secret: JSON stays JSON, byte for byte. Columns without a hit are returned as they came.
Token ids spell the text once more: where a text was hit, the ids that hold it go.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clawcli.errors import StoreError
from clawcli.ingest import spelled
from clawcli.ingest.scanner import Scanner
from clawcli.ingest.secret_rules import RULES, Rule
from clawcli.ingest.secret_search import SecretSearch, Span, meets_placeholder
from clawcli.store.location import REDACTION_KEY


_KEY_BYTES = 32
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
_JSON_LEAF = re.compile(rb'"(?:[^"\\]|\\.)*"|-?\d[0-9.eE+-]*', re.DOTALL)


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
        too. Steps of the table that were committed with the warning spelled.DROPPED belong here as
        well."""
        self._key = key
        self._search = SecretSearch(rules)
        self._scanner = None if command is None else Scanner(command)

    def text(self, text: str) -> str:
        """Return a text without its secrets.

        Example:
            >>> Redactor(b"k").text("clone https://ada:9xk2-Lovelace@example.org/x.git")
            'clone https://ada:[REDACTED:url_password:8ba51d]@example.org/x.git'
        """
        redacted, changed = self.strings([text])
        return redacted[0].as_py() if changed[0] else text

    def strings(self, texts: Sequence[str | None] | pa.Array) -> tuple[pa.Array, np.ndarray]:
        """Take the secrets out of some texts.

        Returns:
            The texts (the given array itself where nothing was found), and which changed (bool).

        Raises:
            SetupError: the outside scanner failed.
        """
        array = texts if isinstance(texts, pa.Array) else pa.array(texts, pa.string())
        return self._array(array, is_json=False)

    def steps(self, table: pa.Table) -> pa.Table:
        """Take the secrets out of all strings of schema.STEPS rows, nested ones too.

        A row's observation_ids and prefix_tokens go where its state held one, or the state that
        it continues did; its response_ids and rollout_logprobs where its action did. Rows that
        continue others come in the same table or a later one.

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

    def found_in(self, texts: Iterable[str]) -> bool:
        """Tell whether a text holds a secret by the rules; nothing is counted."""
        array = pa.array(texts, pa.string())
        suspects = array.take(pa.array(self._search.suspects(array)))
        return any(self._search.spans(suspects.cast(pa.binary()).to_pylist()))

    def close(self) -> None:
        """End the outside scanner, if one runs."""
        if self._scanner is not None:
            self._scanner.close()

    # -- one text --------------------------------------------------------------------------------

    def _clean(self, data: bytes, spans: Sequence[Span], is_json: bool) -> bytes:
        """Take spans out, then what only their absence brings to light."""
        for _ in range(_MAX_ROUNDS):
            if not spans:
                break
            data = self._without(data, spans, is_json)
            spans = self._search.spans([data])[0]
        return data

    def _without(self, data: bytes, spans: Sequence[Span], is_json: bool) -> bytes:
        holes = []
        for start, end, named in _merged(spans):
            self.hits[named.rule] += 1
            holes.append((start, end, self._placeholder(named)))
        text = _filled(data, holes)
        # rules and scanners of others may run over the borders of JSON's strings, or hit a number
        return _in_leaves(data, holes) if is_json and _is_json(data) > _is_json(text) else text

    def _placeholder(self, span: Span) -> bytes:
        digest = hashlib.blake2b(span.secret, key=self._key, digest_size=3).hexdigest()
        return f"[REDACTED:{span.rule}:{digest}]".encode()

    # -- arrays and tables -----------------------------------------------------------------------

    def _array(self, array: pa.Array, *, is_json: bool) -> tuple[pa.Array, np.ndarray]:
        redacted: dict[int, bytes] = {}
        rows = self._search.suspects(array)
        if len(rows):
            texts = array.take(pa.array(rows)).cast(pa.binary()).to_pylist()
            for row, data, spans in zip(rows, texts, self._search.spans(texts), strict=True):
                if spans:
                    redacted[row] = self._clean(data, spans, is_json)
        if self._scanner is not None:
            self._scan(self._scanner, array, redacted, is_json)
        changed = np.zeros(len(array), bool)
        if not redacted:
            return array, changed
        changed[list(redacted)] = True
        new = pa.array([redacted[row].decode() for row in sorted(redacted)], array.type)
        return pc.replace_with_mask(array, changed, new), changed

    def _scan(
        self, scanner: Scanner, array: pa.Array, redacted: dict[int, bytes], is_json: bool
    ) -> None:
        """Show each text once to the scanner, without what the rules found in it."""
        rows_by_text: dict[str, list[int]] = defaultdict(list)
        for row, text in enumerate(array.to_pylist()):
            if text:
                rows_by_text[redacted[row].decode() if row in redacted else text].append(row)
        texts = list(rows_by_text)
        for text, answers in zip(texts, scanner.find(texts), strict=True):
            data, spans = text.encode(), []
            for answer in answers:
                start, end = (len(text[:edge].encode()) for edge in (answer.start, answer.end))
                if not meets_placeholder(start, end, data):
                    rank = len(self._search.rules)
                    spans.append(Span(start, end, answer.rule, rank, 0, data[start:end]))
            if spans:
                for row in rows_by_text[text]:
                    redacted[row] = self._without(data, spans, is_json)

    def _table(self, table: pa.Table) -> tuple[pa.Table, dict[str, np.ndarray]]:
        """Return a table without secrets, and for each column that had some the rows (bool)."""
        hits: dict[str, np.ndarray] = {}
        for place, field in enumerate(table.schema):
            if field.name in _UNTOUCHED or not _holds_text(field.type):
                continue
            chunks = [self._nested(chunk, field.name) for chunk in table.column(place).chunks]
            changed = np.concatenate([np.zeros(0, bool), *(changed for _, changed in chunks)])
            if changed.any():
                hits[field.name] = changed
                column = pa.chunked_array([chunk for chunk, _ in chunks], field.type)
                table = table.set_column(place, field, column)
        return table, hits

    def _nested(self, array: pa.Array, name: str) -> tuple[pa.Array, np.ndarray]:
        """Redact an array of any type; name is the field that it is the values of."""
        kind = array.type
        unchanged = array, np.zeros(len(array), bool)
        if _is_text(kind):
            return self._array(array, is_json=name in _JSON)
        if pa.types.is_list(kind):
            offsets = array.offsets.to_numpy()
            first, last = offsets[0], offsets[-1]
            values, hit = self._nested(array.values[first:last], name)
            if not hit.any():
                return unchanged
            before = np.concatenate([[0], np.cumsum(hit)])[offsets - first]
            lists = pa.ListArray.from_arrays(
                pa.array(offsets - first), values, kind, mask=array.is_null()
            )
            return lists, np.diff(before) > 0
        if pa.types.is_struct(kind):
            parts = [self._nested(array.field(i), kind.field(i).name) for i in range(len(kind))]
            changed = np.logical_or.reduce([hit for _, hit in parts])
            if not changed.any():
                return unchanged
            values = [values for values, _ in parts]
            return (
                pa.StructArray.from_arrays(values, fields=list(kind), mask=array.is_null()),
                changed,
            )
        return unchanged


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
            f"The key of the placeholders, {place}, cannot be read or written "
            f"({error.strerror or type(error).__name__}).",
            "Make the directory writable, or run with --no-redact.",
        ) from error
    if len(key) != _KEY_BYTES:
        raise StoreError(
            f"{place} holds {len(key):,} bytes, and a key has {_KEY_BYTES}.",
            "Restore it; without it, equal secrets get other placeholders than before.",
        )
    return key


def _local_key(path: Path) -> bytes:
    """Read the key, or link a whole new one into its place, which only one of two runs can."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(secrets.token_bytes(_KEY_BYTES))
                file.flush()
                os.fsync(file.fileno())
            with contextlib.suppress(FileExistsError):
                os.link(fresh, path)
        finally:
            fresh.unlink()
    return path.read_bytes()


def _remote_key(place: str) -> bytes:
    import fsspec

    files, path = fsspec.core.url_to_fs(place)
    if not files.exists(path):
        with contextlib.suppress(FileExistsError):
            files.pipe_file(path, secrets.token_bytes(_KEY_BYTES), mode="create")
    return files.cat_file(path)


def _holds_text(kind: pa.DataType) -> bool:
    if pa.types.is_list(kind):
        return _holds_text(kind.value_type)
    if pa.types.is_struct(kind):
        return any(_holds_text(kind.field(place).type) for place in range(kind.num_fields))
    return _is_text(kind)


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _merged(spans: Iterable[Span]) -> list[tuple[int, int, Span]]:
    """Join spans that meet; the first rule names the whole, as it reads without escapes."""
    merged: list[tuple[int, int, Span]] = []
    for span in sorted(spans, key=lambda span: span.start):
        if merged and span.start < merged[-1][1]:
            start, end, named = merged[-1]
            merged[-1] = start, max(end, span.end), min(named, span, key=_naming)
        else:
            merged.append((span.start, span.end, span))
    return merged


def _naming(span: Span) -> tuple[int, int, int]:
    return span.rank, -span.depth, -len(span.secret)


def _filled(data: bytes, holes: Sequence[tuple[int, int, bytes]]) -> bytes:
    pieces, done = [], 0
    for start, end, placeholder in holes:
        pieces += [data[done:start], placeholder]
        done = end
    return b"".join([*pieces, data[done:]])


def _in_leaves(data: bytes, holes: Sequence[tuple[int, int, bytes]]) -> bytes:
    """Replace the whole strings and numbers of a JSON text that holes meet."""
    leaves = {
        leaf.span(): placeholder
        for leaf in _JSON_LEAF.finditer(data)
        for start, end, placeholder in holes
        if start < leaf.end() and leaf.start() < end
    }
    return _filled(
        data, [(*span, b'"' + placeholder + b'"') for span, placeholder in leaves.items()]
    )


def _is_json(data: bytes) -> bool:
    try:
        msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def _any_of(hits: dict[str, np.ndarray], names: frozenset[str], length: int) -> np.ndarray:
    return np.logical_or.reduce(
        [np.zeros(length, bool), *(hits[name] for name in names if name in hits)]
    )
