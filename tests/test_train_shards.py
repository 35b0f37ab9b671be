"""From a tree by way of `claw export` to the loss: what a step's weight becomes."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from conftest import assistant, system, tau, user

from clawcli.export.config import ExportShardsConfig
from clawcli.export.shards import export_shards
from clawcli.gate import Objective
from clawcli.ingest.run import IngestConfig, ingest
from clawcli.prefix.run import MergeConfig, merge_prefixes
from clawcli.store import artefact, shards, tokenizers, trees
from clawcli.train.config import TrainConfig
from clawcli.train.run import train


def reweighted(source: Path, output: Path, weights: list[float]) -> None:
    """Write a tree once more with other loss weights, as a log that has its own brings them."""
    tree = trees.read(source)
    place = tree.paths.schema.get_field_index("loss_weight")
    paths = tree.paths.set_column(place, "loss_weight", pa.array(weights, pa.float64()))
    with artefact.create(output, kind=trees.KIND, force=False, config={}, inputs=[]) as draft:
        trees.write(draft.path, tree.forest, paths, tokenizers.load(str(source)))
        manifest = json.loads((source / "manifest.json").read_bytes())
        draft.manifest |= {key: manifest[key] for key in manifest if key not in draft.manifest}


@pytest.mark.parametrize("layout", ["tree", "chain", "none"])
def test_loss_weight_of_a_step_reaches_the_shards_and_the_loss(tmp_path, layout):
    messages = [system("You help."), user("Which city?"), assistant("Rome, of course.")]
    (tmp_path / "log.json").write_text(tau([(1, 0, 1.0, messages)]))
    ingest(IngestConfig(inputs=(str(tmp_path / "log.json"),), output=str(tmp_path / "data")))
    merge_prefixes(
        MergeConfig(input=str(tmp_path / "data"), output=str(tmp_path / "tree"), tokenizer="tiny")
    )
    reweighted(tmp_path / "tree", tmp_path / "half", [0.5])
    export_shards(
        ExportShardsConfig(
            input=str(tmp_path / "half"), output=str(tmp_path / "shards"), merge=layout
        )
    )
    (row,) = shards.open_shards(tmp_path / "shards").rows()
    assert [step["weight"] for step in row.steps.to_pylist()] == [0.5]
    train(
        TrainConfig(
            shards=str(tmp_path / "shards"),
            output=str(tmp_path / "run"),
            model="tiny",
            objective=Objective.SFT,
        )
    )
    metrics = json.loads((tmp_path / "run" / "metrics.jsonl").read_text())
    nll = metrics["train/nll_nats_per_token"]
    assert metrics["train/loss"] == pytest.approx(nll / 2, rel=1e-6)
