"""Every column of every file that claw writes, declared once.

Readers, writers, docs/step-table.md and the SQL that users write all follow these lists. Null
always means "not logged" unless the column says otherwise. Steps, rejects, sidecars and priorities
are tables that users query; nodes, paths and shards are artefact files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

SCHEMA_VERSION = 1

TOOL_CALL = pa.struct(
    [
        ("id", pa.string()),
        ("name", pa.string()),
        ("arguments", pa.string()),
        ("arguments_valid", pa.bool_()),
    ]
)
MESSAGE = pa.struct(
    [
        ("role", pa.string()),
        ("content", pa.string()),
        ("parts", pa.string()),
        ("tool_calls", pa.list_(TOOL_CALL)),
        ("tool_call_id", pa.string()),
        ("name", pa.string()),
        ("reasoning", pa.string()),
    ]
)
TIMESTAMP = pa.timestamp("us", tz="UTC")
_STRING, _BOOL, _FLOAT, _FLOAT32 = pa.string(), pa.bool_(), pa.float64(), pa.float32()
_INT, _LONG = pa.int32(), pa.int64()
_IDS, _LOGPROBS = pa.list_(pa.int32()), pa.list_(pa.float32())


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its name, its type, and what a value and a null mean."""

    name: str
    type: pa.DataType
    meaning: str


def _columns(*rows: tuple[str, pa.DataType, str]) -> tuple[Column, ...]:
    return tuple(Column(*row) for row in rows)


STEPS = _columns(
    ("step_uid", _STRING, "128-bit hex. The one LLM call (one choice of it) that this row is."),
    ("source_uid", _STRING, "128-bit hex of the source (file) that logged the step first."),
    ("native_id", _STRING, "Id of the call in its own log."),
    ("trajectory_uid", _STRING, "128-bit hex. Ordered steps of one attempt."),
    ("parent_trajectory_uid", _STRING, "Trajectory that a branch or sample left; null for main."),
    (
        "trajectory_kind",
        _STRING,
        "main, branch (left by the attempt), subagent, sample (another choice of one call). Only "
        "main and sample count in groups.",
    ),
    ("step_index", _INT, "Place in the trajectory from 0; a branch goes on from its branch point."),
    ("group_uid", _STRING, "128-bit hex. Attempts at one task share it."),
    ("task_id", _STRING, "Task of the attempt."),
    ("trial", _LONG, "Number of the attempt at its task."),
    ("agent", _STRING, "Name of the agent that made the calls."),
    ("parent_step_uid", _STRING, "Step whose state and action this state continues; null = root."),
    (
        "prefix_messages",
        _INT,
        "State = (messages(parent) + action(parent))[:prefix_messages] + observation. 0 = the "
        "observation is the whole state.",
    ),
    (
        "prefix_broken",
        _STRING,
        "Why the state does not hold all of the parent's messages and action: no_action, "
        "reasoning_changed, action_differs, stop_trimmed, history_edited, gap. Null = it does.",
    ),
    ("system", _STRING, "Leading system text. Null = the parent's, empty = none."),
    ("tools", _STRING, "JSON list of tool schemas. Null = the parent's, [] = none."),
    ("observation", pa.list_(MESSAGE), "Messages that are new in this state."),
    ("final_observation", pa.list_(MESSAGE), "Messages after the last action of the attempt."),
    ("response", _STRING, "Text of the action; empty where the action is tool calls alone."),
    ("reasoning", _STRING, "Reasoning text of the action."),
    ("response_parts", _STRING, "JSON list of the action's parts where they are not all text."),
    ("tool_calls", pa.list_(TOOL_CALL), "Tool calls of the action; arguments as logged."),
    (
        "finish_reason",
        _STRING,
        "stop, length, tool_calls, content_filter, refusal, error, aborted, unknown.",
    ),
    ("finish_reason_raw", _STRING, "The finish reason as logged."),
    ("choice_index", _INT, "Index of the choice among those of one call."),
    ("reward", _FLOAT, "Reward of this step; an episode reward stands on the last step."),
    ("trajectory_reward", _FLOAT, "Logged reward of the whole attempt, on each of its steps."),
    ("reward_source", _STRING, "Where the reward came from: log, or rewards:FILE (attached)."),
    ("terminated", _BOOL, "True where the log says that the environment ended here."),
    ("truncated", _BOOL, "True where the log says that a limit ended the attempt here."),
    ("is_last", _BOOL, "Last step of its attempt, where the format states an end."),
    ("model", _STRING, "Model that acted."),
    ("policy", _STRING, "Model + adapter + quantisation that acted."),
    ("policy_version", _LONG, "Version of the policy's weights; never 0 for unknown."),
    ("temperature", _FLOAT, "Sampling temperature."),
    ("top_p", _FLOAT, "Nucleus sampling mass."),
    ("sampling", _STRING, "JSON of top_k, min_p, penalties, stop and logprob_kind as requested."),
    ("tokenizer", _STRING, "Name or vocab_hash of the tokenizer of the logged ids."),
    ("prefix_tokens", _INT, "Tokens shared with the parent's logged prompt and response ids."),
    ("observation_ids", _IDS, "Logged prompt ids after prefix_tokens."),
    ("response_ids", _IDS, "Logged ids of the action, end token included where it was drawn."),
    ("rollout_logprobs", _LOGPROBS, "Log-probs (nats) of response_ids under the behaviour policy."),
    ("token_provenance", _STRING, "engine_logprobs, engine_ids, text (no ids were logged)."),
    ("input_tokens", _LONG, "Prompt tokens, cached ones included."),
    ("output_tokens", _LONG, "Tokens of the action, reasoning included."),
    ("cached_tokens", _LONG, "Prompt tokens read from a cache."),
    ("reasoning_tokens", _LONG, "Tokens of the action that are reasoning."),
    ("latency_s", _FLOAT, "Duration of the call in seconds."),
    ("cost_usd", _FLOAT, "Price of the call in US dollars."),
    ("started_at", TIMESTAMP, "Start of the call, UTC."),
    ("ended_at", TIMESTAMP, "End of the call, UTC."),
    ("step_kind", _STRING, "policy, compaction, grader, side."),
    (
        "state_kind",
        _STRING,
        "full (the request was logged), supplied, reconstructed (cut from a transcript), partial "
        "(parts of the prompt, such as tool schemas, were not logged), unknown.",
    ),
    ("loss_weight", _FLOAT, "1 = train, 0 = context only, or as logged."),
    ("warnings", pa.list_(_STRING), "Stable codes of what was odd about this step."),
    ("state_hash", _STRING, "Chained hash of the canonical messages of the state."),
    ("next_hash", _STRING, "The same after the action: where a child's state begins."),
    ("log_format", _STRING, "Format of the log (partition column)."),
    ("log_date", _STRING, "UTC date of the attempt's first timestamp, or unknown (partition)."),
    ("source_path", _STRING, "File that logged the step, as given to ingest."),
    ("source_offset", _LONG, "Byte offset of the record in its uncompressed source."),
    ("metadata", _STRING, "JSON of what has no column."),
)
GRAMMAR_KEYS = (
    "response_format",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "structured_outputs",
)
"""Keys of the sampling column that bind the sampler to a grammar."""
PARTITION_COLUMNS = ("log_format", "log_date")

DERIVED = _columns(
    ("trajectory_return", _FLOAT, "Sum of the step rewards; null where none is logged."),
    ("trajectory_length", _LONG, "Number of steps in the trajectory."),
    ("return_to_go", _FLOAT, "Sum of the rewards from this step to the end (gamma 1)."),
    (
        "group_size",
        _LONG,
        "Trajectories (main, sample) with a return in the same group and policy.",
    ),
    ("group_reward_mean", _FLOAT, "Mean trajectory_return of the group."),
    (
        "group_reward_std",
        _FLOAT,
        "Unbiased standard deviation of the returns; 0 for equal returns, null for one trajectory.",
    ),
    (
        "group_solved_frac",
        _FLOAT,
        "Share of the group's trajectories with a return above 0; null where group_size is.",
    ),
    ("steps_to_end", _LONG, "Steps that follow in the trajectory; 0 on the last."),
    (
        "length_quantile",
        _FLOAT,
        "Share of the other trajectories of the same log_format that are shorter, 0 to 1.",
    ),
    (
        "staleness_versions",
        _LONG,
        "Newest policy_version of the policy in the table minus this one; null = not logged.",
    ),
    ("num_tool_calls", _LONG, "Tool calls in the action."),
    ("response_chars", _LONG, "Characters of the action's text."),
    (
        "invalid_arguments",
        _BOOL,
        "A tool call of the action has arguments that are no JSON object.",
    ),
    (
        "tool_error",
        _BOOL,
        "A tool result that is new in the state begins like an error: error, exception, "
        "traceback, fatal, failed, failure, or the name of one.",
    ),
    (
        "repeated_action",
        _BOOL,
        "The action is the one of the trajectory's step before, word by word.",
    ),
    ("is_final_answer", _BOOL, "Last step of its trajectory, with a text and without tool calls."),
    ("mu_valid", _BOOL, "True where rollout_logprobs are those of the behaviour policy itself."),
    ("mu_invalid_reason", _STRING, "Why mu_valid is false; null where it is true."),
)
"""Columns that store/query.py computes at scan: usable in SQL, not stored."""

FROZEN_NAMES = (
    "trajectory_return",
    "return_to_go",
    "group_size",
    "group_reward_mean",
    "group_reward_std",
    "group_solved_frac",
)
"""Derived columns that the first curation writes into its output, computed on its input."""

REJECTS = _columns(
    ("source_uid", _STRING, "Source of the record."),
    ("source_path", _STRING, "File of the record, as given to ingest."),
    ("source_offset", _LONG, "Byte offset of the record in its uncompressed source."),
    ("log_format", _STRING, "Format that read the source."),
    ("fate", _STRING, "rejected, failed_call, ignored, duplicate or pending."),
    ("reason", _STRING, "Stable code of why no step came of it."),
    ("detail", _STRING, "The same in words."),
    ("task_id", _STRING, "Task of the attempt, where one is logged."),
    ("trial", _LONG, "Number of the attempt, where one is logged."),
    ("reward", _FLOAT, "Logged reward of the attempt."),
    ("first_bytes", _STRING, "First 200 bytes of the record."),
)

SIDECAR_VERSION = "sidecar_version"
"""Column that every sidecar has, and no other table."""
_VERSION = (SIDECAR_VERSION, _LONG, "Version of the sidecar table that wrote the row.")
SIDECARS = {
    "rewards": _columns(
        ("step_uid", _STRING, "Step that the row is about; null = it is about a trajectory."),
        ("trajectory_uid", _STRING, "Trajectory that the row is about; null = about a step."),
        ("reward", _FLOAT, "Reward of the step."),
        ("trajectory_reward", _FLOAT, "Reward of the whole attempt."),
        ("terminated", _BOOL, "The environment ended at the step, or at the attempt's last one."),
        ("truncated", _BOOL, "A limit ended the attempt at the step, or at its last one."),
        ("reward_source", _STRING, "rewards:FILE, the file that said so, as given."),
        _VERSION,
    ),
    "links": _columns(
        ("step_uid", _STRING, "Step of which linking needs more than its row tells."),
        ("waits_for", pa.list_(_STRING), "Hashes of what it continues, for when that arrives."),
        ("ids_asked", _STRING, "Hash of the tool-call ids in the last answer that it was shown."),
        ("ids_before", _STRING, "Hash of the tool-call ids before that answer."),
        ("known_as", _STRING, "Its next_hash without reasoning; null = found by its root."),
        ("logged", _STRING, "JSON: values as logged, where linking filled columns in."),
        ("hidden_system", _STRING, "Hash of its system text before redaction."),
        ("hidden_tools", _STRING, "Hash of its tools before redaction."),
        ("hidden_observation", pa.list_(_STRING), "Digests of its messages before redaction."),
        ("hidden_action", _STRING, "Digests of its action before redaction; null = as it is."),
        _VERSION,
    ),
    "forgotten": _columns(
        ("step_uid", _STRING, "Step that claw forget took out, and that is not to come back."),
        ("next_hash", _STRING, "As in the step table: calls that go on from it stay away too."),
        _VERSION,
    ),
    "seen_in": _columns(
        ("step_uid", _STRING, "Step whose call was logged here too."),
        ("source_uid", _STRING, "128-bit hex of the other source."),
        ("source_path", _STRING, "File of the other record, as given to ingest."),
        ("source_offset", _LONG, "Byte offset of the other record in its uncompressed source."),
        _VERSION,
    ),
}
"""Tables beside the step table, by name: what became known of a step or a trajectory later. Of the
rows with one key the highest sidecar_version counts; of seen_in all count."""

NODES = _columns(
    ("node_id", _INT, "Place in depth-first pre-order from 0."),
    ("parent_id", _INT, "Node that this one continues; -1 = root."),
    ("depth", _INT, "Tokens before the node on its path."),
    ("token_ids", _IDS, "Tokens of the node; never empty."),
)

_SCALARS = _columns(
    ("trajectory_uid", _STRING, "As in the step table."),
    ("trajectory_kind", _STRING, "As in the step table."),
    ("group_uid", _STRING, "As in the step table."),
    ("step_index", _INT, "As in the step table."),
    ("is_last", _BOOL, "No later step in the trajectory of the data that was merged."),
    ("model", _STRING, "As in the step table."),
    ("policy", _STRING, "As in the step table."),
    ("policy_version", _LONG, "As in the step table."),
    ("temperature", _FLOAT, "As in the step table."),
    ("reward", _FLOAT, "As in the step table."),
    ("trajectory_return", _FLOAT, "Frozen by curation, else of the data that was merged."),
    ("return_to_go", _FLOAT, "Frozen by curation, else of the data that was merged."),
    ("group_size", _LONG, "Frozen by curation, else of the data that was merged."),
    ("group_reward_mean", _FLOAT, "Frozen by curation, else of the data that was merged."),
    ("group_reward_std", _FLOAT, "Frozen by curation, else of the data that was merged."),
    ("terminated", _BOOL, "As in the step table."),
    ("truncated", _BOOL, "As in the step table."),
    ("finish_reason", _STRING, "As in the step table."),
    ("state_kind", _STRING, "As in the step table."),
    ("token_provenance", _STRING, "engine_logprobs, engine_ids, text, mixed."),
    ("mu_valid", _BOOL, "rollout_logprobs are those of the behaviour policy itself."),
    ("mu_invalid_reason", _STRING, "Why mu_valid is false; null where it is true."),
)
_SPAN = _columns(
    ("response_start", _INT, "Depth of the first action token: the length of the prompt."),
    ("response_end", _INT, "One past the depth of the last trained token."),
    (
        "rollout_logprobs",
        _LOGPROBS,
        "Behaviour log-probs of response_start..response_end; null inside = that token has none.",
    ),
)

PATHS = (
    *_columns(
        ("step_uid", _STRING, "Step that the path belongs to."),
        ("end_node_id", _INT, "Node at whose end the row ends."),
        ("row_tokens", _INT, "Length of the row: prompt, action, end token."),
        ("row_hash", _STRING, "blake2b-128 hex of the row's int32 tokens, taken before merging."),
        ("loss_weight", _FLOAT, "1 = train, 0 = context, or as logged."),
    ),
    *_SPAN,
    *_SCALARS,
)

SHARD_STEP = (
    *_columns(
        ("step_uid", _STRING, "Step that is trained here."),
        ("segment", _INT, "Segment of this row on whose path the span lies."),
    ),
    *_SPAN,
    *_SCALARS,
    *_columns(
        ("next_row", _LONG, "row_id of the trajectory's next step; null = none in its stage."),
        ("next_step", _INT, "Place of the next step in that row's list; null = none."),
        ("loss_weight", _FLOAT, "As in the step table."),
        (
            "sampling_weight",
            _FLOAT,
            "Chance of the step's unit to be drawn first, times the number of units; 1 = all alike.",
        ),
        ("pi", _FLOAT, "Probability with which the unit was drawn; 1 = all were taken."),
        (
            "weight",
            _FLOAT,
            "Weight of the step in the loss: loss_weight x importance weight, which is (mean pi / "
            "pi) ** beta, scaled to a mean of 1 over the steps of the stage.",
        ),
    ),
)

SHARDS = _columns(
    ("row_id", _LONG, "Place of the packed row in the shards from 0: the order of first epochs."),
    ("stage", _INT, "Stage of the curriculum that the row belongs to, from 0."),
    ("phase", _INT, "Phase of the plan that reads the row first."),
    ("update", _INT, "Update of the plan, counted over all phases, that reads the row first."),
    ("cost", _LONG, "Multiply-adds of a forward pass in a model of 8b; ranks get as much each."),
    ("token_ids", _IDS, "Tokens of the row: a forest in depth-first pre-order."),
    ("segment_starts", _IDS, "First token of each segment."),
    ("segment_parents", _IDS, "Segment that each segment continues; -1 = root."),
    (
        "steps",
        pa.list_(pa.struct([(column.name, column.type) for column in SHARD_STEP])),
        "Trained steps of the row; docs list the fields.",
    ),
)

PRIORITIES = _columns(
    ("step_uid", _STRING, "Step that was trained."),
    ("priority", _FLOAT, "Absolute advantage; 1 for sft."),
    ("advantage", _FLOAT, "Advantage that the step was last trained with; null for sft."),
    ("logprob_mean", _FLOAT, "Mean log-prob (nats) of the action's tokens when last trained."),
    ("policy_version", _LONG, "As in the step table."),
    ("update", _LONG, "Update that trained the step last, from 0."),
)


def arrow_schema(columns: Sequence[Column]) -> pa.Schema:
    """Build the Arrow schema of a list of columns; all of them may be null."""
    return pa.schema([pa.field(column.name, column.type) for column in columns])


def steps_schema(*, frozen: bool = False) -> pa.Schema:
    """Build the schema of a step table, with the frozen columns if it was curated."""
    extra = [column for column in DERIVED if column.name in FROZEN_NAMES] if frozen else []
    return arrow_schema([*STEPS, *extra])
