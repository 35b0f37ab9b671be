"""Read events of the OpenHands SDK as the messages that they stand for."""

from __future__ import annotations

from typing import Any

import msgspec

from clawcli.ingest.chat import to_message
from clawcli.ingest.formats.completions import rest
from clawcli.ingest.formats.documents import object_of, objects
from clawcli.ingest.formats.openhands_view import shell_output
from clawcli.ingest.values import text
from clawcli.messages import Message, text_of

_EVENT_KEYS = frozenset({"source", "kind", "tool_call", "tool_call_id", "tool_name"})
_SPOKEN_KEYS = _EVENT_KEYS | {
    "thought",
    "reasoning_content",
    "action",
    "llm_message",
    "llm_response_id",
    "system_prompt",
    "dynamic_context",
    "tools",
    "extended_content",
    "observation",
    "error",
    "rejection_reason",
}


def answer_id(event: dict[str, Any]) -> str:
    """Name the answer that an action carries out."""
    return text(event.get("llm_response_id")) or f"event {event.get('id')}"


def are_schemas(tools: str | None) -> bool:
    """Tell whether tools are as the model was given them: schemas, not names of classes."""
    logged = objects(msgspec.json.decode(tools)) if tools is not None else [{}]
    return all("function" in tool or "parameters" in tool for tool in logged)


def parts_of(content: Any) -> Any:
    """Read content of the SDK as that of a chat message; its cache marks do not count."""
    if not isinstance(content, list):
        return content
    parts = []
    for part in objects(content):
        if part.get("type") == "image" and isinstance(urls := part.get("image_urls"), list):
            parts += [{"type": "image_url", "image_url": {"url": url}} for url in urls]
        else:
            parts.append({key: value for key, value in part.items() if key != "cache_prompt"})
    return parts


def user_message(event: dict[str, Any]) -> Message:
    """Read what a user, another agent or a summary said, with what the context added to it."""
    logged = object_of(event.get("llm_message"))
    if event.get("kind") == "CondensationSummaryEvent":
        logged = {"content": event.get("summary")}
    content, more = parts_of(logged.get("content")), objects(event.get("extended_content"))
    if more:
        first = [{"type": "text", "text": content}] if isinstance(content, str) else content or []
        content = [*first, *parts_of(more)]
    return to_message({**logged, "role": text(logged.get("role")) or "user", "content": content})


def spoken(events: list[dict[str, Any]]) -> Message:
    """Join the actions of one answer into the message that they carry out."""
    first = events[0]
    thought = object_of(first.get("responses_reasoning_item"))
    known = " ".join(map(str, thought.get("content") or thought.get("summary") or ()))
    return to_message(
        {
            "role": "assistant",
            "content": [part for event in events for part in parts_of(event.get("thought")) or ()],
            "reasoning_content": first.get("reasoning_content") or known,
            "thinking_blocks": first.get("thinking_blocks"),
            "tool_calls": [_tool_call(event) for event in events],
        }
    )


def _tool_call(event: dict[str, Any]) -> dict[str, Any]:
    logged = object_of(event.get("tool_call"))
    function = object_of(logged.get("function")) or logged
    return {
        "id": logged.get("id") or event.get("tool_call_id"),
        "function": {
            "name": function.get("name") or event.get("tool_name"),
            "arguments": function.get("arguments"),
        },
    }


def result_of(event: dict[str, Any]) -> Any:
    """Read what a tool call was answered."""
    if event.get("kind") == "AgentErrorEvent":
        return event.get("error")
    if event.get("kind") == "UserRejectObservation":
        return f"Action rejected: {event.get('rejection_reason')}"
    observation = object_of(event.get("observation"))
    names = ("content", "output", "message", "text")
    content = next((observation[key] for key in names if observation.get(key)), "")
    content = parts_of(content)
    if isinstance(about := observation.get("metadata"), dict) and "exit_code" in about:
        said = text_of(to_message({"role": "tool", "content": content}))
        content = content if said is None else shell_output(said, about)
    more = parts_of(event.get("extended_content"))
    if not more:
        return content
    first = [{"type": "text", "text": content}] if isinstance(content, str) else content
    return [*first, *more]


def beside(event: dict[str, Any], message: Message | None) -> dict[str, Any]:
    """Collect what an event holds beside the message that it shows; null = it shows none."""
    shown = "" if message is None else text_of(message) or message.parts or ""
    shown += "".join(call.arguments for call in (message and message.tool_calls) or ())
    known = _SPOKEN_KEYS if message is not None else _EVENT_KEYS
    held = {key: value for key, value in rest(event, known).items() if value != []}
    for key in ("action", "observation"):
        values = rest(object_of(event.get(key)), frozenset({"content"}))
        if more := {k: v for k, v in values.items() if v and str(v) not in shown}:
            held[key] = more
    return held
