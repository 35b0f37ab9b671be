"""However a log comes, the table says what was logged: order, rounds, workers, growth, secrets."""

import json
import random
import re
from collections import Counter

import pytest
from conftest import assistant, pair, shared, user, write_lines
from request_log import RequestLog, fork, make, reasoning_stripped_at_next_user
from same_tables import EDITED, by_uid, differences, run, states

from clawcli.ingest import committed, plan, reading, rounds, sources
from clawcli.ingest.batch import Batch
from clawcli.ingest.parts import Piece, Setting
from clawcli.ingest.read.find import find
from clawcli.store import location

PLACEHOLDER = re.compile(r"\[REDACTED:(\w+):[0-9a-f]+\]")
CALL = {
    "messages": "messages",
    "response": "response",
    "native_id": "id",
    "started_at": "t",
    "reward": "reward",
    "trajectory_reward": "episode",
    "loss_weight": "weight",
}


def places(directory):
    return Counter((r["trajectory_uid"], r["step_index"]) for r in by_uid(directory).values())


def in_runs(folder, records, num, seed):
    """Ingest records in several runs, each of some of them, in no order; return the directory."""
    shuffle = random.Random(seed)
    hours = [[] for _ in range(num)]
    for record in records:
        shuffle.choice(hours).append(record)
    for number, hour in enumerate(filter(None, hours)):
        run(folder / "hours", write_lines(folder / f"{number}.jsonl", hour), map=mapping(records))
    return folder / "hours"


def whole(folder, records):
    run(folder / "whole", write_lines(folder / "all.jsonl", records), map=mapping(records))
    return folder / "whole"


def mapping(records):
    if "request" in records[0]:
        return {}
    return {**CALL, **({"trajectory_key": "key"} if "key" in records[0] else {})}


def logged(uid, messages, answer, at, **beside):
    return {"id": uid, "messages": messages, "response": assistant(answer), "t": at, **beside}


def same_words(log):
    """Attempts of different and of the same tasks that begin with equal actions."""
    starts = {f"other{i}": [log.system, log.user(f"other{i}")] for i in range(4)}
    twin = [log.system, log.user("twin")]
    starts |= {f"twin{i}": twin for i in range(3)}
    for turn in range(4):
        for name in log.random.sample(sorted(starts), 7):
            action = log.action(arguments='{"q":"ls"}' if turn < 2 else None)
            log.call(name, starts[name], action)
            view = log.result(action, f"files {name[:4]}" if turn == 0 else None)
            starts[name] = [*starts[name], action, view]


def choices_of_choices(log):
    start = [log.system, log.user("choices of choices")]
    actions = [log.action() for _ in range(3)]
    log.call("first", start, *actions)
    for number, action in enumerate(actions):
        messages = [*start, action, log.result(action)]
        for _ in range(2):
            more = [log.action(), log.action()]
            log.call(f"after{number}", messages, *more)
            messages = [*messages, more[number % 2], log.result(more[number % 2])]


SMALL = {
    (committed, "_RESIDENT_STEPS"): 10,
    (rounds, "_ROUND_STEPS"): 16,
    (plan, "_SMALL_FILES"): 1,
    (reading, "_PART_CALLS"): 16,
}


@pytest.fixture
def small_rounds():
    """Give what makes runs commit after a few steps and keep hardly a tree at hand."""
    with pytest.MonkeyPatch.context() as patch:

        def begin():
            for (module, name), value in SMALL.items():
                patch.setattr(module, name, value)

        yield begin


@pytest.mark.slow
def test_log_in_small_rounds_and_any_order_gives_the_table_of_the_whole(tmp_path, small_rounds):
    log = make(1)
    same_words(log)
    choices_of_choices(log)
    random.Random(1).shuffle(log.records)
    expected = whole(tmp_path, log.records)
    small_rounds()
    found = in_runs(tmp_path, log.records, 8, seed=1)
    report = run(tmp_path / "rounds", tmp_path / "all.jsonl")
    assert report.trajectories == report.trajectories_total
    for directory in (found, tmp_path / "rounds"):
        names = {name for name, _ in differences(by_uid(expected), by_uid(directory))}
        assert names <= EDITED
        assert max(places(directory).values()) == 1


def test_child_before_its_parent_leaves_the_call_it_hung_on_meanwhile(tmp_path):
    log = RequestLog(0)
    same_words(log)
    expected = by_uid(whole(tmp_path, log.records))
    ends = [record for record in log.records if record["turn"] in (0, 3)]
    for number, part in enumerate(
        (
            ends,
            [r for r in log.records if r["turn"] == 2],
            [r for r in log.records if r["turn"] == 1],
        )
    ):
        run(tmp_path / "parts", write_lines(tmp_path / f"{number}.jsonl", part))
    assert differences(expected, by_uid(tmp_path / "parts")) == set()


@pytest.mark.slow
def test_tree_that_begins_in_its_middle_is_found_by_a_call_without_its_reasoning(tmp_path):
    log = RequestLog(3)
    reasoning_stripped_at_next_user(log)
    expected = by_uid(whole(tmp_path, log.records))
    for turn in (3, 4, 5, 2, 0, 1):
        run(tmp_path / "turns", write_lines(tmp_path / f"{turn}.jsonl", [log.records[turn]]))
    assert differences(expected, by_uid(tmp_path / "turns")) == set()


def one_by_one(folder, records, monkeypatch, *, resident):
    """Ingest in one run, each record a commit, with room for so many steps at hand."""
    for module, name, value in (
        (committed, "_RESIDENT_STEPS", resident),
        (rounds, "_ROUND_STEPS", 1),
        (plan, "_SMALL_FILES", 1),
    ):
        monkeypatch.setattr(module, name, value)
    files = [write_lines(folder / f"{i:02}.jsonl", [record]) for i, record in enumerate(records)]
    run(folder / "rounds", *files, map=mapping(records))
    return by_uid(folder / "rounds")


def test_choices_of_one_call_are_let_go_of_together(tmp_path, monkeypatch):
    asked = [user("which?")]
    answers = [{"message": assistant(text)} for text in ("this", "that")]
    records = [{"id": "0", "messages": asked, "response": answers, "t": 1.7e9}]
    for number, text in enumerate(("that", "this"), start=1):
        shown = [*asked, assistant(text), user("well")]
        records.append(logged(str(number), shown, f"after {text}", 1.7e9 + number))
    expected = by_uid(whole(tmp_path, records))
    found = one_by_one(tmp_path, records, monkeypatch, resident=1)
    assert differences(expected, found) == set()


def test_tree_that_became_part_of_another_is_let_go_of_with_it(tmp_path, monkeypatch):
    records = attempt("a", 3, 1.7e9)
    expected = by_uid(whole(tmp_path, records))
    found = one_by_one(tmp_path, [records[i] for i in (1, 0, 2)], monkeypatch, resident=1)
    assert differences(expected, found) == set()


@pytest.mark.slow
def test_predecessor_is_sought_in_the_table_though_one_like_it_is_at_hand(tmp_path, monkeypatch):
    log = RequestLog(5)
    start = [log.system, log.user("twins")]
    ends = {}
    for name in ("a", "b"):
        action = log.action(arguments='{"q":"ls"}')
        log.call(name, start, action)
        ends[name] = [*start, action, log.result(action, "files")]
    ends["a"] = log.turn("a", ends["a"])
    log.turn("a", ends["a"])
    log.turn("b", ends["b"])
    expected = by_uid(whole(tmp_path, log.records))
    run(tmp_path / "rounds", write_lines(tmp_path / "first.jsonl", log.records[:3]))
    found = one_by_one(tmp_path, log.records[3:], monkeypatch, resident=100)
    assert differences(expected, found) == set()


def test_ambiguous_parent_stays_told_when_the_live_path_moves(tmp_path):
    asked = [user("say yes")]
    shown = [*asked, assistant("yes"), user("again")]
    records = [logged(f"root{i}", asked, "yes", 1.7e9 + i) for i in range(2)]
    records += [logged(f"on{i}", shown, f"yes {i}", 1.7e9 + 2 + i) for i in range(3)]
    end = logged("end", [*shown, assistant("yes 0"), user("and?")], "no", 1.7e9 + 9)
    expected = by_uid(whole(tmp_path, [*records, end]))
    run(tmp_path / "two", write_lines(tmp_path / "1.jsonl", records), map=CALL)
    run(tmp_path / "two", write_lines(tmp_path / "2.jsonl", [end]), map=CALL)
    found = by_uid(tmp_path / "two")
    assert differences(expected, found) == set()
    told = {row["native_id"]: (row["trajectory_kind"], row["warnings"]) for row in found.values()}
    assert told["on2"] == ("branch", ["ambiguous_parent"])


# -- what was logged stays what was logged -------------------------------------------------------


def attempt(name, num, at, **beside):
    """Calls of one attempt; beside[key](turn) is what is logged with each."""
    messages, found = [user(f"task {name}")], []
    for turn in range(num):
        extra = {key: value(turn) for key, value in beside.items()}
        found.append(
            logged(f"{name}/{turn}", messages, f"{name} {turn}", at + turn, run=name, **extra)
        )
        messages = [*messages, assistant(f"{name} {turn}"), user(f"on {turn}")]
    return found


def turn_by_turn(folder, records):
    for number, record in enumerate(records):
        run(folder / "turns", write_lines(folder / f"{number}.jsonl", [record]), map=CALL)
    return by_uid(folder / "turns")


def test_step_reward_equal_to_that_of_the_attempt_is_not_lost_later(tmp_path):
    last = 3
    records = attempt("a", 4, 1.7e9, reward=lambda t: float(t == last), episode=lambda _: 1.0)
    found = turn_by_turn(tmp_path, [records[i] for i in (3, 1, 2, 0)])
    assert [found_row["reward"] for found_row in in_order(found)] == [0, 0, 0, 1]


def in_order(rows):
    return sorted(rows.values(), key=lambda row: row["native_id"])


def test_reward_of_one_attempt_never_spreads_to_another_that_goes_on(tmp_path):
    start = attempt("a", 3, 1.7e9)
    messages = start[1]["messages"]
    judged = logged("b/1", messages, "gave up", 1.7e9 + 1.5, episode=0.5)
    records = [start[0], judged, start[1], start[2]]
    expected = by_uid(whole(tmp_path, records))
    found = turn_by_turn(tmp_path, records)
    assert differences(expected, found) == set()
    rewards = {row["native_id"]: row["trajectory_reward"] for row in found.values()}
    assert rewards == {"a/0": None, "a/1": None, "a/2": None, "b/1": 0.5}


def test_weight_of_a_branch_is_kept_when_it_becomes_the_live_path(tmp_path):
    trunk = attempt("a", 3, 1.7e9)
    asked = trunk[1]["messages"]
    branch = logged("b/1", asked, "other way", 1.7e9 + 1.5, weight=0.25)
    goes_on = [*asked, assistant("other way"), user("and then")]
    end = logged("b/2", goes_on, "end", 1.7e9 + 9, weight=0.25)
    found = turn_by_turn(tmp_path, [*trunk, branch, end])
    weights = {row["native_id"]: row["loss_weight"] for row in found.values()}
    assert weights == {"a/0": 1, "a/1": 0, "a/2": 0, "b/1": 0.25, "b/2": 0.25}


def test_reward_of_several_choices_goes_to_the_one_gone_on_with_in_a_later_commit(tmp_path):
    asked = [user("which?")]
    answers = [{"message": assistant(text)} for text in ("this", "that")]
    first = {"id": "1", "messages": asked, "response": answers, "t": 1.7e9, "reward": 2.0}
    second = logged("2", [*asked, assistant("that"), user("well")], "done", 1.7e9 + 1)
    found = turn_by_turn(tmp_path, [first, second])
    choices = {row["response"]: (row["reward"], row["warnings"]) for row in found.values()}
    assert choices["that"] == (2.0, None)
    assert choices["this"] == (None, ["reward_of_another_choice"])


@pytest.mark.slow
@pytest.mark.parametrize("order", [(5, 4, 3, 2, 1, 0), (3, 0, 5, 1, 4, 2)])
def test_calls_with_a_key_and_no_common_text_are_one_trajectory_in_any_order(tmp_path, order):
    records = [logged(str(i), [user(f"window {i}")], f"{i}", 1.7e9 + i, key="K") for i in range(6)]
    expected = by_uid(whole(tmp_path, records))
    for i in order:
        file = write_lines(tmp_path / f"{i}.jsonl", [records[i]])
        run(tmp_path / "turns", file, map=mapping(records))
    assert differences(expected, by_uid(tmp_path / "turns")) == set()
    assert max(places(tmp_path / "turns").values()) == 1


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_two_attempts_with_one_key_never_share_a_place(tmp_path, order):
    records = [
        logged(str(i), [user(f"task {i}")], f"{i}", 1.7e9 + i, key="K", task=f"t{i}")
        for i in range(2)
    ]
    names = {**mapping(records), "task_id": "task"}
    run(tmp_path / "whole", write_lines(tmp_path / "all.jsonl", records), map=names)
    for i in order:
        run(tmp_path / "turns", write_lines(tmp_path / f"{i}.jsonl", [records[i]]), map=names)
    expected = by_uid(tmp_path / "whole")
    assert differences(expected, by_uid(tmp_path / "turns")) == set()
    assert len(places(tmp_path / "turns")) == 2


def test_call_that_is_logged_again_with_another_choice_gives_that_choice_alone(tmp_path):
    asked = [user("twice")]
    first = pair(asked, assistant("a"), assistant("b"), uid="1", at=1.7e9)
    again = pair(asked, assistant("a"), assistant("c"), uid="1", at=1.7e9 + 1)
    after = [pair([*asked, assistant(t), user("on")], assistant("end"), uid=t) for t in "ac"]
    one = write_lines(tmp_path / "1.jsonl", [first, after[0]])
    two = write_lines(tmp_path / "2.jsonl", [again, after[1]])
    report = run(tmp_path / "data", one, two)
    assert (report.steps, report.records_by_fate["used"]) == (5, 4)
    assert max(places(tmp_path / "data").values()) == 1


# -- secrets and token ids -----------------------------------------------------------------------


def secret(number):
    letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
    return "ghp_" + "".join(random.Random(number).choices(letters, k=36))


def without_keys(value):
    """A placeholder depends on the data directory; leave its rule."""
    return json.loads(PLACEHOLDER.sub(r"[\1]", json.dumps(value, default=str)))


@pytest.mark.slow
def test_secrets_in_conversations_do_not_change_how_they_are_linked(tmp_path, small_rounds):
    log = make(2)
    text = json.dumps(log.records).replace("You keep a garden.", f"The key is {secret(0)}.")
    for number, word in enumerate(("amber", "grove"), start=1):
        text = re.sub(rf"\b{word}\b", secret(number), text)
    records = json.loads(text)
    expected = without_keys(by_uid(whole(tmp_path, records)))
    assert sum("[github]" in json.dumps(row) for row in expected.values()) > 50
    small_rounds()
    found = without_keys(by_uid(in_runs(tmp_path, records, 8, seed=2)))
    assert {name for name, _ in differences(expected, found)} <= EDITED


def ids_of(message):
    """Ids that spell a message byte by byte."""
    told = [message["role"], message.get("content"), message.get("tool_calls")]
    return [1 + byte for byte in json.dumps(told).encode()] + [300]


def with_ids(records):
    for record in records:
        response = record["response"]
        response["prompt_token_ids"] = [
            i for message in record["request"]["messages"] for i in ids_of(message)
        ]
        for choice in response.get("choices", ()):
            choice["token_ids"] = ids_of(choice["message"])
    return records


def prompt_ids(rows, uid):
    row = rows[uid]
    if row["observation_ids"] is None or not row["prefix_tokens"]:
        return row["observation_ids"]
    before = prompt_ids(rows, row["parent_step_uid"])
    if before is None:
        return None
    known = before + (rows[row["parent_step_uid"]]["response_ids"] or [])
    assert len(known) >= row["prefix_tokens"]
    return known[: row["prefix_tokens"]] + row["observation_ids"]


@pytest.mark.slow
def test_token_ids_are_those_of_the_log_however_it_comes(tmp_path, small_rounds):
    log = make(4)
    choices_of_choices(log)
    records = with_ids(log.records)
    logged_ids = {
        (record["response"]["id"], choice["index"]): record["response"]["prompt_token_ids"]
        for record in records
        for choice in record["response"].get("choices", ())
    }
    expected = by_uid(whole(tmp_path, records))
    small_rounds()
    rows = by_uid(in_runs(tmp_path, records, 8, seed=4))
    assert {name for name, _ in differences(expected, rows)} <= EDITED
    for uid, row in rows.items():
        assert prompt_ids(rows, uid) == logged_ids[row["native_id"], row["choice_index"]]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_token_ids_never_spell_a_secret_of_an_earlier_commit(tmp_path, order):
    asked = [user("go")]
    answers = [assistant(f"the key is {secret(5)}"), assistant("thanks"), assistant("done")]
    records = []
    for turn, answer in enumerate(answers):
        records.append(pair(asked, answer, uid=str(turn), at=1.7e9 + turn))
        asked = [*asked, answer, user(f"on {turn}")]
    for turn in order:
        file = write_lines(tmp_path / f"{turn}.jsonl", with_ids([records[turn]]))
        run(tmp_path / "data", file)
    spelt = [
        bytes(i - 1 for i in row[name] or () if i <= 256)
        for row in by_uid(tmp_path / "data").values()
        for name in ("observation_ids", "response_ids")
    ]
    assert not any(secret(5).encode() in text for text in spelt)
    assert any(spelt), "nothing was left to look at"


@pytest.mark.slow
def test_two_workers_give_the_table_of_one_with_secrets_and_token_ids(tmp_path, monkeypatch):
    monkeypatch.setattr(plan, "_SMALL_FILES", 2)
    log = RequestLog(6)
    fork(log)
    same_words(log)
    text = json.dumps(log.records).replace("You keep a garden.", f"The key is {secret(6)}.")
    records = with_ids(json.loads(text))
    files = [write_lines(tmp_path / f"{i}.jsonl", records[i::6]) for i in range(6)]
    for count in (1, 2):
        run(tmp_path / f"by{count}", *files[:4], workers=count)
        run(tmp_path / f"by{count}", *files[4:], workers=count)
    one, two = (without_keys(by_uid(tmp_path / f"by{count}", drop=())) for count in (1, 2))
    assert differences(one, two) == set()


# -- sources -------------------------------------------------------------------------------------


def item(kind, **payload):
    return {"type": "response_item", "payload": {"type": kind, **payload}}


def said(role, text):
    part = "output_text" if role == "assistant" else "input_text"
    return item("message", role=role, content=[{"type": part, "text": text}])


def codex_session():
    lines = [
        {"type": "session_meta", "payload": {"id": "s", "cwd": "/x", "cli_version": "1"}},
        said("user", "look"),
        item("reasoning", summary=[{"type": "summary_text", "text": "hm"}], encrypted_content=None),
        said("assistant", "I look."),
        item("function_call", name="shell", arguments='{"command":["ls"]}', call_id="c1"),
        item("function_call", name="shell", arguments='{"command":["pwd"]}', call_id="c2"),
        item("function_call_output", call_id="c1", output="files"),
        item("function_call_output", call_id="c2", output="/x"),
        said("assistant", "Done."),
        said("user", "thanks"),
        said("assistant", "Welcome."),
    ]
    return [{"timestamp": f"2026-01-01T00:00:{i:02}.000Z", **line} for i, line in enumerate(lines)]


@pytest.mark.slow
def test_session_that_is_read_after_each_line_gives_the_table_of_the_whole(tmp_path):
    lines = codex_session()
    for num in range(1, len(lines) + 1):
        file = write_lines(tmp_path / "rollout.jsonl", lines[:num])
        report = run(tmp_path / "grown", file)
        assert report.problems == ()
    run(tmp_path / "whole", file)
    expected = by_uid(tmp_path / "whole", drop=())
    assert len(expected) == 3
    assert differences(expected, by_uid(tmp_path / "grown", drop=())) == set()


@pytest.mark.slow
def test_copy_that_did_not_grow_with_its_source_is_unchanged(tmp_path):
    lines = codex_session()
    old, live = tmp_path / "backup", tmp_path / "live"
    old.mkdir()
    live.mkdir()
    write_lines(live / "s.jsonl", lines[:4])
    run(tmp_path / "data", live)
    write_lines(old / "s.jsonl", lines[:4])
    for num in (9, 11):
        write_lines(live / "s.jsonl", lines[:num])
        run(tmp_path / "data", live)
    report = run(tmp_path / "data", live, old)
    assert (report.files_unchanged, report.files_read, report.problems) == (2, 0, ())
    write_lines(old / "s.jsonl", [*lines[:3], said("assistant", "I do not.")])
    assert len(run(tmp_path / "data", live, old).problems) == 1


def test_pieces_that_longer_ones_replaced_are_remembered_to_a_limit():
    known = sources.KnownSources()
    entry = {"source_uid": "u", "path": "p", "head": "h", "tail": "", "whole": True}
    for end in range(1, 30):
        known.add({**entry, "pieces": [(0, end, f"{end}")]})
    assert [end for _, end, _ in known.by_uid["u"].before] == list(range(21, 29))


def test_dry_run_reports_what_the_run_does_and_writes_nothing(tmp_path):
    log = RequestLog(8)
    same_words(log)
    logs, data = tmp_path / "logs", tmp_path / "data"
    logs.mkdir()
    for number in (1, 0):
        write_lines(logs / f"{number}.jsonl", log.records[number::2])
        before = {p: p.stat().st_mtime_ns for p in data.rglob("*")}
        planned = run(data, logs, dry_run=True)
        assert {p: p.stat().st_mtime_ns for p in data.rglob("*")} == before
        done = run(data, logs)
        for name in planned.__dataclass_fields__:
            if name not in ("table_version", "readiness"):  # of what is not written
                assert getattr(planned, name) == getattr(done, name), name


# -- the corpus ----------------------------------------------------------------------------------

FORMATS = (
    *("atif", "claude-code", "codex", "hf-messages", "inspect", "mini-swe-agent", "openai-batch"),
    *("openai-chat", "openai-responses", "openclaw", "openhands-v0", "openhands-v1"),
    *("sharegpt", "swe-agent"),
)


def told(message):
    value = {"role": message.role, "content": message.content, "name": message.name}
    value |= {"tool_call_id": message.tool_call_id, "reasoning": message.reasoning}
    if message.parts is not None:
        value["parts"] = json.loads(message.parts)
    if message.tool_calls is not None:
        names = ("id", "name", "arguments", "arguments_valid")
        value["tool_calls"] = [{n: getattr(c, n) for n in names} for c in message.tool_calls]
    return {key: item for key, item in value.items() if item is not None}


def without_ids(messages):
    return [
        {
            **{key: item for key, item in message.items() if key != "tool_call_id"},
            "tool_calls": [{**call, "id": None} for call in message.get("tool_calls", ())],
        }
        for message in messages
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
def test_state_of_every_step_of_the_corpus_is_what_its_record_shows(tmp_path, name):
    folder = shared(name)
    report = run(tmp_path / "data", folder, redact=False, workers=1)
    assert sum(report.records_by_fate.values()) == report.records
    assert report.steps == report.steps_total == sum(report.steps_by_format.values())
    assert max(places(tmp_path / "data").values()) == 1
    shown = {}
    found, _ = find([str(folder)])
    batch = Batch(Setting(location.parse(str(tmp_path / "none"))), sources.KnownSources())
    for number, source in enumerate(found):
        part = batch.take(Piece([source], number=number))
        while part.more:
            part = batch.more(number)
    for uid, waiting in batch._waiting.items():
        shown[uid] = [
            (call.system, call.tools, [told(item.message) for item in call.state.after()])
            for _, call, _ in waiting
        ]
    for uid, prompt in states(tmp_path / "data").items():
        tools = prompt.tools
        assert any(
            prompt.system == system
            and tools == (None if logged_tools is None else json.loads(logged_tools))
            and without_ids(prompt.messages) == without_ids(messages)
            for system, logged_tools, messages in shown[uid]
        ), uid
