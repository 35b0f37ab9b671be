import io
import json

import pytest
from conftest import assistant, pair, system, tool, user, write_lines

from clawcli.curate.run import CurateConfig, curate
from clawcli.errors import DataError, OutputExistsError, UsageError
from clawcli.export.run import ExportRowsConfig, RowUnit, export_rows
from clawcli.ingest.run import IngestConfig, ingest

TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
CALL = assistant("look", calls=[("c1", "f", '{"x":  1}')])
START = [system("s"), user("u")]
MORE = [*START, CALL, tool("r", "c1")]


def records():
    thinking = assistant("done", reasoning_content="because")
    return [
        pair(START, CALL, at=1.0, uid="0", tools=TOOLS),
        pair(MORE, thinking, at=2.0, uid="1", tools=TOOLS, reward=1.0),
    ]


def data(tmp_path, lines):
    path = write_lines(tmp_path / "a.jsonl", lines)
    ingest(IngestConfig(inputs=(str(path),), output=str(tmp_path / "data")))
    return tmp_path / "data"


def run(source, output, **options):
    return export_rows(ExportRowsConfig(input=str(source), output=str(output), **options))


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_export_sft_rows_have_trls_prompt_completion_form(tmp_path):
    report = run(data(tmp_path, records()), tmp_path / "o.jsonl")
    assert (report.rows, report.steps) == (2, 2)
    first, second = read(tmp_path / "o.jsonl")
    assert list(first) == ["prompt", "completion", "tools", "step_uid"]
    assert first["prompt"] == START
    assert first["completion"] == [CALL]
    assert first["tools"] == TOOLS
    assert second["prompt"] == MORE
    assert second["completion"] == [assistant("done", reasoning_content="because")]
    assert len({first["step_uid"], second["step_uid"]}) == 2


def test_export_sft_leaves_context_out_and_counts_it(tmp_path):
    source = data(tmp_path, records())
    curate(CurateConfig(input=str(source), output=str(tmp_path / "c"), where="reward = 1"))
    report = run(tmp_path / "c", tmp_path / "o.jsonl")
    assert (report.rows, report.steps_left_out_by_reason) == (1, {"weight_zero": 1})
    assert read(tmp_path / "o.jsonl")[0]["prompt"] == MORE


def test_export_sft_trajectory_rows_hold_all_messages(tmp_path):
    run(data(tmp_path, records()), tmp_path / "o.jsonl", rows=RowUnit.TRAJECTORY)
    (row,) = read(tmp_path / "o.jsonl")
    assert list(row) == ["messages", "tools", "step_uids"]
    assert row["messages"] == [*MORE, assistant("done", reasoning_content="because")]
    assert (row["tools"], len(row["step_uids"])) == (TOOLS, 2)


def test_export_trajectory_with_weight_0_inside_is_refused(tmp_path):
    source = data(tmp_path, records())
    curate(CurateConfig(input=str(source), output=str(tmp_path / "c"), where="reward = 1"))
    with pytest.raises(DataError, match=r"the others have weight 0.*--rows step"):
        run(tmp_path / "c", tmp_path / "o.jsonl", rows=RowUnit.TRAJECTORY)
    assert not (tmp_path / "o.jsonl").exists()


def test_export_trajectory_with_an_example_in_the_prompt_is_refused(tmp_path):
    start = [user("example"), assistant("shown, not said"), user("u")]
    source = data(tmp_path, [pair(start, assistant("a"), at=1.0, uid="0")])
    with pytest.raises(DataError, match="shows 2 assistant messages"):
        run(source, tmp_path / "o.jsonl", rows=RowUnit.TRAJECTORY)


def test_export_trajectory_whose_history_was_edited_is_refused(tmp_path):
    first, second = records()
    second["request"]["messages"] = [*START, assistant("edited"), user("v")]
    source = data(tmp_path, [first, second])
    with pytest.raises(DataError, match="does not show what the model saw at step"):
        run(source, tmp_path / "o.jsonl", rows=RowUnit.TRAJECTORY)


def test_export_trajectory_whose_history_lost_a_step_is_refused(tmp_path):
    said = assistant("again")
    records = [
        pair([user("u1")], said, at=1.0, uid="0"),
        pair([user("u1"), said, user("v")], assistant("x"), at=2.0, uid="1"),
        # a condenser dropped the first exchange
        pair([user("sum"), assistant("x"), user("w")], assistant("y"), at=3.0, uid="2"),
    ]
    source = data(tmp_path, records)
    with pytest.raises(DataError, match="does not show what the model saw at step"):
        run(source, tmp_path / "o.jsonl", rows=RowUnit.TRAJECTORY)


def test_export_trajectory_whose_observation_was_masked_later_is_refused(tmp_path):
    first, second = records()
    again = pair(
        [*START, CALL, tool("[masked]", "c1"), assistant("done"), user("v")],
        assistant("x"),
        at=3.0,
        uid="2",
        tools=TOOLS,
    )
    second["response"]["choices"][0]["message"] = assistant("done")
    source = data(tmp_path, [first, second, again])
    with pytest.raises(DataError, match="does not show what the model saw at step"):
        run(source, tmp_path / "o.jsonl", rows=RowUnit.TRAJECTORY)


def test_export_trajectory_that_is_refused_prints_no_row(tmp_path):
    other = [user("another"), assistant("b")]
    bad = [user("example"), assistant("shown"), user("u")]
    source = data(
        tmp_path,
        [pair(other[:1], other[1], at=1.0, uid="0"), pair(bad, assistant("a"), at=2.0, uid="1")],
    )
    out = io.StringIO()
    with pytest.raises(DataError):
        export_rows(ExportRowsConfig(input=str(source), output="-", rows=RowUnit.TRAJECTORY), out)
    assert out.getvalue() == ""


def test_export_to_stdout_writes_rows_there(tmp_path):
    out = io.StringIO()
    source = data(tmp_path, records())
    export_rows(ExportRowsConfig(input=str(source), output="-"), out)
    assert len(out.getvalue().splitlines()) == 2


def test_export_existing_file_needs_force(tmp_path):
    source = data(tmp_path, records())
    run(source, tmp_path / "o.jsonl")
    with pytest.raises(OutputExistsError):
        run(source, tmp_path / "o.jsonl")
    assert run(source, tmp_path / "o.jsonl", force=True).rows == 2


def test_export_force_replaces_only_what_export_wrote(tmp_path):
    source = data(tmp_path, records())
    (tmp_path / "thesis.txt").write_text("years of work\n")
    with pytest.raises(OutputExistsError, match="was not written by this verb"):
        run(source, tmp_path / "thesis.txt", force=True)
    assert (tmp_path / "thesis.txt").read_text() == "years of work\n"


def test_export_to_closed_stdout_is_a_usage_error(tmp_path):
    with pytest.raises(UsageError, match="Standard output is closed"):
        export_rows(ExportRowsConfig(input=str(data(tmp_path, records())), output="-"), None)


def test_export_dry_run_counts_and_writes_nothing(tmp_path):
    assert run(data(tmp_path, records()), tmp_path / "o.jsonl", dry_run=True).rows == 2
    assert not (tmp_path / "o.jsonl").exists()


def test_export_tools_that_were_not_logged_are_null(tmp_path):
    source = data(tmp_path, [{"messages": [user("u"), assistant("a")]}])
    run(source, tmp_path / "o.jsonl")
    assert read(tmp_path / "o.jsonl")[0]["tools"] is None
