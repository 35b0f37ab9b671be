"""Keep workers busy with pieces, and take in what they read in the order of the pieces."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from clawcli.engine import Workers
from clawcli.ingest.parts import Part, Piece
from clawcli.ingest.read.find import Found
from clawcli.ingest.rounds import Rounds

_LEAST_AHEAD, _MOST_AHEAD = 3, 12
_STEPS_AHEAD = 8_192

Progress = Callable[[int, int, int], None]
"""Told of bytes read, bytes in all (0 = unknown) and steps so far."""


class Driver:
    """Gives pieces to workers and takes their parts in, in the order of the pieces."""

    def __init__(self, workers: Workers, rounds: Rounds, meter: Meter) -> None:
        self.workers, self.rounds, self.meter = workers, rounds, meter
        self.num_given = 0
        self._num_done = 0
        self._num_steps = 0
        self._busy = [0] * workers.count
        """Pieces that each worker was given and has not finished."""
        self._finished: dict[int, tuple[int, Part]] = {}
        self._learnt: list[Mapping[str, Any]] = []
        self._knows = [0] * workers.count

    def give(self, piece: Piece) -> None:
        """Hand a piece to the worker that has least to do."""
        piece.number = self.num_given
        self.meter.begin(piece)
        while (least := min(self._busy)) >= self._depth:
            self._advance()
        worker = self._busy.index(least)
        self._busy[worker] += 1
        self.workers.send(worker, "take", piece, self._learnt[self._knows[worker] :])
        self._knows[worker] = len(self._learnt)
        self.num_given += 1

    def finish(self) -> None:
        """Wait for all pieces, and commit what they gave."""
        while self._num_done < self.num_given:
            self._advance()
        self._learnt.extend(self.rounds.commit())

    @property
    def _depth(self) -> int:
        """How many pieces a worker may have: it goes on while this process links."""
        if self.workers.count == 1:
            return 1
        ahead = _STEPS_AHEAD * self._num_done // max(self._num_steps, 1)
        return min(max(ahead, _LEAST_AHEAD), _MOST_AHEAD)

    def _advance(self) -> None:
        while self._num_done not in self._finished:
            worker, part = self.workers.receive()
            self._finished[part.number] = worker, part
        worker, part = self._finished.pop(self._num_done)
        self._num_steps += sum(len(taken.steps) for taken in part.taken)
        self.rounds.absorb(worker, part)
        self.meter.add(part, self.rounds)
        if part.more:
            self.workers.send(worker, "more", part.number)
        else:
            self._num_done += 1
            self._busy[worker] -= 1
        if self.rounds.is_full:
            self._learnt.extend(self.rounds.commit())


class Meter:
    """Tells how far a run is."""

    def __init__(self, found: list[Found], progress: Progress | None) -> None:
        sizes = [source.size for source in found]
        self._total = 0 if None in sizes else sum(size or 0 for size in sizes)
        self._progress = progress
        self._bytes = 0

    def begin(self, piece: Piece) -> None:
        """Count what earlier runs consumed of a source in ranges: its first piece begins there."""
        if piece.identity is not None and piece.start == piece.identity.consumed:
            self._bytes += piece.identity.consumed

    def add(self, part: Part, rounds: Rounds) -> None:
        """Tell how far the run is, with what was just read."""
        for taken in part.taken:
            is_known = taken.state == "unchanged"
            self._bytes += (taken.found.size or 0) if is_known else taken.stored_bytes
        if self._progress is not None:
            self._progress(self._bytes, self._total, rounds.totals.steps)
