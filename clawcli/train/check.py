"""What is refused before anything is trained: one pass over the shards, then one question each.

Questions that need no model come first, so that a log of another model is refused in a moment.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from clawcli import gate
from clawcli.errors import DataError, NoSignalError, TokenizerMismatchError
from clawcli.gate import Objective, Reason
from clawcli.store import tokenizers
from clawcli.store.shards import Shards
from clawcli.train import advantage
from clawcli.train.config import TrainConfig
from clawcli.train.forward import Span, action_logprobs
from clawcli.train.model import TINY, embedding_rows, first_line, tree_obstacle
from clawcli.train.rows import train_row
from clawcli.tree import Forest, separate

_GROUP = ("group_uid", *advantage.COLUMNS)
_CHAIN_HINT = "Export the shards with --merge chain."
_TRIAL_TOLERANCE = 1e-3
"""Largest difference of merged from separate rows, as a part of what the shared tokens do to the
log-probs. Rounding in float32 makes up to 1e-4 in deep models, a wrong position 1e-2 and more."""
_TRIAL_ROUNDING_NATS = 1e-5
"""Allowed beside it, where the shared tokens do next to nothing."""


@dataclass(slots=True)
class Survey:
    """Counts and facts of all trained steps of the shards."""

    rows: int = 0
    tokens: int = 0
    action_tokens: int = 0
    max_token_id: int = 0
    max_row_depth: int = 0
    """Tokens of the longest path."""
    is_merged: bool = False
    """Some row branches, so that tree attention is needed."""
    has_advantage: bool = False
    facts: list[gate.Facts] = field(default_factory=list)
    policies: list[str | None] = field(default_factory=list)
    groups: list[dict[str, Any]] = field(default_factory=list)
    """Per step, the columns that its advantage is made of."""

    @property
    def steps_trained(self) -> int:
        """Number of steps with action tokens."""
        return sum(facts.has_action for facts in self.facts)


def survey(shards: Shards, config: TrainConfig) -> Survey:
    """Read the shards once and collect what the questions need.

    Raises:
        DataError: a row contradicts itself, or no step has a token to train.
    """
    found = Survey()
    for packed in shards.rows():
        row = train_row(packed, config.objective, scale_by_std=config.ppo.scale_by_std)
        found.rows += 1
        found.tokens += len(packed.forest.token_ids)
        found.action_tokens += len(row.step_N)
        found.max_token_id = max(found.max_token_id, int(packed.forest.token_ids.max()))
        found.max_row_depth = max(found.max_row_depth, int(packed.forest.depths().max()) + 1)
        found.is_merged |= bool((packed.forest.segment_parents >= 0).any())
        found.has_advantage |= bool((row.advantages_S != 0).any())
        for step in packed.steps.to_pylist():
            own = True if step["policy"] in config.own_policy else None
            found.facts.append(gate.step_facts(step, own=own))
            found.policies.append(step["policy"])
            found.groups.append({name: step[name] for name in _GROUP})
    if found.action_tokens == 0:
        raise DataError(
            f"{shards.path} holds no token to train.", "Export shards of steps with actions."
        )
    return found


def refuse_without_model(found: Survey, config: TrainConfig) -> None:
    """Refuse what the columns alone rule out.

    Raises:
        GateError: ppo on steps whose behaviour policy is not known, without allow_off_policy.
        NoSignalError: ppo where every advantage is zero.
    """
    if config.objective is not Objective.PPO:
        return
    decide_own(found, gate.presumed_own(zip(found.policies, found.facts, strict=True)))
    if not config.allow_off_policy:
        gate.refuse_off_policy(count_reasons(found, config), found.steps_trained)
    if not found.has_advantage:
        raise NoSignalError(
            f"Every advantage is zero: {advantage.why_no_signal(found.groups)}.",
            "Collect more attempts per task, keep groups with spread (claw curate --where "
            "'group_reward_std > 0' says how many there are), or train with --objective sft.",
        )


def decide_own(found: Survey, own_by_policy: Mapping[str | None, bool | None]) -> None:
    """Write into the facts which policies are the model's own; a name given by hand stays."""
    found.facts = [
        facts if facts.own else replace(facts, own=own_by_policy[policy])
        for policy, facts in zip(found.policies, found.facts, strict=True)
    ]


def refuse_foreign(
    found: Survey, config: TrainConfig, delta_by_policy: Mapping[str | None, np.ndarray]
) -> None:
    """Refuse ppo on a policy whose logged log-probs are not the model's own.

    All tokens of one value of policy are judged together, whatever their policy_version; see
    gate.is_own for what such a mixture may hold.

    Args:
        found: its facts learn which policies are own.
        config: allow_off_policy and own_policy.
        delta_by_policy: policy -> float [N], |logged - model's own log-prob| in nats.

    Raises:
        GateError: naming columns, shares and the measured distance.
    """
    nothing = np.zeros(0)
    decide_own(
        found,
        {
            policy: gate.is_own(delta_by_policy.get(policy, nothing))
            for policy in set(found.policies)
        },
    )
    if not config.allow_off_policy:
        all_deltas = np.concatenate([nothing, *delta_by_policy.values()])
        measured = gate.delta_quantiles(all_deltas) if len(all_deltas) else None
        counts = count_reasons(found, config)
        gate.refuse_off_policy(counts, found.steps_trained, measured=measured)


def count_reasons(found: Survey, config: TrainConfig) -> Counter[Reason]:
    """Count the steps by why they are not valid for the objective."""
    return gate.count_reasons(config.objective, found.facts)


def model_fits(model: PreTrainedModel, name_or_path: str, shards: Shards, found: Survey) -> bool:
    """Refuse a model that would read the shards' tokens, or their rows, wrongly.

    Returns:
        True where the model's tokenizer was compared; False where it brings no tokenizer.json.

    Raises:
        TokenizerMismatchError: the model's tokenizer is not the shards'.
        DataError: a token id without embedding, a row longer than the model's positions, or
            merged rows for an architecture that cannot run them; a small one is tried.
    """
    checked = _same_tokenizer(name_or_path, shards)
    if found.max_token_id >= embedding_rows(model):
        raise DataError(
            f"{shards.path} holds token id {found.max_token_id:,}, but {name_or_path} embeds "
            f"{embedding_rows(model):,}.",
            "Merge with the model's own tokenizer.",
        )
    limit = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if limit is not None and found.max_row_depth > limit:
        raise DataError(
            f"The longest row of {shards.path} has {found.max_row_depth:,} tokens, but "
            f"{name_or_path} has {limit:,} positions.",
            f"Export the shards with --max-step-tokens {limit}.",
        )
    obstacle = (tree_obstacle(model) or _merged_failure(model)) if found.is_merged else None
    if obstacle is not None:
        raise DataError(f"{name_or_path} cannot train on merged rows: {obstacle}.", _CHAIN_HINT)
    return checked


@torch.no_grad()
def _merged_failure(model: PreTrainedModel) -> str | None:
    """Score a root with two branches merged and as two rows; say what differs.

    tree_obstacle asks an architecture about itself, and a new one may answer wrongly: keep the
    plan from its layers, build a mask, attend twice in a layer. Trying it once tells.
    """
    token_ids = np.linspace(1, embedding_rows(model) - 1, 11).astype(np.int32)
    forest = Forest(token_ids, np.array([0, 5, 8], np.int32), np.array([-1, 0, 0], np.int32))
    try:
        merged_N = action_logprobs(model, forest, [Span(1, 6, 8), Span(2, 5, 8)])
    except Exception as error:  # whatever the model's own code raises on a plan that it ignores
        return f"a trial failed with: {first_line(error)}".rstrip(".")
    rows = [forest.row(1), forest.row(2)]
    separate_N = action_logprobs(model, separate(rows), [Span(0, 6, 8), Span(1, 5, 8)])
    # the first branch without its root, whose effect is the measure for the difference
    bare_N = action_logprobs(model, separate([rows[0][5:]]), [Span(0, 1, 3)])
    effect = float((separate_N[:2] - bare_N).abs().max())
    difference = float((merged_N - separate_N).abs().max())
    # not "greater than": a NaN must not pass
    if not difference <= _TRIAL_TOLERANCE * effect + _TRIAL_ROUNDING_NATS:
        return f"in a trial, log-probs differ by {difference:.2g} nats from those of separate rows"
    return None


def _same_tokenizer(name_or_path: str, shards: Shards) -> bool:
    if name_or_path == TINY:  # it takes whatever tokenizer the shards have
        return True
    if not (Path(name_or_path) / tokenizers.FILE).is_file():
        return False
    own = tokenizers.load(name_or_path)
    if own.vocab_hash != shards.manifest.vocab_hash:
        raise TokenizerMismatchError(
            f"{shards.path} was made with a tokenizer of vocab_hash "
            f"{shards.manifest.vocab_hash}, but that of {name_or_path} is {own.vocab_hash}.",
            f"Merge again with --tokenizer {name_or_path}.",
        )
    return True
