"""What claw forget took out stays out, however its log comes to claw ingest again."""

import json

import pytest
from conftest import assistant, pair, system, tau, user, write_lines
from forget_data import rows, run, search

from clawcli.curate.run import CurateConfig, curate
from clawcli.ingest.committed import Committed
from clawcli.ingest.forgotten import Forgotten
from clawcli.ingest.stepgraph import Request, Step
from clawcli.manage.forget import ForgetConfig, forget
from clawcli.store import location, table, tags, tombstones
from clawcli.store.location import Location


def talk(name, turns, *, native=True, start=0):
    """Calls of one conversation; each repeats all that was said before."""
    messages, records = [system("s"), user(f"{name} asks")], []
    for turn in range(turns):
        answer = assistant(f"{name} answer {turn}")
        uid = f"{name}-{turn}" if native else None
        if turn >= start:
            records.append(pair(messages, answer, at=1_000.0 + turn, uid=uid))
        messages = [*messages, answer, user(f"{name} more {turn}")]
    return records


def run_forget(data, where="contains(response, 'acme')"):
    return forget(ForgetConfig(input=str(data), where=where))


def fates(report):
    assert sum(report.records_by_fate.values()) == report.records
    return {fate: count for fate, count in report.records_by_fate.items() if count}


def texts(data):
    return sorted(row["response"] for row in rows(data).values())


@pytest.fixture
def data(tmp_path):
    """Two customers, a log each, of whom acme was forgotten."""
    run(tmp_path / "data", write_lines(tmp_path / "stays.jsonl", talk("stays", 2)))
    run(tmp_path / "data", write_lines(tmp_path / "acme.jsonl", talk("acme", 3)))
    assert run_forget(tmp_path / "data").steps == 3
    return tmp_path / "data"


STAYS = ["stays answer 0", "stays answer 1"]


def test_ingest_log_that_grew_adds_nothing_that_goes_on_from_what_was_forgotten(data, tmp_path):
    write_lines(tmp_path / "acme.jsonl", talk("acme", 5))
    report = run(data, tmp_path / "acme.jsonl")
    assert (report.records, fates(report), report.steps) == (2, {"ignored": 2}, 0)
    assert texts(data) == STAYS
    assert search(data, ["acme"]) == set()
    # each of these keeps out what goes on from it
    assert len(tombstones.read(Location(data))) == 5
    found = table.read(Location(data), "rejects").to_pylist()
    assert [(row["fate"], row["reason"]) for row in found] == [("ignored", "forgotten")] * 2
    told = ("source_path", "task_id", "detail", "first_bytes")
    assert all(row[name] is None for row in found for name in told)
    assert fates(run(data, tmp_path / "acme.jsonl")) == {}


def test_ingest_new_conversation_in_a_forgotten_log_comes_in(data, tmp_path):
    write_lines(tmp_path / "acme.jsonl", [*talk("acme", 4), *talk("other", 2)])
    report = run(data, tmp_path / "acme.jsonl")
    assert fates(report) == {"ignored": 1, "used": 2}
    assert texts(data) == ["other answer 0", "other answer 1", *STAYS]


def test_ingest_log_that_moved_or_is_another_source_brings_nothing_back(data, tmp_path):
    (tmp_path / "acme.jsonl").rename(tmp_path / "moved.jsonl")
    report = run(data, tmp_path / "moved.jsonl")
    assert (report.files_unchanged, report.records) == (1, 0)
    report = run(data, tmp_path / "moved.jsonl", source_name="another")
    assert fates(report) == {"ignored": 3}
    lines = [*talk("fresh", 1), *talk("acme", 3), *talk("stays", 1)]
    report = run(data, write_lines(tmp_path / "mixed.jsonl", lines))
    assert fates(report) == {"used": 1, "ignored": 3, "duplicate": 1}
    assert texts(data) == ["fresh answer 0", *STAYS]


def test_ingest_later_calls_in_another_log_stay_out_too(data, tmp_path):
    report = run(data, write_lines(tmp_path / "acme 2.jsonl", talk("acme", 6, start=4)))
    assert fates(report) == {"ignored": 2}
    assert texts(data) == STAYS
    assert search(data, ["acme"]) == set()


def test_ingest_dry_run_counts_what_was_forgotten_and_writes_nothing(data, tmp_path):
    write_lines(tmp_path / "acme.jsonl", talk("acme", 5))
    report = run(data, tmp_path / "acme.jsonl", dry_run=True)
    assert fates(report) == {"ignored": 2}
    assert len(tombstones.read(Location(data))) == 3


def test_ingest_with_two_workers_keeps_out_the_same(data, tmp_path):
    for name in ("acme", "stays"):
        write_lines(tmp_path / f"{name}.jsonl", talk(name, 5))
    report = run(data, tmp_path / "acme.jsonl", tmp_path / "stays.jsonl", workers=2)
    assert fates(report) == {"ignored": 2, "used": 3}
    assert len(texts(data)) == 5


def test_ingest_call_that_a_kept_step_explains_as_well_comes_in(tmp_path):
    data = tmp_path / "data"
    same = [pair([user("hi")], assistant("hello"), at=1.0, uid=f"first-{who}") for who in "ab"]
    run(data, write_lines(tmp_path / "one.jsonl", same))
    assert run_forget(data, "native_id = 'first-a'").steps == 1
    state = [user("hi"), assistant("hello"), user("and")]
    report = run(
        data, write_lines(tmp_path / "two.jsonl", [pair(state, assistant("so"), at=2.0, uid="x")])
    )
    assert fates(report) == {"used": 1}
    (last,) = (row for row in rows(data).values() if row["response"] == "so")
    assert last["parent_step_uid"] is not None


def test_ingest_call_and_the_step_it_goes_on_from_come_in_together(tmp_path):
    data = tmp_path / "data"
    first = [pair([user("hi")], assistant("hello"), at=1.0, uid=f"first-{who}") for who in "ab"]
    run(data, write_lines(tmp_path / "one.jsonl", first[:1]))
    run_forget(data, "true")
    after = pair([user("hi"), assistant("hello"), user("and")], assistant("so"), at=2.0, uid="x")
    report = run(data, write_lines(tmp_path / "two.jsonl", [after, first[1]]))
    assert fates(report) == {"used": 2}


def test_ingest_step_that_names_a_forgotten_one_stays_out_whatever_it_was_shown(tmp_path):
    place = Location(tmp_path / "data")
    tombstones.add(place, {"a" * 32: "0" * 32}, command="forget")

    def step(letter, follows):
        request = Request(depth=0, state_hash=bytes(16), follows=follows and follows * 32)
        return Step(letter * 32, request, 0, letter.encode() * 16, b"")

    steps = [step("c", "b"), step("b", "a"), step("d", None), step("e", "d")]
    found = Forgotten(place).among(steps, Committed(place))
    assert found == {"b" * 32: "62" * 16, "c" * 32: "63" * 16}


def attempt(name, turns):
    said = [[assistant(f"{name} {turn}"), user(f"{name} u{turn}")] for turn in range(turns)]
    return [system("s"), user(f"{name} task"), *(m for both in said for m in both)]


def test_ingest_document_that_is_written_anew_brings_back_no_attempt_and_no_part(tmp_path):
    data, path = tmp_path / "data", tmp_path / "runs.json"
    path.write_text(tau([("t1", 0, 1.0, attempt("acme", 3)), ("t2", 0, 0.0, attempt("b", 2))]))
    run(data, path)
    assert run_forget(data, "contains(response, 'acme') AND step_index = 1").steps == 2
    kept = rows(data)
    assert texts(data) == ["acme 0", "b 0", "b 1"]
    path.write_text(
        tau(
            [
                ("t1", 0, 1.0, attempt("acme", 3)),
                ("t2", 0, 0.0, attempt("b", 2)),
                ("t3", 0, 1.0, attempt("c", 1)),
            ]
        )
    )
    report = run(data, path)
    assert report.steps == 1
    assert fates(report) == {"used": 3}
    assert texts(data) == ["acme 0", "b 0", "b 1", "c 0"]
    now = rows(data)
    changed = {name for uid in kept for name in kept[uid] if kept[uid][name] != now[uid][name]}
    # the attempt now ends where it was cut, and there stands its reward
    assert changed == {"reward"}


def test_ingest_one_document_forgotten_whole_stays_out_as_it_grows_in_place(tmp_path):
    data, path = tmp_path / "data", tmp_path / "acme.traj.json"
    for turns in (2, 3):
        path.write_text(json.dumps({"messages": attempt("acme", turns), "id": f"acme{turns}"}))
        report = run(data, path)
        if turns == 2:
            assert report.steps == 2
            run_forget(data)
    assert fates(report) == {"ignored": 1}
    assert texts(data) == []
    assert search(data, ["acme"]) == set()


def test_ingest_and_curate_go_on_after_a_forget(data, tmp_path):
    write_lines(tmp_path / "stays.jsonl", talk("stays", 4))
    report = run(data, tmp_path / "stays.jsonl")
    assert (report.steps, report.steps_total) == (2, 4)
    ordered = sorted(rows(data).values(), key=lambda row: row["step_index"])
    assert [row["parent_step_uid"] for row in ordered[1:]] == [r["step_uid"] for r in ordered[:-1]]
    done = curate(CurateConfig(input=str(data), output=str(tmp_path / "out"), where="true"))
    assert done.steps_kept == 4
    assert location.existing(str(data)).path == data
    run_forget(data, "response = 'stays answer 2'")
    assert texts(data) == STAYS
    assert fates(run(data, tmp_path / "stays.jsonl", tmp_path / "acme.jsonl")) == {}


def test_ingest_log_without_ids_is_known_again_by_its_source(tmp_path):
    data = tmp_path / "data"
    run(data, write_lines(tmp_path / "acme.jsonl", talk("acme", 2, native=False)))
    run_forget(data)
    write_lines(tmp_path / "acme.jsonl", talk("acme", 4, native=False))
    assert fates(run(data, tmp_path / "acme.jsonl")) == {"ignored": 2}
    assert texts(data) == []


def test_restore_of_a_tagged_version_knows_its_sources_and_what_was_forgotten(tmp_path):
    data = tmp_path / "data"
    run(data, write_lines(tmp_path / "stays.jsonl", talk("stays", 2)))
    tags.put(Location(data), "clean", 0)
    run(data, write_lines(tmp_path / "acme.jsonl", talk("acme", 3)))
    run(data, write_lines(tmp_path / "new.jsonl", talk("new", 1)))
    run_forget(data)
    table.restore(data / "steps", 0, info={"command": "restore"})
    assert texts(data) == STAYS
    assert run(data, tmp_path / "stays.jsonl").files_unchanged == 1
    report = run(data, tmp_path / "acme.jsonl", tmp_path / "new.jsonl")
    assert fates(report) == {"ignored": 3, "used": 1}
    assert texts(data) == ["new answer 0", *STAYS]


def test_tombstones_are_hashes_alone(data):
    (info,) = table.history(Location(data).sidecar("forgotten"))
    assert set(info) == {"claw_version", "command"}
    found = table.read(Location(data), "sidecars/forgotten").to_pylist()
    assert {len(row[name]) for row in found for name in ("step_uid", "next_hash")} == {32}
