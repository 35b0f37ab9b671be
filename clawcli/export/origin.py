"""The data that a tree was merged from, for expressions over columns and sidecars."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from clawcli import schema
from clawcli.errors import DataError
from clawcli.store import arrow, artefact, registry, rewards, shards, sidecars, uids
from clawcli.store.expressions import Expression
from clawcli.store.frame import Frame
from clawcli.store.trees import Tree


class Origin:
    """The steps behind a tree's paths; opened when something is asked of them."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree

    @cached_property
    def frame(self) -> Frame:
        """The steps.

        Raises:
            DataError: the data is gone, or is not what was merged.
        """
        origins = artefact.read_manifest(self._tree.path)["inputs"]
        origin = next((one for one in origins if one.get("kind") == "data"), None)
        if origin is None:
            raise DataError(
                f"{self._tree.path} does not say what it was merged from.", "Merge again."
            )
        return Frame(rewards.opened(origin, f"{self._tree.path} was merged", "Bring it back."))

    @cached_property
    def places(self) -> np.ndarray:
        """Place in the frame of each path of the tree: int64.

        Raises:
            DataError: a step is not there.
        """
        steps = uids.binary(self._tree.paths["step_uid"])
        found = arrow.index_in(steps, self.frame.keys["step_uid"])
        if found.null_count:
            raise DataError(
                f"{found.null_count:,} steps of {self._tree.path} are not in "
                f"{self.frame.location.path}.",
                "Merge again.",
            )
        return found.to_numpy().astype(np.int64)

    def inputs(self) -> list[dict[str, Any]]:
        """Name the data as an input, with what is attached to it, if it was opened."""
        if "frame" not in self.__dict__:
            return []
        return [sidecars.describe(self.frame.location, self.frame.version)]

    def register(self, output: Path) -> None:
        """Tell the data, if it was opened, what was made of it."""
        if "frame" in self.__dict__:
            place, version = self.frame.location, self.frame.version
            registry.add(place, output, kind=shards.KIND, version=version)

    def rewarded(self, expression: Expression) -> Tree:
        """Let an expression be the reward of each attempt.

        Returns:
            The tree with other rewards, returns and group statistics.

        Raises:
            DataError: the data is gone, or is not what was merged.
            WhereError: it is no numeric expression over one step.
        """
        frame = self.frame
        rewards.choose(frame, lambda steps: rewards.by_attempt(steps, expression), at_hand=False)
        paths = self._tree.paths
        for number, column in enumerate(paths.schema):
            if column.name == "reward" or column.name in schema.FROZEN_NAMES:
                values = frame.column(column.name).take(self.places).cast(column.type)
                paths = paths.set_column(number, column, values)
        return replace(self._tree, paths=paths)
