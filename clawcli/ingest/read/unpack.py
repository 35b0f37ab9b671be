"""Undo gzip and zstd piece by piece: whatever could be decoded is given before a break is told.

A damaged or cut stream is a Broken after its last good byte, never a silent half, which is what
the stream readers of the zstandard package make of one. No piece is larger than 128 KiB, however
much its stream unpacks to: gzip is asked for no more, and zstd is fed one block at a time, which
holds no more by its format.

Source: RFC 1952 (gzip), RFC 8878 sections 3.1.1 and 3.1.2 (zstd).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator

import zstandard

Read = Callable[[int], bytes]
"""Gives as many bytes as it is asked for, and fewer only at the end."""

ZSTD_WINDOW_BYTES = 1 << 27
_PIECE_BYTES = 1 << 17
_FEED_BYTES = 1 << 14  # with more at a time zlib leaves the cache and halves its speed
_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
_GZIP_WINDOW_BITS = 31  # the largest window, with gzip's header and trailer


class Broken(Exception):  # noqa: N818 - an outcome that every caller expects
    """The stream cannot be decoded any further; the reason in words."""


def kind_of(lead: bytes) -> str | None:
    r"""Tell by its first four bytes how a stream is compressed; None = not, as far as claw knows.

    Example:
        >>> kind_of(b"\x1f\x8b\x08\x00"), kind_of(b'{"a"')
        ('gzip', None)
    """
    if lead.startswith(_GZIP):
        return "gzip"
    return "zstd" if lead == _ZSTD or _is_skippable(lead) else None


def gunzip(read: Read) -> Iterator[bytes]:
    """Decode a gzip stream of any number of members; zeros may pad its end.

    Raises:
        Broken: the stream is cut or damaged, or something else follows it.
    """
    member, is_open = zlib.decompressobj(_GZIP_WINDOW_BITS), True
    data = read(_FEED_BYTES)
    while data:
        good = member.copy()
        try:
            piece = member.decompress(data, _PIECE_BYTES)
        except zlib.error as error:
            yield from _until_error(good, data)
            raise Broken(_words(error)) from error
        if piece:
            yield piece
        if not member.eof:
            is_open = True
            data = member.unconsumed_tail or read(_FEED_BYTES)
            continue
        is_open = False
        data = member.unused_data.lstrip(b"\0")
        while len(data) < len(_GZIP) and (more := read(_FEED_BYTES)):
            data = (data + more).lstrip(b"\0")
        if data and not _GZIP.startswith(data[: len(_GZIP)]):
            raise Broken("bytes that are no gzip stream follow it")
        member = zlib.decompressobj(_GZIP_WINDOW_BITS)
    if is_open:
        if rest := member.flush():
            yield rest
        raise Broken("it ends early")


def _until_error(member: zlib._Decompress, data: bytes) -> Iterator[bytes]:
    """Decode what comes before an error: byte by byte, as a call that fails gives nothing."""
    for place in range(len(data)):
        try:
            piece = member.decompress(data[place : place + 1])
        except zlib.error:
            return
        if piece:
            yield piece


def unzstd(read: Read) -> Iterator[bytes]:
    """Decode a zstd stream of any number of frames, skippable ones left out.

    Raises:
        Broken: the stream is cut or damaged, wants a dictionary or a window of more than 128 MiB,
            or something else follows it.
    """
    decompressor = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW_BYTES)
    while magic := read(4):
        if _is_skippable(magic):
            _skip(read, int.from_bytes(_exactly(read, 4), "little"))
        elif magic == _ZSTD:
            yield from _frame(read, decompressor)
        elif len(magic) < 4 and _ZSTD.startswith(magic):
            raise Broken("it ends early")
        else:
            raise Broken("bytes that are no zstd frame follow it")


def _frame(read: Read, decompressor: zstandard.ZstdDecompressor) -> Iterator[bytes]:
    """Decode one frame behind its magic number, block by block."""
    head = _ZSTD + _exactly(read, 1)
    head += _exactly(read, zstandard.frame_header_size(head) - len(head))
    try:
        wanted = zstandard.get_frame_parameters(head)
    except zstandard.ZstdError as error:
        raise Broken(_words(error)) from error
    if wanted.window_size > ZSTD_WINDOW_BYTES:
        raise Broken(f"it needs a window of {wanted.window_size >> 20:,} MiB, and 128 is the limit")
    if wanted.dict_id:
        raise Broken("it needs the dictionary that it was compressed with")
    frame = decompressor.decompressobj()
    try:
        frame.decompress(head)
        is_last = False
        while not is_last:
            field = _exactly(read, 3)
            bits = int.from_bytes(field, "little")
            is_last, is_run = bool(bits & 1), bits >> 1 & 3 == 1
            yield frame.decompress(field + _exactly(read, 1 if is_run else bits >> 3))
        if wanted.has_checksum:
            frame.decompress(_exactly(read, 4))
    except zstandard.ZstdError as error:
        raise Broken(_words(error)) from error


def _is_skippable(magic: bytes) -> bool:
    return len(magic) == 4 and magic[0] >> 4 == 5 and magic[1:] == b"\x2a\x4d\x18"


def _exactly(read: Read, num_bytes: int) -> bytes:
    data = read(num_bytes)
    if len(data) < num_bytes:
        raise Broken("it ends early")
    return data


def _skip(read: Read, num_bytes: int) -> None:
    while num_bytes:
        num_bytes -= len(_exactly(read, min(num_bytes, _PIECE_BYTES)))


def _words(error: Exception) -> str:
    return str(error).rpartition(": ")[2]
