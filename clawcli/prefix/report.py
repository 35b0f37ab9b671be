"""What `claw merge-prefixes` did: counted for its report and for the manifest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from clawcli import config as configs
from clawcli.prefix.gather import Fact, Gathered
from clawcli.prefix.savings import Savings
from clawcli.tree import Forest


@dataclass(frozen=True, kw_only=True, slots=True)
class MergeReport(Savings):
    """What `claw merge-prefixes` did. steps_in = steps + excluded + steps_context_without_path."""

    steps_in: int
    """Steps of the data directory."""
    steps: int
    """Steps with a path."""
    steps_trained: int
    """Those of them with a weight above 0."""
    steps_context_without_path: int
    """Steps of weight 0 whose tokens no trained row holds."""
    steps_excluded_by_reason: dict[str, int]
    """Steps without a true row, by reason."""
    model_size: str
    """Model for which the speed-up is predicted."""
    roots: int
    """Nodes without a parent."""
    leaves: int
    """Nodes without a child."""
    links: int
    """Steps whose parent is in the data."""
    links_unbroken: int
    """Links on which the parent's whole row is a prefix of the child's prompt."""
    prefix_breaks_by_cause: dict[str, int]
    """The other links, by cause."""
    steps_by_provenance: dict[str, int]
    """Steps with a path by where their token ids come from."""
    logged_ids_by_verdict: dict[str, int]
    """Steps with logged ids: used, text_differs, other_tokenizer."""
    decoded_frac_by_model: dict[str, float]
    """Share of each model's steps with logged ids whose ids decode to the logged text."""
    end_tokens_by_cause: dict[str, int]
    """Rendered steps by what decided whether their end token is trained."""
    prompts_proved: int
    """Prompts whose ids were compared with those of apply_chat_template, and are the same."""
    prompts_cut: int
    """Prompts cut out of the rendering of a later step, which the template was proved to allow."""
    prompts_logged: int
    """Prompts taken from the log as ids."""
    prompts_logged_equal: int
    """Those of them that apply_chat_template gives too."""
    prompts_continued: int
    """Prompts that continue logged ids by rendered text."""


def report(
    made: Gathered,
    facts: Sequence[Fact],
    trained: np.ndarray,
    forest: Forest,
    saved: Savings,
    *,
    steps_in: int,
    model_size: str,
) -> MergeReport:
    """Count.

    Args:
        made: all rows that were made.
        facts: of those with a path.
        trained: bool for each of these.
        forest: the tree.
        saved: what it saves.
        steps_in: steps of the data directory.
        model_size: for which that was predicted.
    """
    has_child = np.zeros(len(forest.segment_starts), bool)
    has_child[forest.segment_parents[forest.segment_parents >= 0]] = True
    reasons = Counter(error.reason.value for error in made.excluded.values())
    return MergeReport(
        steps_in=steps_in,
        steps=len(facts),
        steps_trained=int(trained.sum()),
        steps_context_without_path=len(made.facts) - len(facts),
        steps_excluded_by_reason=_sorted(reasons),
        model_size=model_size,
        roots=int((forest.segment_parents < 0).sum()),
        leaves=int((~has_child).sum()),
        links=made.links.links,
        links_unbroken=made.links.links_unbroken,
        prefix_breaks_by_cause=_sorted(made.links.breaks_by_cause),
        steps_by_provenance=_sorted(Counter(fact.provenance for fact in facts)),
        logged_ids_by_verdict=_sorted(Counter(made.judged.steps_by_verdict)),
        decoded_frac_by_model=made.judged.decoded_frac_by_model,
        end_tokens_by_cause=_sorted(made.proof.end_tokens_by_cause),
        prompts_proved=made.proof.prompts_proved,
        prompts_cut=made.proof.prompts_cut,
        prompts_logged=made.proof.prompts_logged,
        prompts_logged_equal=made.proof.prompts_logged_equal,
        prompts_continued=made.proof.prompts_continued,
        **configs.to_dict(saved),
    )


def _sorted(counts: Counter[str]) -> dict[str, int]:
    return dict(sorted(counts.items()))
