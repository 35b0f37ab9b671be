import json

import numpy as np
import pytest

from clawcli.prefix import template
from clawcli.prefix.encode import Encoder
from clawcli.prefix.exclude import Excluded, Reason
from clawcli.prefix.render import Renderer
from clawcli.store import tokenizers

CHAT = (
    "{{% for message in messages %}}{{{{ '<|im_start|>' + message.role + '\\n' }}}}{turn}"
    "{{{{ '<|im_end|>\\n' }}}}{{% endfor %}}"
    "{{% if add_generation_prompt %}}{{{{ '<|im_start|>assistant\\n{opening}' }}}}{{% endif %}}"
)
TEXT = "{{ message.content }}"
TOOL = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}


def say(text="", **extra):
    return {"role": "assistant", "content": text, **extra}


def ask(text):
    return {"role": "user", "content": text}


def call(arguments, name="look_up"):
    return {"id": "c1", "name": name, "arguments": arguments, "arguments_valid": True}


@pytest.fixture(scope="module")
def tiny():
    return tokenizers.load("tiny")


@pytest.fixture(scope="module")
def shipped(tiny):
    return Renderer(template.load(tiny), tiny)


@pytest.fixture
def custom(tiny, tmp_path):
    def make(turn=TEXT, opening=""):
        (tmp_path / "chat.jinja").write_text(CHAT.format(turn=turn, opening=opening))
        return Renderer(template.load(tiny, file=str(tmp_path / "chat.jinja")), tiny)

    return make


def render(renderer, messages, action, *, system="", tools=None):
    state = renderer.state(system, tools, messages)
    return renderer.step(state, renderer.prompt(state), action)


def reason(renderer, messages, action, **options):
    with pytest.raises(Excluded) as found:
        render(renderer, messages, action, **options)
    return found.value.reason


def test_step_prompt_action_and_end_are_the_rendered_conversation(shipped):
    step = render(shipped, [ask("Hi?")], say("Hello."), system="Be kind.")
    assert step.prompt == (
        "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHi?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert (step.action, step.end.token) == ("Hello.", "<|im_end|>")
    assert step.row == step.prompt + "Hello.<|im_end|>"


def test_step_row_is_a_prefix_of_the_next_prompt(shipped):
    first = say("Looking.", tool_calls=[call('{"q":  1}'), call("{}")], reasoning="Which?")
    result = {"role": "tool", "content": "found", "tool_call_id": "c1"}
    step = render(shipped, [ask("Hi?")], first, tools=[TOOL])
    following = render(shipped, [ask("Hi?"), first, result], say("Done."), tools=[TOOL])
    assert following.prompt.startswith(step.row)
    assert '{"q":  1}' in step.action
    assert "Which?" in step.action


def test_step_parts_that_are_all_text_are_joined(shipped):
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert "\nab<|im_end|>" in render(shipped, [{"role": "user", "parts": parts}], say("x")).prompt


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        ({"type": "image_url", "image_url": {"url": "data:"}}, Reason.MEDIA),
        ({"type": "input_audio"}, Reason.MEDIA),
        ({"type": "refusal", "refusal": "no"}, Reason.PARTS_NOT_TEXT),
        (7, Reason.PARTS_NOT_TEXT),
    ],
)
def test_step_part_that_is_no_text_is_excluded(shipped, part, expected):
    parts = [{"type": "text", "text": "a"}, part]
    assert reason(shipped, [{"role": "user", "parts": parts}], say("x")) is expected


@pytest.mark.parametrize(
    ("messages", "action", "options"),
    [
        ([ask("a <|im_end|> b")], say("x"), {}),
        ([ask("a")], say("<|im_start|>user"), {}),
        ([ask("a")], say("x"), {"system": "<|endoftext|>"}),
        ([ask("a"), say("x", tool_calls=[call('{"a": "<|im_end|>"}')]), ask("b")], say("y"), {}),
        ([ask("a")], say("x"), {"tools": [{**TOOL, "note": "<|im_end|>"}]}),
        ([ask("a")], say("x", reasoning="<|im_end|>"), {}),
    ],
)
def test_step_text_that_spells_a_special_token_is_excluded(shipped, messages, action, options):
    assert reason(shipped, messages, action, **options) is Reason.SPECIAL_TOKEN_IN_TEXT


def test_step_without_any_action_is_excluded(shipped):
    assert reason(shipped, [ask("a")], say("")) is Reason.NO_ACTION


def test_step_whose_state_is_not_logged_is_excluded(shipped):
    assert reason(shipped, [], say("b")) is Reason.NO_STATE


def test_step_made_up_block_of_the_newest_turn_is_not_trained(custom):
    turn = (
        "{% if message.role == 'assistant' and loop.last %}"
        "{{ '<think>\\n' + (message.reasoning_content or '') + '\\n</think>\\n\\n' }}{% endif %}"
        + TEXT
    )
    renderer = custom(turn)
    assert render(renderer, [ask("a")], say("b")).action == "b"
    assert render(renderer, [ask("a")], say("b", reasoning=" \n")).action == "b"
    thinking = render(renderer, [ask("a")], say("b", reasoning="why"))
    assert thinking.action == "<think>\nwhy\n</think>\n\nb"


def test_step_block_that_the_log_itself_begins_with_stays(custom):
    turn = (
        "{% if message.role == 'assistant' and loop.last and '<think>' not in message.content %}"
        "{{ '<think>\\n' + (message.reasoning_content or '') + '\\n</think>\\n\\n' }}{% endif %}"
        + TEXT
    )
    logged = "<think>\n\n</think>\n\nb"
    assert render(custom(turn), [ask("a")], say(logged)).action == logged


def test_step_block_that_the_prompt_opens_must_be_in_the_log(custom):
    turn = (
        "{% if message.role == 'assistant' %}"
        "{{ '<think>\\n' + (message.reasoning_content or '') + '</think>\\n' }}{% endif %}" + TEXT
    )
    renderer = custom(turn, opening="<think>\\n")
    assert reason(renderer, [ask("a")], say("b")) is Reason.ACTION_NOT_LOCATED
    assert render(renderer, [ask("a")], say("b", reasoning="why")).action == "why</think>\nb"


def test_step_full_rendering_that_leaves_the_prompt_is_excluded(custom):
    turn = "{% if not loop.last or message.role == 'user' %}{{ messages | length }}{% endif %}"
    assert reason(custom(turn + TEXT), [ask("a")], say("b")) is Reason.ACTION_NOT_LOCATED


def test_step_text_after_the_end_token_belongs_to_the_next_observation(custom):
    step = render(custom(TEXT), [ask("a")], say("b"))
    assert (step.action, step.end.after) == ("b", "\n")


@pytest.mark.parametrize(
    ("turn", "messages", "expected"),
    [
        (
            "{% if message.role != 'developer' %}" + TEXT + "{% endif %}",
            [{"role": "developer", "content": "rule"}, ask("a")],
            Reason.TEMPLATE_DROPS_MESSAGE,
        ),
        (
            "{% if message.role != 'function' %}" + TEXT + "{% endif %}",
            [ask("a"), {"role": "function", "content": ""}],
            Reason.TEMPLATE_DROPS_MESSAGE,
        ),
        (
            "{% if message.role != 'developer' %}" + TEXT + "{% endif %}",
            [ask("a"), {"role": "developer", "content": "user"}],
            Reason.TEMPLATE_DROPS_MESSAGE,
        ),
        ("{{ message.content | replace('z', 's') }}", [ask("zoo")], Reason.TEMPLATE_EDITS_TEXT),
        (
            "{{ message.content if loop.index0 > 1 or loop.index > messages | length - 1 else '' }}",
            [ask("one two"), say("x"), ask("a")],
            Reason.TEMPLATE_DROPS_MESSAGE,
        ),
    ],
)
def test_step_message_that_is_dropped_or_edited_is_told_apart(custom, turn, messages, expected):
    assert reason(custom(turn), messages, say("b")) is expected


def test_step_text_that_only_loses_white_space_at_its_edges_is_kept(custom):
    step = render(custom("{{ message.content | trim }}"), [ask("  a \n")], say(" b "))
    assert step.action == "b"


def test_step_text_that_is_printed_as_json_is_kept(custom):
    as_json = "{{ message.content | tojson if message.role == 'tool' else message.content }}"
    result = {"role": "tool", "content": 'line "1"\n\u00e9\n'}
    assert '"line \\"1\\"\\n' in render(custom(as_json), [ask("a"), result], say("b")).prompt


def test_step_repeated_text_must_occur_as_often_as_it_was_said(custom):
    once = "{{ message.content if loop.index0 != 2 else '' }}"
    messages = [ask("yes"), say("no"), ask("yes")]
    assert reason(custom(once), messages, say("b")) is Reason.TEMPLATE_DROPS_MESSAGE


def test_step_action_that_the_template_edits_is_excluded(custom):
    turn = "{{ message.content | replace('z', 's') }}"
    assert reason(custom(turn), [ask("a")], say("zoo")) is Reason.TEMPLATE_EDITS_TEXT


def test_step_tools_without_a_place_in_the_template_are_excluded(custom):
    # that the user names a tool does not mean that it was printed
    found = reason(custom(), [ask("please look_up a")], say("b"), tools=[TOOL])
    assert found is Reason.TEMPLATE_DROPS_TOOLS


@pytest.mark.parametrize("tools", [["a"], [TOOL, 1], "abc", {"name": "f"}, 3])
def test_step_tools_that_are_no_list_of_objects_are_excluded(shipped, tools):
    assert reason(shipped, [ask("a")], say("b"), tools=tools) is Reason.TOOLS_NOT_OBJECTS


def test_step_tools_that_nest_too_deeply_are_excluded(shipped):
    tool = {}
    for _ in range(10_000):
        tool = {"a": tool}
    assert reason(shipped, [ask("a")], say("b"), tools=[tool]) is Reason.TOOLS_NOT_OBJECTS


@pytest.mark.parametrize("tool", [{"function": {"name": 3}}, {"name": ["f"]}, {"function": "f"}])
def test_step_tool_whose_name_is_no_text_is_rendered_as_it_is(shipped, tool):
    assert render(shipped, [ask("a")], say("b"), tools=[tool]).action == "b"


def test_step_calls_without_a_place_in_the_template_are_excluded(custom):
    found = reason(custom(), [ask("a")], say("b", tool_calls=[call("{}")]))
    assert found is Reason.TEMPLATE_DROPS_CALLS


def test_step_reasoning_without_a_place_in_the_template_is_excluded(custom):
    found = reason(custom(), [ask("a")], say("b", reasoning="why"))
    assert found is Reason.TEMPLATE_DROPS_REASONING


def test_step_text_that_only_occurs_inside_its_reasoning_is_dropped(custom):
    turn = "{{ message.reasoning_content or message.content }}"
    found = reason(custom(turn), [ask("a")], say("why", reasoning="why not"))
    assert found in (Reason.TEMPLATE_DROPS_MESSAGE, Reason.TEMPLATE_EDITS_TEXT)


def test_step_template_that_raises_for_a_conversation_is_excluded(custom):
    turn = TEXT + "{% if message.content == 'bad' %}{{ raise_exception('no') }}{% endif %}"
    assert reason(custom(turn), [ask("bad")], say("b")) is Reason.TEMPLATE_RAISES


DUMPING = (
    TEXT + "{% for c in message.tool_calls or [] %}"
    "{{ c.function.name + ' ' + (c.function.arguments | tojson) }}{% endfor %}"
)


def test_step_mapping_template_prints_the_values_of_logged_arguments(custom):
    arguments = '{"who":"Zoë \\"Q\\"","n":[1,{"deep":"x"}]}'
    step = render(custom(DUMPING), [ask("a")], say("", tool_calls=[call(arguments)]))
    assert json.loads(step.action.removeprefix("look_up ")) == json.loads(arguments)


def test_step_half_a_surrogate_pair_in_arguments_is_excluded(custom):
    printing = (
        TEXT + "{% for c in message.tool_calls or [] %}{{ c.function.name }}"
        "{% for k, v in c.function.arguments.items() %}{{ k + v }}{% endfor %}{% endfor %}"
    )
    found = reason(custom(printing), [ask("a")], say("", tool_calls=[call('{"a": "\\ud800"}')]))
    assert found is Reason.NOT_UNICODE


def test_step_arguments_as_deep_as_json_goes_are_found_whole(custom):
    def outcome(depth):
        arguments = '{"a":' * depth + '"leaf"' + "}" * depth
        try:
            render(custom(DUMPING), [ask("a")], say("", tool_calls=[call(arguments)]))
        except Excluded as error:
            return error.reason
        return None

    outcomes = [outcome(depth) for depth in range(100, 1_200, 50)]
    assert outcomes[0] is None
    # the template's tojson gives up at some depth, json itself at another; nothing else may
    given_up = {Reason.TEMPLATE_RAISES, Reason.ARGUMENTS_NOT_RENDERABLE}
    assert set(outcomes[1:]) <= {None, *given_up}


@pytest.mark.parametrize(
    "arguments",
    ['{"a": 1', "[1]", "plain", '{"a": 1, "a": 2}', '{"a":' * 9_999 + "1" + "}" * 9_999],
)
def test_step_arguments_that_are_no_mapping_are_excluded(custom, arguments):
    found = reason(custom(DUMPING), [ask("a")], say("", tool_calls=[call(arguments)]))
    assert found is Reason.ARGUMENTS_NOT_RENDERABLE


def test_step_arguments_that_a_mapping_template_drops_are_excluded(custom):
    names_only = (
        TEXT + "{% for c in message.tool_calls or [] %}{{ c.function.name }}"
        "{% for k, v in c.function.arguments.items() if k != 'b' %}{{ k + v }}{% endfor %}"
        "{% endfor %}"
    )
    found = reason(custom(names_only), [ask("x")], say("", tool_calls=[call('{"b": "value"}')]))
    assert found is Reason.TEMPLATE_EDITS_TEXT


def test_string_template_prints_damaged_arguments_as_logged(shipped):
    step = render(shipped, [ask("a")], say("", tool_calls=[call('{"q": "cut o')]), tools=[TOOL])
    assert '{"q": "cut o' in step.action


def test_encoder_runs_between_special_tokens_equal_the_whole(tiny):
    encode = Encoder(tiny)
    assert encode.splits
    text = "<|im_start|>user\n\n\n  a b<|im_end|>\n<|im_start|><|im_end|> \n\nassistant\n\n"
    for _ in range(2):  # the second time from the cache
        assert np.array_equal(encode(text), tiny.encode(text))
    assert encode("").tolist() == []


def test_encoder_tokenizer_that_marks_the_start_of_text_is_not_split(tiny, tmp_path):
    value = json.loads(tiny.json_path.read_text())
    value["pre_tokenizer"] = {
        "type": "Metaspace",
        "replacement": "_",
        "prepend_scheme": "first",
        "split": True,
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(value))
    marking = tokenizers.load(str(tmp_path))
    encode = Encoder(marking)
    assert not encode.splits
    assert encode.borders == frozenset()
    text = "a<|im_end|>b"
    assert np.array_equal(encode(text), marking.encode(text))


@pytest.mark.parametrize("text", ["the cat", " the", "\n\nthe", "", "the<|im_end|>the"])
def test_encoder_action_gets_no_mark_of_a_texts_start(tiny, tmp_path, text):
    value = json.loads(tiny.json_path.read_text())
    value["normalizer"] = {"type": "Prepend", "prepend": " "}
    (tmp_path / "tokenizer.json").write_text(json.dumps(value))
    marking = tokenizers.load(str(tmp_path))
    prompt = "<|im_start|>assistant\n"
    whole = marking.encode(prompt + text)
    encode = Encoder(marking)
    assert np.array_equal(np.concatenate([encode(prompt), encode.action(text)]), whole)
    assert np.array_equal(Encoder(tiny).action(text), tiny.encode(text))
