from hypothesis import given
from hypothesis import strategies as st

from clawcli.ingest.calls import Call, Choice
from clawcli.ingest.conversations import EMPTY, digested
from clawcli.ingest.fates import Fate
from clawcli.ingest.formats.turns import Turn, parents_first, weave
from clawcli.messages import Message, ToolCall


def said(*texts, role="user"):
    return [digested(Message(role, text)) for text in texts]


def result(call_id, text="done"):
    return digested(Message("tool", text, tool_call_id=call_id))


def answer(record, text, parent=None, *, calls=(), **more):
    tools = tuple(ToolCall(call_id, "run", "{}", True) for call_id in calls) or None
    action = digested(Message("assistant", text, tool_calls=tools))
    call = Call(state=EMPTY, choices=[Choice(action)], record=record)
    return Turn([record], call=call, parent=parent, attempt="a", **more)


def told(record, text, parent=None, **more):
    return Turn([record], said(text), parent=parent, attempt="a", **more)


def state(call):
    return [item.message.content for item in call.state.after()]


def fates(session):
    return {record: (fate.fate, fate.reason) for record, fate in session.fates.items()}


def test_weave_gives_each_call_its_conversation_and_the_call_before_it():
    first = told(0, "hi")
    one = answer(1, "hello", first)
    two = told(2, "more", one)
    three = answer(3, "fine", two)
    session = weave([first, one, two, three])
    assert [state(call) for call in session.calls] == [["hi"], ["hi", "hello", "more"]]
    assert session.calls[1].follows is session.calls[0]
    assert all(call.is_cut for call in session.calls)
    assert session.fates == {}


def test_weave_leaves_what_nobody_answered_behind_and_keeps_the_newest_end():
    first = told(0, "hi")
    one = answer(1, "hello", first, notes=[{"n": 0}])
    left = told(2, "left", one)
    end = told(3, "last", one, notes=[{"n": 1}])
    session = weave([first, one, left, end])
    assert fates(session) == {2: ("ignored", "dead_branch")}
    assert [message.content for message in session.calls[0].final_observation] == ["last"]
    assert session.calls[0].metadata == {"final_observation": [{"n": 0}, {"n": 1}]}


def test_weave_both_branches_see_what_came_before_the_fork():
    first = told(0, "hi", notes=[{"n": 0}], codes=["odd"])
    one, two = answer(1, "a", first), answer(2, "b", first)
    three = answer(3, "c", told_one := told(4, "on", one))
    session = weave([first, one, two, three, told_one])
    assert [state(call) for call in session.calls] == [["hi"], ["hi"], ["hi", "a", "on"]]
    assert [call.warnings for call in session.calls] == [["odd"], ["odd"], []]
    assert [call.metadata for call in session.calls] == [{"observation": [{"n": 0}]}] * 2 + [None]


def test_weave_after_a_reset_the_history_is_new_and_the_attempt_goes_on():
    first = told(0, "hi")
    one = answer(1, "hello", first, calls=["c1"])
    one.said = [result("c1")]
    boundary = told(2, "summary", one, resets=True)
    two = answer(3, "on", boundary)
    session = weave([first, one, boundary, two])
    assert state(session.calls[1]) == ["summary"]
    assert session.calls[1].follows is session.calls[0]
    # nobody saw the result, so that the call keeps it
    assert [message.content for message in session.calls[0].final_observation] == ["done"]
    assert session.calls[1].warnings == []


def test_weave_kept_turns_come_again_behind_the_summary():
    first = told(0, "hi")
    one = answer(1, "hello", first)
    two = told(2, "more", one)
    boundary = told(3, "summary", two, resets=True, keep=[one, two])
    three = answer(4, "on", boundary)
    session = weave([first, one, two, boundary, three])
    assert state(session.calls[1]) == ["summary", "hello", "more"]
    assert session.fates == {}


def test_weave_missing_tool_result_is_told_to_all_that_follow_until_a_reset():
    one = answer(0, "a", calls=["c1", "c2"])
    one.said = [result("c1")]
    two = answer(1, "b", one)
    three = answer(2, "c", two)
    boundary = told(3, "summary", three, resets=True)
    four = answer(4, "d", boundary)
    session = weave([one, two, three, boundary, four])
    missing = ["tool_result_missing"]
    assert [call.warnings for call in session.calls] == [[], missing, missing, []]


def test_weave_result_of_another_call_answers_nothing():
    one = answer(0, "a", calls=["c1"])
    one.said = [result("c2")]
    assert weave([one, answer(1, "b", one)]).calls[1].warnings == ["tool_result_missing"]


def test_weave_results_without_ids_count_by_number():
    one = answer(0, "a", calls=[None, None])
    one.said = [result(None), result(None)]
    two = answer(1, "b", one, calls=[None])
    three = answer(2, "c", two)
    assert [c.warnings for c in weave([one, two, three]).calls] == [[], [], ["tool_result_missing"]]


def test_weave_attempt_without_an_answer_is_rejected_once():
    first, second = told(0, "hi"), told(1, "hello?")
    second.parent = first
    assert fates(weave([first, second])) == {
        0: ("rejected", "empty_trajectory"),
        1: ("ignored", "no_answer"),
    }


def test_weave_a_fate_of_its_own_stays():
    first = told(0, "hi")
    failed = Turn([1], parent=first, fate=Fate("failed_call", "api_error", ""), attempt="a")
    one = answer(2, "hello", failed)
    session = weave([first, failed, one])
    assert fates(session) == {1: ("failed_call", "api_error")}
    assert state(session.calls[0]) == ["hi"]


def test_weave_a_record_with_several_turns_is_used_when_one_is():
    first = told(0, "hi")
    one = answer(0, "hello", first)
    left = told(0, "left", first)
    assert weave([first, one, left]).fates == {}


def test_parents_first_cuts_a_circle_before_its_first_member_in_the_log():
    one, two, three = told(0, "a"), told(1, "b"), told(2, "c")
    one.parent, two.parent, three.parent = three, one, two
    assert parents_first([three, one, two])[0] is three
    assert three.parent is None
    assert three.damage == ["parent_cycle"]
    own = told(3, "d")
    own.parent = own
    assert parents_first([own]) == [own]


@given(st.lists(st.tuples(st.integers(0, 9), st.booleans(), st.booleans()), max_size=10))
def test_weave_any_tree_gives_each_record_a_place_and_each_call_its_path(shapes):
    turns = []
    for record, (_, is_answer, resets) in enumerate(shapes):
        make = answer if is_answer else told
        turns.append(make(record, f"m{record}", resets=resets))
    for turn, (parent, _, _) in zip(turns, shapes, strict=True):
        turn.parent = turns[parent] if parent < len(turns) else None
    session = weave(turns)
    by_record = {turn.records[0]: turn for turn in turns}
    for call in session.calls:
        path, at = [], by_record[call.record]
        while not at.resets and at.parent is not None:
            at = at.parent
            path.insert(0, f"m{at.records[0]}")
        assert state(call) == path
    used = set(by_record) - session.fates.keys()
    assert {call.record for call in session.calls} <= used
    shown = {text for call in session.calls for text in state(call)}
    shown |= {m.content for c in session.calls for m in c.final_observation or ()}
    shown |= {call.choices[0].action.message.content for call in session.calls}
    assert shown == {f"m{record}" for record in used}
