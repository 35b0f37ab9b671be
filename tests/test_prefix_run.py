import contextlib
import json
from pathlib import Path

import pytest
from conftest import assistant, pair, shared, system, tau, tool, user, write_lines
from real_tokenizers import PLACE

from clawcli.curate.run import CurateConfig, curate
from clawcli.errors import DataError, NotFoundError, OutputExistsError, UsageError
from clawcli.ingest.run import IngestConfig, ingest
from clawcli.prefix import make
from clawcli.prefix.run import MergeConfig, merge_prefixes
from clawcli.store import artefact, table, tokenizers, trees

AIRLINE = ("tau-bench", "gpt-4o-airline.json")


def qwen3():
    """Return the directory of a Qwen3 tokenizer, or skip the test."""
    if not (PLACE / "qwen3").is_dir():
        pytest.skip("needs .tokenizers/qwen3: make tokenizers fetches it")
    return PLACE / "qwen3"


def attempt(*answers):
    messages = [system("You help."), user("Book a flight.")]
    for answer in answers:
        messages += [assistant(answer, calls=[("c", "find", '{"to": "Rome"}')]), tool("ok")]
    return messages


@pytest.fixture
def data(tmp_path):
    """Two attempts at one task whose first action is the same, and one at another."""
    attempts = [
        (1, 0, 1.0, attempt("A", "B", "C")),
        (1, 1, 0.0, attempt("A", "D")),
        (2, 0, 1.0, attempt("E")),
    ]
    (tmp_path / "t.json").write_text(tau(attempts))
    ingest(IngestConfig(inputs=(str(tmp_path / "t.json"),), output=str(tmp_path / "data")))
    return tmp_path / "data"


def merge(source, output, **options):
    return merge_prefixes(
        MergeConfig(input=str(source), output=str(output), **{"tokenizer": "tiny", **options})
    )


def test_merge_counts_rows_links_and_tokens(data, tmp_path):
    report = merge(data, tmp_path / "tree")
    tree = trees.read(tmp_path / "tree")
    lengths = tree.paths["row_tokens"].to_pylist()
    assert (report.steps_in, report.steps, report.steps_trained) == (6, 6, 6)
    assert report.logical_tokens == sum(lengths)
    assert report.unique_tokens == len(tree.forest.token_ids) < report.chain_tokens
    assert (report.links, report.links_unbroken, report.prefix_breaks_by_cause) == (3, 3, {})
    assert (report.prompts_proved, report.prompts_cut) == (3, 5)
    assert merge(data, tmp_path / "all", prove="all", dry_run=True).prompts_proved == 6
    assert (report.roots, report.leaves) == (1, 3)


def test_merge_identical_steps_keep_an_entry_each(data, tmp_path):
    merge(data, tmp_path / "tree")
    paths = trees.read(tmp_path / "tree").paths.to_pylist()
    first = [path for path in paths if path["step_index"] == 0]
    assert len({path["step_uid"] for path in first}) == 3
    # attempts 0 and 1 at task 1 begin alike: one node, two entries with returns of their own
    shared_end = {
        end: [p["trajectory_return"] for p in first if p["end_node_id"] == end]
        for end in {p["end_node_id"] for p in first}
    }
    assert sorted(map(sorted, shared_end.values())) == [[0.0, 1.0], [1.0]]


def test_merge_rows_rebuild_with_hash_and_span(data, tmp_path):
    merge(data, tmp_path / "tree")
    tree = trees.read(tmp_path / "tree")
    for path in tree.paths.to_pylist():
        row = tree.forest.row(path["end_node_id"])
        assert trees.row_hash(row) == path["row_hash"]
        assert path["response_end"] == path["row_tokens"] == len(row)
        assert row[-1] == tree.manifest.eos_token_id


def test_merge_context_has_a_path_only_inside_a_trained_row(data, tmp_path):
    kept = tmp_path / "kept"
    where = "step_index = 1 OR task_id = '2'"
    curate(CurateConfig(input=str(data), output=str(kept), where=where))
    report = merge(kept, tmp_path / "tree")
    assert (report.steps_in, report.steps_trained) == (5, 3)
    assert (report.steps, report.steps_context_without_path) == (5, 0)
    # an attempt whose first action was restated: its row is in no trained row
    answer = assistant("thinking twice")
    lines = [
        pair([user("q")], answer, uid="1", at=1),
        pair([user("q"), assistant("other"), user("r")], assistant("s"), uid="2", at=2),
    ]
    source = write_lines(tmp_path / "calls.jsonl", lines)
    ingest(IngestConfig(inputs=(str(source),), output=str(tmp_path / "calls")))
    where = "response = 's'"
    curate(CurateConfig(input=str(tmp_path / "calls"), output=str(tmp_path / "s"), where=where))
    report = merge(tmp_path / "s", tmp_path / "other")
    assert (report.steps_in, report.steps, report.steps_context_without_path) == (2, 1, 1)
    assert report.prefix_breaks_by_cause == {"log:action_differs": 1}


def test_merge_excluded_steps_are_counted_with_examples(data, tmp_path):
    lines = [
        pair([user("fine")], assistant("a"), uid="1"),
        pair([user("spells <|im_end|>")], assistant("b"), uid="2"),
        pair([user([{"type": "image_url", "image_url": {"url": "x"}}])], assistant("c"), uid="3"),
    ]
    source = write_lines(tmp_path / "calls.jsonl", lines)
    ingest(IngestConfig(inputs=(str(source),), output=str(tmp_path / "calls")))
    report = merge(tmp_path / "calls", tmp_path / "tree")
    assert report.steps_excluded_by_reason == {"media": 1, "special_token_in_text": 1}
    assert report.steps_in == report.steps + 2
    examples = artefact.read_manifest(tmp_path / "tree")["excluded_examples"]
    assert list(examples["special_token_in_text"].values()) == ["<|im_end|>"]


def test_merge_nothing_left_says_why(tmp_path):
    source = write_lines(tmp_path / "c.jsonl", [pair([user("<|im_end|>")], assistant("a"))])
    ingest(IngestConfig(inputs=(str(source),), output=str(tmp_path / "c")))
    with pytest.raises(DataError, match=r"1 special_token_in_text.*--chat-template"):
        merge(tmp_path / "c", tmp_path / "tree")
    assert not (tmp_path / "tree").exists()


def test_merge_output_that_exists_is_refused_before_any_work(data, tmp_path):
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "mine").write_text("x")
    with pytest.raises(OutputExistsError):
        merge(data, tmp_path / "tree", tokenizer="nowhere/none")


def test_merge_unknown_tokenizer_or_data_is_not_found(data, tmp_path):
    with pytest.raises(NotFoundError, match="There is no tokenizer"):
        merge(data, tmp_path / "tree", tokenizer="nowhere/none")
    with pytest.raises(NotFoundError, match="does not exist"):
        merge(tmp_path / "none", tmp_path / "tree")


def test_merge_dry_run_reports_the_same_and_writes_nothing(data, tmp_path):
    dry = merge(data, tmp_path / "dry", dry_run=True)
    assert not (tmp_path / "dry").exists()
    assert dry == merge(data, tmp_path / "tree")


def test_merge_twice_writes_the_same_bytes(data, tmp_path):
    for name in ("one", "two"):
        merge(data, tmp_path / name)
    for file in (trees.NODES_FILE, trees.PATHS_FILE, "tokenizer.json"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()


def test_merge_manifest_names_vocabulary_template_version_and_proof(data, tmp_path):
    merge(data, tmp_path / "tree", template_kwargs={"unused": 1})
    manifest = artefact.read_manifest(tmp_path / "tree")
    assert manifest["template_kwargs"] == {"unused": 1}
    assert manifest["counts"]["prompts_proved"] == 3
    table_id = table.open_table(data / "steps").metadata().id
    origin = {"path": str(data), "kind": "data", "version": 0, "table_id": table_id}
    assert manifest["inputs"] == [origin]
    assert {"vocab_hash", "template_hash", "vocab_size", "turn_end_ids"} <= set(manifest)


def test_merge_own_policy_sample_uses_the_ids_and_log_probs_as_drawn(tmp_path):
    sample = Path(__file__).parents[1] / "sample_data" / "own-policy.jsonl"
    ingest(IngestConfig(inputs=(str(sample),), output=str(tmp_path / "data")))
    report = merge(tmp_path / "data", tmp_path / "tree")
    assert report.steps_by_provenance == {"engine_logprobs": report.steps}
    assert report.prompts_logged == report.prompts_logged_equal == report.steps
    for path in trees.read(tmp_path / "tree").paths.to_pylist():
        assert len(path["rollout_logprobs"]) == path["response_end"] - path["response_start"]
        assert path["mu_valid"]


def test_merge_log_probs_of_another_tokenizer_are_not_those_of_our_tokens(tmp_path):
    sample = Path(__file__).parents[1] / "sample_data" / "own-policy.jsonl"
    records = [json.loads(line) for line in sample.read_text().splitlines()]
    for record in records:
        choice = record["response"]["choices"][0]
        choice["token_ids"] = [token_id ^ 1 for token_id in choice["token_ids"]]
    ingest(
        IngestConfig(
            inputs=(str(write_lines(tmp_path / "log.jsonl", records)),),
            output=str(tmp_path / "data"),
        )
    )
    report = merge(tmp_path / "data", tmp_path / "tree")
    assert report.logged_ids_by_verdict == {"other_tokenizer": report.steps_in}
    for path in trees.read(tmp_path / "tree").paths.to_pylist():
        assert (path["token_provenance"], path["rollout_logprobs"]) == ("text", None)
        assert (path["mu_valid"], path["mu_invalid_reason"]) == (False, "tokens_from_text")


def test_merge_agent_sample_breaks_no_link(tmp_path):
    sample = Path(__file__).parents[1] / "sample_data" / "agent-logs"
    ingest(IngestConfig(inputs=(str(sample),), output=str(tmp_path / "data")))
    report = merge(tmp_path / "data", tmp_path / "tree", prove="all")
    assert report.steps_excluded_by_reason == {}
    assert report.links == report.links_unbroken > 100
    assert report.unique_tokens < report.chain_tokens < report.logical_tokens
    assert report.prompts_proved == report.steps_in


def test_merge_prompts_are_those_of_the_raw_requests(tmp_path):
    from transformers import AutoTokenizer

    sample = Path(__file__).parents[1] / "sample_data" / "agent-logs"
    oracle = AutoTokenizer.from_pretrained(tokenizers.load("tiny").directory)
    requested = set()
    for file in sample.glob("*.jsonl"):
        for line in file.read_text().splitlines():
            with contextlib.suppress(ValueError, KeyError):  # two records are damaged on purpose
                request = json.loads(line)["request"]
                ids = oracle.apply_chat_template(
                    request["messages"],
                    tools=request.get("tools"),
                    add_generation_prompt=True,
                    return_dict=False,
                )
                requested.add(tuple(ids))
    ingest(IngestConfig(inputs=(str(sample),), output=str(tmp_path / "data")))
    merge(tmp_path / "data", tmp_path / "tree")
    tree = trees.read(tmp_path / "tree")
    for path in tree.paths.to_pylist():
        row = tree.forest.row(path["end_node_id"])
        assert tuple(row[: path["response_start"]].tolist()) in requested


@pytest.fixture(scope="module")
def airline(tmp_path_factory):
    place = tmp_path_factory.mktemp("airline")
    ingest(IngestConfig(inputs=(str(shared(*AIRLINE)),), output=str(place / "data")))
    return place


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_merge_airline_log_with_qwen3_gives_the_known_figures(airline):
    report = merge(airline / "data", airline / "tree", tokenizer=str(qwen3()))
    assert (report.steps, report.prompts_proved, report.prompts_cut) == (2454, 241, 2454)
    assert (report.links, report.links_unbroken, report.prefix_breaks_by_cause) == (2254, 2254, {})
    assert report.logical_tokens == 7_588_534
    assert report.chain_tokens == 795_656
    assert report.unique_tokens == 540_654


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_merge_airline_log_with_qwen3_not_thinking_breaks_every_link(airline):
    report = merge(
        airline / "data",
        airline / "none",
        tokenizer=str(qwen3()),
        template_kwargs={"enable_thinking": False},
        dry_run=True,
    )
    assert (report.links, report.links_unbroken) == (2254, 0)
    assert report.prefix_breaks_by_cause == {"template:rewrites_generation_prompt": 2254}


@pytest.mark.parametrize(
    ("folder", "links", "unbroken", "breaks"),
    [
        ("openhands-llm-logs", 5, 5, {}),
        ("openhands-nonfncall-logs", 3, 0, {"log:action_differs": 1, "log:stop_trimmed": 2}),
    ],
)
def test_merge_openhands_logs_give_the_known_links(tmp_path, folder, links, unbroken, breaks):
    source = shared("openai-chat", folder)
    ingest(IngestConfig(inputs=(str(source),), output=str(tmp_path / "data")))
    report = merge(tmp_path / "data", tmp_path / "tree")
    assert (report.links, report.links_unbroken) == (links, unbroken)
    assert report.prefix_breaks_by_cause == breaks
    assert report.steps_excluded_by_reason == {}


def test_merge_in_processes_writes_the_same_bytes(data, tmp_path):
    for workers in (1, 2):
        merge(data, tmp_path / f"tree{workers}", workers=workers)
    for name in (trees.NODES_FILE, trees.PATHS_FILE):
        one, two = ((tmp_path / f"tree{k}" / name).read_bytes() for k in (1, 2))
        assert one == two


def test_merge_in_batches_gives_the_tree_of_one(data, tmp_path, monkeypatch):
    merge(data, tmp_path / "whole")
    monkeypatch.setattr(make, "_STEPS_PER_BATCH", 1)
    for workers in (1, 2):
        merge(data, tmp_path / f"cut{workers}", workers=workers)
        for name in (trees.NODES_FILE, trees.PATHS_FILE):
            whole = (tmp_path / "whole" / name).read_bytes()
            assert (tmp_path / f"cut{workers}" / name).read_bytes() == whole


@pytest.fixture
def thoughts(tmp_path):
    """An attempt of three steps, of which the second has no reasoning."""
    lines = []
    talk = [system("You help."), user("Q")]
    for text, reasoning in (("A", "first thought"), ("B", None), ("C", "third thought")):
        answer = {**assistant(text), **({"reasoning_content": reasoning} if reasoning else {})}
        lines.append(pair(talk, answer))
        talk = [*talk, answer, user("go on")]
    write_lines(tmp_path / "t.jsonl", lines)
    ingest(IngestConfig(inputs=(str(tmp_path / "t.jsonl"),), output=str(tmp_path / "data")))
    return tmp_path / "data"


@pytest.mark.parametrize(
    ("reasoning", "texts", "excluded"),
    [
        ("keep", 2, {}),
        ("drop", 0, {}),
        ("require", 2, {"reasoning_missing": 1}),
    ],
)
def test_merge_reasoning_is_kept_dropped_or_required(
    thoughts, tmp_path, reasoning, texts, excluded
):
    report = merge(thoughts, tmp_path / "tree", reasoning=reasoning)
    assert report.steps_excluded_by_reason == excluded
    tree = trees.read(tmp_path / "tree")
    tiny = tokenizers.load("tiny")
    actions = [
        tiny.decode(
            tree.forest.row(path["end_node_id"])[path["response_start"] : path["response_end"]]
        )
        for path in tree.paths.to_pylist()
    ]
    assert sum("thought" in action for action in actions) == texts


def test_merge_keep_context_gives_every_step_a_path(data, tmp_path):
    where = "step_index > 0 and trajectory_return = 0"
    curate(CurateConfig(input=str(data), output=str(tmp_path / "some"), where=where))
    plain = merge(tmp_path / "some", tmp_path / "plain")
    kept = merge(tmp_path / "some", tmp_path / "kept", keep_context=True)
    assert kept.steps == kept.steps_in == plain.steps + plain.steps_context_without_path
    assert kept.logical_tokens == plain.logical_tokens


def test_merge_template_that_breaks_every_link_is_told_with_the_setting(data, tmp_path, caplog):
    tiny = tokenizers.load("tiny").directory / "chat_template.jinja"
    text = tiny.read_text()
    head = '{{- "<|im_start|>" ~ message.role ~ "\\n" -}}'
    assert head in text
    newest = "{{- '<answer>' if opens and loop.last and message.role == 'assistant' -}}"
    opening = "{{- '<answer>' if opens and add_generation_prompt -}}"
    (tmp_path / "chat.jinja").write_text(text.replace(head, head + newest).rstrip() + opening)
    report = merge(
        data,
        tmp_path / "tree",
        chat_template=str(tmp_path / "chat.jinja"),
        template_kwargs={"mood": "good", "opens": True},
    )
    assert report.prefix_breaks_by_cause == {"template:rewrites_generation_prompt": 3}
    said = caplog.text
    assert "breaks every link (template:rewrites_generation_prompt)" in said
    assert "<answer>" in said
    assert "Without opens in --template-kwargs this link would not break." in said
    manifest = json.loads((tmp_path / "tree" / "manifest.json").read_text())
    (examples,) = manifest["prefix_break_examples"].values()
    assert len(examples) == 3
    assert all("<answer>" in each["parent_text"] for each in examples)
    assert not any("<answer>" in each["child_text"] for each in examples)


def test_merge_model_of_no_size_is_refused(data, tmp_path):
    with pytest.raises(UsageError, match=r"no model size 9b\. Choose of 0\.6b, .*, 70b\."):
        merge(data, tmp_path / "tree", model_size="9b")
    small = merge(data, tmp_path / "small", model_size="0.6b", dry_run=True)
    large = merge(data, tmp_path / "large", model_size="70b", dry_run=True)
    assert small.predicted_speedup != large.predicted_speedup > 1


@pytest.mark.slow
def test_merge_step_of_a_million_tokens_is_a_row_like_any_other(tmp_path):
    # each character is a token of its own
    long = "\u4e2d\u6587" * 170_000
    (tmp_path / "t.json").write_text(tau([(1, 0, 1.0, [user(long), assistant("A")])]))
    ingest(IngestConfig(inputs=(str(tmp_path / "t.json"),), output=str(tmp_path / "data")))
    report = merge(tmp_path / "data", tmp_path / "tree")
    assert report.steps == 1
    assert report.logical_tokens == report.unique_tokens > 1_000_000
    assert report.steps_over_frac_by_tokens["131072"] == 1.0


@pytest.mark.slow
def test_merge_identical_attempts_cost_their_paths_alone(tmp_path):
    attempts = [(1, trial, 1.0, attempt("A")) for trial in range(2_000)]
    (tmp_path / "t.json").write_text(tau(attempts))
    ingest(IngestConfig(inputs=(str(tmp_path / "t.json"),), output=str(tmp_path / "data")))
    report = merge(tmp_path / "data", tmp_path / "tree")
    assert report.steps == report.steps_in == 2_000
    assert (report.roots, report.leaves) == (1, 1)
    assert report.logical_tokens == 2_000 * report.unique_tokens


def test_merge_attempt_with_an_empty_answer_loses_that_step_alone(tmp_path):
    talk = [user("a"), assistant("A"), user("b"), assistant(""), user("c"), assistant("C")]
    (tmp_path / "t.json").write_text(tau([(1, 0, 1.0, talk)]))
    ingest(IngestConfig(inputs=(str(tmp_path / "t.json"),), output=str(tmp_path / "data")))
    report = merge(tmp_path / "data", tmp_path / "tree")
    assert report.steps_excluded_by_reason == {"no_action": 1}
    assert (report.steps, report.links) == (2, 2)
    assert report.prefix_breaks_by_cause == {"not_rendered": 2}


@pytest.mark.parametrize(
    ("template", "error", "said"),
    [
        ("{{ raise_exception('only on Sundays') }}", DataError, "only on Sundays"),
        ("{{ messages[0].nothing.at.all }}", DataError, "cannot render one question"),
        ("{% for m in messages %}", DataError, "cannot render one question"),
        ("", UsageError, "no chat template"),
    ],
)
def test_merge_template_that_renders_nothing_is_refused(data, tmp_path, template, error, said):
    (tmp_path / "chat.jinja").write_text(template)
    with pytest.raises(error, match=said):
        merge(data, tmp_path / "tree", chat_template=str(tmp_path / "chat.jinja"))
    assert not (tmp_path / "tree").exists()
