"""A token tree as merge-prefixes writes it, generated: one root, groups of attempts, long turns.

Token ids are drawn by Zipf's law from a vocabulary of 128k, as texts have them; a random third of
each turn is its action, with log-probs. The seed fixes all of it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

_VOCAB = 128_000
_ROOT, _QUESTION = 1500, 300
_TURNS = 10
_ATTEMPTS = 4


def write(
    directory: Path,
    *,
    num_tokens: int,
    turn_tokens: int = 600,
    logprobs: bool = True,
    seed: int = 0,
) -> None:
    """Write a tree artefact.

    Args:
        directory: to create.
        num_tokens: tokens of the tree, about.
        turn_tokens: that a turn adds, on average.
        logprobs: actions have those of the behaviour policy.
        seed: of the generator.
    """
    from clawcli.store import artefact, tokenizers, trees
    from clawcli.tree import Forest

    generator = np.random.Generator(np.random.PCG64(seed))
    groups = max(1, num_tokens // (_QUESTION + _ATTEMPTS * _TURNS * turn_tokens))
    per_group = 1 + _ATTEMPTS * _TURNS
    nodes = 1 + groups * per_group
    low, high = turn_tokens // 2, turn_tokens * 3 // 2
    sizes = generator.integers(low, high, nodes)
    sizes[0], sizes[1::per_group] = _ROOT, _QUESTION
    parents = np.arange(-1, nodes - 1)
    parents[1::per_group] = 0
    for attempt in range(_ATTEMPTS):
        # the first turn of each attempt continues the question
        first = 2 + attempt * _TURNS
        parents[first::per_group] = np.arange(1, nodes, per_group)
    starts = np.cumsum(sizes) - sizes
    tokens = (generator.zipf(1.2, int(sizes.sum())) % _VOCAB).astype(np.int32)
    forest = Forest(tokens, starts.astype(np.int32), parents.astype(np.int32))
    paths = _paths(forest, per_group, generator)
    if not logprobs:
        place = paths.schema.get_field_index("rollout_logprobs")
        field = paths.schema.field(place)
        paths = paths.set_column(place, field, pa.nulls(len(paths), field.type))
    tokenizer = tokenizers.load("tiny")
    with artefact.create(directory, kind=trees.KIND, force=True, config={}, inputs=[]) as draft:
        trees.write(draft.path, forest, paths, tokenizer)
        draft.manifest |= {
            "tokenizer": "tiny",
            "vocab_hash": tokenizer.vocab_hash,
            "vocab_size": tokenizer.vocab_size,
            "template_hash": "",
            "eos_token_id": 2,
            "counts": {
                "steps": len(paths),
                "logical_tokens": int(paths["row_tokens"].to_numpy().sum(dtype=np.int64)),
                "unique_tokens": len(tokens),
            },
        }


def _paths(forest, per_group: int, generator: np.random.Generator) -> pa.Table:
    from clawcli import schema

    node = np.arange(len(forest.segment_starts))
    ends = node[(node > 0) & ((node - 1) % per_group > 0)]
    lengths = forest.row_lengths()[ends].astype(np.int64)
    actions = (forest.segment_ends - forest.segment_starts)[ends] // 3
    turn = ((ends - 1) % per_group - 1) % _TURNS
    trajectory = (ends - 1) // per_group * _ATTEMPTS + ((ends - 1) % per_group - 1) // _TURNS
    returns = generator.integers(0, 2, int(trajectory.max()) + 1).astype(float)
    logprobs = -generator.exponential(0.3, int(actions.sum())).astype(np.float32)
    edges = np.append(0, np.cumsum(actions)).astype(np.int32)
    means = returns.reshape(-1, _ATTEMPTS).mean(1)
    deviations = returns.reshape(-1, _ATTEMPTS).std(1, ddof=1)
    group = trajectory // _ATTEMPTS
    count = len(ends)

    def uids(kind: str, numbers: np.ndarray) -> list[str]:
        return [f"{kind}{number:031x}" for number in numbers.tolist()]

    made = {
        "step_uid": uids("a", np.arange(count)),
        "end_node_id": ends,
        "row_tokens": lengths,
        "row_hash": uids("b", np.arange(count)),
        "loss_weight": np.ones(count),
        "response_start": lengths - actions,
        "response_end": lengths,
        "rollout_logprobs": pa.ListArray.from_arrays(pa.array(edges), pa.array(logprobs)),
        "trajectory_uid": uids("c", trajectory),
        "trajectory_kind": ["main"] * count,
        "group_uid": uids("d", group),
        "step_index": turn,
        "is_last": turn == _TURNS - 1,
        "model": ["agent-8b"] * count,
        "policy": ["agent-8b"] * count,
        "policy_version": np.ones(count, np.int64),
        "temperature": np.ones(count),
        "trajectory_return": returns[trajectory],
        "return_to_go": returns[trajectory],
        "group_size": np.full(count, _ATTEMPTS),
        "group_reward_mean": means[group],
        "group_reward_std": deviations[group],
        "finish_reason": ["stop"] * count,
        "state_kind": ["full"] * count,
        "token_provenance": ["engine_logprobs"] * count,
        "mu_valid": np.ones(count, bool),
    }
    wanted = schema.arrow_schema(schema.PATHS)
    columns = [
        pa.array(made[field.name], field.type)
        if field.name in made
        else pa.nulls(count, field.type)
        for field in wanted
    ]
    return pa.table(columns, schema=wanted)
