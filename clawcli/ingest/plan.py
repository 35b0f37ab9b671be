"""Cut the sources of a run into pieces for workers.

Small files go several to a piece; a large log of lines goes in ranges, if it is a plain local file
and each line stands for itself. Everything else is one piece, read by one worker from end to end.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

import msgspec

from clawcli.errors import ClawError
from clawcli.ingest import formats, sources
from clawcli.ingest.formats import plugin
from clawcli.ingest.parts import Piece, Setting
from clawcli.ingest.read.find import Found
from clawcli.ingest.read.records import head
from clawcli.ingest.read.stream import is_splittable
from clawcli.ingest.sources import KnownSources

logger = logging.getLogger(__name__)

RANGE_BYTES = 16 << 20
_SMALL_BYTES = 1 << 20
_SMALL_FILES = 256
_LARGE_BYTES = 64 << 20


def pieces(found: Sequence[Found], setting: Setting, known: KnownSources) -> Iterator[Piece | None]:
    """Plan the pieces of a run, in order.

    Args:
        found: all sources.
        setting: shared by the workers.
        known: sources of earlier commits; it may grow while the plan goes on.

    Yields:
        Pieces, in order. None says: go on when all before is committed, because whether a
        large source is known depends on that.
    """
    num_bytes = 0
    small: list[Found] = []
    for source in found:
        if source.size is not None and source.size < _SMALL_BYTES:
            small.append(source)
            num_bytes += source.size
            if len(small) == _SMALL_FILES or num_bytes >= RANGE_BYTES:
                yield Piece(small)
                small, num_bytes = [], 0
            continue
        if small:
            yield Piece(small)
            small, num_bytes = [], 0
        is_large = source.size is None or source.size >= _LARGE_BYTES
        if is_large:
            yield None
        ranges = _ranges(source, setting, known) if is_large else None
        yield from [Piece([source])] if ranges is None else ranges
    if small:
        yield Piece(small)


def _ranges(source: Found, setting: Setting, known: KnownSources) -> list[Piece] | None:
    """Cut a large log into ranges of its bytes; None where it has to be read as a whole."""
    if not is_splittable(source):
        if source.path != "-":
            logger.warning("%s cannot be split, so one process reads it.", source.label)
        return None
    try:
        begin = head(source)
        if begin.container != "lines":
            return None
        module = plugin.choose(setting.format, setting.mapping) or formats.detect(
            source.label, (msgspec.json.decode(raw) for raw in begin.samples)
        )
        if hasattr(module, "session"):
            return None
        identity = sources.identify(source, begin, known, setting.source_name)
    except (ClawError, OSError):
        return None  # the worker that reads it will say why
    if identity.state in ("unchanged", "rewritten"):
        return None
    size = source.size or 0
    starts = range(identity.consumed, size, RANGE_BYTES)
    return [
        Piece([source], start, min(start + RANGE_BYTES, size), identity, module.NAME)
        for start in starts
    ]
