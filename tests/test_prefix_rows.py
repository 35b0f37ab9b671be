import json

import numpy as np
import pyarrow as pa
import pytest

from clawcli import schema
from clawcli.prefix import links, rows, template
from clawcli.prefix.exclude import Excluded, Reason
from clawcli.prefix.render import Renderer
from clawcli.prefix.rows import RowMaker
from clawcli.store import tokenizers

END = 2  # <|im_end|> of tiny


@pytest.fixture(scope="module")
def tiny():
    return tokenizers.load("tiny")


@pytest.fixture(scope="module")
def renderer(tiny):
    return Renderer(template.load(tiny), tiny)


def ask(text):
    return {"role": "user", "content": text}


def table(*steps):
    """A step table; each step names what differs from a closed call of text."""
    default = {"prefix_messages": 0, "response": "x", "finish_reason": "stop", "model": "m"}
    names = [column.name for column in schema.STEPS]
    filled = [
        {**dict.fromkeys(names), "step_uid": f"s{i}", **default, **step}
        for i, step in enumerate(steps)
    ]
    return pa.Table.from_pylist(filled, schema=schema.steps_schema())


def chain(*steps):
    """Steps of one attempt: each continues the one before by one question."""
    linked = []
    for i, step in enumerate(steps):
        own = {"observation": [ask(f"question {i}")], "system": None if i else "Be brief."}
        if i:
            own |= {"parent_step_uid": f"s{i - 1}", "prefix_messages": 2 * i}
        linked.append({**own, **step})
    return table(*linked)


def make(steps, tiny, renderer, **options):
    maker = RowMaker(steps, tiny, renderer, **options)
    made = []
    for row in range(len(steps)):
        parent = maker.parents[row]
        made.append(maker.row(row, None if parent is None else made[parent]))
    return maker, made


def prompt_ids(tiny, text):
    return tiny.encode(f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n")


def test_row_from_text_is_prompt_action_and_end(tiny, renderer):
    steps = table({"observation": [ask("a")], "response": "Hello."})
    _, (row,) = make(steps, tiny, renderer)
    prompt = prompt_ids(tiny, "a")
    assert row.tokens.tolist() == [*prompt, *tiny.encode("Hello."), END]
    assert (row.response_start, row.response_end) == (len(prompt), len(row.tokens))
    assert (row.provenance, row.logprobs) == ("text", None)


@pytest.mark.parametrize(
    ("finish_reason", "trained", "cause"),
    [
        ("stop", True, "stop"),
        ("tool_calls", True, "tool_calls"),
        ("refusal", True, "refusal"),
        ("length", False, "length"),
        ("content_filter", False, "content_filter"),
        ("aborted", False, "aborted"),
        ("error", False, "error"),
        ("unknown", False, "unknown_open"),
        (None, False, "unknown_open"),
    ],
)
def test_end_token_stands_always_and_is_trained_by_finish_reason(
    tiny, renderer, finish_reason, trained, cause
):
    steps = table({"observation": [ask("a")], "finish_reason": finish_reason})
    maker, (row,) = make(steps, tiny, renderer)
    assert row.tokens[-1] == END
    assert row.response_end == len(row.tokens) - (not trained)
    assert maker.proof.end_tokens_by_cause == {cause: 1}


def test_end_token_after_a_stop_string_is_not_trained(tiny, renderer):
    steps = table(
        {"observation": [ask("a")], "sampling": json.dumps({"stop": ["###"]})},
        {"observation": [ask("a")], "sampling": json.dumps({"stop": []})},
    )
    maker, (with_stop, without) = make(steps, tiny, renderer)
    assert with_stop.response_end == len(with_stop.tokens) - 1
    assert without.response_end == len(without.tokens)
    assert maker.proof.end_tokens_by_cause == {"stop_string": 1, "stop": 1}


@pytest.mark.parametrize(("when_unknown", "trained"), [("include", True), ("exclude", False)])
@pytest.mark.parametrize("closed_by", ["child", "final_observation"])
def test_end_token_of_unknown_reason_is_trained_where_a_later_message_closed_the_turn(
    tiny, renderer, when_unknown, trained, closed_by
):
    first = {"finish_reason": "unknown"}
    if closed_by == "child":
        steps = chain(first, {})
    else:
        steps = chain({**first, "final_observation": [ask("bye")]})
    _, made = make(steps, tiny, renderer, eos_when_unknown=when_unknown)
    assert made[0].response_end == len(made[0].tokens) - (not trained)


def test_end_token_of_unknown_reason_is_not_closed_by_a_child_without_the_action(tiny, renderer):
    again = {"prefix_broken": "no_action", "prefix_messages": 1}
    _, made = make(chain({"finish_reason": "unknown"}, again), tiny, renderer)
    assert made[0].response_end == len(made[0].tokens) - 1


@pytest.mark.parametrize("finish_reason", ["unknown", "stop"])
def test_end_token_of_a_turn_that_the_child_shows_longer_is_not_trained(
    tiny, renderer, finish_reason
):
    # the text was cut by a stop string, which the client put back into its history
    cut = {"prefix_broken": "stop_trimmed", "prefix_messages": 1}
    _, made = make(chain({"finish_reason": finish_reason}, cut), tiny, renderer)
    assert made[0].response_end == len(made[0].tokens) - 1


def test_row_of_logged_ids_is_what_the_engine_saw_and_drew(tiny, renderer):
    prompt, drawn = prompt_ids(tiny, "a").tolist(), [*tiny.encode("He").tolist(), 80, END]
    text = tiny.decode(drawn[:-1])
    step = {
        "observation": [ask("a")],
        "response": text,
        "prefix_tokens": 0,
        "observation_ids": prompt,
        "response_ids": drawn,
        "rollout_logprobs": [-1.0] * len(drawn),
    }
    maker, (row,) = make(table(step), tiny, renderer)
    assert row.tokens.tolist() == prompt + drawn
    assert (row.response_start, row.response_end) == (len(prompt), len(prompt) + len(drawn))
    assert row.logprobs == [-1.0] * len(drawn)
    assert row.provenance == "engine_logprobs"
    assert (maker.proof.prompts_logged, maker.proof.prompts_logged_equal) == (1, 1)


def test_row_of_logged_ids_without_the_end_token_gets_one_without_a_log_prob(tiny, renderer):
    drawn = tiny.encode("Hello").tolist()
    step = {
        "observation": [ask("a")],
        "response": "Hello",
        "prefix_tokens": 0,
        "observation_ids": prompt_ids(tiny, "a").tolist(),
        "response_ids": drawn,
        "rollout_logprobs": [-0.5] * len(drawn),
    }
    steps = table({**step, "finish_reason": "length"}, {**step, "finish_reason": "stop"})
    _, (cut, closed) = make(steps, tiny, renderer)
    assert cut.tokens.tolist() == closed.tokens.tolist()
    assert (cut.tokens[-1], cut.logprobs) == (END, [-0.5] * len(drawn))
    assert closed.logprobs == [-0.5] * len(drawn) + [None]
    assert closed.response_end == cut.response_end + 1 == len(closed.tokens)


def test_row_of_logged_ids_of_tool_calls_gets_the_end_of_a_turn_of_tool_calls(tiny, tmp_path):
    (tmp_path / "t.jinja").write_text(
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content }}"
        "{% for c in m.tool_calls or [] %}{{ c.function.name + c.function.arguments }}{% endfor %}"
        "{{ '<|endoftext|>' if m.tool_calls else '<|im_end|>\n' }}{% endfor %}"
    )
    renderer = Renderer(template.load(tiny, file=str(tmp_path / "t.jinja")), tiny)
    call = {"id": "c", "name": "find", "arguments": "{}", "arguments_valid": True}
    step = {"observation": [ask("a")], "response": "", "tool_calls": [call]}
    drawn = tiny.encode("find{}").tolist()
    _, (row,) = make(table({**step, "response_ids": drawn}), tiny, renderer)
    assert row.tokens[-1] == 0


def test_row_of_logged_ids_that_end_otherwise_does_not_train_our_end_token(tiny, renderer):
    drawn = [*tiny.encode("Hello").tolist(), 0]  # <|endoftext|>
    step = {"observation": [ask("a")], "response": "Hello", "response_ids": drawn}
    maker, (row,) = make(table(step), tiny, renderer)
    assert row.tokens[-2:].tolist() == [0, END]
    assert row.response_end == len(row.tokens) - 1
    assert maker.proof.end_tokens_by_cause == {"other_end_drawn": 1}


def test_logged_prompt_ids_are_walked_from_the_root(tiny, renderer):
    first, second = [7, 8, 9, 10], [11, 12, END]
    text = tiny.decode(second[:-1])
    engine = {"prefix_tokens": 0, "observation_ids": first, "response_ids": second}
    later = {"prefix_tokens": 6, "observation_ids": [20, 21], "response_ids": second}
    steps = chain({**engine, "response": text}, {**later, "response": text})
    maker, made = make(steps, tiny, renderer)
    assert made[1].tokens.tolist() == [7, 8, 9, 10, 11, 12, 20, 21, *second]
    assert made[1].provenance == "engine_ids"
    assert maker.proof.prompts_logged_equal == 0


def test_logged_prompt_ids_of_an_incomplete_walk_are_rendered(tiny, renderer):
    text = tiny.decode([11, 12])
    orphan = {"prefix_tokens": 90, "observation_ids": [20], "response_ids": [11, 12, END]}
    steps = chain({}, {**orphan, "response": text})
    _, made = make(steps, tiny, renderer)
    assert made[1].provenance == "mixed"
    assert made[1].tokens[made[1].response_start :].tolist() == [11, 12, END]


def test_logged_prompt_that_shares_more_than_its_parent_has_is_rendered(tiny, renderer):
    text, drawn = tiny.decode([11, 12]), [11, 12, END]
    first = {"prefix_tokens": 0, "observation_ids": [7, 8], "response_ids": drawn}
    later = {"prefix_tokens": 6, "observation_ids": [20], "response_ids": drawn}
    steps = chain({**first, "response": text}, {**later, "response": text})
    _, made = make(steps, tiny, renderer)
    assert [row.provenance for row in made] == ["engine_ids", "mixed"]


def test_logged_response_is_continued_by_text_across_an_unbroken_link(tiny, renderer):
    # two tokens where the tokenizer itself would take one: only the logged ids know
    drawn = [*tiny.encode(" t").tolist(), *tiny.encode("he").tolist()]
    assert tiny.encode(" the").tolist() != drawn
    first = {"response": " the", "response_ids": [*drawn, END]}
    steps = chain(first, {"response": "ok"})
    maker, made = make(steps, tiny, renderer)
    assert links.check(steps, made, maker).links_unbroken == 1
    assert made[1].provenance == "mixed"
    assert maker.proof.prompts_continued == 1
    rest = tiny.encode("\n<|im_start|>user\nquestion 1<|im_end|>\n<|im_start|>assistant\n")
    assert made[1].tokens[: made[1].response_start].tolist() == [*made[0].tokens, *rest]


def test_logged_response_is_not_continued_after_a_token_that_does_not_split(tiny, tmp_path):
    value = json.loads(tiny.json_path.read_text())
    value["added_tokens"][END]["special"] = False
    (tmp_path / "tokenizer.json").write_text(json.dumps(value))
    unsplit = tokenizers.load(str(tmp_path))
    own = str(tiny.directory / "chat_template.jinja")
    renderer = Renderer(template.load(unsplit, file=own), unsplit)
    drawn = [*tiny.encode(" the").tolist(), END]
    _, made = make(chain({"response": " the", "response_ids": drawn}, {}), unsplit, renderer)
    assert [row.provenance for row in made] == ["mixed", "text"]


def test_logged_response_is_not_continued_across_a_broken_link(tiny, renderer):
    drawn = [*tiny.encode(" t").tolist(), *tiny.encode("he").tolist()]
    first = {"response": " the", "response_ids": [*drawn, END]}
    steps = chain(first, {"prefix_broken": "history_edited"})
    maker, made = make(steps, tiny, renderer)
    assert made[1].provenance == "text"
    assert maker.proof.prompts_continued == 0


def test_logged_ids_of_another_tokenizer_are_counted_and_text_is_used(tiny, renderer):
    wrong = {"observation": [ask("a")], "response": "Hello", "response_ids": [5, 6, 7]}
    maker, made = make(table(wrong, wrong), tiny, renderer)
    assert [row.provenance for row in made] == ["text", "text"]
    assert maker.logged.steps_by_verdict == {"other_tokenizer": 2}
    assert maker.logged.decoded_frac_by_model == {"m": 0.0}


def test_logged_ids_outside_the_vocabulary_are_never_used(tiny, renderer):
    wild = {"response": "Hello", "response_ids": [10**6], "tokenizer": tiny.vocab_hash}
    _, (row,) = make(table({"observation": [ask("a")], **wild}), tiny, renderer)
    assert row.provenance == "text"


def test_logged_ids_that_fit_by_chance_are_not_used(tiny, renderer):
    lucky = {"observation": [ask("a")], "response": "Hello"}
    steps = table(
        {**lucky, "response_ids": tiny.encode("Hello").tolist()}, {**lucky, "response_ids": [5, 6]}
    )
    maker, _ = make(steps, tiny, renderer)
    assert maker.logged.steps_by_verdict == {"other_tokenizer": 2}


def test_logged_ids_of_one_step_that_differ_from_its_text_are_not_used(tiny, renderer):
    good = {
        "observation": [ask("a")],
        "response": "Hello",
        "response_ids": tiny.encode("Hello").tolist(),
    }
    steps = table(*[good] * 19, {**good, "response": "other"})
    maker, made = make(steps, tiny, renderer)
    assert maker.logged.steps_by_verdict == {"used": 19, "text_differs": 1}
    assert made[-1].provenance == "text"


def test_logged_ids_are_judged_for_each_model(tiny, renderer):
    ours = {
        "observation": [ask("a")],
        "response": "Hello",
        "response_ids": tiny.encode("Hello").tolist(),
    }
    theirs = {**ours, "model": "n", "response_ids": [5, 6]}
    maker, _ = make(table(ours, theirs), tiny, renderer)
    assert maker.logged.steps_by_verdict == {"used": 1, "other_tokenizer": 1}


def test_logged_ids_with_this_vocab_hash_need_no_text(tiny, renderer):
    named = {"response": "not these", "response_ids": [5, 6, END], "tokenizer": tiny.vocab_hash}
    _, (row,) = make(table({"observation": [ask("a")], **named}), tiny, renderer)
    assert row.tokens[row.response_start :].tolist() == [5, 6, END]


def test_logged_ids_of_tool_calls_are_found_in_what_was_drawn(tiny, renderer):
    drawn = tiny.encode('Sure.\n<call>find {"who": "anna"}</call>').tolist()
    call = {"id": "c", "name": "find", "arguments": '{"who":"anna"}', "arguments_valid": True}
    step = {"observation": [ask("a")], "response": "Sure.", "tool_calls": [call]}
    other = {**call, "arguments": '{"who":"otto"}'}
    steps = table(
        {**step, "response_ids": drawn},
        {**step, "response_ids": drawn, "tool_calls": [other], "model": "n"},
    )
    maker, _ = make(steps, tiny, renderer)
    assert maker.logged.decoded_frac_by_model == {"m": 1.0, "n": 0.0}


def test_row_with_nothing_to_train_is_excluded(tiny, renderer):
    steps = table({"observation": [ask("a")], "response": "", "finish_reason": "stop"})
    with pytest.raises(Excluded) as found:
        make(steps, tiny, renderer)
    assert found.value.reason is Reason.NO_ACTION


def test_row_whose_ids_are_not_those_of_transformers_is_excluded(tiny, renderer, tmp_path):
    value = json.loads(tiny.json_path.read_text())
    vocab = value["model"]["vocab"]
    vocab["a"], vocab["b"] = vocab["b"], vocab["a"]
    (tmp_path / "tokenizer.json").write_text(json.dumps(value))
    swapped = tokenizers.load(str(tmp_path))
    with pytest.raises(Excluded) as found:
        make(table({"observation": [ask("a")]}), swapped, renderer)
    assert found.value.reason is Reason.PROMPT_DIFFERS


def test_parents_first_keeps_the_order_that_it_can():
    assert rows.parents_first([None, 0, 1, None, 3]) == [0, 1, 2, 3, 4]
    assert rows.parents_first([2, 0, None]) == [2, 0, 1]


def test_parent_that_the_table_lacks_is_no_link(tiny, renderer):
    steps = chain({}, {})
    cut = steps.slice(1)
    cut = cut.set_column(
        cut.schema.get_field_index("prefix_messages"), "prefix_messages", pa.array([0], pa.int32())
    )
    maker, made = make(cut, tiny, renderer)
    assert maker.parents == [None]
    assert links.check(cut, made, maker).links == 0


def test_link_on_which_the_action_completes_the_parents_row_is_broken():
    def row(tokens, response_start):
        return rows.Row(np.int32(tokens), response_start, len(tokens), None, "text")

    parent = row([1, 2, 3], 1)
    assert links.continues(parent, row([1, 2, 3, 4], 3))
    assert not links.continues(parent, row([1, 2, 3, 4], 2))


def test_links_are_counted_by_who_broke_them(tiny, renderer):
    steps = chain({}, {}, {"prefix_broken": "history_edited"}, {})
    maker, made = make(steps, tiny, renderer)
    found = links.check(steps, [*made[:3], None], maker)
    assert (found.links, found.links_unbroken) == (3, 1)
    assert found.breaks_by_cause == {"log:history_edited": 1, "not_rendered": 1}


@pytest.mark.parametrize(
    ("turn", "opening", "cause"),
    [
        ("{{ message.content }}", "<think></think>", "template:rewrites_generation_prompt"),
        (
            "{{ message.content }}{{ ' (old)' if message.role == 'user' and not loop.last "
            "and loop.index < messages | length - 1 else '' }}",
            "",
            "template:rewrites_history",
        ),
        (
            "{{ message.content | trim if message.role == 'assistant' and loop.last "
            "else message.content }}",
            "",
            "template:rewrites_action",
        ),
    ],
)
def test_links_that_a_template_breaks_name_what_it_rewrites(tiny, tmp_path, turn, opening, cause):
    thought = "{{ '" + opening + "' if message.role == 'assistant' and loop.last else '' }}"
    (tmp_path / "t.jinja").write_text(
        "{% for message in messages %}{{ '<|im_start|>' + message.role + '\\n' }}"
        + (thought if opening else "")
        + turn
        + "{{ '<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}"
        + "{{ '<|im_start|>assistant\\n"
        + opening
        + "' }}{% endif %}"
    )
    renderer = Renderer(template.load(tiny, file=str(tmp_path / "t.jinja")), tiny)
    steps = chain({"response": " x", "system": ""}, {})
    maker, made = make(steps, tiny, renderer)
    assert links.check(steps, made, maker).breaks_by_cause == {cause: 1}


def test_links_of_text_that_is_tokenised_otherwise_are_borders(tiny, tmp_path):
    # the prompt ends with a space, which a history joins to the word that follows
    (tmp_path / "t.jinja").write_text(
        "{% for message in messages %}{{ '<|im_start|>' + message.role + ' ' + message.content }}"
        "{{ '<|im_end|>' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant ' }}{% endif %}"
    )
    renderer = Renderer(template.load(tiny, file=str(tmp_path / "t.jinja")), tiny)
    steps = chain({"response": "the"}, {})
    maker, made = make(steps, tiny, renderer)
    assert links.check(steps, made, maker).breaks_by_cause == {"tokens:border": 1}


def test_links_of_logged_ids_that_the_child_has_otherwise_are_named(tiny, renderer):
    drawn = tiny.encode("He").tolist()
    first = {
        "response": "He",
        "response_ids": [*drawn, END],
        "prefix_tokens": 0,
        "observation_ids": [7, 8],
    }
    steps = chain(first, {})
    maker, made = make(steps, tiny, renderer)
    assert links.check(steps, made, maker).breaks_by_cause == {"tokens:logged_ids": 1}
