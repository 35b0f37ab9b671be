"""Real tokenizers and templates on parts of real logs: prompts proved, links whole or explained."""

from collections import Counter

import pytest
from conftest import SAMPLE, SHARED
from real_tokenizers import MODELS, PLACE

from clawcli.ingest.run import IngestConfig, ingest
from clawcli.prefix import links, make, template
from clawcli.prefix.exclude import Excluded, Reason
from clawcli.prefix.make import Settings
from clawcli.prefix.render import Renderer
from clawcli.prefix.rows import RowMaker, parent_rows, parents_first
from clawcli.store import location, query, tokenizers

LOGS = (
    "tau-bench/gpt-4o-airline.json",
    "swe-agent",
    "mini-swe-agent",
    "inspect",
    "hf-messages/adp_swe-smith_sample_raw.json",
    "openai-chat/openhands-llm-logs",
    "claude-code/real/Users-dain-workspace-JSSoundRecorder",
)
STEPS_A_LOG = 24
NO_CALLS = {Reason.TEMPLATE_DROPS_CALLS, Reason.TEMPLATE_DROPS_TOOLS}
REASONS = {
    "qwen3": set(),
    # reasoning and the text of a turn with calls are not printed, two calls in one turn raise
    "llama3_1": {
        Reason.TEMPLATE_DROPS_MESSAGE,
        Reason.TEMPLATE_DROPS_REASONING,
        Reason.TEMPLATE_RAISES,
    },
    # calls are printed only where content is none, and only a second one gets the turn's end
    "deepseek_v3": NO_CALLS,
    # of several calls in one turn the first is printed; their text goes as soon as an answer
    # follows, from the prompt of that answer too
    "gptoss": {
        Reason.ACTION_NOT_LOCATED,
        Reason.TEMPLATE_DROPS_MESSAGE,
        Reason.TEMPLATE_EDITS_TEXT,
        Reason.TEMPLATE_RAISES,
    },
    # <filename> is a special token of this vocabulary, and a word of SWE-agent's instructions
    "smollm2": NO_CALLS | {Reason.SPECIAL_TOKEN_IN_TEXT},
    # system texts are not printed
    "phi3": NO_CALLS | {Reason.TEMPLATE_DROPS_MESSAGE},
    "phi3_5": NO_CALLS | {Reason.TEMPLATE_DROPS_MESSAGE},
    "qwen2": NO_CALLS,
}
"""Why each template leaves steps out."""
REWRITES = {
    # reasoning goes from the history as soon as the user speaks again
    "qwen3": {"template:rewrites_history", "template:rewrites_action"},
    # <|return|> closes the newest turn, <|end|> the same turn in a history
    "gptoss": {"template:rewrites_history", "template:rewrites_action"},
}
"""Where a template takes back what it printed."""


@pytest.fixture(scope="module")
def steps(tmp_path_factory):
    """The first steps of each log; sample_data where the corpus is missing."""
    root = SHARED / "corpus"
    logs = [str(root / log) for log in LOGS] if root.is_dir() else [str(SAMPLE / "agent-logs")]
    data = tmp_path_factory.mktemp("real") / "data"
    ingest(IngestConfig(inputs=logs, output=str(data)))
    table = query.load_steps(location.existing(str(data)))
    parents, sources = parent_rows(table), table["source_path"].to_pylist()
    taken: Counter[str] = Counter()
    kept: set[int] = set()
    for row in parents_first(parents):
        is_whole = parents[row] is None or parents[row] in kept
        if is_whole and taken[sources[row]] < STEPS_A_LOG:
            taken[sources[row]] += 1
            kept.add(row)
    return table.take(sorted(kept))


def prepare(name):
    if not (PLACE / name).is_dir():
        pytest.skip(f"needs .tokenizers/{name}: make tokenizers fetches it")
    tokenizer = tokenizers.load(str(PLACE / name))
    return tokenizer, Renderer(template.load(tokenizer), tokenizer)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(MODELS))
def test_prompts_are_those_of_transformers_and_links_break_where_templates_rewrite(name, steps):
    tokenizer, renderer = prepare(name)
    maker = RowMaker(steps, tokenizer, renderer)
    made = [None] * len(steps)
    reasons = Counter()
    for row in parents_first(maker.parents):
        parent = maker.parents[row]
        try:
            made[row] = maker.row(row, None if parent is None else made[parent])
        except Excluded as error:
            reasons[error.reason] += 1
    of_log = {Reason.MEDIA, Reason.PARTS_NOT_TEXT, Reason.NO_STATE}
    assert set(reasons) - of_log <= REASONS[name]
    proved = maker.proof.prompts_proved
    assert proved == len(steps) - reasons.total()
    # each step of sample_data has tools
    assert proved > 0 or not ((SHARED / "corpus").is_dir() or renderer.habits.prints_tools)
    found = links.check(steps, made, maker)
    causes = {cause for cause in found.breaks_by_cause if not cause.startswith("log:")}
    assert causes - {"not_rendered"} <= REWRITES.get(name, set())
    # a step that is left out takes two links with it
    assert found.breaks_by_cause["not_rendered"] <= 2 * reasons.total()


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(MODELS))
def test_rows_cut_out_of_one_rendering_are_those_of_each_step(name, steps):
    tokenizer, renderer = prepare(name)
    quick, slow = (
        [
            (place, row and (row.tokens.tolist(), row.response_start, row.response_end))
            for made in make.make_rows(steps, tokenizer, renderer, Settings(linear=linear))
            if isinstance(made, make.Made)
            for place, row in made.rows.items()
        ]
        for linear in (True, False)
    )
    assert quick == slow


@pytest.mark.slow
def test_prompts_of_qwen3_are_those_of_the_package_renderers(tmp_path):
    renderers = pytest.importorskip("renderers.qwen3", reason="needs the package renderers")
    tokenizer, renderer = prepare("qwen3")
    ingest(IngestConfig(inputs=[str(SAMPLE / "agent-logs")], output=str(tmp_path / "data")))
    table = query.load_steps(location.existing(str(tmp_path / "data")))
    maker = RowMaker(table, tokenizer, renderer)
    oracle = renderers.Qwen3Renderer(renderer.template.engine)
    for row in range(len(table)):
        state = maker.text(row).state
        expected = oracle.render_ids(state.messages, tools=state.tools, add_generation_prompt=True)
        made = maker.row(row, None)
        assert made.tokens[: made.response_start].tolist() == expected
