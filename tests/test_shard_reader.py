"""Reading shards: any number of ranks, from any update on, whatever happened to the cache before."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from conftest import SAMPLE

from clawcli.errors import StoreError, VerifyError
from clawcli.store import artefact, shard_cache, shards

_CLAW = "from clawcli.cli.app import main; main()"
WORKER = Path(__file__).with_name("shard_worker.py")


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    from clawcli.cli import app

    place = tmp_path_factory.mktemp("tree")
    data = str(place / "data")
    assert app.run(["ingest", str(SAMPLE / "agent-logs"), "-o", data, "--quiet"]) == 0
    merge = ["merge-prefixes", data, "--tokenizer", "tiny", "-o", str(place / "tree"), "--quiet"]
    assert app.run(merge) == 0
    return place / "tree"


@pytest.fixture(scope="module")
def path(tree, tmp_path_factory):
    """Shards for three ranks: two epochs, several phases, and rows that do not go round."""
    from clawcli.cli import app

    path = tmp_path_factory.mktemp("shards") / "s"
    flags = ["--max-tokens-per-row", "3000", "--tokens-per-update", "16000", "--ranks", "3"]
    flags += ["--epochs", "2", "--set", "updates_per_phase=2", "--merge", "none", "--quiet"]
    assert app.run(["export", str(tree), "-o", str(path), *flags]) == 0
    assert shards.open_shards(path).manifest.rows % 3 == 2
    return path


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("CLAW_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "shards"


def read(opened, num_ranks, start=0):
    """Per update the rows of each rank that train something, and how many each reads."""
    of_ranks = [list(opened.updates(rank, num_ranks, start)) for rank in range(num_ranks)]
    for updates in zip(*of_ranks, strict=True):
        assert len({update.number for update in updates}) == 1
        assert len({len(update.rows) for update in updates}) == 1
        trained = [
            row.row_id for update in updates for row in update.rows if row.steps.weights.any()
        ]
        every = [row.row_id for update in updates for row in update.rows]
        assert len(trained) == len(set(trained)) == len(set(every))
        yield updates[0].number, sorted(trained)


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4, 7])
def test_any_number_of_ranks_reads_the_same_rows_of_each_update_from_any_of_them(path, num_ranks):
    opened = shards.open_shards(path)
    planned = [
        (number, update.row_ids) for number, update in enumerate(opened.manifest.plan.updates)
    ]
    assert len(planned) > 8
    for start in range(len(planned) + 1):
        assert list(read(opened, num_ranks, start)) == planned[start:]


def test_rows_of_another_number_of_ranks_are_split_by_cost(path):
    opened = shards.open_shards(path)
    spent = [
        sum(opened.costs[row.row_id] for row in opened.update(0, rank, 2).rows) for rank in range(2)
    ]
    fair = sum(opened.costs[row] for row in opened.manifest.plan.updates[0].row_ids) / 2
    assert max(spent) < 1.25 * fair


def test_a_row_that_fills_up_has_tokens_and_steps_of_weight_zero(path):
    opened = shards.open_shards(path)
    number = next(n for n, u in enumerate(opened.manifest.plan.updates) if u.fillers)
    rows = [row for rank in range(3) for row in opened.update(number, rank, 3).rows]
    fillers = [row for row in rows if not row.steps.weights.any()]
    assert len(fillers) == 1
    twin = next(row for row in rows if row.row_id == fillers[0].row_id and row.steps.weights.any())
    assert np.array_equal(twin.forest.token_ids, fillers[0].forest.token_ids)
    assert {step["weight"] for step in fillers[0].steps.to_pylist()} == {0.0}
    assert twin.steps.weights.tolist() == [s["weight"] for s in twin.steps.to_pylist()]


@pytest.mark.parametrize(
    ("rank", "num_ranks", "start"), [(2, 2, 0), (-1, 2, 0), (0, 1, 99), (0, 1, -1)]
)
def test_a_rank_or_update_that_is_none_is_an_error(path, rank, num_ranks, start):
    with pytest.raises(IndexError):
        next(shards.open_shards(path).updates(rank, num_ranks, start))


def test_columns_are_those_of_the_rows(path):
    for row in shards.open_shards(path).rows():
        steps = row.steps.to_pylist()
        values, counts = row.steps.rollout_logprobs()
        assert counts.tolist() == [len(step["rollout_logprobs"] or ()) for step in steps]
        assert len(values) == counts.sum()
        for name in ("trajectory_return", "group_size", "is_last", "temperature"):
            expected = [np.nan if step[name] is None else float(step[name]) for step in steps]
            assert np.array_equal(row.steps.numbers(name), expected, equal_nan=True)
        versions = [-1 if s["policy_version"] is None else s["policy_version"] for s in steps]
        assert row.steps.integers("policy_version").tolist() == versions
        assert row.steps.texts("step_uid") == [step["step_uid"] for step in steps]


# -- killed readers ---------------------------------------------------------------------------------


def start_worker(path, cache, rank, num_ranks, start):
    command = [sys.executable, WORKER, path, str(rank), str(num_ranks), str(start)]
    environment = {**os.environ, "CLAW_CACHE_DIR": str(cache)}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_killed_readers_go_on_with_any_number_of_ranks(path, tmp_path):
    expected = {
        number: update.row_ids
        for number, update in enumerate(shards.open_shards(path).manifest.plan.updates)
    }
    chance = random.Random(0)
    seen, start, tokens = {}, 0, {}
    for num_ranks in (1, 2, 3, 4, 2):
        ranks = [
            start_worker(path, tmp_path / "cache", r, num_ranks, start) for r in range(num_ranks)
        ]
        last = num_ranks == 2 and start > len(expected) // 2
        stop = len(expected) if last else min(len(expected), start + chance.randint(1, 2))
        for number in range(start, stop):
            told = [json.loads(worker.stdout.readline()) for worker in ranks]
            assert {line[0] for line in told} == {number}
            rows = [row for _, mine, _ in told for row in mine]
            assert len({len(mine) for _, mine, _ in told}) == 1
            seen[number] = sorted(row for row, weight in rows if weight)
            tokens[number] = sum(
                total
                for _, mine, totals in told
                for (_, weight), total in zip(mine, totals, strict=True)
                if weight
            )
        for worker in ranks:
            worker.send_signal(signal.SIGKILL)
            worker.wait()
            worker.stdout.close()
        start = stop
    rest = range(start, len(expected))
    opened = shards.open_shards(path)
    for number in rest:
        seen[number] = [row.row_id for row in opened.update(number).rows]
    assert {n: sorted(rows) for n, rows in seen.items()} == expected
    for number, total in tokens.items():
        assert total == sum(int(r.forest.token_ids.sum()) for r in opened.update(number).rows)


@pytest.mark.slow
def test_a_reader_that_is_killed_while_it_decodes_leaves_no_half_file(path, tmp_path):
    for delay in (0.4, 0.6, 0.8, 1.0):
        worker = start_worker(path, tmp_path / "cache", 0, 1, 0)
        time.sleep(delay)
        worker.kill()
        worker.wait()
        worker.stdout.close()
    done = start_worker(path, tmp_path / "cache", 0, 1, 0)
    out, _ = done.communicate()
    assert done.returncode == 0
    assert len(out.splitlines()) == shards.open_shards(path).num_updates


# -- the cache --------------------------------------------------------------------------------------


def test_rows_are_decoded_once_and_then_mapped(path, cache, monkeypatch):
    first = [row.forest.token_ids.tolist() for row in shards.open_shards(path).rows()]
    (file,) = cache.iterdir()
    assert file.suffix == ".arrow"
    monkeypatch.setattr(shard_cache, "_decode", None)
    again = [row.forest.token_ids.tolist() for row in shards.open_shards(path).rows()]
    assert again == first


@pytest.mark.parametrize("size", [0, 1, 8, 100, 5000])
def test_a_cached_file_that_is_not_whole_is_made_again(path, cache, size):
    expected = [row.forest.token_ids.tolist() for row in shards.open_shards(path).rows()]
    (file,) = cache.iterdir()
    os.truncate(file, size)
    assert [r.forest.token_ids.tolist() for r in shards.open_shards(path).rows()] == expected


def test_what_was_left_unfinished_goes_after_an_hour_and_not_before(path, cache):
    cache.mkdir(parents=True)
    for name, age_s in (("old", 4000), ("new", 10)):
        (cache / f"{name}.unfinished").write_bytes(b"x")
        os.utime(cache / f"{name}.unfinished", (time.time() - age_s,) * 2)
    next(shards.open_shards(path).rows())
    assert {file.name for file in cache.glob("*.unfinished")} == {"new.unfinished"}


def test_a_cache_that_cannot_be_written_is_one_sentence(path, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CLAW_CACHE_DIR", str(tmp_path / "file"))
    with pytest.raises(StoreError, match=r"cannot be written to .*file") as found:
        next(shards.open_shards(path).rows())
    assert "CLAW_CACHE_DIR" in found.value.hint


def test_the_cache_is_below_the_home_of_caches(monkeypatch):
    monkeypatch.delenv("CLAW_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert shard_cache.directory() == Path("/xdg/claw/shards")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/me")
    assert shard_cache.directory() == Path("/home/me/.cache/claw/shards")


# -- damage -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_shard_that_is_cut_at_any_byte_is_refused(tree, tmp_path, claw):
    assert claw("export", tree, "-o", tmp_path / "s", "--sample", "1", "--unit", "step").code == 0
    file = tmp_path / "s" / shards.part_file(0)
    whole = file.read_bytes()
    with file.open("r+b") as handle:
        for size in range(len(whole) - 1, -1, -1):
            handle.truncate(size)
            with pytest.raises(VerifyError, match=f"has {size} bytes, not {len(whole)}"):
                artefact.verify_files(tmp_path / "s", kind="shards")


def test_a_shard_that_is_cut_and_whose_hash_was_made_to_fit_is_refused(path, tmp_path, cache):
    shutil.copytree(path, tmp_path / "s")
    file = tmp_path / "s" / shards.part_file(0)
    whole = file.read_bytes()
    manifest = json.loads((tmp_path / "s" / "manifest.json").read_text())
    (entry,) = (each for each in manifest["files"] if each["path"] == shards.part_file(0))
    for size in [*range(0, len(whole), len(whole) // 200), len(whole) - 1]:
        file.write_bytes(whole[:size])
        entry.update(bytes=size, blake2b=artefact.file_hash(file))
        (tmp_path / "s" / "manifest.json").write_text(json.dumps(manifest))
        with pytest.raises(VerifyError, match="cannot be read"):
            shards.open_shards(tmp_path / "s")


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_an_export_that_is_killed_leaves_the_old_shards_or_none(tree, tmp_path):
    target = tmp_path / "s"
    command = [sys.executable, "-c", _CLAW, "export", tree, "-o", target, "--quiet"]
    command += ["--merge", "none", "--max-tokens-per-row", "500"]
    delays = np.linspace(0.5, 1.6, 6).tolist()
    for number, delay in enumerate(delays):
        worker = subprocess.Popen([*command, "--force", "--seed", str(number)])
        time.sleep(delay)
        worker.kill()
        worker.wait()
        if target.exists():
            shards.open_shards(target)
    subprocess.run([*command, "--force"], check=True)
    opened = shards.open_shards(target)
    assert opened.manifest.plan.seed == 0
    assert [each.name for each in tmp_path.iterdir()] == ["s"]
