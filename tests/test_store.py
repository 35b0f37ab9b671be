import json
import os

import pytest
from table_data import PARTITIONS, message, steps_like, steps_of

from clawcli import schema
from clawcli.errors import (
    DataError,
    NotFoundError,
    OutputExistsError,
    StoreError,
    VerifyError,
)
from clawcli.store import artefact, location, table
from clawcli.store.state import States


@pytest.fixture
def data(tmp_path):
    info = {"command": "ingest", "sources": [{"path": "a.jsonl", "bytes": 7}]}
    table.append(tmp_path / "d" / "steps", steps_like(0, 3), info=info, partition_by=PARTITIONS)
    return tmp_path / "d"


def log_entry(data):
    return data / "steps" / "_delta_log" / f"{0:020d}.json"


def test_table_log_holds_no_message_text(data):
    text = log_entry(data).read_text()
    assert "secret" not in text
    assert "said" not in text
    assert "stats" in text


def test_table_commit_info_names_command_and_sources(data):
    (info,) = table.history(data / "steps")
    assert info["command"] == "ingest"
    assert info["sources"] == [{"path": "a.jsonl", "bytes": 7}]


@pytest.mark.parametrize("content", [b"", b'{"add": {"pa'])
def test_table_torn_newest_log_is_refused_and_nothing_is_appended(data, content):
    log_entry(data).write_bytes(content)
    place = location.parse(str(data))
    with pytest.raises(StoreError, match="is torn"):
        table.read(place)
    with pytest.raises(StoreError, match="is torn"):
        table.append(place.steps, schema.steps_schema().empty_table(), info={})


def test_table_newest_log_that_names_a_cut_file_is_torn(data):
    (file,) = (data / "steps").rglob("*.parquet")
    os.truncate(file, 10)
    with pytest.raises(StoreError, match="is torn"):
        table.read(location.parse(str(data)))


def test_table_append_syncs_data_log_and_directories(data, monkeypatch):
    synced = set()
    monkeypatch.setattr(artefact, "sync", synced.add)
    place = location.parse(str(data))
    rows = steps_like(3, 5)
    version = table.append(place.steps, rows, info={}, partition_by=PARTITIONS)
    entry = place.steps / "_delta_log" / f"{version:020d}.json"
    actions = [json.loads(line) for line in entry.read_text().splitlines()]
    files = [place.steps / action["add"]["path"] for action in actions if "add" in action]
    assert len(files) == 1
    assert {entry, entry.parent, place.steps, *files} <= synced


def test_table_version_that_does_not_exist_names_the_range(data):
    with pytest.raises(NotFoundError, match=r"has no version 4\. Versions run from 0 to 0"):
        table.read(location.parse(f"{data}@4"))


def test_table_read_gives_the_declared_types(data):
    assert table.read(location.parse(str(data))).schema == schema.steps_schema()


def test_location_with_version_is_read_but_a_real_path_wins(tmp_path):
    assert location.parse("x/data@12") == location.Location(
        path=location.Path("x/data"), version=12
    )
    odd = tmp_path / "data@1"
    odd.mkdir()
    assert location.parse(str(odd)).path == odd


def test_location_missing_and_foreign_directories_are_told_apart(tmp_path):
    with pytest.raises(NotFoundError, match="does not exist"):
        location.existing(str(tmp_path / "no"))
    with pytest.raises(DataError, match="is not a data directory"):
        location.existing(str(tmp_path))


def test_state_walks_parents_and_cuts_at_the_stored_prefix():
    steps = steps_of(
        {
            "step_uid": "a",
            "prefix_messages": 0,
            "system": "s",
            "tools": "[]",
            "observation": [message("user", "1"), message("user", "2")],
            "response": "x",
        },
        {
            "step_uid": "b",
            "parent_step_uid": "a",
            "prefix_messages": 3,
            "observation": [message("user", "3")],
            "response": "y",
        },
        {
            "step_uid": "c",
            "parent_step_uid": "b",
            "prefix_messages": 1,
            "system": "other",
            "observation": [message("user", "4")],
            "response": "z",
        },
        {
            "step_uid": "d",
            "parent_step_uid": "c",
            "prefix_messages": 0,
            "system": "",
            "observation": [message("user", "5")],
            "response": "z",
        },
    )
    states = States(steps)
    seen = [states.prompt(row) for row in range(4)]
    assert [[m["content"] for m in prompt.messages] for prompt in seen] == [
        ["1", "2"],
        ["1", "2", "x", "3"],
        ["1", "4"],
        ["5"],
    ]
    assert [(p.system, p.tools) for p in seen] == [
        ("s", []),
        ("s", []),
        ("other", []),
        ("", None),
    ]


def test_state_missing_parent_is_an_error_that_names_both():
    steps = steps_of(
        {"step_uid": "b", "parent_step_uid": "a", "prefix_messages": 1, "observation": []}
    )
    with pytest.raises(DataError, match="Step b continues step a"):
        States(steps).prompt(0)


def test_state_deep_chain_does_not_recurse():
    rows = [
        {
            "step_uid": str(i),
            "parent_step_uid": str(i - 1) if i else None,
            "prefix_messages": 2 * i,
            "observation": [message("user", f"u{i}")],
            "response": f"r{i}",
        }
        for i in range(3_000)
    ]
    messages = States(steps_of(*rows)).prompt(2_999).messages
    assert len(messages) == 5_999
    assert messages[-2]["content"] == "r2998"


def make(output, *, force=False, content="x", fail=False):
    with artefact.create(output, kind="tree", force=force, config={"a": 1}, inputs=[]) as draft:
        (draft.path / "sub").mkdir()
        (draft.path / "sub" / "file").write_text(content)
        draft.manifest["rows"] = 3
        if fail:
            raise RuntimeError("interrupted")


def test_artefact_is_there_whole_with_its_manifest(tmp_path):
    make(tmp_path / "t")
    manifest = artefact.verify_files(tmp_path / "t")
    assert (manifest["kind"], manifest["rows"], manifest["config"]) == ("tree", 3, {"a": 1})
    assert [entry["path"] for entry in manifest["files"]] == ["sub/file"]
    assert [p.name for p in tmp_path.iterdir()] == ["t"]


def test_artefact_interrupted_leaves_nothing_or_the_old_one(tmp_path):
    with pytest.raises(RuntimeError):
        make(tmp_path / "t", fail=True)
    assert list(tmp_path.iterdir()) == []
    make(tmp_path / "t")
    with pytest.raises(RuntimeError):
        make(tmp_path / "t", force=True, content="new", fail=True)
    assert (tmp_path / "t" / "sub" / "file").read_text() == "x"
    assert [p.name for p in tmp_path.iterdir()] == ["t"]


def test_artefact_existing_output_needs_force_and_foreign_ones_are_never_replaced(tmp_path):
    make(tmp_path / "t")
    with pytest.raises(OutputExistsError, match="--force"):
        make(tmp_path / "t")
    make(tmp_path / "t", force=True, content="new")
    assert (tmp_path / "t" / "sub" / "file").read_text() == "new"
    foreign = tmp_path / "home"
    foreign.mkdir()
    (foreign / "thesis.txt").write_text("years of work")
    with pytest.raises(OutputExistsError, match="was not written by this verb"):
        make(foreign, force=True)
    assert (foreign / "thesis.txt").exists()


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda t: (t / "sub" / "file").write_text("y"), "has other content"),
        (lambda t: (t / "sub" / "file").write_text("longer"), "has 6 bytes, not 1"),
        (lambda t: (t / "sub" / "file").unlink(), "is missing"),
        (lambda t: (t / "extra").write_text(""), "is not in the manifest"),
        (lambda t: (t / "manifest.json").write_text("{"), "is not JSON"),
        (lambda t: (t / "manifest.json").write_text("[]"), "is not a manifest"),
    ],
)
def test_artefact_verify_names_what_is_wrong(tmp_path, damage, problem):
    make(tmp_path / "t")
    damage(tmp_path / "t")
    with pytest.raises(VerifyError, match=problem):
        artefact.verify_files(tmp_path / "t")


def test_artefact_without_manifest_or_of_another_kind_is_refused(tmp_path):
    make(tmp_path / "t")
    with pytest.raises(DataError, match=r"holds tree, not shards\. claw export"):
        artefact.read_manifest(tmp_path / "t", kind="shards")
    (tmp_path / "t" / "manifest.json").unlink()
    with pytest.raises(DataError, match="no finished artefact"):
        artefact.read_manifest(tmp_path / "t")


def test_artefact_full_disk_is_one_sentence(tmp_path, monkeypatch):
    def full(path):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(artefact, "sync", full)
    with pytest.raises(StoreError, match="No space is left"):
        make(tmp_path / "t")
    assert list(tmp_path.iterdir()) == []


def test_manifest_is_json_that_others_read(tmp_path):
    make(tmp_path / "t")
    assert json.loads((tmp_path / "t" / "manifest.json").read_text())["claw_version"]
