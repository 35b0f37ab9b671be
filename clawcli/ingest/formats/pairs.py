"""Requests and responses as HTTP recorders log them: layers to take off, calls to leave out.

A body may stand below "body", beside method, url and status, and may have been logged as text.
"""

from __future__ import annotations

from typing import Any

import msgspec

from clawcli.ingest.calls import Call
from clawcli.ingest.fates import Fate
from clawcli.ingest.formats.layers import Layer
from clawcli.ingest.values import integer, number, seconds, text, version_number


def body_of(value: Any) -> tuple[Any, int | None]:
    """Take the layer of HTTP off a logged request or response.

    Returns:
        (body, status); a body that was logged as JSON text is decoded, a stream is left as text.
    """
    status = None
    if isinstance(value, dict) and "body" in value and "choices" not in value:
        status = integer(value.get("status", value.get("status_code")))
        value = value["body"]
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        try:
            value = msgspec.json.decode(value)
        except (msgspec.DecodeError, RecursionError):
            return value, status
    return value, status


_MODEL_PATHS = ("/completions", "/responses", "/messages")


def path_of(url: Any) -> str:
    """Return an address without its query; empty where it is none."""
    return url.split("?")[0].rstrip("/") if isinstance(url, str) else ""


def url_of(request: Any, layer: Layer) -> Any:
    """Return the address of a request as layer read it; null where none is logged."""
    return None if request is None or isinstance(request, str) else layer.rest(request).get("url")


def other_call(url: Any) -> Fate:
    """Make the fate of a logged HTTP call that a format does not read."""
    path = path_of(url)
    if path.endswith(_MODEL_PATHS):
        # one source has one format, so that a call of a model is not passed over in silence
        return Fate("rejected", "other_api", f"{path} is another API than that of the other calls")
    return Fate("ignored", "other_call", f"{path or 'the request'} asks for no answer of a model")


def open_request(request: Any, layer: Layer, body_layer: Layer) -> tuple[Any, Layer]:
    """Find the parameters of a logged request: themselves, or below "body", or text of either.

    Args:
        request: an object that layer read, its JSON text, or null.
        layer: reads the request.
        body_layer: reads its body.

    Raises:
        Fate: there is no body with parameters in it.
        msgspec.ValidationError: the text is that of something else.
    """
    if isinstance(request, str):
        request = _read_text(layer, request)
    if request is None or request.body is None:
        return request, layer
    body = request.body
    if not isinstance(body, str):
        return body, body_layer
    if not body.lstrip().startswith("{"):
        raise other_call(layer.rest(request).get("url"))
    return _read_text(body_layer, body), body_layer


def _read_text(layer: Layer, logged: str) -> Any:
    try:
        return layer.read(logged)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError as error:
        detail = f"the request is text, and no JSON: {error}"
        raise Fate("rejected", "bad_request", detail) from error


def failed(reason: str) -> Fate:
    """Make the fate of a call that gave no answer."""
    return Fate("failed_call", "error_response", f"the response {reason}")


def known_of(beside: dict[str, Any]) -> dict[str, Any]:
    """Say what is known of an attempt whose record gave no call: task_id, trial, reward."""
    return {
        "task_id": text(beside.get("task_id")),
        "trial": integer(beside.get("trial")),
        "reward": number(beside.get("reward")),
    }


def set_beside(call: Call, beside: dict[str, Any]) -> None:
    """Take what a record holds beside request and response; what has no column is metadata.

    Args:
        call: made of request and response.
        beside: the other keys of the record. Read are timestamp, latency_sec, cost, task_id, trial,
            agent, reward, policy_version; they are taken out of it.
    """
    if not beside:
        return
    take = beside.pop
    call.task_id, call.trial = text(take("task_id", None)), integer(take("trial", None))
    call.agent = text(take("agent", None))
    call.policy_version = version_number(take("policy_version", None))
    if (reward := take("reward", None)) is not None:
        call.reward = number(reward)
        if call.reward is None:
            call.warnings.append("reward_not_a_number")
    if (cost := take("cost", None)) is not None:
        call.cost_usd = number(cost)
    call.latency_s = number(take("latency_sec", None))
    if (logged := seconds(take("timestamp", None))) is not None:
        call.started_at = logged
        if call.latency_s is not None:
            # such loggers write their file when the call ends
            call.started_at, call.ended_at = logged - call.latency_s, logged
    if beside:
        call.metadata = {**beside, **(call.metadata or {})}
