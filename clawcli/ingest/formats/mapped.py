"""--map COLUMN=json.path: a format made of a mapping, for any JSON log of calls.

Paths are those of json_path. With `response` mapped, a record is one call: `messages` is its
request, and `response` a text, an assistant message, a list of choices, or a whole chat completion
(then model, id and usage are read from it, too). Without it a record is a transcript, and each
assistant message in `messages` a step.

A mapped trajectory_key means the same attempt in every source. What is not mapped is metadata.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from clawcli.errors import UsageError
from clawcli.ingest.calls import Call, Context
from clawcli.ingest.conversations import Digested, conversation, split_system
from clawcli.ingest.fates import Fate
from clawcli.ingest.formats import completions, documents, transcript
from clawcli.ingest.formats.json_path import MISSING, JsonPath
from clawcli.ingest.values import integer, number, seconds, text, version_number

_STEP_KINDS = frozenset({"policy", "compaction", "grader", "side"})


def _flag(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _object(value: Any) -> dict[str, Any] | None:
    return value if isinstance(value, dict) and value else None


_OF_ATTEMPT: dict[str, Callable[[Any], Any]] = {
    "trajectory_key": text,
    "parent_key": text,
    "agent": text,
    "model": text,
    "policy": text,
    "policy_version": version_number,
    "temperature": number,
    "top_p": number,
    "sampling": _object,
    "tokenizer": text,
}
"""Columns that all calls of a record share, by what reads them."""
_OF_CALL: dict[str, Callable[[Any], Any]] = {
    "native_id": text,
    "trajectory_reward": number,
    "terminated": _flag,
    "truncated": _flag,
    "is_last": _flag,
    "prompt_ids": completions.ids,
    "input_tokens": integer,
    "output_tokens": integer,
    "cached_tokens": integer,
    "reasoning_tokens": integer,
    "latency_s": number,
    "cost_usd": number,
    "started_at": seconds,
    "ended_at": seconds,
    "loss_weight": number,
}
"""Columns of one call."""
_ENDS = ("terminated", "truncated", "started_at", "ended_at", "trajectory_reward", "loss_weight")
"""Columns of one call that a transcript can have as well: of its first or last call, or of all."""
_READ_APART = (
    "messages",
    "response",
    "system",
    "tools",
    "task_id",
    "trial",
    "reward",
    "finish_reason",
    "response_ids",
    "rollout_logprobs",
    "step_kind",
)
COLUMNS = tuple(sorted({*_READ_APART, *_OF_ATTEMPT, *_OF_CALL}))
"""What can be mapped: columns of the step table that a log can hold, and the parts of a call."""


def parse(pairs: Sequence[str]) -> dict[str, str]:
    """Read COLUMN=json.path pairs, as --map takes them.

    Raises:
        UsageError: one is no such pair, or a column comes twice.

    Example:
        >>> parse(["messages=request.messages"])
        {'messages': 'request.messages'}
    """
    mapping: dict[str, str] = {}
    for pair in pairs:
        column, _, path = (part.strip() for part in pair.partition("="))
        if not column or not path:
            raise UsageError(
                f"--map {pair} is no COLUMN=PATH.",
                "Write it such as --map messages=request.messages.",
            )
        if column in mapping:
            raise UsageError(f"--map {column} is given twice.", "Map each column once.")
        mapping[column] = path
    return mapping


class Mapped:
    """A log format by mapping; used like a format module.

    Args:
        mapping: column -> path in a record; names of COLUMNS.

    Raises:
        UsageError: a column or a path is not one, or messages is not mapped.
    """

    NAME = "mapped"

    def __init__(self, mapping: Mapping[str, str]) -> None:
        self._paths = {_column(name): _path(name, path) for name, path in mapping.items()}
        if "messages" not in mapping:
            raise UsageError(
                "--map says nothing about messages.",
                "Name the list of messages: --map messages=request.messages.",
            )
        if "response" in mapping:
            return
        of_a_call = {*_OF_CALL, "finish_reason", "response_ids", "rollout_logprobs"} - {*_ENDS}
        if alone := sorted(of_a_call & mapping.keys()):
            raise UsageError(
                f"--map {alone[0]} is about one call, and without response a record is a "
                "transcript of several.",
                "Map response too, or leave it out.",
            )

    def why_not(self, record: dict[str, Any]) -> str | None:
        """Say why a record has no place for the messages; None where it has."""
        path = self._paths["messages"]
        return f"there is nothing at {path.text} (messages)" if _is_empty(record, path) else None

    def calls(self, raw: bytes, context: Context) -> list[Call]:
        """Turn one record into its call, or a transcript into its calls.

        Raises:
            Fate: a path that is needed leads nowhere, or the call failed.
        """
        record = msgspec.json.decode(raw)
        if not isinstance(record, dict):
            raise Fate("rejected", "bad_record", "the record is no object")
        # all are found before one is taken out: two columns may have one path
        values = {name: path.find(record) for name, path in self._paths.items()}
        values = {name: value for name, value in values.items() if value is not MISSING}
        attempt = _attempt(values)
        for name, path in self._paths.items():
            if name in ("messages", "response") and values.get(name) is None:
                raise attempt.fate("unmapped", f"there is nothing at {path.text} ({name})")
            path.take(record)
        attempt.metadata = _pruned(record)
        items = _items(values, context, attempt)
        tools, warnings = self._tools(values)
        shared = {name: read(values.get(name)) for name, read in _OF_ATTEMPT.items()}
        shared["policy"] = shared["policy"] or shared["model"]
        shared["key_is_global"] = shared["trajectory_key"] is not None
        if "response" in self._paths:
            found = [_one_call(items, values, attempt)]
        else:
            found = _transcript(items, values, attempt)
        shared["trajectory_kind"] = "subagent" if shared["parent_key"] else None
        for call in found:
            call.tools = tools
            for name, value in shared.items():
                if value is not None:
                    setattr(call, name, value)
            if values.get("step_kind") is not None:
                _set_kind(call, values["step_kind"])
        documents.mark_missing_tools(found)
        found[0].warnings.extend(warnings)
        return found

    def _tools(self, values: Mapping[str, Any]) -> tuple[str | None, list[str]]:
        """Read the schemas; a log that has a place for them had none where it is empty."""
        if "tools" not in self._paths:
            return None, []
        if values.get("tools") is None:
            return "[]", []
        tools, warnings = transcript.tools_json(values["tools"])
        return tools, warnings if tools is not None else ["tools_unreadable"]


def _column(name: str) -> str:
    if name in COLUMNS:
        return name
    near = difflib.get_close_matches(name, COLUMNS, n=3)
    hint = f"Did you mean {' or '.join(near)}?" if near else f"Columns: {', '.join(COLUMNS)}."
    raise UsageError(f"--map {name}: there is no column {name} that a log could fill.", hint)


def _path(name: str, text: str) -> JsonPath:
    try:
        return JsonPath(text)
    except ValueError as error:
        raise UsageError(
            f"--map {name}={text}: {error}.", "Write keys and indices: choices[0].message."
        ) from error


def _is_empty(record: Any, path: JsonPath) -> bool:
    return path.find(record) in (MISSING, None)


def _pruned(record: Any) -> Any:
    """Leave out the empty objects that removed values leave behind."""
    if not isinstance(record, dict):
        return record
    found = {key: _pruned(value) for key, value in record.items()}
    return {key: value for key, value in found.items() if value not in (None, {})}


def _attempt(values: Mapping[str, Any]) -> transcript.Attempt:
    attempt = transcript.Attempt(
        task_id=text(values.get("task_id")), trial=integer(values.get("trial"))
    )
    attempt.reward_from(values.get("reward"))
    return attempt


def _items(
    values: Mapping[str, Any], context: Context, attempt: transcript.Attempt
) -> list[Digested]:
    """Read the messages; a system text with a path of its own stands before them."""
    if not transcript.is_chat(found := transcript.listed(values["messages"])):
        raise attempt.fate("no_messages", "messages is no list of objects with a role")
    if values.get("system"):
        found = [{"role": "system", "content": values["system"]}, *found]
    return [context.messages.get(msgspec.json.encode(message)) for message in found]


def _one_call(
    items: list[Digested], values: Mapping[str, Any], attempt: transcript.Attempt
) -> Call:
    call, warnings = _answered(values["response"])
    call.system, items = split_system(items)
    call.state = conversation(items)
    call.task_id, call.trial, call.reward = attempt.task_id, attempt.trial, attempt.reward
    for name, read in _OF_CALL.items():
        if (value := read(values.get(name))) is not None:
            setattr(call, name, value)
    choice = call.choices[0]
    if reason := text(values.get("finish_reason")):
        choice.finish_reason, choice.finish_reason_raw = completions.finish_reason(reason), reason
    choice.response_ids = completions.ids(values.get("response_ids")) or choice.response_ids
    if isinstance(logged := values.get("rollout_logprobs"), list) and logged:
        # numbers, or the objects of a chat completion that hold them
        logged = [token.get("logprob") if isinstance(token, dict) else token for token in logged]
        choice.logprobs, odd = documents.read_logprobs(logged, choice.response_ids)
        choice.warnings.extend(odd)
    call.warnings += warnings + attempt.warnings
    call.metadata = {**(call.metadata or {}), **attempt.metadata} or None
    return call


def _answered(response: Any) -> tuple[Call, list[str]]:
    """Read a response of any shape; the call lacks its state."""
    if isinstance(response, str) and response.lstrip()[:5] != "data:":
        response = {"content": response}
    if isinstance(response, dict) and not {"choices", "error", "object", "body"} & response.keys():
        response = [{"message": response, "finish_reason": response.get("finish_reason")}]
    if isinstance(response, list) and all("message" in documents.object_of(c) for c in response):
        response = {"choices": response}
    completion, warnings = completions.read_response(response)
    return completions.call_of(completion), warnings


def _transcript(
    items: list[Digested], values: Mapping[str, Any], attempt: transcript.Attempt
) -> list[Call]:
    if values.get("trajectory_reward") is not None:
        attempt.reward = number(values["trajectory_reward"])
    calls = transcript.cut(items, attempt)
    for call in calls:
        call.state_kind = "reconstructed"
        if (weight := number(values.get("loss_weight"))) is not None:
            call.loss_weight *= weight
    first, last = calls[0], calls[-1]
    first.started_at = seconds(values.get("started_at"))
    last.ended_at = seconds(values.get("ended_at"))
    last.terminated = _flag(values.get("terminated"))
    last.truncated = _flag(values.get("truncated"))
    return calls


def _set_kind(call: Call, kind: Any) -> None:
    if kind in _STEP_KINDS:
        call.step_kind = kind
    else:
        call.warnings.append("step_kind_unknown")
