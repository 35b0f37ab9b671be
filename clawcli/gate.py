"""From a step's facts to "valid for sft | ppo, else why not".

PPO is for tokens whose behaviour policy is known: its loss weighs them by old / behaviour, and on
another model's log an unanchored surrogate first rises and then ruins the policy. So the facts
are asked for, and the refusal names column and share. Whether a policy is the model's own is
measured where log-probs are logged (is_own), not taken from its name.

Pure: `claw train` feeds it from shard columns, `claw readiness` will from a step table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np

from clawcli.errors import GateError

KNOWN_STATES = ("full", "supplied")
"""Values of state_kind at which the prompt is what the policy really saw."""
OWN_MEDIAN_NATS = 0.05
OWN_P90_NATS = 0.25
"""Limits on |logged - own log-prob|: an engine in bfloat16 stays well below them (about 0.01 and
0.1 are common), another model, another temperature or an older checkpoint does not."""
QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}


class Objective(StrEnum):
    """What training does with a step."""

    SFT = "sft"
    """Raise the log-likelihood of the action."""
    PPO = "ppo"
    """Clipped policy gradient with the group advantage and KL to the starting model."""


class Reason(StrEnum):
    """Why a step is not valid for an objective; each names the column that says so."""

    NO_ACTION_TOKENS = "no_action_tokens"
    """The step has no token to train."""
    LOGPROBS_MISSING = "logprobs_missing"
    """rollout_logprobs is null for a token before the last one."""
    LOGPROBS_INVALID = "logprobs_invalid"
    """mu_valid is false: the log-probs are not those of the policy that drew the tokens."""
    POLICY_FOREIGN = "policy_foreign"
    """policy is another model than the one that is trained, or cannot be told from one."""
    STATE_UNKNOWN = "state_unknown"
    """state_kind is not full or supplied: the policy may have seen another prompt."""
    NO_SPREAD = "no_spread"
    """group_reward_std is 0 or null: the advantage is 0, the step is valid but without signal."""


_COLUMN = {
    Reason.NO_ACTION_TOKENS: "response_end - response_start is 0",
    Reason.LOGPROBS_MISSING: "rollout_logprobs is null",
    Reason.LOGPROBS_INVALID: "mu_valid is false",
    Reason.POLICY_FOREIGN: "policy is not known to be the model's own",
    Reason.STATE_UNKNOWN: "state_kind is not full or supplied",
    Reason.NO_SPREAD: "group_reward_std is 0 or null",
}
OFF_POLICY = (
    Reason.LOGPROBS_MISSING,
    Reason.LOGPROBS_INVALID,
    Reason.POLICY_FOREIGN,
    Reason.STATE_UNKNOWN,
)
"""What --allow-off-policy accepts."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """What decides about one step."""

    action_tokens: int
    """Tokens that would be trained."""
    has_logprobs: bool
    """rollout_logprobs covers the action; see covers."""
    mu_valid: bool | None
    """As in the step table; None = not known, which counts as not valid."""
    own: bool | None
    """The policy is the model that is trained; None = not decided yet."""
    state_kind: str | None
    """As in the step table."""
    has_spread: bool
    """The returns of the step's group differ."""


def step_facts(step: Mapping[str, Any], *, own: bool | None) -> Facts:
    """Collect the facts of a step from its columns.

    Args:
        step: fields of schema.SHARD_STEP.
        own: what is known of its policy.
    """
    size, std = step["group_size"], step["group_reward_std"]
    return Facts(
        action_tokens=step["response_end"] - step["response_start"],
        has_logprobs=covers(step["rollout_logprobs"]),
        mu_valid=step["mu_valid"],
        own=own,
        state_kind=step["state_kind"],
        has_spread=size is not None and size > 1 and std is not None and std > 0,
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


def reasons(objective: Objective, facts: Facts) -> tuple[Reason, ...]:
    """Say why a step is not valid for an objective; empty = it is.

    Of a step without action tokens nothing is trained, so nothing else is asked of it.
    """
    if facts.action_tokens == 0:
        return (Reason.NO_ACTION_TOKENS,)
    found = []
    if objective is Objective.PPO:
        if not facts.has_logprobs:
            found.append(Reason.LOGPROBS_MISSING)
        elif not facts.mu_valid:
            found.append(Reason.LOGPROBS_INVALID)
        if facts.own is False:
            found.append(Reason.POLICY_FOREIGN)
        if facts.state_kind not in KNOWN_STATES:
            found.append(Reason.STATE_UNKNOWN)
        if not facts.has_spread:
            found.append(Reason.NO_SPREAD)
    return tuple(found)


def count_reasons(objective: Objective, facts: Iterable[Facts]) -> Counter[Reason]:
    """Count the steps to which each reason applies."""
    return Counter(reason for each in facts for reason in reasons(objective, each))


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
    if counts.get(Reason.NO_SPREAD) == steps:
        found.append(Reason.NO_SPREAD)
    parts = "; ".join(
        f"{_COLUMN[reason]} in {counts[reason]:,} of {steps:,} steps ({counts[reason] / steps:.1%})"
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
