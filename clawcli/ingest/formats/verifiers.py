"""Rollouts of verifiers and prime-rl: {prompt, completion, reward, info, ...}, one a record.

Where the rollout's `trajectory` was saved, each of its steps is one call with the prompt that was
sent, the engine's token ids and log-probs; steps of another trajectory_id are calls of a subagent.
Else prompt + completion is a transcript whose prompt nobody of this rollout spoke. Example ids are
small integers in every environment, so a task is named environment/id.

TRL writes {prompt, completion} too, without a reward; that is the same transcript.
"""

from __future__ import annotations

from typing import Any

import msgspec

from clawcli.ingest.calls import Call, Choice, Context
from clawcli.ingest.conversations import Digested, conversation, split_system
from clawcli.ingest.formats import completions, documents, transcript
from clawcli.ingest.formats.documents import object_of
from clawcli.ingest.values import number, seconds, text

NAME = "verifiers"
_OWN_KEYS = ("prompt", "completion", "trajectory", "example_id", "tool_defs", "oai_tools", "model")
_STEP_KEYS = frozenset({"prompt", "completion", "response", "tokens", "reward"})
_TOKEN_KEYS = frozenset({"prompt_ids", "completion_ids", "completion_logprobs"})


def why_not(record: dict[str, Any]) -> str | None:
    """Say why a record is none of this format; None where it is one."""
    missing = [key for key in ("prompt", "completion") if key not in record]
    if missing:
        return f"no {' and no '.join(missing)}"
    for key in ("prompt", "completion"):
        if not transcript.is_chat(transcript.listed(record[key])):
            return f"{key} is no list of messages; plain text has no turns"
    return None


def calls(raw: bytes, context: Context) -> list[Call]:
    """Turn one rollout into its calls.

    Raises:
        Fate: it holds no call, or is damaged.
    """
    record = msgspec.json.decode(raw)
    attempt = transcript.labels(record, *_OWN_KEYS)
    attempt.task_id = attempt.task_id or _task(record)
    state = object_of(record.get("state"))
    steps = record.get("trajectory") or state.get("trajectory")
    if isinstance(steps, list) and steps:
        if "state" in attempt.metadata:
            rest = {key: value for key, value in state.items() if key != "trajectory"}
            attempt.metadata["state"] = rest
        found = _traced(steps, record, attempt)
    else:
        prompt, completion = (
            _messages(record.get(key), attempt) for key in ("prompt", "completion")
        )
        tools, warnings = transcript.tools_json(_tools(record))
        items = [_item(message) for message in prompt + completion]
        found = transcript.cut(items, attempt, given=len(prompt), tools=tools, **_shared(record))
        found[0].warnings.extend(warnings)
        transcript.reconstructed(found)
    main = [call for call in found if call.trajectory_kind is None]
    stopped = text(record.get("stop_condition")) or ""
    if record.get("is_truncated") is True or stopped.startswith("max_turns"):
        main[-1].truncated = True
    elif record.get("is_completed") is True and not record.get("error"):
        main[-1].terminated = True
    return found


def _traced(steps: list[Any], record: dict[str, Any], attempt: transcript.Attempt) -> list[Call]:
    """Make a call of each step that was saved; those with one trajectory_id follow each other."""
    if not all(isinstance(step, dict) for step in steps):
        raise attempt.fate("bad_record", "a step of the trajectory is no object")
    main_id = record.get("trajectory_id") or steps[-1].get("trajectory_id")
    tools, warnings = transcript.tools_json(_tools(record))
    latest: dict[Any, Call] = {}
    calls = []
    for ordinal, step in enumerate(steps):
        call = _step(step, attempt)
        key = step.get("trajectory_id")
        call.ordinal, call.follows = ordinal, latest.get(key)
        call.tools, call.task_id, call.trial = tools, attempt.task_id, attempt.trial
        for name, value in _shared(record).items():
            if getattr(call, name) is None:
                setattr(call, name, value)
        if key == main_id:
            call.trajectory_key, call.trajectory_reward = text(key), attempt.reward
        else:
            call.trajectory_key, call.parent_key = text(key), text(main_id)
            call.trajectory_kind = "subagent"
        latest[key] = call
        calls.append(call)
    uses_tools = any(call.choices[0].action.message.tool_calls for call in calls)
    for call in calls:
        call.state_kind = "partial" if uses_tools and tools is None else "full"
    calls[0].warnings.extend(warnings)
    last = latest[main_id]
    last.is_last = True
    last.metadata = {**(last.metadata or {}), **attempt.metadata} or None
    last.warnings.extend(attempt.warnings)
    return calls


def _step(step: dict[str, Any], attempt: transcript.Attempt) -> Call:
    prompt = [_item(message) for message in _messages(step.get("prompt"), attempt)]
    system, items = split_system(prompt)
    answers = [_item(message) for message in _messages(step.get("completion"), attempt)]
    if not answers or answers[0].message.role != "assistant":
        raise attempt.fate("bad_record", "a step of the trajectory has no answer of the model")
    response = object_of(step.get("response"))
    tokens = object_of(step.get("tokens"))
    model = text(response.get("model"))
    rest = {key: value for key, value in step.items() if key not in _STEP_KEYS}
    if kept := {key: value for key, value in tokens.items() if key not in _TOKEN_KEYS}:
        rest["tokens"] = kept
    if len(answers) > 1:
        rest["completion"] = step["completion"][1:]
    call = Call(
        state=conversation(items),
        choices=[_choice(answers[0], response, tokens)],
        system=system,
        native_id=text(response.get("id")) or None,
        is_cut=True,
        key_is_global=True,
        reward=number(step.get("reward")),
        model=model,
        policy=model,
        prompt_ids=completions.ids(tokens.get("prompt_ids")),
        started_at=seconds(response.get("created")),
    )
    completions.set_usage(call, response.get("usage"))
    call.metadata = {**(call.metadata or {}), **rest} or None
    return call


def _choice(action: Digested, response: dict[str, Any], tokens: dict[str, Any]) -> Choice:
    entries = response.get("choices")
    entry = object_of(entries[0]) if isinstance(entries, list) and entries else response
    reason = text(
        entry.get("finish_reason") or object_of(entry.get("message")).get("finish_reason")
    )
    found = transcript.choice(
        action,
        finish_reason=completions.finish_reason(reason),
        finish_reason_raw=reason,
        response_ids=completions.ids(tokens.get("completion_ids")),
    )
    logged = tokens.get("completion_logprobs")
    found.logprobs, odd = documents.read_logprobs(logged, found.response_ids)
    found.warnings.extend(odd)
    return found


def _messages(value: Any, attempt: transcript.Attempt) -> list[Any]:
    if not transcript.is_chat(messages := transcript.listed(value)):
        raise attempt.fate("no_messages", "prompt and completion are not both lists of messages")
    return messages or []


def _item(message: dict[str, Any]) -> Digested:
    return transcript.to_item(transcript.chat_message(message))


def _task(record: dict[str, Any]) -> str | None:
    parts = [text(record.get(key)) for key in ("task", "example_id")]
    return "/".join(part for part in parts if part) if parts[1] is not None else None


def _tools(record: dict[str, Any]) -> Any:
    for holder in (record, object_of(record.get("info"))):
        for key in ("tool_defs", "oai_tools"):
            if holder.get(key) is not None:
                return transcript.as_functions(holder[key])
    return None


def _shared(record: dict[str, Any]) -> dict[str, Any]:
    model = text(record.get("model"))
    sampling = object_of(record.get("sampling_args"))
    return {
        "model": model,
        "policy": model,
        "temperature": number(sampling.get("temperature")),
        "top_p": number(sampling.get("top_p")),
    }
