import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import assistant, pair, user, write_lines

from clawcli.errors import (
    DataError,
    NotFoundError,
    OutputExistsError,
    StoreError,
    UsageError,
    VerifyError,
)
from clawcli.ingest.run import IngestConfig, ingest
from clawcli.store import artefact, swap


def make(output, *, kind="tree", force=False, content="x"):
    with artefact.create(output, kind=kind, force=force, config={}, inputs=[]) as draft:
        (draft.path / "file").write_text(content)
    return output


def content(path):
    return (path / "file").read_text()


def names(place):
    return sorted(path.name for path in place.iterdir())


@pytest.fixture
def dead():
    """Number of a process that is gone."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


@pytest.mark.parametrize("kind", ["shards", "run"])
def test_create_another_kind_is_not_replaced_by_force(tmp_path, kind):
    make(tmp_path / "t")
    with pytest.raises(OutputExistsError, match="was not written by this verb"):
        make(tmp_path / "t", kind=kind, force=True, content="new")
    assert content(tmp_path / "t") == "x"


def test_create_damaged_artefact_of_the_kind_is_replaced_by_force(tmp_path):
    path = make(tmp_path / "t")
    (path / "file").unlink()
    make(path, force=True, content="new")
    assert content(path) == "new"


@pytest.mark.parametrize(
    "manifest", ["", "{", "[]", '{"kind": "tree", "files": []}', "[" * 100_000]
)
def test_create_foreign_manifest_is_not_replaced_by_force(tmp_path, manifest):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "manifest.json").write_text(manifest)
    with pytest.raises(OutputExistsError, match="was not written by this verb"):
        make(tmp_path / "site", force=True)
    assert (tmp_path / "site" / "manifest.json").read_text() == manifest


@pytest.mark.parametrize(
    ("output", "relation"),
    [
        ("in", "is"),
        ("x/../in", "is"),
        ("link", "is"),
        ("in/deep", "lies inside"),
        ("link/new/deep", "lies inside"),
        (".", "contains"),
    ],
)
def test_check_apart_output_that_touches_an_input_is_refused(tmp_path, output, relation):
    (tmp_path / "in" / "deep").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "in")
    with pytest.raises(UsageError, match=rf"{relation} the input .*in\."):
        artefact.check_apart(tmp_path / output, [tmp_path / "other", tmp_path / "in"])


def test_check_apart_neighbours_and_missing_inputs_pass(tmp_path):
    (tmp_path / "in").mkdir()
    artefact.check_apart(tmp_path / "in2", [tmp_path / "in", tmp_path / "in2"])
    artefact.check_apart(tmp_path / "i", [tmp_path / "in"])


@pytest.mark.parametrize("output", ["t/sub", "t/new/sub", "link"])
def test_create_inside_an_artefact_is_refused(tmp_path, output):
    make(tmp_path / "t")
    (tmp_path / "link").symlink_to(tmp_path / "t" / "sub")
    with pytest.raises(UsageError, match="lies inside the artefact"):
        make(tmp_path / output, force=True)
    assert names(tmp_path / "t") == ["file", "manifest.json"]


def test_check_free_dash_is_no_place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="is standard output"):
        make(Path("-"))
    assert names(tmp_path) == []


def test_create_over_a_link_writes_what_it_points_to(tmp_path):
    (tmp_path / "disk").mkdir()
    make(tmp_path / "disk" / "t")
    (tmp_path / "link").symlink_to(tmp_path / "disk" / "t")
    make(tmp_path / "link", force=True, content="new")
    assert (tmp_path / "link").is_symlink()
    assert content(tmp_path / "disk" / "t") == "new"
    assert names(tmp_path) == ["disk", "link"]
    assert names(tmp_path / "disk") == ["t"]


def test_create_over_a_link_to_nothing_makes_what_it_points_to(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "t")
    make(tmp_path / "link")
    assert content(tmp_path / "t") == "x"
    assert (tmp_path / "link").is_symlink()


@pytest.mark.parametrize("output", ["file/t", "loop", "n" * 300])
def test_create_at_an_impossible_place_is_one_sentence(tmp_path, output):
    (tmp_path / "file").write_text("")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(StoreError, match="cannot be written"):
        make(tmp_path / output)
    assert names(tmp_path) == ["file", "loop"]


def test_remove_unlinks_a_link_and_keeps_its_target(tmp_path):
    make(tmp_path / "t")
    (tmp_path / "link").symlink_to(tmp_path / "t")
    swap.remove(tmp_path / "link")
    assert names(tmp_path) == ["t"]
    assert content(tmp_path / "t") == "x"


def test_swap_that_fails_puts_the_old_one_back(tmp_path):
    make(tmp_path / "t")
    with pytest.raises(FileNotFoundError):
        swap.swap(tmp_path / ".t.1-00000000.tmp", tmp_path / "t")
    assert names(tmp_path) == ["t"]
    assert content(tmp_path / "t") == "x"


def test_create_clears_what_a_killed_process_left(tmp_path):
    program = (
        "import sys, time; from pathlib import Path; from clawcli.store import artefact\n"
        "path = Path(sys.argv[1])\n"
        "with artefact.create(path, kind='tree', force=False, config={}, inputs=[]) as draft:\n"
        "    (draft.path / 'file').write_text('half')\n"
        "    print('ready', flush=True); time.sleep(50)\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "t")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        make(tmp_path / "u")
        (left,) = set(names(tmp_path)) - {"u"}  # it is still at work, and on another output
        assert left.startswith(f".t.{process.pid}-")
        make(tmp_path / "t")
        assert left in names(tmp_path)
        process.send_signal(signal.SIGKILL)
    make(tmp_path / "t", force=True)
    assert names(tmp_path) == ["t", "u"]


def test_create_clears_old_ones_of_the_dead_only(tmp_path, dead):
    for name in (
        f".t.{dead}-0123abcd.old",
        f".t.{dead}-0123abcd.tmp",
        f".t.{10**12}-0123abcd.tmp",
        f".t.{os.getpid()}-0123abcd.tmp",
        f".tt.{dead}-0123abcd.tmp",
        f".t.{dead}-mine.tmp",
    ):
        (tmp_path / name).mkdir()
    make(tmp_path / "t", force=True)
    assert names(tmp_path) == sorted(
        [f".t.{os.getpid()}-0123abcd.tmp", f".tt.{dead}-0123abcd.tmp", f".t.{dead}-mine.tmp", "t"]
    )


def test_check_free_restores_what_was_killed_between_two_renames(tmp_path, dead):
    make(tmp_path / "t").rename(tmp_path / f".t.{dead}-0123abcd.old")
    (tmp_path / f".t.{dead}-0123abcd.tmp").mkdir()
    with pytest.raises(OutputExistsError, match="exists already"):
        make(tmp_path / "t")
    assert content(tmp_path / "t") == "x"
    make(tmp_path / "t", force=True, content="new")
    assert names(tmp_path) == ["t"]


def test_check_free_leaves_what_a_running_process_moved_aside(tmp_path):
    aside = tmp_path / f".t.{os.getppid()}-0123abcd.old"
    make(tmp_path / "t").rename(aside)
    artefact.check_free(tmp_path / "t", force=False, ours=artefact.is_artefact)
    assert names(tmp_path) == [aside.name]


@pytest.fixture
def data(tmp_path):
    source = write_lines(tmp_path / "a.jsonl", [pair([user("hi")], assistant("yes"), uid="1")])
    ingest(IngestConfig(inputs=(str(source),), output=str(tmp_path / "data")))
    return tmp_path / "data"


@pytest.mark.parametrize(
    ("kind", "advice"),
    [("tree", "--as sft for rows"), ("shards", "claw export shards"), (None, "Name a tree")],
)
def test_read_manifest_data_directory_is_told_as_one(data, kind, advice):
    message = rf"^{re.escape(str(data))} is a data directory\. .*{advice}"
    with pytest.raises(DataError, match=message):
        artefact.read_manifest(data, kind=kind)


def test_read_manifest_tells_file_missing_and_directory_apart(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "odd" / "manifest.json").mkdir(parents=True)
    with pytest.raises(DataError, match="file is not a directory"):
        artefact.read_manifest(tmp_path / "file")
    with pytest.raises(NotFoundError, match="does not exist"):
        artefact.read_manifest(tmp_path / "none")
    with pytest.raises(VerifyError, match=r"manifest\.json is a directory"):
        artefact.read_manifest(tmp_path / "odd")


@pytest.mark.slow  # the first of them imports torch
@pytest.mark.parametrize(
    ("output", "relation"), [("s", "is the"), ("s/run", "lies inside"), (".", "contains")]
)
@pytest.mark.parametrize("argument", ["shards", "model"])
def test_train_output_that_touches_an_input_is_refused(tmp_path, output, relation, argument):
    pytest.importorskip("torch")
    from clawcli.train.config import TrainConfig
    from clawcli.train.run import train

    make(tmp_path / "s", kind="run")
    inputs = {"shards": tmp_path / "other", "model": "tiny", argument: tmp_path / "s"}
    with pytest.raises(UsageError, match=f"{relation} (the )?input"):
        train(
            TrainConfig(
                output=str(tmp_path / output),
                objective="sft",
                force=True,
                **{name: str(value) for name, value in inputs.items()},
            )
        )
    assert content(tmp_path / "s") == "x"
