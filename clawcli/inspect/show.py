"""`claw show TREE`: the tree folded to a page, or one step's row token by token."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from clawcli.inspect.step_view import StepView, view_step
from clawcli.inspect.tree_view import TreeView, view_tree
from clawcli.store import trees
from clawcli.store.manifest import load_tokenizer


@dataclass(frozen=True, kw_only=True, slots=True)
class ShowConfig:
    """What `claw show` is asked for."""

    input: str
    """Tree that claw merge-prefixes made."""
    step: str | None = None
    """step_uid, or its first characters; None = the whole tree."""


def show(config: ShowConfig) -> StepView | TreeView:
    """Read a tree, and look at all of it or at one step.

    Raises:
        NotFoundError: the tree is missing, or has no such step.
        UsageError: several steps begin with the characters given.
        DataError: the input is no tree.
        VerifyError: the tree was damaged.
    """
    tree = trees.read(Path(config.input))
    tokenizer = load_tokenizer(tree.path, tree.manifest)
    if config.step is None:
        return view_tree(tree, tokenizer)
    return view_step(tree, tokenizer, config.step)
