"""What sample_data promises: it is what its scripts write, and it holds what README.md says."""

import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import clawcli

SAMPLE_DATA = Path(__file__).parents[1] / "sample_data"
PARTS = [SAMPLE_DATA / "agent-logs" / f"part-{index}.jsonl" for index in range(3)]
OWN_POLICY = SAMPLE_DATA / "own-policy.jsonl"
TINY = Path(clawcli.__file__).parent / "assets" / "tiny"


def agent_records():
    """Every undamaged record with the file that holds it, in order of time."""
    found = []
    for path in PARTS:
        for line in path.read_text("utf-8").splitlines():
            try:
                record = json.loads(line)
            except ValueError:
                continue
            if "messages" in record["request"]:
                found.append((path.name, record))
    return sorted(found, key=lambda item: item[1]["timestamp"])


def agent_attempts():
    attempts = defaultdict(list)
    for name, record in agent_records():
        attempts[record["task_id"], record["trial"]].append((name, record))
    return attempts


def own_records():
    return [json.loads(line) for line in OWN_POLICY.read_text("utf-8").splitlines()]


def rewards_by_task(records):
    rewards = defaultdict(list)
    for record in records:
        if "reward" in record:
            rewards[record["task_id"]].append(record["reward"])
    return rewards


def test_sample_data_is_under_a_megabyte():
    files = [path for path in SAMPLE_DATA.rglob("*") if "__pycache__" not in path.parts]
    assert sum(path.stat().st_size for path in files if path.is_file()) < 1_000_000


def test_agent_logs_generated_again_are_the_committed_bytes(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(SAMPLE_DATA)
    import generate

    generate.write(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [path.name for path in PARTS]
    for path in PARTS:
        assert (tmp_path / path.name).read_bytes() == path.read_bytes(), path.name


def test_agent_logs_hold_six_tasks_of_four_attempts_that_cross_files():
    attempts = agent_attempts()
    assert len(attempts) == 24
    assert len({task for task, _ in attempts}) == 6
    for calls in attempts.values():
        assert 4 <= len(calls) <= 9
        assert len({name for name, _ in calls}) > 1


def test_agent_logs_lines_of_a_file_are_in_order_of_time():
    for path in PARTS:
        times = [r["timestamp"] for name, r in agent_records() if name == path.name]
        assert times == sorted(times)


def test_agent_logs_reward_stands_on_the_last_call_of_each_attempt_alone():
    for calls in agent_attempts().values():
        assert ["reward" in record for _, record in calls] == [False] * (len(calls) - 1) + [True]


def test_agent_logs_four_groups_have_spread_and_two_have_none():
    rewards = rewards_by_task(record for _, record in agent_records())
    means = {task: np.mean(values) for task, values in rewards.items()}
    assert means == {
        "extend-drill": 0.75,
        "camping-weekend": 0.5,
        "cancel-projector": 1.0,
        "swap-ladder": 0.25,
        "waive-fee": 0.0,
        "move-bike": 0.75,
    }


def test_agent_logs_each_request_continues_the_call_before_it():
    for calls in agent_attempts().values():
        history = calls[0][1]["request"]["messages"]
        assert [message["role"] for message in history] == ["system", "user"]
        for (_, record), (_, later) in pairwise(calls):
            messages = later["request"]["messages"]
            if messages == history:
                # asked again: the answer was an error or was cut off
                choice = record["response"].get("choices", [{"finish_reason": "error"}])[0]
                assert choice["finish_reason"] in ("error", "abort")
                continue
            assert messages[: len(history)] == history
            assert messages[len(history)] == record["response"]["choices"][0]["message"]
            assert all(m["role"] in ("tool", "user") for m in messages[len(history) + 1 :])
            history = messages


def test_agent_logs_show_each_oddity_that_the_readme_names():
    records = [record for _, record in agent_records()]
    messages = [r["response"]["choices"][0] for r in records if "choices" in r["response"]]
    assert sum("error" in record["response"] for record in records) == 1
    assert sum(choice["finish_reason"] == "abort" for choice in messages) == 1
    assert any(len(choice["message"].get("tool_calls", ())) > 1 for choice in messages)
    reasoning = [choice["message"].get("reasoning_content", "-") for choice in messages]
    assert "-" in reasoning
    assert None in reasoning
    assert any(text and text != "-" for text in reasoning)


def test_agent_logs_two_records_are_damaged():
    lines = [line for path in PARTS for line in path.read_text("utf-8").splitlines()]
    assert len(lines) == len(agent_records()) + 2 == 133


def test_agent_logs_ingested_give_their_attempts_whole(tmp_path):
    from deltalake import DeltaTable

    from clawcli.ingest.run import IngestConfig, ingest

    output = tmp_path / "data"
    report = ingest(IngestConfig(inputs=(str(PARTS[0].parent),), output=str(output)))
    assert report.records_by_fate == {
        "used": 130,
        "duplicate": 0,
        "failed_call": 1,
        "ignored": 0,
        "pending": 0,
        "rejected": 2,
    }
    assert (report.steps, report.trajectories) == (130, 25)
    attempts = defaultdict(set)
    for row in DeltaTable(output / "steps").to_pyarrow_table().to_pylist():
        assert row["prefix_broken"] is None
        attempts[row["trajectory_kind"], row["trajectory_uid"]].add((row["task_id"], row["trial"]))
    assert sorted(kind for kind, _ in attempts) == ["branch"] + ["main"] * 24
    assert all(len(found) == 1 for found in attempts.values())


def test_own_policy_groups_all_have_spread_and_chance_wins_one_in_five():
    rewards = rewards_by_task(own_records())
    assert {len(values) for values in rewards.values()} == {16}
    assert len(rewards) == 8
    assert all(0 < sum(values) < 16 for values in rewards.values())
    assert 0.15 < np.mean([*rewards.values()]) < 0.3


def test_own_policy_reward_follows_from_the_answer():
    for record in own_records():
        text = record["response"]["choices"][0]["message"]["content"]
        assert record["reward"] == (text.strip()[:1].lower() in tuple("abcde"))


def test_own_policy_text_is_what_the_ids_decode_to():
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(TINY / "tokenizer.json"))
    for record in own_records():
        choice = record["response"]["choices"][0]
        assert tokenizer.decode(choice["token_ids"]) == choice["message"]["content"]
        ended = choice["token_ids"][-1] == tokenizer.token_to_id("<|im_end|>")
        assert choice["finish_reason"] == ("stop" if ended else "length")
        assert len(choice["logprobs"]["content"]) == len(choice["token_ids"]) <= 2


@pytest.mark.slow
def test_own_policy_log_probs_are_those_of_tiny():
    import torch

    from clawcli.train.model import tiny_model

    model = tiny_model(1024).eval()
    for record in own_records():
        response = record["response"]
        choice = response["choices"][0]
        # the whole row in one call, where the engine drew token by token
        row = torch.tensor([response["prompt_token_ids"] + choice["token_ids"]])
        with torch.no_grad():
            logits = model(row).logits[0, -len(choice["token_ids"]) - 1 : -1]
        found = torch.log_softmax(logits.double(), dim=-1)
        found = found.gather(1, torch.tensor(choice["token_ids"])[:, None])[:, 0]
        logged = [entry["logprob"] for entry in choice["logprobs"]["content"]]
        np.testing.assert_allclose(found.numpy(), logged, rtol=0, atol=1e-5)


@pytest.mark.slow
def test_own_policy_drawn_again_gives_the_committed_ids(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(SAMPLE_DATA)
    import own_policy

    own_policy.write(tmp_path / "own.jsonl")
    again = [json.loads(line) for line in (tmp_path / "own.jsonl").read_text("utf-8").splitlines()]
    committed = own_records()
    # log-probs may differ in the last bits on another processor; everything else may not
    for record in committed:
        for entry in record["response"]["choices"][0]["logprobs"]["content"]:
            entry["logprob"] = pytest.approx(entry["logprob"], abs=1e-5, rel=0)
    assert again == committed
