"""`claw readiness`: what can this log train, and what stands in the way?

The table's steps are counted by the facts that the gate asks, and the gate says what each kind of
step is good for: the same rules refuse in claw train. Nothing is written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from clawcli import gate, tally
from clawcli.gate import Effect, Objective, Reason
from clawcli.inspect import model as models
from clawcli.objectives import RULES
from clawcli.store import facts as of_steps
from clawcli.store import location, table
from clawcli.store.facts import FactsCount, GroupsCount
from clawcli.tally import Tally

_RETURNS_NAMED = 20


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadinessConfig:
    """What to look at."""

    input: str
    """Data directory, also as data@version."""
    model: str | None = None
    """Model to be trained: `tiny` or a local Hugging Face directory; null = not said."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Slice:
    """Steps of one log format, model and policy."""

    log_format: str | None
    model: str | None
    policy: str | None
    steps: int
    steps_valid_by_objective: dict[str, int]
    """Steps that nothing refuses."""
    steps_with_signal_by_objective: dict[str, int]
    """Valid ones that train something."""
    steps_by_reason: dict[str, int]
    """A step counts at each reason that applies to it."""
    frac_by_reason: dict[str, float]
    """steps_by_reason / steps."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadinessReport:
    """What the steps of a data directory can train."""

    headline: str
    """The same in one sentence."""
    steps: int
    steps_valid_by_objective: dict[str, int]
    """Steps that nothing refuses."""
    steps_with_signal_by_objective: dict[str, int]
    """Valid ones that train something."""
    steps_by_reason: dict[str, int]
    """A step counts at each reason that applies to it."""
    frac_by_reason: dict[str, float]
    """steps_by_reason / steps."""
    column_by_reason: dict[str, str]
    """What says so."""
    fix_by_reason: dict[str, str]
    """What to do about it."""
    objectives_by_reason: dict[str, list[str]]
    """Objectives that the reason refuses, or leaves without signal; of a caution none."""
    steps_policy_unknown: int
    """Steps valid for ppo of whose policy only claw train can tell whether it is the model's own."""
    steps_tokenizer_unknown: int
    """Steps with ids of which it is not known whether they are of the model's tokenizer."""
    groups: int
    """Groups of main and sample trajectories, per policy."""
    groups_without_return: int
    """No trajectory of theirs has a return."""
    groups_of_one: int
    """One trajectory of theirs has one."""
    groups_without_spread: int
    """Several have one, and all are equal."""
    groups_without_spread_by_return: dict[str, int]
    """Those, by the return that all have: the most frequent 20, and other."""
    slices: tuple[Slice, ...]
    """The same per log format, model and policy, the largest first."""
    table_version: int


def readiness(config: ReadinessConfig) -> ReadinessReport:
    """Say what the steps of a data directory can train, and why not more.

    Raises:
        NotFoundError: the data directory, its version or the model is not there.
        DataError: the data directory is none, or the model cannot be read.
        StoreError: the table is damaged.
    """
    source = location.existing(config.input)
    model = None if config.model is None else models.load(config.model)
    version = table.open_table(source.steps, source.version).version()
    steps = of_steps.load(source)
    counts = judged(of_steps.count_facts(steps), model, source)
    groups = of_steps.count_groups(steps)
    total = tally.tally((each.facts, each.steps) for each in counts)
    return ReadinessReport(
        headline=tally.headline(total),
        **_counted(total),
        column_by_reason={reason.value: RULES[reason].column for reason in total.reasons},
        fix_by_reason={reason.value: RULES[reason].fix for reason in total.reasons},
        objectives_by_reason={reason.value: _objectives(reason) for reason in total.reasons},
        steps_policy_unknown=total.undecided,
        steps_tokenizer_unknown=sum(
            each.steps for each in counts if each.facts.has_ids and each.facts.own_tokenizer is None
        ),
        **_grouped(groups),
        slices=_slices(counts),
        table_version=version,
    )


def judged(
    counts: Sequence[FactsCount], model: models.Model | None, source: location.Location
) -> list[FactsCount]:
    """Add to facts what is known of policies and tokenizers.

    Args:
        counts: facts of all steps.
        model: what the steps would train; None = not said, so that only policies without valid
            log-probs are decided: nothing can measure those.
        source: where the steps are.
    """
    own = gate.presumed_own((each.policy, each.facts) for each in counts)
    own_ids: dict[models.Source, bool] = {}
    if model is not None:
        for policy in own:
            if (named := model.acted_as(policy)) is not None:
                own[policy] = named
        sources = {(each.model, each.tokenizer) for each in counts if each.facts.has_ids}
        own_ids = model.ids_are_own(source, sources)
    return [
        replace(
            each,
            facts=replace(
                each.facts,
                own=own[each.policy],
                own_tokenizer=own_ids.get((each.model, each.tokenizer)),
            ),
        )
        for each in counts
    ]


def _counted(counted: Tally) -> dict[str, Any]:
    by_reason = {reason.value: steps for reason, steps in counted.reasons.items()}
    return {
        "steps": counted.steps,
        "steps_valid_by_objective": {o.value: counted.valid[o] for o in Objective},
        "steps_with_signal_by_objective": {o.value: counted.with_signal[o] for o in Objective},
        "steps_by_reason": by_reason,
        "frac_by_reason": {reason: steps / counted.steps for reason, steps in by_reason.items()},
    }


def _objectives(reason: Reason) -> list[str]:
    effects = RULES[reason].effects
    return [o.value for o in Objective if effects.get(o) in (Effect.REFUSES, Effect.NO_SIGNAL)]


def _slices(counts: Iterable[FactsCount]) -> tuple[Slice, ...]:
    members: dict[tuple[str | None, str | None, str | None], list[FactsCount]] = {}
    for each in counts:
        members.setdefault((each.log_format, each.model, each.policy), []).append(each)
    found = [
        Slice(
            log_format=log_format,
            model=model,
            policy=policy,
            **_counted(tally.tally((each.facts, each.steps) for each in alike)),
        )
        for (log_format, model, policy), alike in members.items()
    ]
    return tuple(sorted(found, key=lambda each: -each.steps))


def _grouped(counts: Sequence[GroupsCount]) -> dict[str, Any]:
    flat = Counter[str]()
    found = Counter[str]()
    for each in counts:
        if not each.has_return:
            found["groups_without_return"] += each.groups
        elif not each.has_attempts:
            found["groups_of_one"] += each.groups
        elif not each.has_spread:
            found["groups_without_spread"] += each.groups
            common = each.common_return
            flat["unknown" if common is None else f"{common:.6g}"] += each.groups
    named = dict(flat.most_common(_RETURNS_NAMED))
    if other := flat.total() - sum(named.values()):
        named["other"] = other
    names = ("groups_without_return", "groups_of_one", "groups_without_spread")
    return {
        "groups": sum(each.groups for each in counts),
        **{name: found[name] for name in names},
        "groups_without_spread_by_return": named,
    }
