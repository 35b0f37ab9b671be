"""Ingest runs without the collector of circular garbage, so nothing that it drops may be a circle."""

import gc
from collections import Counter

import pytest
from fuzz_logs import valid_logs

from clawcli.ingest.batch import Batch
from clawcli.ingest.calls import Call
from clawcli.ingest.conversations import Digested, Node
from clawcli.ingest.formats.turns import Turn
from clawcli.ingest.parts import Piece, Setting
from clawcli.ingest.read.find import find
from clawcli.ingest.sources import KnownSources
from clawcli.ingest.stepgraph import Step
from clawcli.store.location import Location

LOGS = valid_logs()


@pytest.mark.parametrize("name", LOGS)
def test_calls_that_were_read_go_when_they_are_dropped(name, tmp_path):
    log = tmp_path / "log"
    log.write_bytes(LOGS[name])
    ((source,), _) = find([str(log)])
    gc.collect()
    gc.disable()
    try:
        batch = Batch(Setting(Location(tmp_path / "out")), KnownSources())
        part = batch.take(Piece([source]))
        steps = [step for taken in part.taken for step in taken.steps]
        assert steps
        for step in steps:
            step.request.let_go()  # as when it is committed: hashes stay, and no message
        del batch, part, steps, step
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        kept = Counter(type(o).__name__ for o in gc.garbage)
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert not {t.__name__ for t in (Call, Turn, Node, Digested)} & kept.keys(), kept
    assert kept[Step.__name__]  # steps of one call know each other until they are evicted
