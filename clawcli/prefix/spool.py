"""Keep rows of tokens on disk until they are merged: one file, row after row.

A log has a dozen times more tokens in its rows than in its tree, so the rows need not fit into
memory. What merges them sees a sequence of arrays either way.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self, overload

import numpy as np

_BUFFER_BYTES = 1 << 20


class _Open:
    """A file that is closed at the end of a with statement."""

    _file: IO[bytes]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class Writer(_Open):
    """Write rows into a new file, which is left to whoever owns its directory."""

    def __init__(self, path: Path) -> None:
        """Begin an empty file."""
        self._path = path
        self._file = path.open("wb", buffering=_BUFFER_BYTES)
        self._lengths: list[int] = []

    def append(self, row: np.ndarray) -> None:
        """Add a row: int32 tokens."""
        self._file.write(row.astype("<i4", copy=False).tobytes())
        self._lengths.append(len(row))

    def rows(self) -> Spool:
        """Return the rows that were written so far."""
        self._file.flush()
        return Spool(self._path, np.array(self._lengths, np.int64))


class Spool(_Open, Sequence[np.ndarray]):
    """Rows in a file; a row is read when it is asked for. Survives pickling."""

    def __init__(self, path: Path, lengths: np.ndarray) -> None:
        """Open rows for reading.

        Args:
            path: file of little-endian int32 tokens.
            lengths: int64 [R], tokens of each row.
        """
        self.lengths = lengths
        self._path = path
        self._starts = np.cumsum(lengths) - lengths
        self._file = path.open("rb", buffering=0)

    def __reduce__(self) -> tuple[Any, ...]:
        return Spool, (self._path, self.lengths)

    def __len__(self) -> int:
        return len(self.lengths)

    @overload
    def __getitem__(self, row: int) -> np.ndarray: ...
    @overload
    def __getitem__(self, row: slice) -> list[np.ndarray]: ...
    def __getitem__(self, row: int | slice) -> np.ndarray | list[np.ndarray]:
        """Read a row: int32; or several."""
        if isinstance(row, slice):
            return [self[place] for place in range(*row.indices(len(self)))]
        # a mapped file would count as memory for as long as its pages stay
        data = os.pread(self._file.fileno(), 4 * int(self.lengths[row]), 4 * int(self._starts[row]))
        return np.frombuffer(data, "<i4")
