"""What is cut out of one rendering is what each step renders to, or it is not cut."""

import logging

import numpy as np
import pyarrow as pa
import pytest

from clawcli import schema
from clawcli.prefix import linear, make, template
from clawcli.prefix.encode import Encoder
from clawcli.prefix.make import Settings
from clawcli.prefix.render import Renderer
from clawcli.store import tokenizers

BODY = (
    "{{% for message in messages %}}{{{{ '<|im_start|>' + message.role + '\\n' }}}}{turn}"
    "{{% for call in message.tool_calls or [] %}}"
    "{{{{ '<call>' + call.function.name + ' ' + call.function.arguments + '</call>' }}}}"
    "{{% endfor %}}{{{{ '<|im_end|>\\n' }}}}{{% endfor %}}"
    "{{% if add_generation_prompt %}}{{{{ '<|im_start|>assistant\\n{opening}' }}}}{{% endif %}}"
)
THINKS = (
    "{% if message.reasoning_content%s %}{{ '<think>' + message.reasoning_content + '</think>' }}"
    "{% endif %}{{ message.content }}"
)
TEMPLATES = {
    "plain": ("{{ message.content }}", ""),
    "keeps reasoning": (THINKS.replace("%s", ""), ""),
    "drops past reasoning": (THINKS.replace("%s", " and loop.last"), ""),
    "strips the newest turn": (
        "{{ message.content.strip() if loop.last and message.role == 'assistant' "
        "else message.content }}",
        "",
    ),
    "strips line ends of the newest turn": (
        "{{ message.content.lstrip('\n') if loop.last and message.role == 'assistant' "
        "else message.content }}",
        "",
    ),
    "strips all": ("{{ message.content.strip() }}", ""),
    "opens with more": ("{{ message.content }}", "<answer>"),
    "counts down": ("{{ message.content }}{{ ' (%d left)' % loop.revindex if loop.first }}", ""),
}
APPENDS = {
    "plain": {"plain", "edges"},  # it prints no reasoning, so such steps have no row
    "keeps reasoning": {"plain", "reasoning", "edges"},
    "drops past reasoning": {"plain", "edges"},
    "strips the newest turn": {"plain"},
    "strips line ends of the newest turn": {"plain"},
    "strips all": {"plain", "edges"},
    "opens with more": set(),
    "counts down": set(),
}


@pytest.fixture(scope="module")
def tiny():
    return tokenizers.load("tiny")


@pytest.fixture
def renderer(tiny, tmp_path):
    def of(name, **options):
        if name == "shipped":
            return Renderer(template.load(tiny), tiny, **options)
        turn, opening = TEMPLATES[name]
        (tmp_path / "chat.jinja").write_text(BODY.format(turn=turn, opening=opening))
        return Renderer(template.load(tiny, file=str(tmp_path / "chat.jinja")), tiny, **options)

    return of


def attempts(seed, *, kind="plain", count=6):
    """Steps of random attempts, with branches, tools, empty and broken turns."""
    random = np.random.default_rng(seed)
    names = [column.name for column in schema.STEPS]
    steps = []

    def add(parent, prefix, observation, **extra):
        text = ["yes", "No, sir.", "It is 5", "a b  c"][random.integers(4)]
        if kind == "edges" and random.integers(2):
            edges = [("\n", ""), (" ", "\n"), ("\n ", "\n\n"), ("", " ")]
            before, after = edges[random.integers(4)]
            text = before + text + after
        own = {
            "step_uid": f"{len(steps) * 2_654_435_761 % 2**32:08x}{seed:024x}",
            "parent_step_uid": parent and parent["step_uid"],
            "prefix_messages": prefix,
            "observation": observation,
            "response": text,
            "finish_reason": ["stop", "length", "tool_calls", None][random.integers(4)],
            "model": "m",
            "loss_weight": 1.0,
            **extra,
        }
        if kind == "reasoning" and random.integers(2):
            own["reasoning"] = f"thought {len(steps)}"
        if random.integers(3) == 0:
            own["tool_calls"] = [
                {"id": "c1", "name": "find", "arguments": '{"a":  1}', "arguments_valid": True}
            ]
        steps.append({**dict.fromkeys(names), **own})
        return steps[-1]

    for number in range(count):
        lead = {"system": "Be brief." if random.integers(2) else "", "tools": "[]"}
        user = [{"role": "user", "content": f"question {random.integers(3)}"}]
        where = {"trajectory_uid": f"t{number}"}
        path = [add(None, 0, user, step_index=0, **lead, **where)]
        sizes = [1]
        for index in range(1, random.integers(2, 6)):
            at = random.integers(max(0, len(path) - 2), len(path))  # a branch now and then
            parent, prefix = path[at], sizes[at] + 1
            new = [{"role": "user", "content": f"and {random.integers(3)}?"}]
            if parent["tool_calls"]:
                new = [{"role": "tool", "content": "found", "tool_call_id": "c1"}]
            broken = {"prefix_broken": "history_edited"} if random.integers(8) == 0 else {}
            path.append(add(parent, prefix, new, step_index=index, **broken, **where))
            sizes.append(prefix + 1)
    return pa.Table.from_pylist(steps, schema=schema.steps_schema())


def made(table, tiny, renderer, **options):
    rows, excluded, proof, restarted = {}, {}, None, 0
    for each in make.make_rows(table, tiny, renderer, Settings(**options)):
        if each is None:
            rows, excluded, proof, restarted = {}, {}, None, restarted + 1
        elif isinstance(each, make.Made):
            rows |= {
                place: row and (row.tokens.tolist(), row.response_start, row.response_end)
                for place, row in each.rows.items()
            }
            excluded |= {place: error.reason for place, error in each.excluded.items()}
            proof = each.proof
    return rows, excluded, proof, restarted


@pytest.mark.parametrize("kind", ["plain", "reasoning", "edges"])
@pytest.mark.parametrize("name", [*TEMPLATES, "shipped"])
def test_rows_of_one_rendering_are_those_of_each_step(tiny, renderer, name, kind):
    for seed in range(4):
        table = attempts(seed, kind=kind)
        quick, excluded, proof, restarted = made(table, tiny, renderer(name), prove="all")
        slow, *_ = made(table, tiny, renderer(name), prove="all", linear=False)
        assert quick == slow
        assert excluded == made(table, tiny, renderer(name), linear=False)[1]
        assert restarted == 0
        assert proof.prompts_proved == sum(row is not None for row in quick.values())


@pytest.mark.parametrize("name", TEMPLATES)
def test_only_a_template_that_appends_is_cut(tiny, renderer, name):
    special = [tiny.added_tokens[token_id] for token_id in tiny.special_ids]
    chat = renderer(name)
    cutter = linear.Cutter(chat, special)
    for kind, extra, text in (
        ("plain", {}, "yes"),
        ("reasoning", {"reasoning": "because"}, "yes"),
        ("edges", {}, " yes\n"),
    ):
        talk = [{"role": "user", "content": "a"}, {"role": "assistant", "content": text, **extra}]
        state = chat.state("", None, [*talk, {"role": "user", "content": "b"}])
        assert cutter.appends(state) == (kind in APPENDS[name]), kind


def test_most_steps_of_a_plain_log_are_cut(tiny, renderer):
    table = attempts(1, count=12)
    _, _, proof, _ = made(table, tiny, renderer("shipped"))
    assert proof.prompts_cut > len(table) / 2
    assert proof.prompts_proved < len(table)


def test_texts_that_templates_take_for_reasoning_are_not_cut(tiny, renderer):
    cutter = linear.Cutter(renderer("shipped"), ["<|im_start|>", "<|im_end|>"])
    for text, appends in (
        ("a", True),
        ("a</think>b", False),
        ("<think>", False),
        ("/no_think", False),
    ):
        state = renderer("shipped").state("", None, [{"role": "user", "content": text}])
        assert cutter.appends(state) == appends


def test_a_state_that_ends_with_an_answer_is_not_cut(tiny, renderer):
    cutter = linear.Cutter(renderer("shipped"), ["<|im_start|>", "<|im_end|>"])
    talk = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    assert not cutter.appends(renderer("shipped").state("", None, talk))
    assert cutter.appends(renderer("shipped").state("", None, [*talk, talk[0]]))


def test_users_who_speak_twice_are_tried_apart(tiny, renderer, tmp_path):
    once = (
        "{{ raise_exception('twice') if not loop.first and message.role == 'user' "
        "and messages[loop.index0 - 1].role == 'user' }}{{ message.content }}"
    )
    (tmp_path / "chat.jinja").write_text(BODY.format(turn=once, opening=""))
    chat = Renderer(template.load(tiny, file=str(tmp_path / "chat.jinja")), tiny)
    cutter = linear.Cutter(chat, ["<|im_start|>", "<|im_end|>"])
    ask = {"role": "user", "content": "a"}
    assert cutter.appends(chat.state("", None, [ask]))
    assert not cutter.appends(chat.state("", None, [ask, ask]))


def test_a_cut_that_is_wrong_makes_all_rows_step_by_step(tiny, renderer, monkeypatch, caplog):
    table = attempts(2)
    right = made(table, tiny, renderer("shipped"), linear=False)
    cut = linear.Cutter.cut

    def shifted(self, state, prompt):
        pieces = cut(self, state, prompt)
        return pieces and [
            linear.Piece(p.prompt_end - 1, prompt[p.prompt_end - 1] + p.action, p.end)
            for p in pieces
        ]

    monkeypatch.setattr(linear.Cutter, "cut", shifted)
    monkeypatch.setattr(linear.Cutter, "appends", lambda self, state: True)
    with caplog.at_level(logging.WARNING, "clawcli"):
        rows, excluded, proof, restarted = made(table, tiny, renderer("shipped"), prove="all")
    assert (rows, excluded, restarted) == (right[0], right[1], 1)
    assert proof.prompts_cut == 0
    assert "every step is rendered and compared" in caplog.text


def test_ids_that_do_not_join_are_found_and_never_used(tiny, renderer, monkeypatch):
    table = attempts(3)
    right = made(table, tiny, renderer("shipped"), linear=False)[0]
    wrong = Encoder._run

    def joined(self, text):
        ids = wrong(self, text)
        return ids[::-1] if "question 1" in text else ids

    monkeypatch.setattr(Encoder, "_run", joined)
    rows, excluded, _, restarted = made(table, tiny, renderer("shipped"), prove="all")
    assert restarted == 1
    assert set(excluded.values()) == {"prompt_differs"}
    assert all(row is None or row == right[place] for place, row in rows.items())


def test_first_parts_of_a_text_have_the_ids_of_a_call(tiny):
    encode = Encoder(tiny)
    for text in (
        "<|im_start|>user\nHi there<|im_end|>\n<|im_start|>",
        "no token",
        "",
        "<|im_end|>",
    ):
        first = encode.prefixes(text)
        specials = [0, len(text), *(k for k in range(len(text)) if text[k : k + 2] == "<|")]
        for length in [*specials, *range(0, len(text), 3)]:
            if "<|" not in text[max(0, length - 11) : length] or length in specials:
                assert first(length).tolist() == encode(text[:length]).tolist()
