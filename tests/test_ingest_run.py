import gzip
import json
import shutil
import subprocess
import sys

import pytest
from conftest import assistant, pair, shared, system, tau, tool, user, write_lines

from clawcli import schema
from clawcli.curate.run import CurateConfig, curate
from clawcli.errors import DataError, LogFormatError, StoreError, UsageError
from clawcli.ingest import reading, rounds
from clawcli.ingest import run as ingest_run
from clawcli.ingest.report import FATES
from clawcli.ingest.run import IngestConfig, ingest
from clawcli.store import location, query, sidecars, table


def run(output, *files, **options):
    return ingest(IngestConfig(inputs=tuple(str(f) for f in files), output=str(output), **options))


def rows(output):
    return table.read(location.parse(str(output))).to_pylist()


def rejects(output):
    return table.read(location.parse(str(output)), "rejects").to_pylist()


ATTEMPT = [
    system("s"),
    user("u"),
    assistant("", calls=[("c1", "f", '{"x": 1}')]),
    tool("r"),
    assistant("done"),
    user("###STOP###"),
]


def test_ingest_tau_array_makes_one_trajectory_per_attempt(tmp_path):
    path = tmp_path / "t.json"
    path.write_text(tau([(1, 0, 1.0, ATTEMPT), (1, 1, 0.0, ATTEMPT), (2, 0, 0.0, ATTEMPT)]))
    report = run(tmp_path / "d", path)
    assert (report.steps, report.trajectories, report.rejects) == (6, 3, 0)
    steps = rows(tmp_path / "d")
    assert len({row["group_uid"] for row in steps}) == 2
    last = [row for row in steps if row["is_last"]]
    assert [m["content"] for m in last[0]["final_observation"]] == ["###STOP###"]
    assert [row["reward"] for row in last] == [1.0, 0.0, 0.0]
    assert {row["trajectory_reward"] for row in steps} == {1.0, 0.0}
    assert all(row["reward"] is None for row in steps if not row["is_last"])
    assert {row["state_kind"] for row in steps} == {"partial"}
    assert {row["finish_reason"] for row in steps} == {"unknown"}


def test_ingest_tau_empty_attempt_is_rejected_and_keeps_its_reward(tmp_path):
    path = tmp_path / "t.json"
    path.write_text(tau([(1, 0, 1.0, ATTEMPT), (1, 1, 0.5, []), (1, 2, 0.0, ATTEMPT[:2])]))
    report = run(tmp_path / "d", path)
    assert (report.rejects_by_reason, report.trajectories_empty) == ({"empty_trajectory": 2}, 2)
    kept = [(row["task_id"], row["trial"], row["reward"]) for row in rejects(tmp_path / "d")]
    assert kept == [("1", 1, 0.5), ("1", 2, 0.0)]


def test_ingest_tau_reward_nan_is_null_with_a_warning(tmp_path):
    path = tmp_path / "t.json"
    path.write_text(tau([(1, 0, "not a number", ATTEMPT)]))
    report = run(tmp_path / "d", path)
    assert report.warnings_by_code == {"reward_not_a_number": 1}
    assert {row["trajectory_reward"] for row in rows(tmp_path / "d")} == {None}


def test_ingest_same_task_and_trial_twice_in_a_source_stay_two_attempts(tmp_path):
    path = tmp_path / "t.json"
    other = [*ATTEMPT[:1], user("another"), *ATTEMPT[2:]]
    path.write_text(tau([(1, 0, 1.0, ATTEMPT), (1, 0, 0.0, other)]))
    assert run(tmp_path / "d", path).trajectories == 2
    assert len({row["trajectory_uid"] for row in rows(tmp_path / "d")}) == 2


def test_ingest_transcript_cuts_at_each_assistant_message(tmp_path):
    tools = [{"type": "function", "function": {"name": "f"}}]
    record = {"messages": ATTEMPT, "tools": tools, "reward": 1, "task_id": "t", "note": "kept"}
    path = write_lines(tmp_path / "a.jsonl", [record])
    report = run(tmp_path / "d", path)
    first, second = rows(tmp_path / "d")
    assert (report.steps, first["log_format"]) == (2, "messages")
    assert (first["state_kind"], first["prefix_messages"], second["prefix_messages"]) == (
        "reconstructed",
        0,
        2,
    )
    assert json.loads(first["tools"]) == tools
    assert second["tools"] is None
    assert json.loads(second["metadata"]) == {"note": "kept"}
    assert (second["reward"], second["terminated"], second["is_last"]) == (1.0, True, True)


def test_ingest_transcript_with_calls_but_no_tools_is_partial(tmp_path):
    path = write_lines(tmp_path / "a.jsonl", [{"messages": ATTEMPT}])
    run(tmp_path / "d", path)
    assert {row["state_kind"] for row in rows(tmp_path / "d")} == {"partial"}


def test_ingest_message_weight_becomes_loss_weight(tmp_path):
    messages = [user("u"), {**assistant("a"), "weight": 0}, user("v"), assistant("b")]
    run(tmp_path / "d", write_lines(tmp_path / "a.jsonl", [{"messages": messages}]))
    assert [row["loss_weight"] for row in rows(tmp_path / "d")] == [0.0, 1.0]


def test_ingest_request_response_keeps_ids_logprobs_and_usage(tmp_path):
    record = pair(
        [user("u")],
        assistant("a"),
        uid="r1",
        at=1_700_000_000.5,
        request={"temperature": 1.0, "top_p": 0.9, "top_k": 5, "stop": ["x"], "max_tokens": 7},
        policy_version=3,
    )
    response = record["response"]
    response["usage"] = {
        "prompt_tokens": 3,
        "completion_tokens": 2,
        "prompt_tokens_details": {"cached_tokens": 1},
        "completion_tokens_details": {"reasoning_tokens": 1},
    }
    response["prompt_token_ids"] = [1, 2, 3]
    response["choices"][0]["token_ids"] = [4, 5]
    response["choices"][0]["logprobs"] = {"content": [{"logprob": -0.5}, {"logprob": -1.25}]}
    run(tmp_path / "d", write_lines(tmp_path / "a.jsonl", [record]))
    (row,) = rows(tmp_path / "d")
    assert (row["observation_ids"], row["response_ids"]) == ([1, 2, 3], [4, 5])
    assert row["rollout_logprobs"] == [-0.5, -1.25]
    assert row["token_provenance"] == "engine_logprobs"
    assert (row["input_tokens"], row["output_tokens"]) == (3, 2)
    assert (row["cached_tokens"], row["reasoning_tokens"]) == (1, 1)
    assert (row["temperature"], row["top_p"], row["policy_version"]) == (1.0, 0.9, 3)
    assert json.loads(row["sampling"]) == {"top_k": 5, "stop": ["x"]}
    assert json.loads(row["metadata"]) == {"request": {"max_tokens": 7}}
    assert str(row["started_at"]) == "2023-11-14 22:13:20.500000+00:00"
    assert row["log_date"] == "2023-11-14"


def test_ingest_logprobs_of_another_length_are_null_with_a_warning_never_zero(tmp_path):
    record = pair([user("u")], assistant("a"))
    record["response"]["choices"][0]["token_ids"] = [4, 5]
    record["response"]["choices"][0]["logprobs"] = {"content": [{"logprob": -0.5}]}
    report = run(tmp_path / "d", write_lines(tmp_path / "a.jsonl", [record]))
    (row,) = rows(tmp_path / "d")
    assert (row["rollout_logprobs"], row["response_ids"]) == (None, [4, 5])
    assert report.warnings_by_code == {"logprobs_length_mismatch": 1}


def test_ingest_token_delta_continues_the_parents_ids(tmp_path):
    start = [user("u")]
    first = pair(start, assistant("a"), at=1.0, uid="1")
    second = pair([*start, assistant("a"), user("v")], assistant("b"), at=2.0, uid="2")
    first["response"]["prompt_token_ids"] = [1, 2]
    first["response"]["choices"][0]["token_ids"] = [3, 4]
    second["response"]["prompt_token_ids"] = [1, 2, 3, 4, 5, 6]
    second["response"]["choices"][0]["token_ids"] = [7]
    run(tmp_path / "d", write_lines(tmp_path / "a.jsonl", [first, second]))
    row = next(r for r in rows(tmp_path / "d") if r["native_id"] == "2")
    assert (row["prefix_tokens"], row["observation_ids"]) == (4, [5, 6])


@pytest.mark.parametrize(
    ("arguments", "stored", "valid"),
    [
        ('{"a": 1}', '{"a": 1}', True),
        ("print(1)", "print(1)", False),
        ("", "", False),
        ("[1]", "[1]", False),
        ({"b": 1, "a": "é"}, '{"a": "é", "b": 1}', True),
        (None, "", False),
    ],
)
def test_ingest_arguments_are_kept_as_logged_and_never_repaired(tmp_path, arguments, stored, valid):
    record = pair([user("u")], assistant("", calls=[("c", "f", arguments)]))
    run(tmp_path / "d", write_lines(tmp_path / "a.jsonl", [record]))
    (call,) = rows(tmp_path / "d")[0]["tool_calls"]
    assert (call["arguments"], call["arguments_valid"]) == (stored, valid)


def test_ingest_every_record_has_one_fate(tmp_path):
    good = pair([user("u")], assistant("a"), uid="1", at=1.0)
    failed = {"request": {"messages": [user("u")]}, "response": {"error": {"message": "429"}}}
    http = {
        "request": {"body": {"messages": [user("w")]}},
        "response": {"status": 500, "body": {"oops": 1}},
    }
    lines = [
        json.dumps(good),
        json.dumps(good),
        json.dumps(failed),
        json.dumps(http),
        '{"request": {"messages": [{"role": "user", "con{"request"',
        json.dumps({"request": {"model": "m"}, "response": {"choices": []}}),
        json.dumps({"request": {"messages": [user("x")]}, "response": {"choices": []}}),
        json.dumps({"request": {"messages": [{"content": "no role"}]}, "response": {}}),
        "[1, 2]",
        '{"request": {"messages": [{"role": "us',
    ]
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(lines))
    report = run(tmp_path / "d", path)
    assert report.records == 10
    assert report.records_by_fate == {
        "used": 1,
        "duplicate": 1,
        "failed_call": 2,
        "ignored": 0,
        "pending": 1,
        "rejected": 5,
    }
    assert sum(report.records_by_fate[fate] for fate in FATES) == report.records
    assert report.rejects_by_reason == {
        "bad_json": 1,
        "bad_message": 1,
        "bad_record": 1,
        "no_choices": 1,
        "no_messages": 1,
    }
    # a duplicate is in the sidecar seen_in, and what is pending may still grow
    aside = rejects(tmp_path / "d")
    assert len(aside) == report.records - 3
    data = path.read_bytes()
    for row in aside:
        assert data[row["source_offset"] :].decode().startswith(row["first_bytes"][:20])


def test_ingest_unchanged_sources_add_nothing(tmp_path):
    path = write_lines(tmp_path / "a.jsonl", [pair([user("u")], assistant("a"), uid="1")])
    first = run(tmp_path / "d", path)
    packed = tmp_path / "a.jsonl.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    for source in (path, packed):
        again = run(tmp_path / "d", source)
        assert (again.files_unchanged, again.files_read, again.steps) == (1, 0, 0)
        assert (again.steps_total, again.table_version) == (1, first.table_version)


def test_ingest_changed_source_is_refused_with_one_sentence(tmp_path):
    one, two, other = (pair([user(t)], assistant("a"), uid=t) for t in "abc")
    path = write_lines(tmp_path / "a.jsonl", [one, two])
    run(tmp_path / "d", path)
    write_lines(path, [one, other])
    with pytest.raises(DataError, match=r"was ingested before .* and has changed since"):
        run(tmp_path / "d", path)
    assert len(rows(tmp_path / "d")) == 2


def test_ingest_source_that_grew_adds_what_is_new(tmp_path):
    records = [pair([user(str(i))], assistant("a"), uid=str(i)) for i in range(5)]
    path = write_lines(tmp_path / "a.jsonl", records[:2])
    run(tmp_path / "d", path)
    write_lines(path, records)
    report = run(tmp_path / "d", path)
    assert (report.records, report.steps, report.steps_changed, report.steps_total) == (3, 3, 0, 5)
    assert [row["source_offset"] for row in rows(tmp_path / "d")] == [
        sum(len(json.dumps(r)) + 1 for r in records[:i]) for i in range(5)
    ]


def test_ingest_cut_line_is_pending_until_it_is_whole(tmp_path):
    records = [pair([user(str(i))], assistant("a"), uid=str(i)) for i in range(2)]
    path = write_lines(tmp_path / "a.jsonl", records)
    whole = path.read_bytes()
    path.write_bytes(whole[:-9])
    first = run(tmp_path / "d", path)
    assert (first.records_by_fate["used"], first.records_by_fate["pending"]) == (1, 1)
    path.write_bytes(whole)
    second = run(tmp_path / "d", path)
    assert (second.records_by_fate["used"], second.records_by_fate["pending"]) == (1, 0)
    assert table.read(location.parse(str(tmp_path / "d")), "rejects").num_rows == 0


def test_ingest_new_source_is_appended_as_a_version(tmp_path):
    one = write_lines(tmp_path / "a.jsonl", [pair([user("u")], assistant("a"), uid="1")])
    two = write_lines(tmp_path / "b.jsonl", [pair([user("v")], assistant("b"), uid="2")])
    run(tmp_path / "d", one)
    assert run(tmp_path / "d", two).table_version == 1
    old = table.read(location.parse(f"{tmp_path / 'd'}@0"))
    assert (old.num_rows, len(rows(tmp_path / "d"))) == (1, 2)


def test_ingest_same_call_in_two_sources_is_stored_once(tmp_path):
    record = pair([user("u")], assistant("a"), uid="1")
    one = write_lines(tmp_path / "a.jsonl", [record])
    other = pair([user("v")], assistant("b"), uid="2")
    two = write_lines(tmp_path / "b.jsonl", [other, record])
    run(tmp_path / "d", one)
    report = run(tmp_path / "d", two)
    assert (report.records_by_fate["used"], report.records_by_fate["duplicate"]) == (1, 1)
    assert report.steps_total == 2
    [again] = sidecars.read(location.parse(str(tmp_path / "d")), "seen_in").to_pylist()
    [stored] = [row for row in rows(tmp_path / "d") if row["native_id"] == "1"]
    assert (again["step_uid"], again["source_path"]) == (stored["step_uid"], str(two))
    assert again["source_offset"] == len(json.dumps(other)) + 1


def test_ingest_file_that_was_moved_and_grew_is_the_same_source(tmp_path):
    record = {"messages": [user("u"), assistant("a")]}
    other = {"messages": [user("v"), assistant("b")]}
    run(tmp_path / "d", write_lines(tmp_path / "a.jsonl", [record]))
    report = run(tmp_path / "d", write_lines(tmp_path / "b.jsonl", [record, other]))
    assert (report.records, report.steps, report.steps_total) == (1, 1, 2)
    assert report.warnings_by_code == {"files_moved": 1}
    assert len({row["source_uid"] for row in rows(tmp_path / "d")}) == 1


def test_ingest_file_and_its_longer_copy_in_one_run_are_one_source(tmp_path):
    record = {"messages": [user("u"), assistant("a")]}
    other = {"messages": [user("v"), assistant("b")]}
    one = write_lines(tmp_path / "a.jsonl", [record])
    two = write_lines(tmp_path / "b.jsonl", [record, other])
    report = run(tmp_path / "d", one, two)
    assert (report.records, report.steps_total) == (2, 2)


def test_ingest_the_same_bytes_under_another_name_add_nothing(tmp_path):
    transcript = {"messages": [user("u"), assistant("a")]}
    one = write_lines(tmp_path / "a.jsonl", [transcript])
    two = write_lines(tmp_path / "b.jsonl", [transcript])
    report = run(tmp_path / "d", one, two)
    assert (report.steps, report.files_unchanged) == (1, 1)


def test_ingest_two_runs_at_once_store_each_step_once(tmp_path):
    records = [pair([user(str(i))], assistant("a"), uid=str(i)) for i in range(50)]
    path = write_lines(tmp_path / "a.jsonl", records)
    code = "from clawcli.cli.app import main; main()"
    command = [sys.executable, "-c", code, "ingest", str(path), "-o", str(tmp_path / "d"), "-q"]
    processes = [subprocess.Popen(command) for _ in range(3)]
    assert {process.wait(60) for process in processes} == {0}
    assert len(rows(tmp_path / "d")) == 50


def test_steps_that_stand_twice_are_refused(tmp_path):
    path = write_lines(tmp_path / "a.jsonl", [pair([user("u")], assistant("a"), uid="1")])
    run(tmp_path / "d", path)
    place = location.existing(str(tmp_path / "d"))
    table.append(place.steps, table.read(place), info={}, partition_by=schema.PARTITION_COLUMNS)
    with pytest.raises(StoreError, match="holds 1 steps more than once"):
        query.load_steps(place)


@pytest.mark.parametrize("name", ["with space", "naïve", "p%20q", "lat\udce9"])
def test_ingest_odd_names_of_logs_work(tmp_path, name):
    source = write_lines(tmp_path / f"{name}.jsonl", [pair([user("u")], assistant("a"), uid="1")])
    run(tmp_path / "d", source)
    (row,) = rows(tmp_path / "d")
    assert row["source_path"].startswith(str(tmp_path))


@pytest.mark.parametrize("name", ["with space", "naïve", "50%"])
def test_ingest_odd_names_of_data_directories_work(tmp_path, name):
    source = write_lines(tmp_path / "a.jsonl", [pair([user("u")], assistant("a"), uid="1")])
    run(tmp_path / name, source)
    curate(CurateConfig(input=str(tmp_path / name), output=f"{tmp_path / name} c", where="true"))
    assert len(rows(f"{tmp_path / name} c")) == 1


@pytest.mark.parametrize("name", ["p%20q", "c%41", "lat\udce9"])
def test_ingest_names_that_the_table_format_misreads_are_refused(tmp_path, name):
    source = write_lines(tmp_path / "a.jsonl", [pair([user("u")], assistant("a"), uid="1")])
    with pytest.raises(UsageError, match="A data directory cannot be at"):
        run(tmp_path / name, source)
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]


def test_ingest_skips_what_claw_wrote_below_a_folder_of_logs(tmp_path):
    write_lines(tmp_path / "a.jsonl", [pair([user("u")], assistant("a"), uid="1")])
    run(tmp_path / "data", tmp_path)
    report = run(tmp_path / "data", tmp_path)
    assert (report.files_unchanged, report.problems) == (1, ())


def test_ingest_stream_without_a_byte_is_a_problem_and_not_empty(tmp_path):
    path = tmp_path / "g.jsonl.gz"
    path.write_bytes(b"\x1f\x8bgarbage")
    with pytest.raises(DataError, match="breaks off"):
        run(tmp_path / "d", path)


def test_ingest_only_empty_files_leave_an_empty_table(tmp_path):
    (tmp_path / "a.jsonl").touch()
    assert run(tmp_path / "d", tmp_path / "a.jsonl").warnings_by_code == {"empty_source": 1}
    assert rows(tmp_path / "d") == []


def test_ingest_number_beyond_64_bits_is_kept_as_it_is(tmp_path):
    good, bad = (pair([user(u)], assistant("a"), uid=u) for u in "12")
    bad["request"]["messages"][0]["content"] = 10**30
    report = run(tmp_path / "d", write_lines(tmp_path / "a.jsonl", [good, bad]))
    assert (report.records_by_fate["used"], report.rejects) == (2, 0)
    parts = {row["observation"][0]["parts"] for row in rows(tmp_path / "d")}
    assert parts == {None, f"[{10**30}]"}


def test_ingest_damaged_lines_at_the_head_do_not_hide_the_format(tmp_path):
    good = json.dumps(pair([user("u")], assistant("a"), uid="1"))
    (tmp_path / "a.jsonl").write_text("garbage\n" * 30 + good + "\n")
    report = run(tmp_path / "d", tmp_path / "a.jsonl")
    assert (report.steps, report.rejects) == (1, 30)


def test_ingest_empty_log_directory_is_no_table_yet(tmp_path):
    (tmp_path / "d" / "steps" / "_delta_log").mkdir(parents=True)
    (tmp_path / "d" / "rejects" / "_delta_log").mkdir(parents=True)
    path = write_lines(tmp_path / "a.jsonl", [pair([user("u")], assistant("a"), uid="1")])
    assert run(tmp_path / "d", path).steps_total == 1


def test_ingest_empty_file_gives_no_record_and_a_warning(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"")
    report = run(tmp_path / "d", path)
    assert (report.records, report.warnings_by_code) == (0, {"empty_source": 1})


def test_ingest_unknown_format_says_what_was_tried_and_why(tmp_path):
    path = write_lines(tmp_path / "a.jsonl", [{"obs": 1, "action": 2}])
    with pytest.raises(LogFormatError) as caught:
        run(tmp_path / "d", path)
    text = str(caught.value)
    assert "refused: no " in text
    assert "--map says where things are" in text
    assert "openai_chat" in text
    assert not (tmp_path / "d").exists()


def test_ingest_one_bad_source_among_good_ones_is_a_problem_and_the_rest_is_committed(tmp_path):
    good = write_lines(tmp_path / "a.jsonl", [pair([user("u")], assistant("a"), uid="1")])
    bad = write_lines(tmp_path / "b.jsonl", [{"obs": 1}])
    report = run(tmp_path / "d", good, bad)
    assert report.steps_total == 1
    assert "b.jsonl is in no known log format" in report.problems[0]


def test_ingest_into_a_folder_that_is_no_data_directory_is_refused(tmp_path):
    path = write_lines(tmp_path / "a.jsonl", [pair([user("u")], assistant("a"), uid="1")])
    with pytest.raises(DataError, match="is no data directory"):
        run(tmp_path, path)


def test_ingest_dry_run_counts_and_writes_nothing(tmp_path):
    path = write_lines(tmp_path / "a.jsonl", [pair([user("u")], assistant("a"), uid="1")])
    report = run(tmp_path / "d", path, dry_run=True)
    assert (report.steps, report.table_version) == (1, None)
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize("reader", ["_refuse_curated", "KnownSources", "Workers"])
@pytest.mark.parametrize("is_new", [True, False])
def test_ingest_that_commits_while_another_begins_is_caught_up_with(
    tmp_path, monkeypatch, reader, is_new
):
    path = write_lines(tmp_path / "a.jsonl", [pair([user("u")], assistant("a"), uid="1")])
    if not is_new:
        other = write_lines(tmp_path / "b.jsonl", [pair([user("v")], assistant("b"), uid="2")])
        run(tmp_path / "d", other)
    read, first = getattr(ingest_run, reader), []

    def interrupted(*arguments):
        found = read(*arguments)
        if not first:
            first.append(True)
            run(tmp_path / "d", path)
        return found

    monkeypatch.setattr(ingest_run, reader, interrupted)
    report = run(tmp_path / "d", path)
    assert (report.steps, report.files_unchanged) == (0, 1)
    assert len(rows(tmp_path / "d")) == 2 - is_new


def test_ingest_that_commits_between_two_reads_of_a_round_is_caught_up_with(tmp_path, monkeypatch):
    path = write_lines(tmp_path / "a.jsonl", [pair([user("u")], assistant("a"), uid="1")])
    read, first = rounds.Committed, []

    def interrupted(place):
        found = read(place)
        if not first:
            first.append(True)
            run(tmp_path / "d", path)
        return found

    monkeypatch.setattr(rounds, "Committed", interrupted)
    assert run(tmp_path / "d", path).steps == 0
    assert len(rows(tmp_path / "d")) == 1


@pytest.mark.parametrize("on", [(), ("native_id=call", "reward=score")])
def test_ingest_dry_run_matches_rewards_with_steps_of_all_rounds(tmp_path, monkeypatch, on):
    monkeypatch.setattr(rounds, "_ROUND_STEPS", 1)
    first, second = [user("u"), assistant("a"), user("v")], [user("w")]
    records = [
        pair(first, assistant("b"), uid="2"),
        pair(first[:1], assistant("a"), uid="1"),
        pair(second, assistant("c"), uid="3"),
    ]
    logs = [write_lines(tmp_path / f"{place}.jsonl", [r]) for place, r in enumerate(records)]
    said = [{"native_id": n, "call": n, "score": 0.5, "reward": 1.0} for n in ("1", "2", "nobody")]
    judged = write_lines(tmp_path / "r.jsonl", said)
    options = {"rewards": str(judged), "on": on}
    dry = run(tmp_path / "d", *logs, dry_run=True, **options)
    assert not (tmp_path / "d").exists()
    real = run(tmp_path / "d", *logs, **options)
    assert real.rewards["steps_rewarded"] == 2
    assert real.rewards["trajectories_rewarded"] == 1
    assert {**real.rewards, "rewards_version": None} == dry.rewards


def test_ingest_dry_run_of_nothing_matches_no_rewards(tmp_path):
    failed = {"request": {"messages": [user("u")]}, "response": {"error": {"message": "no"}}}
    path = write_lines(tmp_path / "a.jsonl", [failed])
    judged = write_lines(tmp_path / "r.jsonl", [{"native_id": "1", "reward": 1.0}])
    report = run(tmp_path / "d", path, dry_run=True, rewards=str(judged))
    assert report.rewards["rewards_unmatched_rows"] == 1


def test_ingest_litellm_file_with_rendered_tools_trains_what_the_model_wrote(tmp_path):
    text = "Look.\n<function=f>\n<parameter=x>1</parameter>\n"
    parsed = assistant("Look.", calls=[("c", "f", '{"x": 1}')])
    record = {
        "messages": [system("tools as text"), user("u")],
        "raw_messages": [system("s"), user("u")],
        "tools": [{"type": "function", "function": {"name": "f"}}],
        "kwargs": {"stop": ["</function"], "temperature": 0.5},
        "response": {"id": "1", "choices": [{"index": 0, "message": parsed}]},
        "raw_response": {"id": "1", "choices": [{"index": 0, "message": assistant(text)}]},
        "timestamp": 10.0,
        "latency_sec": 4.0,
        "cost": 0.25,
    }
    path = tmp_path / "a.json"
    path.write_text(json.dumps(record))
    run(tmp_path / "d", path)
    (row,) = rows(tmp_path / "d")
    assert (row["response"], row["tool_calls"], row["tools"]) == (text, None, "[]")
    assert (row["system"], row["cost_usd"], row["temperature"]) == ("tools as text", 0.25, 0.5)
    assert (row["started_at"].timestamp(), row["ended_at"].timestamp()) == (6.0, 10.0)

    lost = {"role": "assistant", "content": "Look.", "tool_calls": [{}]}
    record["raw_response"]["choices"][0]["message"] = lost
    path = tmp_path / "b.json"
    path.write_text(json.dumps(record))
    run(tmp_path / "e", path)
    (row,) = rows(tmp_path / "e")
    assert (row["response"], row["tool_calls"][0]["name"]) == ("Look.", "f")


def test_ingest_group_without_a_task_id_is_system_tools_and_root_messages(tmp_path):
    start = [system("s"), user("u")]
    other = [system("other"), user("u")]
    records = [
        pair(start, assistant("a"), uid="1", at=1.0),
        pair(start, assistant("b"), uid="2", at=2.0),
        pair(other, assistant("c"), uid="3", at=3.0),
    ]
    run(tmp_path / "d", write_lines(tmp_path / "a.jsonl", records))
    groups = {row["native_id"]: row["group_uid"] for row in rows(tmp_path / "d")}
    assert groups["1"] == groups["2"] != groups["3"]


def test_ingest_task_that_a_clock_in_the_system_text_splits_is_warned_about(tmp_path):
    attempts = [
        (task, trial, 1.0, [system(f"It is {trial if task else 0} o'clock."), *ATTEMPT[1:]])
        for task in (0, 1)
        for trial in (0, 1)
    ]
    (tmp_path / "t.json").write_text(tau(attempts))
    report = run(tmp_path / "d", tmp_path / "t.json")
    assert report.warnings_by_code == {"task_split_by_system": 1}
    assert len({row["group_uid"] for row in rows(tmp_path / "d")}) == 3


def test_ingest_client_that_edits_its_history_is_reported(tmp_path):
    long = "x" * 80
    records = [
        pair([user("now 1"), user(long)], assistant("a"), at=1.0, uid="0"),
        pair([user("now 2"), user(long), assistant("a"), user("v" * 10)], assistant("b"), at=2.0),
    ]
    report = run(tmp_path / "d", write_lines(tmp_path / "a.jsonl", records))
    # of 5 + 80 and 5 + 80 + 1 + 10 characters, 80 + 1 stood in the state before
    assert report.restated_frac == 81 / 181
    assert report.warnings_by_code == {"history_restated": 1}


def test_ingest_goes_on_in_a_directory_that_a_crash_left(tmp_path):
    path = write_lines(tmp_path / "a.jsonl", [pair([user("u")], assistant("a"), uid="1")])
    run(tmp_path / "d", path)
    for left in ("steps/_delta_log", "steps"):
        shutil.rmtree(tmp_path / "d" / left)
        assert run(tmp_path / "d", path).steps_total == 1


@pytest.mark.parametrize(
    ("logged", "moment"),
    [
        (1_700_000_000, "2023-11-14 22:13:20"),
        (1_700_000_000_000, "2023-11-14 22:13:20"),
        (1_700_000_000_000_000, "2023-11-14 22:13:20"),
        (1_700_000_000_000_000_000, "2023-11-14 22:13:20"),
        ("1700000000", "2023-11-14 22:13:20"),
        ("2023-11-14T22:13:20Z", "2023-11-14 22:13:20"),
        ("2023-11-14T23:13:20+01:00", "2023-11-14 22:13:20"),
        (1e30, None),
        (-5, None),
        ("yesterday", None),
        ([1], None),
    ],
)
def test_ingest_time_in_any_unit_or_unreadable(tmp_path, logged, moment):
    record = pair([user("u")], assistant("a"), uid="1")
    record["timestamp"] = logged
    run(tmp_path / "d", write_lines(tmp_path / "a.jsonl", [record]))
    (row,) = rows(tmp_path / "d")
    assert (row["started_at"] and str(row["started_at"])[:19]) == moment
    assert row["log_date"] == ("2023-11-14" if moment else "unknown")


@pytest.mark.parametrize(
    ("line", "field", "value", "code"),
    [
        ('"reward": NaN', "reward", None, "non_finite_to_null"),
        ('"reward": 1e999', "reward", None, "non_finite_to_null"),
        ('"reward": 1, "cost": -Infinity', "cost_usd", None, "non_finite_to_null"),
        ('"task_id": "a\\udcb2b"', "task_id", "a\ufffdb", "surrogate_replaced"),
    ],
)
def test_ingest_what_python_writes_beyond_json_is_mended_and_counted(
    tmp_path, line, field, value, code
):
    good = json.dumps(pair([user("u")], assistant("a"), uid="1"))
    path = tmp_path / "a.jsonl"
    path.write_text(f"{good[:-1]}, {line}}}\n")
    report = run(tmp_path / "d", path)
    (row,) = rows(tmp_path / "d")
    assert row[field] == value
    assert row["response"] == "a"
    assert report.warnings_by_code[code] == 1


def test_ingest_array_with_a_nan_keeps_all_attempts(tmp_path):
    text = tau([(1, 0, 1.0, ATTEMPT), (2, 0, 7.5, ATTEMPT)]).replace("7.5", "NaN")
    (tmp_path / "t.json").write_text(text)
    report = run(tmp_path / "d", tmp_path / "t.json")
    assert report.records_by_fate["used"] == 2
    assert {row["trajectory_reward"] for row in rows(tmp_path / "d")} == {1.0, None}


@pytest.mark.parametrize(
    "damage",
    [
        lambda r: r["response"]["choices"][0]["message"].update(tool_calls=5),
        lambda r: r["response"]["choices"][0]["message"].update(tool_calls=["f"]),
        lambda r: r["request"]["messages"].append({"role": "assistant", "tool_calls": 5}),
        lambda r: r["request"]["messages"].append(7),
        lambda r: r["response"].update(choices={"0": {}}),
        lambda r: r["response"].update(choices=[5]),
        lambda r: r.update(response=[1]),
    ],
)
def test_ingest_odd_types_reject_the_record_and_no_other(tmp_path, damage):
    good, bad = (pair([user(u)], assistant("a"), uid=u) for u in "12")
    damage(bad)
    report = run(tmp_path / "d", write_lines(tmp_path / "a.jsonl", [good, bad]))
    assert (report.records_by_fate["used"], report.rejects) == (1, 1)


@pytest.mark.parametrize(
    "oddity",
    [
        lambda r: r["response"]["choices"][0].update(index=2**40),
        lambda r: r["response"].update(usage=[1]),
        lambda r: r["response"]["choices"][0].update(logprobs=[1], token_ids=["a"]),
        lambda r: r["response"]["choices"][0].update(logprobs={"content": [None]}),
        lambda r: r["request"].update(temperature="warm", tools={}, top_p=[1]),
        lambda r: r.update(trial=1e300, latency_sec=1e300, timestamp=5, policy_version={}),
        lambda r: r["response"].update(created=1e30, id=7, model=None),
    ],
)
def test_ingest_odd_values_beside_the_call_keep_the_step(tmp_path, oddity):
    record = pair([user("u")], assistant("a"), uid="1")
    oddity(record)
    assert run(tmp_path / "d", write_lines(tmp_path / "a.jsonl", [record])).steps == 1
    query.load_steps(location.existing(str(tmp_path / "d")))


def test_ingest_sampling_that_is_no_number_leaves_the_table_readable(tmp_path):
    record = pair([user("u")], assistant("a"), request={"temperature": 1, "top_k": "auto"})
    record["response"]["choices"][0].update(
        token_ids=[4], logprobs={"content": [{"logprob": -0.5}]}
    )
    run(tmp_path / "d", write_lines(tmp_path / "a.jsonl", [record]))
    (row,) = query.load_steps(location.existing(str(tmp_path / "d"))).to_pylist()
    assert (row["mu_valid"], row["mu_invalid_reason"]) == (False, "sampling_unreadable")


def test_ingest_sampling_in_extra_body_counts(tmp_path):
    record = {
        "messages": [user("u")],
        "response": {"choices": [{"message": assistant("a")}]},
        "kwargs": {"temperature": 1, "extra_body": {"top_k": 20, "tags": ["x"]}},
    }
    run(tmp_path / "d", write_lines(tmp_path / "a.jsonl", [record]))
    (row,) = rows(tmp_path / "d")
    assert json.loads(row["sampling"]) == {"top_k": 20}
    assert json.loads(row["metadata"]) == {"request": {"tags": ["x"]}}


def test_ingest_what_has_no_column_is_in_the_metadata(tmp_path):
    record = pair([user("u")], assistant("a", reasoning_details=[{"text": "r"}]), note=1)
    record["response"]["choices"][0]["stop_reason"] = "x"
    record["response"]["system_fingerprint"] = "fp"
    run(tmp_path / "d", write_lines(tmp_path / "a.jsonl", [record]))
    assert json.loads(rows(tmp_path / "d")[0]["metadata"]) == {
        "note": 1,
        "response": {"system_fingerprint": "fp"},
        "choice": {
            "stop_reason": "x",
            "reasoning_details": [{"text": "r"}],
            "reasoning_field": "reasoning_details",
        },
    }


@pytest.mark.parametrize(
    ("logged", "version"), [(3, 3), ("7", 7), ("step-120", 120), ("v7", 7), ("latest", None)]
)
def test_ingest_policy_version_may_be_a_suffix(tmp_path, logged, version):
    record = pair([user("u")], assistant("a"), policy_version=logged)
    run(tmp_path / "d", write_lines(tmp_path / "a.jsonl", [record]))
    assert rows(tmp_path / "d")[0]["policy_version"] == version


def test_ingest_reward_of_several_choices_goes_to_the_one_gone_on_with(tmp_path):
    start = [user("u")]
    records = [
        pair(start, assistant("a"), assistant("b"), at=1.0, uid="0", reward=1.0),
        pair([*start, assistant("b"), user("v")], assistant("c"), at=2.0, uid="1"),
    ]
    report = run(tmp_path / "d", write_lines(tmp_path / "a.jsonl", records))
    rewards = {row["response"]: row["reward"] for row in rows(tmp_path / "d")}
    assert rewards == {"a": None, "b": 1.0, "c": None}
    assert report.warnings_by_code == {"reward_of_another_choice": 1}


def test_ingest_equal_choices_of_one_call_stay_two(tmp_path):
    record = pair([user("u")], assistant("same"), assistant("same"), uid="1")
    for choice in record["response"]["choices"]:
        choice["index"] = 0
    run(tmp_path / "d", write_lines(tmp_path / "a.jsonl", [record]))
    assert sorted(row["choice_index"] for row in rows(tmp_path / "d")) == [0, 1]


def test_ingest_tau_attempt_ends_only_where_the_user_says_so(tmp_path):
    path = tmp_path / "t.json"
    path.write_text(tau([(1, 0, 1.0, ATTEMPT), (2, 0, 0.0, ATTEMPT[:-1])]))
    run(tmp_path / "d", path)
    last = {row["task_id"]: row["terminated"] for row in rows(tmp_path / "d") if row["is_last"]}
    assert last == {"1": True, "2": None}


def test_ingest_one_line_file_may_grow(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"messages": [user("u"), assistant("a")]}))
    run(tmp_path / "d", path)
    more = json.dumps({"messages": [user("v"), assistant("b")]})
    path.write_text(path.read_text() + "\n" + more + "\n")
    report = run(tmp_path / "d", path)
    assert (report.steps, report.steps_changed, report.steps_total) == (1, 0, 2)


@pytest.mark.parametrize("indent", [None, 1])
def test_ingest_document_that_is_rewritten_may_grow(tmp_path, indent):
    path = tmp_path / "a.json"
    messages = [user("u"), assistant("a"), user("v"), assistant("b"), user("bye")]
    path.write_text(json.dumps({"messages": messages[:3]}, indent=indent))
    run(tmp_path / "d", path)
    path.write_text(json.dumps({"messages": messages}, indent=indent))
    report = run(tmp_path / "d", path)
    # the first step is no longer the last, and has no final observation any more
    assert (report.steps, report.steps_changed, report.steps_total) == (1, 1, 2)
    first, last = sorted(rows(tmp_path / "d"), key=lambda row: row["step_index"])
    assert (first["is_last"], first["final_observation"]) == (False, None)
    assert last["final_observation"][0]["content"] == "bye"
    assert last["parent_step_uid"] == first["step_uid"]


@pytest.mark.parametrize("indent", [None, 1])
def test_ingest_document_that_is_rewritten_is_refused(tmp_path, indent):
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"messages": [user("u"), assistant("a")]}, indent=indent))
    run(tmp_path / "d", path)
    path.write_text(json.dumps({"messages": [user("w"), assistant("a")]}, indent=indent))
    with pytest.raises(DataError, match="has changed since"):
        run(tmp_path / "d", path)


def test_ingest_files_of_one_name_in_two_folders_are_two_sources(tmp_path):
    for name, said in (("run1", "a"), ("run2", "b")):
        (tmp_path / name).mkdir()
        record = pair([system("shared"), user("u")], assistant(said), uid=said)
        (tmp_path / name / "0.json").write_text(json.dumps(record))
    report = run(tmp_path / "d", tmp_path / "run1", tmp_path / "run2")
    assert (report.steps, report.problems) == (2, ())


def test_ingest_source_name_tells_two_logs_apart_that_begin_alike(tmp_path):
    record = pair([user("u")], assistant("a"), uid="1")
    path = write_lines(tmp_path / "log.jsonl", [record])
    run(tmp_path / "d", path)
    write_lines(path, [record, pair([user("v")], assistant("b"), uid="2")])
    report = run(tmp_path / "d", path, source_name="log of tuesday")
    assert (report.records_by_fate["used"], report.records_by_fate["duplicate"]) == (1, 1)
    with pytest.raises(UsageError, match="names one source, and here are 2"):
        run(tmp_path / "e", path, path, write_lines(tmp_path / "b.jsonl", []), source_name="x")


def test_ingest_into_a_curated_directory_is_refused(tmp_path):
    path = write_lines(tmp_path / "a.jsonl", [pair([user("u")], assistant("a"), uid="1")])
    run(tmp_path / "d", path)
    curate(CurateConfig(input=str(tmp_path / "d"), output=str(tmp_path / "c"), where="true"))
    other = write_lines(tmp_path / "b.jsonl", [pair([user("v")], assistant("b"), uid="2")])
    with pytest.raises(DataError, match="was curated, so no log can be added"):
        run(tmp_path / "c", other)


def test_ingest_duplicates_that_differ_are_warned_about(tmp_path):
    one = pair([user("u")], assistant("a"), uid="1", reward=1.0)
    two = pair([user("u")], assistant("a"), uid="1", reward=0.0)
    report = run(tmp_path / "d", write_lines(tmp_path / "a.jsonl", [one, two]))
    assert report.warnings_by_code == {"duplicate_differs": 1}


def test_ingest_row_that_restates_its_messages_restates_its_tokens(tmp_path):
    first = pair([user("now 1")], assistant("a"), at=1.0, uid="0")
    second = pair([user("now 2"), assistant("a"), user("v")], assistant("b"), at=2.0, uid="1")
    for record, ids in ((first, [1, 2]), (second, [1, 2, 3, 4])):
        record["response"]["prompt_token_ids"] = ids
        record["response"]["choices"][0]["token_ids"] = [3]
    run(tmp_path / "d", write_lines(tmp_path / "a.jsonl", [first, second]))
    row = next(row for row in rows(tmp_path / "d") if row["native_id"] == "1")
    assert (row["prefix_messages"], row["prefix_tokens"]) == (0, 0)
    assert row["observation_ids"] == [1, 2, 3, 4]


def test_ingest_airline_gives_the_expected_counts(tmp_path):
    path = shared("tau-bench", "gpt-4o-airline.json")
    report = run(tmp_path / "d", path)
    assert (report.steps, report.trajectories, report.rejects) == (2454, 200, 0)
    steps = rows(tmp_path / "d")
    assert len({row["group_uid"] for row in steps}) == 50
    size = sum(p.stat().st_size for p in (tmp_path / "d").rglob("*") if p.is_file())
    assert size < 600_000
    attempts = json.loads(path.read_text())
    finals = {}
    for row in steps:
        if row["final_observation"] is not None:
            finals[row["task_id"], row["trial"]] = [m["content"] for m in row["final_observation"]]
    for attempt in attempts:
        roles = [m["role"] for m in attempt["traj"]]
        after = len(roles) - roles[::-1].index("assistant")
        want = [m["content"] for m in attempt["traj"][after:]]
        assert finals[str(attempt["task_id"]), attempt["trial"]] == want


@pytest.mark.parametrize(
    ("name", "steps", "trajectories", "empty"),
    [("a", 866, 66, 34), ("b", 1292, 95, 5)],
)
def test_ingest_retail_assertions_count_empty_attempts(tmp_path, name, steps, trajectories, empty):
    report = run(tmp_path / "d", shared("tau-bench", f"retail-assertions-{name}.json"))
    assert (report.steps, report.trajectories) == (steps, trajectories)
    assert (report.trajectories_empty, report.rejects) == (empty, empty)


def test_ingest_few_shot_without_structured_messages_is_refused(tmp_path):
    with pytest.raises(LogFormatError):
        run(tmp_path / "d", shared("tau-bench", "few_shot_airline.jsonl"))


def test_ingest_openhands_logs_make_one_trajectory_with_clean_links(tmp_path):
    report = run(tmp_path / "d", shared("openai-chat", "openhands-llm-logs"))
    causes = [row["prefix_broken"] for row in rows(tmp_path / "d")]
    assert (report.steps, report.trajectories, causes) == (6, 1, [None] * 6)


def test_ingest_openhands_logs_with_tools_as_text_restate_three_links(tmp_path):
    report = run(tmp_path / "d", shared("openai-chat", "openhands-nonfncall-logs"))
    causes = sorted(str(row["prefix_broken"]) for row in rows(tmp_path / "d"))
    assert (report.steps, report.trajectories) == (4, 1)
    assert causes == ["None", "action_differs", "stop_trimmed", "stop_trimmed"]


def test_read_table_leaves_no_thread_that_aborts_the_exit(tmp_path):
    path = write_lines(tmp_path / "a.jsonl", [pair([user("u")], assistant("a"), uid="1")])
    run(tmp_path / "d", path)
    code = (
        "from clawcli.store import location, table; "
        f"table.read(location.parse({str(tmp_path / 'd')!r}))"
    )
    codes = {subprocess.run([sys.executable, "-c", code]).returncode for _ in range(8)}
    assert codes == {0}


def test_ingest_call_that_a_log_repeats_in_a_later_round_is_stored_once(tmp_path, monkeypatch):
    monkeypatch.setattr(rounds, "_ROUND_STEPS", 1)
    monkeypatch.setattr(reading, "_PART_CALLS", 1)
    one, two = (pair([user(u)], assistant("a"), uid=u) for u in "12")
    path = write_lines(tmp_path / "a.jsonl", [one, two, one, two, one])
    report = run(tmp_path / "d", path)
    assert (report.steps, report.steps_total, report.records) == (2, 2, 5)
