"""Cut a transcript into calls: one at each assistant message.

Used by every format that logs a finished conversation in place of requests. The state of a call is
what stood before its message; what stands after the last one is the final observation.
"""

from __future__ import annotations

from collections.abc import Set
from itertools import accumulate
from typing import Any

import msgspec

from clawcli.ingest.calls import (
    EMPTY,
    Call,
    Choice,
    Fate,
    Node,
    Context,
    integer,
    number,
    split_system,
    text,
)

ATTEMPT_KEYS = frozenset({"task_id", "trial", "reward"})


def open_attempt(raw: bytes, key: str) -> tuple[dict[str, Any], bytes]:
    """Decode an attempt, except its messages under one key; those come back as raw JSON."""
    record = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
    plain = {name: msgspec.json.decode(value) for name, value in record.items() if name != key}
    return plain, bytes(record.get(key, b"null"))


def cut(
    raw_messages: bytes,
    context: Context,
    *,
    plain: dict[str, Any],
    own_keys: Set[str],
    **shared: Any,
) -> list[Call]:
    """Make one call per assistant message of one attempt.

    Args:
        raw_messages: JSON of the list of messages.
        context: decodes each distinct message once.
        plain: the other keys of the attempt; task_id, trial and reward are read from it.
        own_keys: keys of plain that have a column; the others become metadata of the last step.
        **shared: fields of Call that all calls of the attempt have.

    Raises:
        Fate: there is no list of messages, or no assistant message in it.
    """
    task_id, trial = text(plain.get("task_id")), integer(plain.get("trial"))
    reward = number(plain.get("reward"))
    known = {"task_id": task_id, "trial": trial, "reward": reward}
    try:
        raws = msgspec.json.decode(raw_messages, type=list[msgspec.Raw])
    except msgspec.ValidationError as error:
        raise Fate("rejected", "no_messages", f"no list of messages: {error}", **known) from error
    system, items = split_system([context.messages.get(raw) for raw in raws])
    states = list(accumulate(items, Node.then, initial=EMPTY))
    places = [i for i, item in enumerate(items) if item.message.role == "assistant"]
    if not places:
        raise Fate("rejected", "empty_trajectory", "the attempt holds no call of a model", **known)
    calls: list[Call] = []
    for ordinal, place in enumerate(places):
        calls.append(
            Call(
                state=states[place],
                choices=[Choice(items[place])],
                system=system,
                ordinal=ordinal,
                is_cut=True,
                follows=calls[-1] if calls else None,
                loss_weight=1.0 if (weight := items[place].loss_weight) is None else weight,
                task_id=task_id,
                trial=trial,
                trajectory_reward=reward,
                is_last=ordinal == len(places) - 1,
                **shared,
            )
        )
    last = calls[-1]
    last.final_observation = [item.message for item in items[places[-1] + 1 :]]
    last.metadata = {k: v for k, v in plain.items() if k not in own_keys | ATTEMPT_KEYS} or None
    if plain.get("reward") is not None and reward is None:
        last.warnings.append("reward_not_a_number")
    return calls
