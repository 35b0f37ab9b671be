"""From a step's facts to "valid for sft | kto | dpo | awr | reinforce | ppo, else why not".

PPO is for tokens whose behaviour policy is known: its loss weighs them by old / behaviour, and on
another model's log an unanchored surrogate first rises and then ruins the policy. So the facts
are asked for, and the refusal names column and share. Whether a policy is the model's own is
measured where log-probs are logged (is_own), not taken from its name. What each reason does to
each objective stands in objectives.py.

Pure: `claw train` feeds it from shard columns, `claw readiness` and `claw ingest` from a step
table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from clawcli.errors import GateError
from clawcli.objectives import RULES, Effect, Objective, Reason

__all__ = [
    "Effect",
    "Facts",
    "Objective",
    "Reason",
    "applying",
    "count_reasons",
    "covers",
    "covers_each",
    "delta_quantiles",
    "is_own",
    "presumed_own",
    "reasons",
    "refuse_off_policy",
    "step_facts",
]

KNOWN_STATES = ("full", "supplied")
"""Values of state_kind at which the prompt is what the policy really saw."""
OWN_MEDIAN_NATS = 0.05
OWN_P90_NATS = 0.25
"""Limits on |logged - own log-prob|: an engine in bfloat16 stays well below them (about 0.01 and
0.1 are common), another model, another temperature or an older checkpoint does not."""
QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
TRUSTED_FRAC = 0.9
"""A model's ids are a tokenizer's where at least this share of its steps decodes to the text.
Another tokenizer leaves next to none; an engine that trims a stop string leaves nearly all."""
NOTHING_TO_TRAIN = (Reason.NO_ACTION_TOKENS, Reason.LOSS_WEIGHT_ZERO)
"""Where one of these applies, nothing else is asked."""
OFF_POLICY = tuple(
    reason
    for reason, rule in RULES.items()
    if rule.effects.get(Objective.PPO) is Effect.REFUSES and reason not in NOTHING_TO_TRAIN
)
"""What --allow-off-policy accepts."""
_NO_SIGNAL = tuple(
    reason for reason, rule in RULES.items() if rule.effects.get(Objective.PPO) is Effect.NO_SIGNAL
)
_STATES = {"reconstructed": Reason.STATE_RECONSTRUCTED, "partial": Reason.STATE_PARTIAL}
_MU_REASONS = frozenset(
    {
        Reason.LENGTH_MISMATCH,
        Reason.TEMPERATURE_NOT_LOGGED,
        Reason.TEMPERATURE_ZERO,
        Reason.TOP_P,
        Reason.TOP_K,
        Reason.MIN_P,
        Reason.PENALTIES,
        Reason.GRAMMAR,
        Reason.SAMPLING_UNREADABLE,
    }
)
"""Those that are values of mu_invalid_reason too."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """What decides about one step. A default stands where whoever asks cannot know."""

    has_action: bool
    """There is something that would be trained."""
    is_trained: bool = True
    """loss_weight is above 0."""
    own: bool | None = None
    """The policy is the model that is trained; None = not decided yet."""
    own_tokenizer: bool | None = None
    """The logged ids are of the model's tokenizer; None = not known, or none are logged."""
    has_ids: bool = True
    """The ids that the policy drew are logged."""
    has_logprobs: bool
    """rollout_logprobs covers the action; see covers."""
    mu_valid: bool | None
    """As in the step table; None = not known, which counts as not valid."""
    mu_invalid_reason: str | None = None
    """As in the step table."""
    state_kind: str | None
    """As in the step table."""
    has_tools: bool = True
    """The schemas of the tools that the attempt called are known, or it called none."""
    is_stale: bool = False
    """policy_version is below the newest of the same policy."""
    has_return: bool = True
    """The step's trajectory has a return."""
    returns_differ: bool = True
    """Not all trajectories of the data have the same return."""
    has_group: bool
    """The step's group has at least two trajectories with a return."""
    has_spread: bool
    """The returns of the step's group differ."""


def step_facts(step: Mapping[str, Any], *, own: bool | None) -> Facts:
    """Collect the facts of a step from its columns.

    Shards say nothing of tools, and hold the ids that their log-probs belong to.

    Args:
        step: fields of schema.SHARD_STEP.
        own: what is known of its policy.
    """
    size, std = step["group_size"], step["group_reward_std"]
    has_group = size is not None and size > 1
    return Facts(
        has_action=step["response_end"] > step["response_start"],
        own=own,
        has_logprobs=covers(step["rollout_logprobs"]),
        mu_valid=step["mu_valid"],
        mu_invalid_reason=step["mu_invalid_reason"],
        state_kind=step["state_kind"],
        has_return=step["trajectory_return"] is not None,
        has_group=has_group,
        has_spread=has_group and std is not None and std > 0,
    )


def covers(rollout_logprobs: Sequence[float | None] | None) -> bool:
    """Tell whether logged log-probs cover an action.

    The last token may lack one: many engines log none for the end token that they drew.

    Example:
        >>> covers([-0.1, -2.0]), covers([-0.1, None]), covers([None]), covers(None)
        (True, True, False, False)
    """
    if not rollout_logprobs or all(value is None for value in rollout_logprobs):
        return False
    return None not in rollout_logprobs[:-1]


def covers_each(lengths: np.ndarray, is_null: np.ndarray) -> np.ndarray:
    """Tell of many steps at once what covers tells of one.

    Args:
        lengths: int [S], values in each step's list; 0 = null or empty.
        is_null: bool [N], which values are null, all lists joined.

    Returns:
        bool [S].

    Example:
        >>> covers_each(np.array([2, 2, 1, 0]), np.array([False, True, True, False, True]))
        array([ True, False, False, False])
    """
    covered = lengths > 0
    may_lack = np.zeros(len(is_null), np.bool_)
    may_lack[np.cumsum(lengths)[lengths > 1] - 1] = True
    steps = np.repeat(np.arange(len(lengths)), lengths)
    covered[steps[is_null & ~may_lack]] = False
    return covered


def reasons(objective: Objective, facts: Facts) -> tuple[Reason, ...]:
    """Say why a step is not valid for an objective, or trains nothing; empty = it is and does.

    Cautions are not among them. Of a step of which nothing is trained nothing else is asked.
    """
    effects = (Effect.REFUSES, Effect.NO_SIGNAL)
    return tuple(r for r in applying(facts) if RULES[r].effects.get(objective) in effects)


def applying(facts: Facts) -> tuple[Reason, ...]:
    """List all reasons that apply to a step, whatever the objective."""
    if not facts.is_trained:
        return (Reason.LOSS_WEIGHT_ZERO,)
    if not facts.has_action:
        return (Reason.NO_ACTION_TOKENS,)
    applies = {
        Reason.POLICY_FOREIGN: facts.own is False,
        Reason.LOGPROBS_MISSING: not facts.has_logprobs,
        Reason.IDS_MISSING: not facts.has_ids,
        Reason.TOKENIZER_FOREIGN: facts.has_ids and facts.own_tokenizer is False,
        Reason.TOOLS_MISSING: not facts.has_tools,
        Reason.STALE: facts.is_stale,
        Reason.REWARD_MISSING: not facts.has_return,
        Reason.RETURNS_EQUAL: facts.has_return and not facts.returns_differ,
        Reason.GROUP_OF_ONE: facts.has_return and not facts.has_group,
        Reason.NO_SPREAD: facts.has_return and facts.has_group and not facts.has_spread,
    }
    found = {reason for reason, does in applies.items() if does}
    # that ids are missing says already that their log-probs count for nothing
    if facts.has_logprobs and facts.has_ids and not facts.mu_valid:
        cause = facts.mu_invalid_reason
        found.add(Reason(cause) if cause in _MU_REASONS else Reason.LOGPROBS_INVALID)
    if facts.state_kind not in KNOWN_STATES:
        found.add(_STATES.get(facts.state_kind or "", Reason.STATE_UNKNOWN))
    return tuple(reason for reason in Reason if reason in found)


def count_reasons(objective: Objective, facts: Iterable[Facts]) -> Counter[Reason]:
    """Count the steps to which each reason applies."""
    return Counter(reason for each in facts for reason in reasons(objective, each))


def presumed_own(facts: Iterable[tuple[str | None, Facts]]) -> dict[str | None, bool | None]:
    """Say what is known of policies before a model measures them.

    Args:
        facts: policy and facts of steps.

    Returns:
        policy -> None where log-probs are logged that can be measured, else False: nothing will
        ever tell that it is the model's own.
    """
    found: dict[str | None, bool | None] = {}
    for policy, each in facts:
        if each.has_logprobs and each.mu_valid:
            found[policy] = None
        else:
            found.setdefault(policy, False)
    return found


def refuse_off_policy(
    counts: Mapping[Reason, int], steps: int, *, measured: Mapping[str, float] | None = None
) -> None:
    """Refuse PPO where a step's behaviour policy is not known.

    Args:
        counts: of count_reasons.
        steps: number of all steps with action tokens.
        measured: delta_quantiles of the log-probs, where they were compared.

    Raises:
        GateError: a reason of OFF_POLICY applies to a step; the message names columns and shares.
    """
    found = [reason for reason in OFF_POLICY if counts.get(reason)]
    if not found:
        return
    silent = [reason for reason in _NO_SIGNAL if counts.get(reason)]
    if sum(counts[reason] for reason in silent) == steps:
        found += silent
    parts = "; ".join(
        f"{RULES[reason].column} in {counts[reason]:,} of {steps:,} steps ({counts[reason] / steps:.1%})"
        for reason in found
    )
    if measured is not None:
        parts += (
            f". Logged and own log-probs differ by {measured['p50']:.3g} nats at the median and "
            f"{measured['p90']:.3g} at 90% (limits {OWN_MEDIAN_NATS} and {OWN_P90_NATS})"
        )
    raise GateError(
        f"This data cannot honestly train with ppo: {parts}.",
        "Train with --objective sft, keep valid steps with claw curate, name the model's own "
        "policy with --own-policy, or accept it with --allow-off-policy.",
    )


def delta_quantiles(delta_nats: np.ndarray) -> dict[str, float]:
    """Summarise how far logged log-probs lie from the model's own.

    Args:
        delta_nats: float [N], |logged - own|, not empty.

    Returns:
        Quantile name of QUANTILES -> nats.
    """
    return {
        name: float(np.quantile(delta_nats, level, method="higher"))
        for name, level in QUANTILES.items()
    }


def is_own(delta_nats: np.ndarray) -> bool:
    """Decide whether logged log-probs are those of the model itself.

    Half of the tokens must lie within OWN_MEDIAN_NATS and 90% within OWN_P90_NATS. So a policy
    passes of which up to a tenth of the tokens come from an older version, however far that one
    is; of a near version, whose tokens stay within OWN_P90_NATS, up to half may come. The
    importance weights of ppo correct for either, token by token.

    Args:
        delta_nats: float [N], |logged - own| of one policy's tokens; empty = not measurable.
    """
    if len(delta_nats) == 0:
        return False
    quantiles = delta_quantiles(delta_nats)
    return quantiles["p50"] <= OWN_MEDIAN_NATS and quantiles["p90"] <= OWN_P90_NATS
