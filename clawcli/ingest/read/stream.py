"""Open the bytes of a source: local or remote, one file or several, compression undone.

A stream that breaks off gives all that could be read and then its problem, one sentence: once
reading has begun nothing is raised but the OSError of a local disk. Compression is known by the first bytes, never by the name. What
unpacks to 200 times its size is taken for a bomb and read no further.
"""

from __future__ import annotations

import io
import os
import stat
import sys
from collections.abc import Iterator
from typing import Any, BinaryIO

from clawcli.errors import DataError, StoreError
from clawcli.ingest.read import unpack
from clawcli.ingest.read.find import Found, is_url, iter_members, remote_reason

CHUNK_BYTES = 1 << 20
BOMB_RATIO = 200
_BOMB_FREE_BYTES = 1 << 26
# past 64 GiB less is allowed, so that a real log of 300 GB (.zst, 5 to 15 times smaller) still goes
_LONG_BYTES = 1 << 36
_LONG_RATIO = 20
_REMOTE_BLOCK_BYTES = 1 << 23
_OTHER_COMPRESSION = {b"BZh": "bzip2", b"\xfd7zX": "xz", b"\x04\x22\x4d\x18": "lz4"}
_UNSPLITTABLE = (b"PK\x03\x04", b"PAR1")


class Stream:
    """The uncompressed bytes of a source, in reads of 1 MiB, and what went wrong on the way.

    read, readline and peek are those of io.BufferedReader.
    """

    def __init__(self, raw: _Raw | io.FileIO) -> None:
        """Read on from where raw stands."""
        self._raw = raw
        self._start = raw.tell() if isinstance(raw, io.FileIO) else 0
        self._stored_bytes = 0
        # nothing derived from it: the closed check of each readline would cost more than the line
        self._file = io.BufferedReader(raw, CHUNK_BYTES)
        self.read, self.readline, self.peek = (
            self._file.read,
            self._file.readline,
            self._file.peek,
        )

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._stored_bytes = self.stored_bytes
        self._file.close()

    @property
    def problem(self) -> str | None:
        """Why the end that was reached is not the end of the source; null = it is, so far."""
        return getattr(self._raw, "problem", None)

    @property
    def compression(self) -> str | None:
        """How the source is compressed, gzip or zstd; null = not at all."""
        return getattr(self._raw, "compression", None)

    @property
    def stored_bytes(self) -> int:
        """How many bytes as stored were fetched so far, for progress; some are read ahead."""
        if self._raw.closed:
            return self._stored_bytes
        if isinstance(self._raw, io.FileIO):
            return self._raw.tell() - self._start
        return self._raw.stored_bytes


class _Raw(io.RawIOBase):
    """Where a Stream gets its bytes from."""

    problem: str | None = None
    compression: str | None = None
    stored_bytes = 0

    def readable(self) -> bool:
        return True


class _Stored(_Raw):
    """Bytes as they are stored; an error in the midst becomes the problem and the end."""

    def __init__(self, file: BinaryIO, label: str, lead: bytes = b"") -> None:
        self._file, self._label, self._lead = file, label, lead

    def readinto(self, buffer: Any, /) -> int:
        if self._lead:
            piece, self._lead = self._lead[: len(buffer)], self._lead[len(buffer) :]
            buffer[: len(piece)] = piece
            num_bytes = len(piece)
        else:
            num_bytes = self._fill(buffer)
        self.stored_bytes += num_bytes
        return num_bytes

    def _fill(self, buffer: Any) -> int:
        if self.problem:
            return 0
        try:
            piece = self._file.read(len(buffer))
        except Exception as error:  # stores have errors of their own; what came before is kept
            self.problem = f"{self._label} cannot be read on: {remote_reason(self._label, error)}"
            return 0
        buffer[: len(piece)] = piece
        return len(piece)

    def close(self) -> None:
        if not self.closed and self._file is not getattr(sys.stdin, "buffer", None):
            self._file.close()
        super().close()


class _Unpacked(_Raw):
    """Bytes of a compressed stream, as far as it is intact and no bomb."""

    def __init__(self, stored: _Stored, kind: str, label: str) -> None:
        self._stored, self._label, self.compression = stored, label, kind
        self._file = io.BufferedReader(stored, CHUNK_BYTES)
        self._pieces = (unpack.gunzip if kind == "gzip" else unpack.unzstd)(self._file.read)
        self._piece, self._num_bytes = memoryview(b""), 0

    def readinto(self, buffer: Any, /) -> int:
        filled = 0
        while filled < len(buffer) and (self._piece or self._next()):
            part = self._piece[: len(buffer) - filled]
            buffer[filled : filled + len(part)] = part
            self._piece = self._piece[len(part) :]
            filled += len(part)
        return filled

    def _next(self) -> bool:
        """Fetch the next piece that holds anything; False = there is none."""
        try:
            piece = next(filter(None, self._pieces), b"") if self.problem is None else b""
        except unpack.Broken as broken:
            self.problem = (
                self._stored.problem
                or f"{self._label}: the {self.compression} stream breaks off: {broken}."
            )
            return False
        self.problem = self.problem or bomb_problem(
            self._label, self._num_bytes + len(piece), self._stored.stored_bytes
        )
        if self.problem:
            return False
        self._piece = memoryview(piece)
        self._num_bytes += len(piece)
        return bool(piece)

    @property
    def stored_bytes(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self._stored.stored_bytes

    def close(self) -> None:
        self._file.close()
        super().close()


class _Joined(_Raw):
    r"""The files of a folder as lines: a \n between two, and blanks for those within one.

    JSON has line ends between its tokens only, so every file is one line, however it was printed.
    """

    def __init__(self, source: Found) -> None:
        self._parts = self._open(source)
        self._part: Stream | None = None
        self._is_first = True

    def _open(self, source: Found) -> Iterator[Stream]:
        for member in iter_members(source):
            try:
                yield open_bytes(member)
            except (StoreError, DataError) as error:
                self.problem = str(error)
                return

    def readinto(self, buffer: Any, /) -> int:
        while self.problem is None:
            if self._part is None:
                self._part = next(self._parts, None)
                if self._part is None:
                    break
                if not self._is_first:
                    buffer[:1] = b"\n"
                    return 1
                self._is_first = False
            if piece := self._part.read(len(buffer)):
                buffer[: len(piece)] = piece.replace(b"\n", b" ")
                return len(piece)
            self.problem = self._part.problem
            self.stored_bytes += self._part.stored_bytes
            self._part.close()
            self._part = None
        return 0

    def close(self) -> None:
        if self._part is not None:
            self._part.close()
        super().close()


class _Stdin:
    """Standard input; what a look at its beginning has read comes again at the next opening."""

    kept: bytes = b""
    of: object = None

    def __init__(self, *, keep: bool) -> None:
        self._file = sys.stdin.buffer
        again = _Stdin.kept if _Stdin.of is self._file else b""
        _Stdin.of, _Stdin.kept = self._file, b""
        self._again, self._seen = again, bytearray() if keep else None

    def read(self, num_bytes: int) -> bytes:
        if self._again:
            piece, self._again = self._again[:num_bytes], self._again[num_bytes:]
        else:
            piece = self._file.read(num_bytes)
        if self._seen is not None:
            self._seen += piece
        return piece

    def close(self) -> None:
        if self._seen is not None:
            _Stdin.kept = bytes(self._seen) + self._again
            self._seen = None


def open_bytes(source: Found, start: int = 0, *, keep: bool = False) -> Stream:
    """Open the uncompressed bytes of a source.

    Args:
        source: what to open. Standard input can be read once; it is not for worker processes.
        start: offset in uncompressed bytes to begin at. Local files that are not compressed are
            set there, everything else is read up to there.
        keep: what is read of standard input comes again at the next opening.

    Returns:
        A reader of 1 MiB reads; past the end of what could be read, problem says why.

    Raises:
        StoreError: it cannot be opened.
        DataError: it is compressed in a way that claw does not read.
    """
    if source.members:
        stream = Stream(_Joined(source))
        _skip(stream, start)
        return stream
    file = open_stored(source, keep=keep)
    try:
        lead = _read_lead(file, source)
        _refuse_other(lead, source)
        kind = unpack.kind_of(lead)
        if kind is None and isinstance(file, io.FileIO):
            file.seek(start)
            return Stream(file)
        stored = _Stored(file, source.label, lead)
        stream = Stream(stored if kind is None else _Unpacked(stored, kind, source.label))
        _skip(stream, start)
    except BaseException:
        file.close()
        raise
    return stream


def open_stored(source: Found, *, keep: bool = False) -> BinaryIO:
    """Open the bytes of one file as they are stored.

    Raises:
        StoreError: it cannot be opened, or is a pipe or a device that could be waited for in vain.
    """
    if source.path == "-":
        if sys.stdin is None:
            raise StoreError("Standard input is closed.", "Name a file in place of -.")
        return _Stdin(keep=keep)  # pyright: ignore[reportReturnType] - read and close are all of it
    if is_url(source.path):
        return _open_remote(source)
    try:
        # without O_NONBLOCK a pipe that took the file's place would be waited for
        descriptor = os.open(source.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise StoreError(
            f"{source.label} cannot be read: {error.strerror}.", "Check the file."
        ) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise StoreError(f"{source.label} is no regular file.", "Name a file, or - for a pipe.")
    return open(descriptor, "rb", buffering=0)  # noqa: PTH123


def _open_remote(source: Found) -> BinaryIO:
    from fsspec.core import url_to_fs

    try:
        store, path = url_to_fs(source.path)
        return store.open(path, "rb", block_size=_REMOTE_BLOCK_BYTES)
    except Exception as error:  # each store has errors of its own
        raise StoreError(
            f"{source.label} cannot be read: {remote_reason(source.path, error)}",
            "Check the URL and the credentials.",
        ) from error


def _read_lead(file: BinaryIO, source: Found) -> bytes:
    """Read four bytes, or all that there are: pipes may give them one by one."""
    lead = b""
    try:
        while len(lead) < 4 and (piece := file.read(4 - len(lead))):
            lead += piece
    except Exception as error:  # each store has errors of its own
        raise StoreError(
            f"{source.label} cannot be read: {remote_reason(source.path, error)}", "Check the file."
        ) from error
    return lead


def _refuse_other(lead: bytes, source: Found) -> None:
    for magic, kind in _OTHER_COMPRESSION.items():
        if lead.startswith(magic):
            raise DataError(
                f"{source.label} is compressed with {kind}, which claw does not read.",
                "Compress it with gzip or zstd, or pipe it unpacked and name -.",
            )


def _skip(stream: Stream, num_bytes: int) -> None:
    while num_bytes and (piece := stream.read(min(num_bytes, CHUNK_BYTES))):
        num_bytes -= len(piece)


def is_splittable(source: Found) -> bool:
    """Tell whether ranges of a source can be read apart: one plain local file."""
    if source.path == "-" or source.members or is_url(source.path):
        return False
    try:
        with open_stored(source) as file:
            lead = _read_lead(file, source)
    except StoreError:
        return False
    return unpack.kind_of(lead) is None and lead not in _UNSPLITTABLE


def bomb_problem(label: str, unpacked_bytes: int, stored_bytes: int) -> str | None:
    """Say that a source is taken for a decompression bomb; None = it is not, so far.

    Example:
        >>> bomb_problem("a.gz", 2 << 30, 2 << 20)
        'a.gz unpacks to more than 200 times its size, as bombs do: it was read to 2,048 MiB only.'
    """
    ratio = _LONG_RATIO if unpacked_bytes > _LONG_BYTES else BOMB_RATIO
    if unpacked_bytes <= max(_BOMB_FREE_BYTES, ratio * stored_bytes):
        return None
    return (
        f"{label} unpacks to more than {ratio} times its size, as bombs do: "
        f"it was read to {unpacked_bytes >> 20:,} MiB only."
    )
