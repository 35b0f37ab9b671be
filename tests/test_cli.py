"""Guards of the command line: help, flags, docs, exit codes, streams."""

import json
import shlex
import signal
import subprocess
import sys
import time

import pytest
from conftest import ROOT, SAMPLE, assistant, pair, user, write_lines

from clawcli import errors
from clawcli.cli import docs
from clawcli.cli.app import VERBS

INGEST = ("ingest", "{tmp}/a.jsonl", "-o", "{tmp}/x")
HEAVY = ("torch", "transformers", "polars", "duckdb", "pyarrow", "deltalake", "numpy")


def python(code, **options):
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, **options
    )


def loaded(arguments):
    """Heavy modules that a command line loads, in a process of its own."""
    code = (
        "import sys\nfrom clawcli.cli.app import run\n"
        f"code = run({arguments!r})\n"
        f"print('LOADED', code, *[m for m in {HEAVY!r} if m in sys.modules])"
    )
    done = python(code)
    line = next(line for line in done.stdout.splitlines() if line.startswith("LOADED"))
    code, *modules = line.split()[1:]
    return int(code), set(modules)


@pytest.mark.parametrize("arguments", [["--help"], ["curate", "--help"], ["--version"], ["no"]])
def test_help_and_usage_errors_load_nothing_heavy(arguments):
    code, modules = loaded(arguments)
    assert modules == set()
    assert code == (2 if arguments == ["no"] else 0)


def test_ingest_and_curate_load_no_torch_and_no_transformers(tmp_path):
    source = write_lines(tmp_path / "a.jsonl", [pair([user("u")], assistant("a"), uid="1")])
    data = str(tmp_path / "d")
    for arguments in (
        ["ingest", str(source), "-o", data],
        ["curate", data, "--where", "true", "-o", str(tmp_path / "c")],
        ["export", data, "--as", "sft", "-o", str(tmp_path / "s.jsonl")],
    ):
        code, modules = loaded(arguments)
        assert code == 0
        assert modules.isdisjoint({"torch", "transformers", "polars"})


def test_flags_are_those_of_the_golden_file():
    golden = (ROOT / "tests" / "golden" / "flags.txt").read_text().splitlines()
    assert docs.flags() == golden, "run `make docs` and review the difference"


@pytest.mark.parametrize("name", ["cli.md", "step-table.md"])
def test_docs_equal_what_the_code_generates(name):
    assert (ROOT / "docs" / name).read_text() == docs.pages()[name], "run `make docs`"


def test_every_verb_has_help_and_an_example():
    helps = dict(docs.helps())
    assert len(helps) == len(VERBS) + 1
    for name, text in helps.items():
        if name != "claw":
            assert "Example" in text
            assert text.splitlines()[2].strip()


def examples():
    for name, text in docs.helps():
        if name != "claw":
            for line in text[text.index("  Example") :].splitlines():
                if "claw " in line:
                    yield line[line.index("claw ") :].strip()


def test_examples_of_all_verbs_run_in_order(tmp_path, claw, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sample_data").symlink_to(SAMPLE)
    lines = list(examples())
    order = [
        *("ingest", "readiness", "attach", "curate", "merge-prefixes", "show", "verify", "export"),
        *("train", "log", "tag", "diff", "restore", "optimize", "lineage", "forget"),
    ]
    lines.sort(key=lambda line: order.index(shlex.split(line)[1]))
    assert {shlex.split(line)[1] for line in lines} == set(order)
    for line in lines:
        verb, *rest = shlex.split(line)[1:]
        result = claw(verb, *rest)
        assert result.code == 0, (line, result.err)
        # what was asked for is on stdout, how it went on stderr
        assert bool(result.out) == (verb in ("log", "diff", "lineage", "show"))
        assert bool(result.err) == (verb not in ("log", "diff", "show"))


def test_every_error_class_has_an_exit_code_and_a_slug():
    classes = [c for c in vars(errors).values() if isinstance(c, type)]
    slugs = [c.code for c in classes if issubclass(c, errors.ClawError)]
    assert len(set(slugs)) == len(slugs)
    codes = {c.exit_code for c in classes if issubclass(c, errors.ClawError)}
    assert codes == {1, 2, 3, 4, 5, 6}


def test_errors_survive_the_way_between_processes():
    import pickle

    error = errors.WhereError("wrong", "do this", "here")
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.where, type(again)) == ("wrong do this", "here", errors.WhereError)


@pytest.fixture
def data(tmp_path, claw):
    records = [
        pair([user(f"u{i}")], assistant(f"a{i}"), uid=str(i), at=float(i), reward=float(i % 2))
        for i in range(4)
    ]
    source = write_lines(tmp_path / "a.jsonl", records)
    assert claw("ingest", source, "-o", tmp_path / "d", "-q").code == 0
    return tmp_path / "d"


def test_transforming_verb_leaves_stdout_empty_and_says_how_it_went(tmp_path, data, claw):
    result = claw("curate", data, "--where", "reward > 0", "-o", tmp_path / "c")
    assert (result.code, result.out) == (0, "")
    assert "Kept 2 of 4 steps" in result.err


@pytest.mark.parametrize("arguments", [[], ["curate"]])
def test_nothing_asked_for_shows_the_help(claw, arguments):
    result = claw(*arguments)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("Usage: claw")


def test_quiet_says_nothing(tmp_path, data, claw):
    result = claw("curate", data, "--where", "reward > 0", "-o", tmp_path / "c", "-q")
    assert (result.code, result.out, result.err) == (0, "", "")


@pytest.mark.parametrize(
    ("arguments", "keys"),
    [
        (
            ["ingest", "{tmp}/a.jsonl", "-o", "{tmp}/d"],
            "files_read files_unchanged bytes_read records records_by_fate steps steps_changed "
            "steps_total trajectories trajectories_total trajectories_empty rejects "
            "rejects_by_reason warnings_by_code steps_by_format table_version",
        ),
        (
            ["curate", "{tmp}/d", "--where", "true", "-o", "{tmp}/c"],
            "steps_in steps_kept steps_context steps_null steps_dropped_by_clause "
            "trajectories_kept groups_kept table_version",
        ),
        (
            ["merge-prefixes", "{tmp}/d", "--tokenizer", "tiny", "-o", "{tmp}/t"],
            "steps steps_excluded_by_reason logical_tokens chain_tokens unique_tokens "
            "predicted_speedup roots leaves links links_unbroken prefix_breaks_by_cause",
        ),
    ],
)
def test_json_report_has_the_keys_of_the_contract(tmp_path, data, claw, arguments, keys):
    result = claw(*[a.format(tmp=tmp_path) for a in arguments], "--json")
    assert (result.code, result.err) == (0, "")
    report = result.report
    assert list(report)[:4] == ["claw_version", "command", "inputs", "output"]
    assert list(report)[-1] == "duration_s"
    assert set(keys.split()) <= set(report)


def test_json_error_is_one_object_on_stderr(tmp_path, data, claw):
    result = claw("curate", data, "--where", "rewardd > 0", "-o", tmp_path / "c", "--json")
    assert (result.code, result.out) == (2, "")
    assert result.error["code"] == "where"
    assert "Candidates: reward" in result.error["message"]


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["ingest", "{tmp}/no.jsonl", "-o", "{tmp}/x"], 4, "no.jsonl does not exist"),
        (["ingest", "{tmp}/bad.jsonl", "-o", "{tmp}/x"], 3, "is in no known log format"),
        (["ingest", "{tmp}/empty.jsonl", "-o", "{tmp}/x"], 0, "is empty"),
        (["curate", "{tmp}/d", "--where", "true", "-o", "{tmp}/d2"], 4, "exists already"),
        (["curate", "{tmp}/d", "--where", "reward", "-o", "{tmp}/x"], 2, "not BOOLEAN"),
        (["curate", "{tmp}/d", "-o", "{tmp}/x"], 2, "--where"),
        (["curate", "{tmp}/d@9", "--where", "true", "-o", "{tmp}/x"], 4, "has no version 9"),
        (["curate", "{tmp}", "--where", "true", "-o", "{tmp}/x"], 3, "is not a data directory"),
        (["export", "{tmp}/d", "--as", "kto", "-o", "{tmp}/x"], 2, "kto"),
        (["export", "{tmp}/d", "--rows", "step", "-o", "{tmp}/x"], 2, "--rows goes with --as"),
        (["export", "{tmp}/d", "--as", "sft", "--seed", "1", "-o", "{tmp}/x"], 2, "--seed"),
        (["export", "{tmp}/d", "-o", "{tmp}/x"], 3, "is a data directory. Add --as sft"),
        (["export", "{tmp}/no", "-o", "{tmp}/x"], 4, "does not exist"),
        (["verify", "{tmp}/no"], 4, "does not exist"),
        (["merge-prefixes", "{tmp}/d", "--tokenizer", "no/such", "-o", "{tmp}/x"], 4, "no/such"),
        (
            [
                "merge-prefixes",
                "{tmp}/d",
                "--tokenizer",
                "tiny",
                "-o",
                "{tmp}/x",
                "--template-kwargs",
                "{{",
            ],
            2,
            "is not JSON",
        ),
        (
            ["curate", "{tmp}/d", "--where", "true", "-o", "{tmp}/x", "--set", "outputs=1"],
            2,
            "output?",
        ),
        (["curate", "{tmp}/d", "--where", "true", "-o", "{tmp}/x", "--config", "no.toml"], 4, ""),
        (["curate", "{tmp}/d", "--where", "true", "-o", "{tmp}/x", "--config", "{tmp}"], 2, "read"),
        (["curate", "{tmp}/d", "--where", "true \udcff", "-o", "{tmp}/x"], 2, "true"),
        (["curate", "{tmp}/d", "--where", "true", "-o", "{tmp}/a.jsonl/x"], 4, "a.jsonl"),
        (["ingest", "{tmp}/a.jsonl", "-o", "{tmp}/a.jsonl/x"], 4, "a.jsonl"),
        (["ingest", "{tmp}/a.jsonl", "-o", "{tmp}/d@5"], 2, "names a version"),
        ([*INGEST, "--map", "mesages=a"], 2, "Did you mean messages?"),
        ([*INGEST, "--set", "map.mesages=a"], 2, "Did you mean messages?"),
        ([*INGEST, "--map", "messages"], 2, "--map messages is no COLUMN=PATH."),
        ([*INGEST, "--map", "=a"], 2, "--map =a is no COLUMN=PATH."),
        ([*INGEST, "--map", "messages=a", "--map", "messages=b"], 2, "is given twice"),
        ([*INGEST, "--format", "opneai_chat"], 2, "Did you mean openai_chat?"),
        ([*INGEST, "--format", "{tmp}/no.py"], 2, "no.py: there is no such file"),
        ([*INGEST, "--on", "native_id=id"], 2, "Give --rewards."),
        ([*INGEST, "--rewards", "{tmp}/a.jsonl", "--on", "foo=id"], 2, "cannot be joined on foo"),
        ([*INGEST, "--rewards", "{tmp}/no.csv"], 4, "no.csv does not exist"),
        ([*INGEST, "--system", "{tmp}/no.txt"], 4, "no.txt does not exist"),
        ([*INGEST, "--tools", "{tmp}/c.csv"], 2, "is not JSON"),
        ([*INGEST, "--since", "yesterday"], 2, "'yesterday' is no time"),
        ([*INGEST, "--workers", "0"], 2, "greater than or equal to 1. claw --help"),
        ([*INGEST, "--redact-rules", "{tmp}/no.toml"], 4, "no.toml cannot be read"),
        ([*INGEST, "--no-redact", "--redact-with", "cat"], 2, "--no-redact leaves nothing"),
        (["export", "{tmp}/d", "--as", "sft", "-o", "{tmp}/d/x"], 2, "{tmp}/d"),
        (["train", "{tmp}/d", "--model", "tiny", "-o", "{tmp}/x"], 2, "--objective is missing"),
        (["train", "{tmp}/d", "--model", "tiny", "--objective", "dpo", "-o", "{tmp}/x"], 2, "ppo"),
        (["frobnicate"], 2, "frobnicate"),
        (["curate", "{tmp}/d", "--frob"], 2, "--frob"),
    ],
)
def test_bad_input_is_one_sentence_and_the_right_exit_code(
    tmp_path, data, claw, arguments, code, sentence
):
    write_lines(tmp_path / "bad.jsonl", [{"obs": 1}])
    (tmp_path / "empty.jsonl").touch()
    (tmp_path / "c.csv").write_text("a,b\n")
    (tmp_path / "d2").mkdir()
    result = claw(*[a.format(tmp=tmp_path) for a in arguments])
    assert result.code == code, result.err
    assert sentence.format(tmp=tmp_path) in result.err
    assert "Traceback" not in result.err
    assert (tmp_path / "x").exists() == (code == 0)


def test_partly_unreadable_input_commits_the_rest_and_exits_3(tmp_path, claw):
    good = write_lines(tmp_path / "a.jsonl", [pair([user("u")], assistant("a"), uid="1")])
    bad = write_lines(tmp_path / "b.jsonl", [{"obs": 1}])
    result = claw("ingest", good, bad, "-o", tmp_path / "d", "--json")
    assert result.code == 3
    assert result.report["steps_total"] == 1
    assert "b.jsonl" in result.error["message"]


def test_set_beats_config_file_and_flag_beats_both(tmp_path, data, claw):
    (tmp_path / "c.toml").write_text('where = "reward > 5"\nwhere_timeout_s = 7\n')
    result = claw(
        *["curate", data, "--where", "reward > 0", "-o", tmp_path / "c", "--json"],
        *["--config", tmp_path / "c.toml", "--set", "where_timeout_s=9"],
    )
    assert result.report["steps_kept"] == 2
    from clawcli.store import table

    (info,) = table.history(tmp_path / "c" / "steps")
    assert (info["config"]["where"], info["config"]["where_timeout_s"]) == ("reward > 0", 9)


def test_rows_on_stdout_are_only_rows(data, claw):
    result = claw("export", data, "--as", "sft", "-o", "-")
    assert result.code == 0
    assert [json.loads(line)["completion"][0]["content"] for line in result.out.splitlines()]
    both = claw("export", data, "--as", "sft", "-o", "-", "--json")
    assert both.code == 2


def test_hostile_text_never_reaches_the_terminal_raw(tmp_path, claw):
    name = "\x1b[31mred\x1b[0m.jsonl"
    path = write_lines(tmp_path / name, [{"obs": 1}])
    result = claw("ingest", path, "-o", tmp_path / "x")
    assert result.code == 3
    assert "\x1b" not in result.err
    assert "\\x1b[31mred" in result.err


def claw_process(*arguments, **options):
    code = "from clawcli.cli.app import main; main()"
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        **options,
    )


def test_stdin_is_an_input(tmp_path):
    line = json.dumps(pair([user("u")], assistant("a"), uid="1")) + "\n"
    process = claw_process("ingest", "-", "-o", tmp_path / "d", "--json")
    out, _ = process.communicate(line.encode(), timeout=60)
    assert process.returncode == 0
    assert json.loads(out)["steps"] == 1


def test_closed_pipe_ends_quietly(tmp_path, claw):
    many = [
        pair([user("u" * 500 + str(i))], assistant("a"), uid=str(i), at=float(i))
        for i in range(1000)
    ]
    data = tmp_path / "many"
    claw("ingest", write_lines(tmp_path / "m.jsonl", many), "-o", data, "-q")
    with claw_process("export", data, "--as", "sft", "-o", "-") as process:
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == -signal.SIGPIPE


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_end_with_their_exit_code_and_leave_nothing(tmp_path, data, number, code):
    endless = "(select count(*) from range(100000000000)) > 0"
    process = claw_process("curate", data, "--where", endless, "-o", tmp_path / "c", "-v")
    assert b"Evaluating" in process.stderr.readline()
    time.sleep(0.5)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == code, err
    assert b"Traceback" not in err
    assert not (tmp_path / "c").exists()
    assert not list(tmp_path.glob(".c*"))
