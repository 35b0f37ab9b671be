import json
import shlex
import shutil

import pytest
from conftest import assistant, pair, tau, user, write_lines
from forget_data import rows

from clawcli.curate.run import CurateConfig
from clawcli.errors import DataError, NotFoundError
from clawcli.manage import commands
from clawcli.manage.forget import ForgetConfig, forget
from clawcli.manage.lineage import LineageConfig, lineage
from clawcli.store import artefact


def calls(name, count=2):
    return [
        pair([user(f"{name} {i}")], assistant(f"{name} a{i}"), uid=f"{name}{i}")
        for i in range(count)
    ]


@pytest.fixture
def chain(tmp_path, claw, monkeypatch):
    """Logs, data, a curated directory, a tree and shards, made by commands with odd names."""
    monkeypatch.chdir(tmp_path)
    write_lines(tmp_path / "a log.jsonl", calls("a"))
    write_lines(tmp_path / "b.jsonl", calls("b"))
    done = [
        claw("ingest", "a log.jsonl", "-o", "my data", "--no-redact"),
        claw("ingest", "b.jsonl", "-o", "my data", "--source-name", "$b"),
        claw("curate", "my data@1", "--where", "response <> 'it''s'", "-o", "kept"),
        claw("merge-prefixes", "kept", "--tokenizer", "tiny", "-o", "tree"),
        claw("export", "tree", "-o", "shards", "--seed", "3", "--set", "updates_per_phase=2"),
    ]
    assert [result.code for result in done] == [0] * 5, [result.err for result in done]
    return tmp_path


def ask(name):
    return lineage(LineageConfig(input=str(name)))


def by_path(report):
    return {source.path: source for source in report.sources}


def test_lineage_names_the_commands_from_the_logs_on(chain):
    report = ask("shards")
    words = [shlex.split(line) for line in report.commands]
    assert [line[1] for line in words] == ["ingest", "ingest", "curate", "merge-prefixes", "export"]
    assert words[0] == ["claw", "ingest", "a log.jsonl", "--no-redact", "-o", "my data"]
    assert words[1] == ["claw", "ingest", "b.jsonl", "--source-name", "$b", "-o", "my data"]
    assert words[2] == [
        "claw",
        "curate",
        "my data@1",
        "--where",
        "response <> 'it''s'",
        "-o",
        "kept",
    ]
    assert words[3][:3] == ["claw", "merge-prefixes", "kept@0"]
    assert {"--seed", "3", "updates_per_phase=2"} <= set(words[4])
    assert (report.kind, report.unknown) == ("shards", ())
    assert all(source.same for source in report.sources)
    assert [source.kind for source in report.sources] == ["log", "log", "data", "data", "tree"]


def test_lineage_commands_pasted_into_a_shell_make_the_same_again(chain, claw, monkeypatch):
    (chain / "again").mkdir()
    for log in ("a log.jsonl", "b.jsonl"):
        shutil.copy(chain / log, chain / "again")
    lines = claw("lineage", "shards").out.splitlines()
    monkeypatch.chdir(chain / "again")
    for line in lines:
        assert claw(*shlex.split(line)[1:]).code == 0
    assert rows(chain / "again" / "kept") == rows(chain / "kept")
    for name in ("tree", "shards"):
        made, before = (
            {entry["path"]: entry["blake2b"] for entry in artefact.read_manifest(p / name)["files"]}
            for p in (chain / "again", chain)
        )
        assert made == before


def test_lineage_prints_commands_on_stdout_and_the_rest_on_stderr(chain, claw):
    result = claw("lineage", "kept")
    assert result.code == 0
    assert [line.split()[1] for line in result.out.splitlines()] == ["ingest", "ingest", "curate"]
    assert "3 commands; 3 of 3 inputs are what they were." in result.err
    report = claw("lineage", "kept", "--json").report
    assert report["inputs"] == ["kept"]
    assert report["commands"] == result.out.splitlines()
    assert {source["path"] for source in report["sources"]} == {"a log.jsonl", "b.jsonl", "my data"}


def test_lineage_of_a_version_stops_there(chain):
    assert len(ask("my data").commands) == 2
    assert len(ask("my data@0").commands) == 1


def test_lineage_says_which_logs_are_gone_grew_or_changed(chain, claw):
    (chain / "b.jsonl").unlink()
    with (chain / "a log.jsonl").open("a") as file:
        file.write("more\n")
    found = by_path(ask("my data"))
    assert (found["b.jsonl"].exists, found["b.jsonl"].same) == (False, False)
    # what was consumed still stands
    assert found["a log.jsonl"].same
    write_lines(chain / "a log.jsonl", calls("z"))
    assert by_path(ask("my data"))["a log.jsonl"].same is False
    result = claw("lineage", "my data")
    assert "log a log.jsonl: has changed since." in result.err
    assert "log b.jsonl: is not there." in result.err


def test_lineage_ends_where_an_input_is_gone_or_another(chain):
    shutil.move(chain / "my data", chain / "moved")
    report = ask("tree")
    assert [line.split()[1] for line in report.commands] == ["curate", "merge-prefixes"]
    assert report.unknown == ("How my data@1 was made is not known from here: it is not there.",)
    assert by_path(report)["my data"].exists is False
    shutil.move(chain / "moved", chain / "my data")
    shutil.rmtree(chain / "kept")
    shutil.copytree(chain / "my data", chain / "kept")
    report = ask("tree")
    assert (by_path(report)["kept"].exists, by_path(report)["kept"].same) == (True, False)
    assert "was made anew since" in report.unknown[0]
    # a tree with another manifest
    manifest = json.loads((chain / "tree" / "manifest.json").read_text())
    (chain / "tree" / "manifest.json").write_text(json.dumps({**manifest, "note": 1}))
    report = ask("shards")
    assert (len(report.commands), by_path(report)["tree"].same) == (1, False)


def test_lineage_says_that_an_input_version_is_gone(chain):
    assert forget(ForgetConfig(input="my data", where="native_id = 'b0'")).steps == 1
    report = ask("kept")
    assert len(report.commands) == 1
    assert "it has let go of version 1; 2 is the newest" in report.unknown[0]
    report = ask("my data")
    assert len(report.commands) == 2
    assert "Steps of my data were forgotten" in report.unknown[0]
    assert forget(ForgetConfig(input="my data", where="native_id = 'b1'")).steps == 1
    report = ask("my data")
    assert [shlex.split(line)[2] for line in report.commands] == ["a log.jsonl"]
    assert "What was read into my data and forgotten is not named any more." in report.unknown


def test_lineage_says_that_a_sidecar_has_grown(tmp_path, claw, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.json").write_text(tau([("1", 0, 1.0, [user("u"), assistant("a")])]))
    for reward in (0.5, 0.7):
        write_lines(tmp_path / "r.jsonl", [{"task_id": "1", "trial": 0, "reward": reward}])
        claw("ingest", "t.json", "-o", "data", "--rewards", "r.jsonl")
        if reward == 0.5:
            claw("curate", "data", "--where", "true", "-o", "out")
    report = ask("out")
    assert any("rewards of data was at version 0 then and is at 1 now" in s for s in report.unknown)
    assert "--rewards r.jsonl" in report.commands[0]
    assert by_path(report)["r.jsonl"].kind == "file"


def test_lineage_of_what_does_not_say_is_refused(chain, claw):
    claw("export", "kept", "--as", "sft", "-o", "rows.jsonl")
    with pytest.raises(DataError, match="is a file, which does not say where it came from"):
        ask("rows.jsonl")
    with pytest.raises(NotFoundError, match="does not exist"):
        ask("nothing")
    (chain / "empty").mkdir()
    with pytest.raises(DataError, match="no finished artefact"):
        ask("empty")
    with pytest.raises(NotFoundError, match="has no version 9"):
        ask("my data@9")


def test_commands_hold_every_flag_of_curate_and_none_that_says_nothing():
    said = {"where": "reward > 0", "sample": "0.5", "seed": 0, "unit": "trajectory"}
    left = {"split": None, "split_by": "group_uid", "regroup": False, "where_timeout_s": 60.0}
    assert commands.write("curate", ["d@1"], "o", {**said, **left}) == (
        "claw curate d@1 --where 'reward > 0' --sample 0.5 --seed 0 --unit trajectory -o o"
    )
    settings = set(CurateConfig.__dataclass_fields__)
    assert settings - {"input", "output", "force", "dry_run", "where_timeout_s"} == set(
        commands.FLAGS["curate"]
    )


def test_lineage_names_what_was_attached_and_rebuilds_with_it(tmp_path, claw, monkeypatch):
    monkeypatch.chdir(tmp_path)
    records = [pair([user(f"u{n}")], assistant(f"a{n}"), uid=str(n)) for n in range(4)]
    log = write_lines(tmp_path / "log.jsonl", records)
    for number, name in enumerate(("first.jsonl", "second.jsonl")):
        said = [
            {"native_id": str(n), "score": float(n + number), f"x{number}": n} for n in range(4)
        ]
        write_lines(tmp_path / name, said)
    steps = [
        ["ingest", "log.jsonl", "-o", "data"],
        ["attach", "data", "first.jsonl", "--name", "judge"],
        ["attach", "data", "second.jsonl", "--name", "judge"],
        ["curate", "data", "--where", "judge.score > 2", "-o", "kept"],
        ["merge-prefixes", "data", "--tokenizer", "tiny", "-o", "tree"],
        ["export", "tree", "--reward-expr", "judge.score", "-o", "shards"],
    ]
    for step in steps:
        assert claw(*step).code == 0
    assert [line.split()[1] for line in ask("kept").commands] == [
        *("ingest", "attach", "attach", "curate")
    ]
    again = ask("shards").commands
    assert [shlex.split(line)[1] for line in again] == [
        *("ingest", "attach", "attach", "merge-prefixes", "export")
    ]
    (tmp_path / "again").mkdir()
    for name in (log.name, "first.jsonl", "second.jsonl"):
        shutil.copy(tmp_path / name, tmp_path / "again")
    lines = [*ask("kept").commands, *again]
    monkeypatch.chdir(tmp_path / "again")
    for line in dict.fromkeys(lines):
        assert claw(*shlex.split(line)[1:]).code == 0
    assert rows(tmp_path / "again" / "kept") == rows(tmp_path / "kept")
    manifests = [
        json.loads((place / "shards" / "manifest.json").read_text())["files"]
        for place in (tmp_path, tmp_path / "again")
    ]
    assert manifests[0] == manifests[1]
