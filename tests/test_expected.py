"""The corpus through the whole pipeline, against counts that other code made."""

from collections import Counter

import pytest
from conftest import SHARED
from expected_counts import expected_rows

from clawcli.errors import LogFormatError
from clawcli.ingest.run import IngestConfig, ingest
from clawcli.store import location, table

FIRST_TIER = (
    "tau-bench",
    "claude-code",
    "hostile-derived",
    "openclaw",
    "swe-agent",
    "mini-swe-agent",
    "atif",
    "inspect",
    "openai-chat",
    "openai-responses",
    "codex",
    "openhands-v0",
    "sharegpt",
    "hf-messages",
)
EMPTY = "attempts without a call are rejected, and counted in trajectories_empty (FORMATS 15)"
DEAD = "a dead branch is a trajectory of its own (DESIGN 3)"
GRADERS = "calls of a grader are subagent trajectories beside their attempt (FORMATS 10)"
OTHERWISE = {
    "tau-bench/retail-assertions-a.json": (66, 866, EMPTY),
    "tau-bench/retail-assertions-b.json": (95, 1292, EMPTY),
    "claude-code/agentsview/truncated.jsonl": (1, 1, "its one whole call is an attempt"),
    "claude-code/claude-code-log/dag_fork.jsonl": (2, 4, "the resumed session goes on, one fork"),
    "claude-code/claude-code-log/dag_resume.jsonl": (1, 3, "a resumed session is one attempt"),
    "claude-code/claude-code-log/dag_within_fork.jsonl": (2, 3, DEAD),
    "claude-code/claude-code-log/sidechain.jsonl": (2, 4, "a sidechain is a subagent's attempt"),
    "openclaw/pi/large-session.jsonl": (1, 439, "14 answers without content are failed calls"),
    "inspect/2025-05-12T20-28-26-04-00_security-guide.json": (6, 6, GRADERS),
    "inspect/2025-09-23T08-09-58-04-00_theory-of-mind_bbB4eRCx2rFJLyPH42Cj9r.eval": (
        200,
        200,
        GRADERS,
    ),
    "openai-responses/http-pairs/"
    "test_openai_responses_compact_with_auto_previous_response_id_chain.jsonl": (
        1,
        8,
        "5 policy steps, and 3 compactions that the count leaves out",
    ),
    "codex/agent-sessions/small.jsonl": (2, 9, "a call whose output came early is cut by it"),
    "openhands-v0/multi_swe_bench_output.jsonl": (3, 105, "23 + 33 + 49 response ids"),
}


CASES = expected_rows(*FIRST_TIER)


@pytest.mark.skipif(not CASES, reason="needs ../shared/corpus/EXPECTED.tsv, which is not here")
@pytest.mark.parametrize("row", CASES, ids=lambda row: row["path"])
def test_ingest_corpus_agrees_with_its_counts(tmp_path, row):
    config = IngestConfig(
        inputs=(str(SHARED / "corpus" / row["path"]),), output=str(tmp_path / "data")
    )
    if row["rule"].startswith("refuse"):
        with pytest.raises(LogFormatError, match="messages_display"):
            ingest(config)
        return
    report = ingest(config)
    trajectories, steps, _ = OTHERWISE.get(
        row["path"], (row["trajectories"].rstrip("+"), row["llm_steps"], "")
    )
    assert str(report.steps) == str(steps)
    if trajectories != "?":
        assert str(report.trajectories) == str(trajectories)
    assert sum(report.records_by_fate.values()) == report.records
    assert report.problems == ()
    stored = table.read(location.parse(config.output), columns=["step_uid"])["step_uid"]
    assert max(Counter(stored.to_pylist()).values(), default=1) == 1
    again = ingest(config)
    assert (again.steps, again.steps_changed, again.files_read) == (0, 0, 0)
    assert again.table_version == report.table_version
