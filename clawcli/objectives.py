"""Objectives of training, and what can speak against a step for each.

A reason refuses a step for an objective, or lets it pass without signal, or is a caution alone.
RULES says which, what column tells it, and what to do; docs/readiness.md is made of it. The gate
finds the reasons that apply.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Objective(StrEnum):
    """What training does with a step."""

    SFT = "sft"
    """Raise the log-likelihood of the action."""
    KTO = "kto"
    """Raise good actions and lower bad ones, told apart by a thumb or a threshold on the return."""
    DPO = "dpo"
    """Prefer the better of two attempts of a group."""
    AWR = "awr"
    """Raise the action's log-likelihood, weighted by its advantage: never below zero."""
    REINFORCE = "reinforce"
    """Policy gradient with the group advantage, without a ratio."""
    PPO = "ppo"
    """Clipped policy gradient with the group advantage and KL to the starting model."""


class Reason(StrEnum):
    """Why a step is not valid for an objective, or trains nothing; RULES has columns and fixes."""

    NO_ACTION_TOKENS = "no_action_tokens"
    """The step has no token to train."""
    LOSS_WEIGHT_ZERO = "loss_weight_zero"
    """The step is context for others."""
    POLICY_FOREIGN = "policy_foreign"
    """policy is another model than the one that is trained, or cannot be told from one."""
    LOGPROBS_MISSING = "logprobs_missing"
    """rollout_logprobs is null for a token before the last one."""
    IDS_MISSING = "ids_missing"
    """The ids that the policy drew were not logged."""
    TOKENIZER_FOREIGN = "tokenizer_foreign"
    """The logged ids are of another tokenizer than the model's."""
    LENGTH_MISMATCH = "length_mismatch"
    """There is not one log-prob for each id."""
    TEMPERATURE_NOT_LOGGED = "temperature_not_logged"
    """Log-probs cannot be compared without it."""
    TEMPERATURE_ZERO = "temperature_zero"
    """Nothing was drawn: the likeliest token was taken."""
    TOP_P = "top_p"
    """The tail was cut off, so that the tokens were drawn from another distribution."""
    TOP_K = "top_k"
    """The same, by rank."""
    MIN_P = "min_p"
    """The same, by share of the likeliest token."""
    PENALTIES = "penalties"
    """Penalties or a bias moved the log-probs."""
    GRAMMAR = "grammar"
    """A grammar bound the sampler."""
    SAMPLING_UNREADABLE = "sampling_unreadable"
    """A sampling setting is no number."""
    LOGPROBS_INVALID = "logprobs_invalid"
    """mu_valid is false or null, and nothing says why."""
    STATE_RECONSTRUCTED = "state_reconstructed"
    """The prompt was cut from a transcript: the policy may have seen another."""
    STATE_PARTIAL = "state_partial"
    """Parts of the prompt, such as tool schemas, were not logged."""
    STATE_UNKNOWN = "state_unknown"
    """Nothing says whether the prompt is what the policy saw."""
    TOOLS_MISSING = "tools_missing"
    """The attempt called tools, and their schemas were not logged."""
    STALE = "stale"
    """An older version of the policy acted than the newest in the data."""
    REWARD_MISSING = "reward_missing"
    """The attempt has no return."""
    RETURNS_EQUAL = "returns_equal"
    """All attempts have one return, so that no threshold parts good from bad."""
    GROUP_OF_ONE = "group_of_one"
    """The group has one attempt with a return: there is nothing to compare it with."""
    NO_SPREAD = "no_spread"
    """All returns of the group are equal: the advantage is 0."""


class Effect(StrEnum):
    """What a reason does to a step."""

    REFUSES = "refuses"
    """The step is not valid for the objective."""
    NO_SIGNAL = "no_signal"
    """The step is valid and trains nothing."""
    CAUTION = "caution"
    """The step is valid and trains; what is said should be known."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One reason: how it is told, and what it does."""

    label: str
    """In a few words."""
    column: str
    """What column says so."""
    fix: str
    """What to do, in one sentence."""
    effects: Mapping[Objective, Effect]
    """Objectives that it does not matter to are missing."""


def _does(*, refuses: str = "", no_signal: str = "", cautions: str = "") -> dict[Objective, Effect]:
    named = {Effect.REFUSES: refuses, Effect.NO_SIGNAL: no_signal, Effect.CAUTION: cautions}
    return {Objective(name): effect for effect, names in named.items() for name in names.split()}


_ALL = " ".join(Objective)
_PPO = _does(refuses="ppo")
_ATTEMPTS = "Collect several attempts per task"
RULES = {
    Reason.NO_ACTION_TOKENS: Rule(
        "no action",
        "response, reasoning and tool_calls are empty",
        "Leave such steps out with claw curate; there is nothing to train in them.",
        _does(refuses=_ALL),
    ),
    Reason.LOSS_WEIGHT_ZERO: Rule(
        "context only",
        "loss_weight is 0 or null",
        "Nothing is wrong: other steps are built on these.",
        _does(refuses=_ALL),
    ),
    Reason.POLICY_FOREIGN: Rule(
        "foreign policy",
        "policy is not known to be the model's own",
        "Train the model that acted, log its log-probs so that claw train can measure them, or "
        "name it with --own-policy.",
        _PPO,
    ),
    Reason.LOGPROBS_MISSING: Rule(
        "no log-probs",
        "rollout_logprobs is null",
        "Log with logprobs and top_p = 1.",
        _PPO,
    ),
    Reason.IDS_MISSING: Rule(
        "no token ids",
        "response_ids is null",
        "Let the engine return the token ids that it drew, and log them.",
        _PPO,
    ),
    Reason.TOKENIZER_FOREIGN: Rule(
        "foreign tokenizer",
        "tokenizer is not the model's",
        "Train the model whose tokenizer made the ids.",
        _PPO,
    ),
    Reason.LENGTH_MISMATCH: Rule(
        "log-probs of another length",
        "rollout_logprobs and response_ids differ in length",
        "Log one log-prob for each token of the action.",
        _PPO,
    ),
    Reason.TEMPERATURE_NOT_LOGGED: Rule(
        "temperature not logged",
        "temperature is null",
        "Set the temperature in the request, so that the log says it.",
        _PPO,
    ),
    Reason.TEMPERATURE_ZERO: Rule(
        "temperature 0", "temperature is 0", "Sample with a temperature above 0.", _PPO
    ),
    Reason.TOP_P: Rule("top_p below 1", "top_p is below 1", "Sample with top_p = 1.", _PPO),
    Reason.TOP_K: Rule("top_k", "sampling has top_k", "Sample without top_k.", _PPO),
    Reason.MIN_P: Rule("min_p", "sampling has min_p", "Sample without min_p.", _PPO),
    Reason.PENALTIES: Rule(
        "penalties",
        "sampling has penalties or a logit_bias",
        "Sample without penalties and without logit_bias.",
        _PPO,
    ),
    Reason.GRAMMAR: Rule(
        "grammar",
        "sampling has a grammar or response_format",
        "Sample without a grammar or response_format.",
        _PPO,
    ),
    Reason.SAMPLING_UNREADABLE: Rule(
        "sampling unreadable",
        "sampling holds what is no number",
        "Log the sampling settings as numbers.",
        _PPO,
    ),
    Reason.LOGPROBS_INVALID: Rule(
        "log-probs invalid",
        "mu_valid is false",
        "Log with logprobs, temperature and top_p = 1.",
        _PPO,
    ),
    Reason.STATE_RECONSTRUCTED: Rule(
        "state reconstructed",
        "state_kind is reconstructed",
        "Log the requests themselves, not a transcript of them.",
        _PPO,
    ),
    Reason.STATE_PARTIAL: Rule(
        "state partial",
        "state_kind is partial",
        "Supply what is not logged with claw ingest --system and --tools, or log the requests.",
        _PPO,
    ),
    Reason.STATE_UNKNOWN: Rule(
        "state unknown",
        "state_kind is unknown or null",
        "Log the requests themselves.",
        _PPO,
    ),
    Reason.TOOLS_MISSING: Rule(
        "tools missing",
        "tools is null where tool calls were made",
        "Supply the schemas with claw ingest --tools.",
        _does(refuses="ppo", cautions="sft kto dpo awr reinforce"),
    ),
    Reason.STALE: Rule(
        "stale",
        "policy_version is behind the newest of its policy",
        "Keep the newest with claw curate --where 'policy_version >= N', or collect again.",
        _does(cautions="reinforce ppo"),
    ),
    Reason.REWARD_MISSING: Rule(
        "no reward",
        "trajectory_return is null",
        "Attach rewards with claw attach, or with claw ingest --rewards.",
        _does(refuses="kto dpo awr", no_signal="reinforce ppo"),
    ),
    Reason.RETURNS_EQUAL: Rule(
        "one return for all",
        "trajectory_return is the same in all trajectories",
        "Add attempts that end otherwise, or attach feedback that parts good from bad.",
        _does(no_signal="kto"),
    ),
    Reason.GROUP_OF_ONE: Rule(
        "groups of one",
        "group_size is 1 or null",
        f"{_ATTEMPTS}.",
        _does(refuses="dpo", no_signal="reinforce ppo"),
    ),
    Reason.NO_SPREAD: Rule(
        "groups without spread",
        "group_reward_std is 0 or null",
        f"{_ATTEMPTS} that the policy solves sometimes, not always or never.",
        _does(refuses="dpo", no_signal="reinforce ppo"),
    ),
}
"""What each reason is told by, and does. Of logged ids, log-probs and states ppo alone makes use:
the other objectives train on the text."""
