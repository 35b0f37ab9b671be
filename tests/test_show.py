"""claw show: what is drawn is what the tree holds."""

import json

import numpy as np
import pytest
from conftest import assistant, pair, system, tau, tool, user, write_lines
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models

from clawcli.errors import NotFoundError, UsageError
from clawcli.ingest.run import IngestConfig, ingest
from clawcli.inspect.show import ShowConfig, show
from clawcli.inspect.step_view import texts
from clawcli.inspect.tree_view import view_tree
from clawcli.prefix.run import MergeConfig, merge_prefixes
from clawcli.store import tokenizers, trees
from clawcli.tree import Forest


def merged(place, *, count=3):
    """Merge a tree of attempts that part at their first answer, of 1 to 3 steps."""
    attempts = []
    for number in range(count):
        turns = [system("You help."), user("naïve 你好 🤗?")]
        for step in range(1 + number % 3):
            turns += [assistant(f"answer {number} {step}", calls=[("c", "f", "{}")]), tool("ok")]
        attempts.append((1, number, float(number % 2), turns))
    (place / "t.json").write_text(tau(attempts))
    ingest(IngestConfig(inputs=(str(place / "t.json"),), output=str(place / "data")))
    merge_prefixes(
        MergeConfig(input=str(place / "data"), output=str(place / "tree"), tokenizer="tiny")
    )
    return place / "tree"


def test_step_is_its_row_token_by_token(tmp_path):
    path = merged(tmp_path)
    tree, tiny = trees.read(path), tokenizers.load("tiny")
    for entry in tree.paths.to_pylist():
        view = show(ShowConfig(input=str(path), step=entry["step_uid"]))
        row = tree.forest.row(entry["end_node_id"])
        assert [token.token_id for token in view.tokens] == row.tolist()
        assert "".join(token.text for token in view.tokens) == tiny.decode(row)
        assert [token.depth for token in view.tokens] == list(range(len(row)))
        roles = "".join(token.role[0] for token in view.tokens)
        assert roles == "c" * view.context_tokens + "a" * view.action_tokens + "e"
        trained = [token.depth for token in view.tokens if token.trained]
        assert trained == list(range(entry["response_start"], entry["response_end"]))
        assert view.trained_tokens == len(trained)
        assert view.scalars["trajectory_return"] == entry["trajectory_return"]
        assert {token.logprob for token in view.tokens} == {None}


def test_step_is_found_by_its_first_characters(tmp_path):
    path = merged(tmp_path)
    uids = trees.read(path).paths["step_uid"].to_pylist()
    unique = next(n for n in range(1, 33) if sum(uid[:n] == uids[0][:n] for uid in uids) == 1)
    assert show(ShowConfig(input=str(path), step=uids[0][:unique])).step_uid == uids[0]
    with pytest.raises(UsageError, match=r"6 steps of .* begin with : .*\. Give more"):
        show(ShowConfig(input=str(path), step=""))
    wrong = uids[0][:-1] + ("0" if uids[0][-1] != "0" else "1")
    with pytest.raises(NotFoundError, match=rf"has no path of a step {wrong}\. Is it {uids[0]}\?"):
        show(ShowConfig(input=str(path), step=wrong))


def step_of(place, record):
    """Make a tree of one record; returns its one step."""
    write_lines(place / "t.jsonl", [record])
    ingest(IngestConfig(inputs=(str(place / "t.jsonl"),), output=str(place / "data")))
    merge_prefixes(
        MergeConfig(input=str(place / "data"), output=str(place / "tree"), tokenizer="tiny")
    )
    (uid,) = trees.read(place / "tree").paths["step_uid"].to_pylist()
    return uid


def test_step_shows_what_was_logged_and_what_is_not_trained(claw, tmp_path):
    tiny = tokenizers.load("tiny")
    ids = tiny.encode("Paris").tolist()
    logprobs = [-0.25 * (k + 1) for k in range(len(ids))]
    answer = {
        "choices": [
            {
                "message": assistant("Paris"),
                "finish_reason": "length",
                "token_ids": ids,
                "logprobs": {
                    "content": [
                        {"token": tiny.decode([k]), "logprob": value}
                        for k, value in zip(ids, logprobs, strict=True)
                    ]
                },
            }
        ]
    }
    record = pair([user("Capital of France?")], assistant("Paris"))
    record["response"] |= answer
    uid = step_of(tmp_path, record)
    view = show(ShowConfig(input=str(tmp_path / "tree"), step=uid))
    action = [token for token in view.tokens if token.role == "action"]
    assert [token.logprob for token in action] == logprobs
    end = view.tokens[-1]
    # the engine was cut off: the end token stands in the row and is not trained
    assert (end.role, end.trained, end.logprob) == ("end", False, None)
    said = claw("show", str(tmp_path / "tree"), "--step", uid).out
    assert f"log-probs of {len(ids)} tokens: mean {np.mean(logprobs):.3f}" in said
    assert "(-0.25)" in said
    assert "--- end token, not trained" in said


def test_action_cut_inside_a_character_keeps_its_bytes_from_the_end_token(tmp_path):
    tiny = tokenizers.load("tiny")
    ids = tiny.encode("Paris 🤗").tolist()[:-1]
    record = pair([user("Capital of France?")], assistant(tiny.decode(ids)))
    record["response"]["choices"][0] |= {"finish_reason": "length", "token_ids": ids}
    uid = step_of(tmp_path, record)
    view = show(ShowConfig(input=str(tmp_path / "tree"), step=uid))
    action = [token for token in view.tokens if token.role == "action"]
    assert [token.token_id for token in action] == ids
    assert "".join(token.text for token in action) == "Paris \ufffd"
    assert view.tokens[-1].text == "<|im_end|>"


def test_texts_of_byte_tokens_that_make_no_character(tmp_path):
    """A line end is a byte token of Llama 2 and Phi 3; what follows it may change its text."""
    names = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "b"]
    numbers = {name: number for number, name in enumerate(names)}
    backend = Backend(models.BPE(vocab=numbers, merges=[], unk_token="<unk>", byte_fallback=True))
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    backend.save(str(tmp_path / "tokenizer.json"))
    fallback = tokenizers.load(str(tmp_path))
    ids = [numbers[name] for name in ("a", "<0x0A>", "<0xF0>", "<0x9F>", "▁", "b")]
    assert list(texts(ids, fallback)) == ["a", "\n", "", "", "\ufffd\ufffd ", "b"]
    assert list(texts(ids, fallback, borders=[4])) == ["a", "\n", "", "\ufffd\ufffd", " ", "b"]


@pytest.mark.parametrize("text", ["naïve 你好 🤗 x", "", "<|im_end|>a", "\x00 \u200b"])
def test_texts_of_tokens_are_the_text(text):
    tiny = tokenizers.load("tiny")
    ids = tiny.encode(text).tolist()
    assert list(texts(ids, tiny)) == list(texts(ids, tiny))
    assert "".join(texts(ids, tiny)) == text
    for cut in range(len(ids)):
        assert "".join(texts(ids[:cut], tiny)) == tiny.decode(ids[:cut])


def test_tree_counts_everything_once(tmp_path):
    path = merged(tmp_path, count=30)
    tree = trees.read(path)
    view = show(ShowConfig(input=str(path)))
    assert (view.steps, view.nodes) == (len(tree.paths), len(tree.forest.segment_starts))
    assert view.unique_tokens == len(tree.forest.token_ids)
    roots = [branch for branch in view.branches if branch.level == 0]
    assert sum(branch.steps for branch in roots) == view.steps
    assert sum(branch.leaves for branch in roots) == view.leaves
    assert sum(branch.ends for branch in view.branches) == 30
    returns = sum(b.return_mean * b.ends for b in view.branches if b.ends)
    assert returns == pytest.approx(sum(number % 2 for number in range(30)))
    # each node's tokens are on one line, or below one that is closed
    drawn = sum(branch.tokens for branch in view.branches)
    assert drawn <= view.unique_tokens
    if not any(branch.is_closed and branch.node_id is not None for branch in view.branches):
        assert drawn == view.unique_tokens


def test_tree_is_a_page_however_wide_or_deep_it_is(tmp_path):
    tiny = tokenizers.load("tiny")
    levels = 10_000
    # a comb: each node of the spine forks into a leaf and the next one
    forest = Forest(
        np.arange(2 * levels, dtype=np.int32) % 500,
        np.arange(2 * levels, dtype=np.int32),
        _pre_order(levels),
    )
    path = merged(tmp_path)
    tree = trees.read(path)
    deep = trees.Tree(path, tree.manifest, forest, tree.paths)
    view = view_tree(deep, tiny)
    assert view.leaves == levels
    assert len(view.branches) <= 40
    wide = Forest(
        np.arange(5000, dtype=np.int32) % 500,
        np.arange(5000, dtype=np.int32),
        np.append(-1, np.zeros(4999)).astype(np.int32),
    )
    view = view_tree(trees.Tree(path, tree.manifest, wide, tree.paths), tiny)
    assert view.branches[-1].branches == 4999 - 6
    assert view.branches[-1].leaves == 4999 - 6


def _pre_order(levels):
    """Parents of a comb in pre-order: down the spine first, then the leaves from below."""
    spine = np.arange(-1, levels - 1)
    return np.append(spine, np.arange(levels - 1, -1, -1)).astype(np.int32)


def test_tree_and_step_are_legible_without_colour(claw, tmp_path, monkeypatch):
    path = merged(tmp_path, count=9)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    said = claw("show", str(path)).out
    assert "\x1b" not in said
    assert "18 steps" in said
    assert all(len(line) <= 80 for line in said.splitlines())
    uid = trees.read(path).paths["step_uid"][0].as_py()
    said = claw("show", str(path), "--step", uid).out
    assert f"step {uid}" in said
    for part in ("--- context of", "--- action of", "--- end token", "answer ", "你好 🤗?"):
        assert part in said


def test_json_is_one_object(claw, tmp_path):
    path = merged(tmp_path)
    found = json.loads(claw("show", str(path), "--json").out)
    assert found["command"] == "show"
    assert found["branches"][0]["level"] == 0
    uid = trees.read(path).paths["step_uid"][0].as_py()
    found = json.loads(claw("show", str(path), "--step", uid, "--json").out)
    assert found["step_uid"] == uid
    assert set(found["tokens"][0]) == {"depth", "token_id", "text", "role", "trained", "logprob"}


def test_show_of_other_things_is_refused(claw, tmp_path):
    merged(tmp_path)
    result = claw("show", str(tmp_path / "data"))
    assert result.code == 3
    assert "is a data directory" in result.err
    assert claw("show", str(tmp_path / "none")).code == 4
