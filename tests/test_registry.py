import json
import multiprocessing
import os
from pathlib import Path

import pytest
from conftest import assistant, pair, user, write_lines

from clawcli.curate.run import CurateConfig, curate
from clawcli.export.run import ExportRowsConfig, export_rows
from clawcli.ingest.run import IngestConfig, ingest
from clawcli.prefix.run import MergeConfig, merge_prefixes
from clawcli.store import artefact, registry, table
from clawcli.store.location import Location
from clawcli.store.remote import Remote


@pytest.fixture
def data(tmp_path):
    log = write_lines(tmp_path / "a.jsonl", [pair([user("u")], assistant("a"), uid="1")])
    ingest(IngestConfig(inputs=(str(log),), output=str(tmp_path / "data")))
    return tmp_path / "data"


def make(data, name, kind="data", **options):
    given = {"input": str(data), "output": str(data.parent / name), **options}
    if kind == "data":
        curate(CurateConfig(where="true", **given))
    elif kind == "tree":
        merge_prefixes(MergeConfig(tokenizer="tiny", **given))
    else:
        export_rows(ExportRowsConfig(**given))
    return data.parent / name


def test_registry_lists_what_each_verb_made_with_its_hash(data):
    made = [make(data, "c"), make(data, "t", "tree"), make(data, "r.jsonl", "rows")]
    found = registry.read(Location(data))
    assert [(row.path, row.kind, row.version) for row in found] == [
        (os.path.realpath(path), kind, 0)
        for path, kind in zip(made, ("data", "tree", "rows"), strict=True)
    ]
    assert [row.hash for row in found] == [
        table.open_table(made[0] / "steps").metadata().id,
        artefact.file_hash(made[1] / "manifest.json"),
        artefact.file_hash(made[2]),
    ]
    assert all(row.at.startswith("20") and row.at.endswith("+00:00") for row in found)


def test_registry_names_the_version_that_was_read(data):
    log = write_lines(data.parent / "b.jsonl", [pair([user("v")], assistant("b"), uid="2")])
    ingest(IngestConfig(inputs=(str(log),), output=str(data)))
    for name, version in ((f"{data}@0", 0), (str(data), 1)):
        make(Path(data), f"c{version}", input=name)
        assert registry.read(Location(data))[-1].version == version


def test_registry_keeps_the_newest_line_of_a_place(data):
    make(data, "c")
    make(data, "d")
    make(data, "c", force=True)
    assert [Path(row.path).name for row in registry.read(Location(data))] == ["d", "c"]
    assert len((data / "registry.jsonl").read_text().splitlines()) == 3


def test_registry_of_a_dry_run_or_of_standard_output_says_nothing(data, capsys):
    import sys

    make(data, "c", dry_run=True)
    export_rows(ExportRowsConfig(input=str(data), output="-"), sys.stdout)
    assert not (data / "registry.jsonl").exists()
    assert registry.read(Location(data)) == []


def test_registry_that_cannot_be_written_is_told_and_the_verb_goes_on(data, caplog):
    (data / "registry.jsonl").mkdir()
    caplog.set_level("INFO", "clawcli")
    assert make(data, "c").exists()
    assert "registry.jsonl does not name" in caplog.text


def test_registry_of_an_object_store_is_none(tmp_path, caplog):
    caplog.set_level("INFO", "clawcli")
    registry.add(Location(Remote("s3://b/data")), tmp_path, kind="data", version=0)
    assert "keeps no registry" in caplog.text
    assert registry.read(Location(Remote("s3://b/data"))) == []


def test_registry_line_that_a_kill_cut_harms_no_other(data):
    make(data, "c")
    whole = (data / "registry.jsonl").read_bytes()
    (data / "registry.jsonl").write_bytes(whole + whole[:40])
    make(data, "d")
    assert [Path(row.path).name for row in registry.read(Location(data))] == ["c", "d"]
    assert (data / "registry.jsonl").read_bytes().startswith(whole + whole[:40] + b"\n")


def _add_some(data, made, who):
    for number in range(25):
        target = Path(made).parent / f"m{who}-{number}"
        target.symlink_to(made)
        row = {"path": str(target), "kind": "rows", "version": 0, "hash": "x" * 5000, "at": "t"}
        registry._append(Path(data) / "registry.jsonl", json.dumps(row).encode() + b"\n")


def test_registry_of_writers_at_once_loses_no_line(data):
    made = make(data, "r.jsonl", "rows")
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_add_some, args=(data, made, who)) for who in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(50)
    assert [worker.exitcode for worker in workers] == [0, 0]
    assert len(registry.read(Location(data))) == 51


def test_data_directory_with_a_registry_is_still_one(data):
    make(data, "c")
    log = write_lines(data.parent / "b.jsonl", [pair([user("v")], assistant("b"), uid="2")])
    assert ingest(IngestConfig(inputs=(str(log),), output=str(data))).steps == 1
    # and a folder that holds it gives its own logs alone
    report = ingest(IngestConfig(inputs=(str(data.parent),), output=str(data.parent / "new")))
    assert report.records == 2
