"""Keep rows of tokens on disk until they are merged: one file, row after row.

A log has a dozen times more tokens in its rows than in its tree, so the rows need not fit into
memory. What merges them sees a sequence of arrays either way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import overload

import numpy as np

_BUFFER_BYTES = 1 << 20


class Spool(Sequence[np.ndarray]):
    """Rows in a file; a row is a view into it, read when it is looked at."""

    def __init__(self, path: Path) -> None:
        """Begin an empty file, which is left to whoever owns its directory."""
        self._path = path
        self._file = path.open("wb", buffering=_BUFFER_BYTES)
        self._ends: list[int] = [0]
        self._tokens: np.ndarray | None = None

    def __enter__(self) -> Spool:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._tokens = None
        self._file.close()

    def append(self, row: np.ndarray) -> None:
        """Add a row: int32 tokens. Rows are added before any is read."""
        if self._tokens is not None:
            raise ValueError("rows cannot be added once one was read")
        row.astype("<i4", copy=False).tofile(self._file)
        self._ends.append(self._ends[-1] + len(row))

    def lengths(self) -> np.ndarray:
        """int64 [R]: tokens of each row."""
        return np.diff(np.array(self._ends, np.int64))

    def __len__(self) -> int:
        return len(self._ends) - 1

    @overload
    def __getitem__(self, row: int) -> np.ndarray: ...
    @overload
    def __getitem__(self, row: slice) -> list[np.ndarray]: ...
    def __getitem__(self, row: int | slice) -> np.ndarray | list[np.ndarray]:
        """Return a row: int32, read-only; or several."""
        if isinstance(row, slice):
            return [self[place] for place in range(*row.indices(len(self)))]
        if not -len(self) <= row < len(self):
            raise IndexError(row)
        place = row % len(self)
        return self._read()[self._ends[place] : self._ends[place + 1]]

    def __iter__(self) -> Iterator[np.ndarray]:
        return (self[place] for place in range(len(self)))

    def _read(self) -> np.ndarray:
        if self._tokens is None:
            self._file.flush()
            # an empty file cannot be mapped
            total = self._ends[-1]
            self._tokens = (
                np.memmap(self._path, "<i4", mode="r") if total else np.zeros(0, np.int32)
            )
        return self._tokens
