"""Take the records out of files that hold them packed: Inspect .eval archives and Parquet.

Both are read by seeking, so they come from files and stores, not from standard input. What is
damaged in the midst is a Broken after the last good record; nothing is held but one record, or a
few hundred rows.
"""

from __future__ import annotations

import math
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

import msgspec

from clawcli.errors import DataError
from clawcli.ingest.read import unpack
from clawcli.ingest.read.find import Found
from clawcli.ingest.read.stream import bomb_problem, open_stored

_HEADERS = ("header.json", "_journal/start.json")
"""Where an Inspect log says what was run: once it is finished, and until then."""
_ZSTD = 93  # number of the method in the zip format, which zipfile of Python 3.11 lacks
_LOCAL_HEADER = struct.Struct("<26xHH")
_ROWS = 256
_ZIP_ERRORS = (OSError, ValueError, RuntimeError, EOFError, zipfile.BadZipFile, zlib.error)


def samples(source: Found, *, limit: int) -> Iterator[tuple[int, bytes, bytes]]:
    """Read the samples of an Inspect .eval archive, in the order in which they were written.

    Args:
        source: the archive.
        limit: bytes of a sample beyond which it is not read: it comes one byte too long.

    Yields:
        The offset of the sample's entry, the JSON of the log's header, and that of the sample.

    Raises:
        DataError: the file is no zip archive that is complete, or no Inspect log.
        unpack.Broken: an entry cannot be read, or the archive is a bomb.
        StoreError: the file cannot be opened.
    """
    with _seekable(source) as file:
        try:
            archive = zipfile.ZipFile(file)
        except _ZIP_ERRORS as error:
            raise DataError(
                f"{source.label} is a zip archive that is not complete.", "Fetch it again."
            ) from error
        # of entries of one name the last one is meant: it was written anew
        entries = {entry.filename: entry for entry in archive.infolist()}
        names = [name for name in entries if name.startswith("samples/") and name.endswith(".json")]
        headers = [name for name in _HEADERS if name in entries]
        if not headers:
            raise DataError(
                f"{source.label} is a zip archive, but no Inspect log.", "Unpack it first."
            )
        num_bytes, stored_bytes = 0, file.seek(0, 2)
        header = b""
        for name in [headers[0], *names]:
            try:
                data = _read_entry(archive, entries[name], file, limit)
            except _ZIP_ERRORS as error:
                raise unpack.Broken(f"{name} cannot be read: {error}") from error
            num_bytes += len(data)
            if bomb := bomb_problem(source.label, num_bytes, stored_bytes):
                raise unpack.Broken(bomb)
            if name == headers[0]:
                header = data
            else:
                yield entries[name].header_offset, header, data


def _read_entry(
    archive: zipfile.ZipFile, entry: zipfile.ZipInfo, file: BinaryIO, limit: int
) -> bytes:
    """Read an entry, or its first bytes up to one more than the limit."""
    if entry.compress_type != _ZSTD:
        with archive.open(entry) as opened:
            return opened.read(limit + 1)
    file.seek(entry.header_offset)
    name_bytes, extra_bytes = _LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size))
    file.seek(name_bytes + extra_bytes, 1)
    left = entry.compress_size

    def read(num_bytes: int) -> bytes:
        nonlocal left
        data = file.read(min(num_bytes, left))
        left -= len(data)
        return data

    found = bytearray()
    try:
        for piece in unpack.unzstd(read):
            found += piece
            if len(found) > limit:
                return bytes(found[: limit + 1])
    except unpack.Broken as broken:
        raise ValueError(f"the zstd stream breaks off: {broken}") from broken
    if zlib.crc32(found) != entry.CRC:
        raise ValueError("its checksum is wrong")
    return bytes(found)


def rows(source: Found) -> Iterator[tuple[int, bytes]]:
    """Read the rows of a Parquet file as JSON, null keys left out at every depth.

    Structs of data sets hold every key that any row has; the nulls say nothing. NaN and infinities
    stay as Python writes them, for salvage to mend and to name.

    Yields:
        The number of the row, from 0, and its JSON.

    Raises:
        DataError: the file is no Parquet.
        unpack.Broken: it is damaged further on.
        StoreError: it cannot be opened.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    with _seekable(source) as file:
        try:
            table = pq.ParquetFile(file)
        except (pa.ArrowException, OSError) as error:
            raise DataError(
                f"{source.label} is Parquet that cannot be read: {_first_line(error)}.",
                "Fetch it again.",
            ) from error
        number = 0
        try:
            for group in range(table.num_row_groups):
                for batch in table.iter_batches(_ROWS, row_groups=[group]):
                    for row in _without_nanoseconds(batch).to_pylist():
                        yield number, msgspec.json.encode(_logged(row), enc_hook=str)
                        number += 1
        except (pa.ArrowException, OSError) as error:
            raise unpack.Broken(_first_line(error)) from error


def _without_nanoseconds(batch: Any) -> Any:
    """Round times to the microseconds that Python has, which it refuses to do by itself."""
    import pyarrow as pa

    schema = pa.schema(
        pa.field(f.name, pa.timestamp("us", f.type.tz))
        if pa.types.is_timestamp(f.type) and f.type.unit == "ns"
        else f
        for f in batch.schema
    )
    return batch if schema == batch.schema else batch.cast(schema, safe=False)


def _logged(value: Any) -> Any:
    """Leave out keys that are null; what JSON has no number for is spelt as Python does."""
    if isinstance(value, dict):
        return {key: _logged(v) for key, v in value.items() if v is not None}
    if isinstance(value, list | tuple):
        return [_logged(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return msgspec.Raw(b"NaN")
    return value


@contextmanager
def _seekable(source: Found) -> Iterator[BinaryIO]:
    if source.path == "-":
        raise DataError(
            "Archives and Parquet cannot be read from standard input.", "Save it as a file."
        )
    with open_stored(source) as file:
        yield file


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0].rstrip(".")
