"""Count steps by what they can train, and say it in a sentence.

Pure, like gate.py, whose reasons it counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from clawcli.gate import Facts, applying
from clawcli.objectives import RULES, Effect, Objective, Reason


@dataclass(frozen=True, kw_only=True, slots=True)
class Tally:
    """Steps by what they can train. Reasons are counted where they apply; one step may have many."""

    steps: int
    valid: Mapping[Objective, int]
    """Steps that no reason refuses."""
    with_signal: Mapping[Objective, int]
    """Valid ones that train something."""
    reasons: Mapping[Reason, int]
    """In the order of Reason; those that apply to no step are missing."""
    undecided: int
    """Steps valid for ppo of whose policy it is not known whether it is the model's own."""


def tally(facts: Iterable[tuple[Facts, int]]) -> Tally:
    """Count steps by what they can train.

    Args:
        facts: facts, and the number of steps that have them.
    """
    steps = undecided = 0
    valid, with_signal, found = Counter[Objective](), Counter[Objective](), Counter[Reason]()
    for each, count in facts:
        steps += count
        applied = applying(each)
        found.update(dict.fromkeys(applied, count))
        for objective in Objective:
            effects = {RULES[reason].effects.get(objective) for reason in applied}
            if Effect.REFUSES not in effects:
                valid[objective] += count
                if Effect.NO_SIGNAL not in effects:
                    with_signal[objective] += count
                if objective is Objective.PPO and each.own is None:
                    undecided += count
    return Tally(
        steps=steps,
        valid={objective: valid[objective] for objective in Objective},
        with_signal={objective: with_signal[objective] for objective in Objective},
        reasons={reason: found[reason] for reason in Reason if found[reason]},
        undecided=undecided,
    )


_REASONS_NAMED = 3
"""So many reasons stand in a headline; the report has all."""


def headline(counted: Tally) -> str:
    """Say in one sentence what steps are good for.

    Steps that are context for others do not count. "Good for" is said where every step trains
    something.
    """
    steps = counted.steps - counted.reasons.get(Reason.LOSS_WEIGHT_ZERO, 0)
    if not counted.steps:
        return "There is no step to train on."
    if not steps:
        return f"Nothing is to be trained: loss_weight is 0 in all {counted.steps:,} steps."
    by_count: dict[int, list[Objective]] = {}
    by_reasons: dict[str, list[Objective]] = {}
    for objective in Objective:
        if count := counted.with_signal[objective]:
            by_count.setdefault(count, []).append(objective)
        else:
            by_reasons.setdefault(_why_not(objective, counted), []).append(objective)
    good = by_count.pop(steps, [])
    parts = [f"good for {_listed(good)}"] if good else []
    if by_count:
        parts.append(
            "in part for "
            + _listed(
                f"{_listed(names)} ({count:,} of {steps:,} steps)"
                for count, names in sorted(by_count.items(), reverse=True)
            )
        )
    if by_reasons:
        not_for = (f"{_listed(names)} ({why})" for why, names in by_reasons.items())
        parts.append(f"not for {_listed(not_for)}")
    if counted.with_signal[Objective.PPO] and counted.undecided:
        parts.append("ppo needs the model's own policy, which claw train measures")
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}."


def _why_not(objective: Objective, counted: Tally) -> str:
    # where no step is valid, what makes valid ones silent is not the trouble
    asked = (Effect.REFUSES, Effect.NO_SIGNAL) if counted.valid[objective] else (Effect.REFUSES,)
    found = [
        reason
        for reason in counted.reasons
        if RULES[reason].effects.get(objective) in asked and reason is not Reason.LOSS_WEIGHT_ZERO
    ]
    found.sort(key=lambda reason: -counted.reasons[reason])
    labels = [RULES[reason].label for reason in found[:_REASONS_NAMED]]
    if more := len(found) - len(labels):
        labels.append(f"{more} more")
    return ", ".join(labels)


def _listed(words: Iterable[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last
