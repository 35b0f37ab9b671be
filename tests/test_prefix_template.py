import json

import pytest

from clawcli.errors import DataError, NotFoundError, UsageError
from clawcli.prefix import template
from clawcli.prefix.probe import TurnEnd, probe
from clawcli.store import tokenizers

# each prints one turn; tests put them together with what they are about
OPEN = "{{ '<|im_start|>' + message.role + '\\n' }}"
CLOSE = "{{ '<|im_end|>\\n' }}"
PROMPT = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"


def chat(turn, prompt=PROMPT, before="", close=CLOSE):
    return f"{before}{{% for message in messages %}}{OPEN}{turn}{close}{{% endfor %}}{prompt}"


@pytest.fixture(scope="module")
def tiny():
    return tokenizers.load("tiny")


@pytest.fixture
def habits(tiny, tmp_path):
    def find(text, **kwargs):
        file = tmp_path / "chat.jinja"
        file.write_text(text)
        return probe(template.load(tiny, file=str(file), kwargs=kwargs).render, tiny)

    return find


def test_probe_shipped_template_prints_everything_as_it_is(tiny):
    found = probe(template.load(tiny).render, tiny)
    assert not found.content_as_parts
    assert found.arguments_form == "string"
    assert found.prints_tools
    assert (found.empty_thought, found.open_thought) == ("", "")
    assert found.turn_ends == (TurnEnd(2, "<|im_end|>", "\n"),)


def test_probe_template_that_dumps_arguments_gets_a_mapping(habits):
    calls = (
        "{{ message.content }}{% for c in message.tool_calls or [] %}"
        "{{ c.function.name + (c.function.arguments | tojson) }}{% endfor %}"
    )
    assert habits(chat(calls)).arguments_form == "mapping"


def test_probe_template_without_tool_calls_says_so(habits):
    found = habits(chat("{{ message.content }}"))
    assert found.arguments_form is None
    assert not found.prints_tools


def test_probe_template_of_content_parts_gets_parts(habits):
    turn = "{% for part in message.content %}{{ part.text }}{% endfor %}"
    assert habits(chat(turn)).content_as_parts


def test_probe_block_for_the_newest_turn_is_known_as_made_up(habits):
    turn = (
        "{% if message.role == 'assistant' and loop.last %}"
        "{{ '<think>\\n' + (message.reasoning_content or '') + '\\n</think>\\n\\n' }}{% endif %}"
        "{{ message.content }}"
    )
    assert habits(chat(turn)).empty_thought == "<think>\n\n</think>\n\n"


def test_probe_prompt_that_opens_a_block_is_known_by_what_closes_it(habits):
    turn = (
        "{% if message.role == 'assistant' %}"
        "{{ '<think>\\n' + (message.reasoning_content or '') + '</think>\\n' }}{% endif %}"
        "{{ message.content }}"
    )
    prompt = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n<think>\\n' }}{% endif %}"
    found = habits(chat(turn, prompt))
    assert (found.empty_thought, found.open_thought) == ("", "</think>\n")


@pytest.mark.parametrize("closing", ["channel: end\\n", ""])
def test_probe_header_before_the_answer_is_no_reasoning_block(habits, closing):
    turn = (
        "{% if message.reasoning_content %}{{ 'channel: thought\\n' + message.reasoning_content }}"
        "{{ '\\n" + closing + "' }}{% endif %}"
        "{% if message.role == 'assistant' %}{{ 'channel: final\\n' }}{% endif %}"
        "{{ message.content }}"
    )
    found = habits(chat(turn))
    assert (found.empty_thought, found.open_thought) == ("", "")


def test_probe_turn_of_tool_calls_may_end_otherwise(habits):
    turn = (
        "{{ message.content }}{% for c in message.tool_calls or [] %}"
        "{{ c.function.name + c.function.arguments }}{% endfor %}"
    )
    close = "{{ '<|endoftext|>' if message.tool_calls else '<|im_end|>\\n' }}"
    found = habits(chat(turn, close=close))
    assert [end.token for end in found.turn_ends] == ["<|im_end|>", "<|endoftext|>"]


def test_probe_white_space_before_the_end_token_is_allowed(habits):
    found = habits(chat("{{ message.content }}", close="{{ ' <|im_end|>' }}"))
    assert found.turn_ends == (TurnEnd(2, "<|im_end|>", ""),)


def test_probe_turn_end_of_several_tokens_is_refused(habits):
    with pytest.raises(
        DataError, match=r"ends a turn .* '</turn>\\n', .* not begin with one token"
    ):
        habits(chat("{{ message.content }}", close="{{ '</turn>\\n' }}"))


def test_probe_template_that_raises_is_refused_with_its_words(habits):
    with pytest.raises(DataError, match=r"cannot render one question.*not today"):
        habits("{{ raise_exception('not today') }}")


def test_probe_template_that_drops_the_assistant_is_refused(habits):
    only_users = "{% if message.role == 'user' %}{{ message.content }}{% endif %}"
    with pytest.raises(DataError, match="no text of the assistant"):
        habits(chat(only_users))


def test_load_tokenizer_without_template_names_the_flag(tiny, tmp_path):
    tiny.to_file(tmp_path / "tokenizer.json")
    with pytest.raises(UsageError, match=r"no chat template.*--chat-template"):
        template.load(tokenizers.load(str(tmp_path)))


def test_load_missing_template_file_is_not_found(tiny, tmp_path):
    with pytest.raises(NotFoundError, match="does not exist"):
        template.load(tiny, file=str(tmp_path / "none.jinja"))


def test_load_directory_that_transformers_cannot_open_is_a_data_error(tiny, tmp_path):
    tiny.to_file(tmp_path / "tokenizer.json")
    (tmp_path / "tokenizer_config.json").write_text("[")
    with pytest.raises(DataError, match="transformers cannot load the tokenizer"):
        template.load(tokenizers.load(str(tmp_path)))


def test_template_hash_covers_the_text_and_its_variables(tiny, tmp_path):
    (tmp_path / "same.jinja").write_text((tiny.directory / "chat_template.jinja").read_text())
    (tmp_path / "other.jinja").write_text(chat("{{ message.content }}"))
    own = template.load(tiny).template_hash
    assert template.load(tiny, file=str(tmp_path / "same.jinja")).template_hash == own
    assert template.load(tiny, file=str(tmp_path / "other.jinja")).template_hash != own
    assert template.load(tiny, kwargs={"a": 1}).template_hash != own


def test_load_template_that_prints_the_date_warns(tiny, tmp_path, caplog):
    (tmp_path / "t.jinja").write_text("{{ strftime_now('%d %b %Y') }}")
    template.load(tiny, file=str(tmp_path / "t.jinja"))
    assert "today's date" in caplog.text


def test_template_variables_reach_the_template(tiny, tmp_path):
    (tmp_path / "t.jinja").write_text("{{ mood }}" + chat("{{ message.content }}"))
    loaded = template.load(
        tiny, file=str(tmp_path / "t.jinja"), kwargs=json.loads('{"mood": "m!"}')
    )
    assert loaded.render([{"role": "user", "content": "x"}]).startswith("m!")


@pytest.mark.parametrize("text", ["Hi", "a <|im_end|> b", " \n", "\u00e9\u4e2d\U0001f917"])
def test_ids_are_those_that_apply_chat_template_gives(tiny, text):
    loaded = template.load(tiny)
    talk = [{"role": "system", "content": text}, {"role": "user", "content": text}]
    theirs = loaded.engine.apply_chat_template(
        talk, add_generation_prompt=True, tokenize=True, return_dict=False
    )
    assert loaded.ids(loaded.render(talk, generation_prompt=True)) == theirs
