import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from forget_data import WHERE, both, rows, rows_hash, run, search

from clawcli.manage.forget import ForgetConfig, forget
from clawcli.store import location, table, tags, tombstones
from clawcli.store.location import Location

WORKER = Path(__file__).with_name("forget_worker.py")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def before(tmp_path_factory):
    place = tmp_path_factory.mktemp("before")
    data, plants = both(place)
    tags.put(Location(data), "clean", 0)
    return data, plants.all


def killed(before, tmp_path, numbers):
    """Copies of a directory in which a run died at each of some calls; those that ended left out."""
    copies = [Path(shutil.copytree(before, tmp_path / str(n) / "data")) for n in numbers]
    requests = [[str(data), WHERE, n] for data, n in zip(copies, numbers, strict=True)]
    done = subprocess.run(
        [sys.executable, WORKER],
        input=json.dumps(requests),
        capture_output=True,
        text=True,
        check=True,
        timeout=200,
    )
    codes = [json.loads(line) for line in done.stdout.splitlines()]
    assert set(codes) <= {0, -9}
    return [data for data, code in zip(copies, codes, strict=True) if code == -9]


# make faults tries more places
@pytest.mark.parametrize("step", [14])
def test_forget_killed_anywhere_is_ended_by_the_same_command(before, tmp_path, step):
    data, words = before
    old = rows(data)
    new = {uid: row for uid, row in old.items() if "PLANT" not in row["source_path"]}
    clean = rows_hash(data, 0)
    left = killed(data, tmp_path, range(1, 100, step))
    assert len(left) >= 84 // step
    states = set()
    for copy in left:
        found = rows(copy)
        assert found in (old, new)
        assert rows_hash(copy, 0) == clean
        states.add((found == new, (copy / "forgetting.json").exists()))
        forget(ForgetConfig(input=str(copy), where=WHERE))
        assert rows(copy) == new
        assert search(copy, ["PLANT", *words]) == set()
        assert not (copy / "forgetting.json").exists()
        assert rows_hash(copy, 0) == clean
        assert set(tombstones.read(Location(copy))) == old.keys() - new.keys()
    # before the plan was there, before the steps went, and after
    assert states >= {(False, False), (False, True), (True, True)}


def test_ingest_between_a_killed_forget_and_its_end_loses_nothing(before, tmp_path):
    data, words = before
    logs = data.parent / "logs"
    stays = (logs / "stays.jsonl").read_text()
    more = stays.replace("stays", "fresh")
    (tmp_path / "fresh.jsonl").write_text(more)
    for copy in killed(data, tmp_path, (12, 60, 90)):
        old = rows(copy)
        assert run(copy, tmp_path / "fresh.jsonl", logs).steps == 4
        forget(ForgetConfig(input=str(copy), where=WHERE))
        assert search(copy, words) == set()
        kept = {uid for uid, row in old.items() if "PLANT" not in row["source_path"]}
        now = rows(copy)
        assert kept < now.keys()
        assert len(now) == len(kept) + 4
        assert run(copy, tmp_path / "fresh.jsonl", logs).steps == 0
        assert table.open_table(location.existing(str(copy)).steps).version() > 4
