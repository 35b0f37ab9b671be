"""SWE-agent .traj files: one JSON document is one attempt, or several under attempts.

A document logs the same run twice: trajectory holds a step per answer of the model, history the
messages that the agent keeps. A step's query is the exact input; before there were queries,
messages was that of the step after. Without either, the state is what history held before the
answer: all that the model saw, unless a history processor elided some (history_processed).

What would surprise: the two lists do not run in step. Answers that the agent refused and asked
again for (format errors, blocked commands) are steps and never history; the last step of a run
that hit a limit is the agent's own words and no answer. Tool calls stand in history alone, so
those of a refused answer are lost. Demonstrations are state and no steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from difflib import SequenceMatcher
from pathlib import PurePath
from typing import Any

import msgspec

from clawcli.ingest.calls import Call, Choice, Context
from clawcli.ingest.chat import leftovers, to_message
from clawcli.ingest.conversations import Digested, digested, split_system
from clawcli.ingest.fates import Fate
from clawcli.ingest.formats import documents
from clawcli.ingest.formats.completions import rest, set_parameters
from clawcli.ingest.formats.documents import filled, object_of, objects
from clawcli.ingest.values import integer, text
from clawcli.messages import Message, text_of

NAME = "swe_agent"
_SUFFIX = ".traj"
_ENTRY_KEYS = frozenset(
    {"agent", "message_type", "is_demo", "thought", "action", "tool_call_ids", "tags"}
    | {"cache_control", "thinking_blocks"}
)
"""Keys of a history entry that a chat message does not have."""
_STEP_KEYS = frozenset({"response", "query", "messages", "reasoning_content"})
_RUN_KEYS = frozenset({"attempts", "trajectory", "history", "environment", "replay_config"})
_MODEL_KEYS = ("temperature", "top_p", "stop")
_EDITING = frozenset({"last_n_observations", "closed_window", "remove_regex", "image_parsing"})
"""History processors that show the model other text than history holds."""
_LIMITS = ("exit_cost", "exit_context", "exit_format", "exit_total", "exit_command_timeout")


def why_not(record: dict[str, Any]) -> str | None:
    """Say why a record is none of this format; None where it is one."""
    if isinstance(record.get("attempts"), list):
        attempts = objects(record["attempts"])
        return why_not(attempts[0]) if attempts else "attempts is empty"
    missing = [key for key in ("trajectory", "history") if not isinstance(record.get(key), list)]
    return f"no list {' and no list '.join(missing)}" if missing else None


def calls(raw: bytes, context: Context) -> list[Call]:
    """Turn one document into the calls of its attempts.

    Raises:
        Fate: no model was called in it.
    """
    document = msgspec.json.decode(raw)
    logged = objects(document.get("attempts"))
    attempts = [
        _Attempt(attempt, trial if logged else None, context.path)
        for trial, attempt in enumerate(logged or [document])
    ]
    found = [call for attempt in attempts for call in attempt.calls]
    if not found:
        raise Fate(
            "rejected",
            "empty_trajectory",
            "the attempt holds no call of a model",
            task_id=attempts[0].task_id,
        )
    for ordinal, call in enumerate(found):
        call.ordinal = ordinal
    if logged:
        # the document repeats the best attempt; its own info is about all of them
        best = integer(object_of(document.get("info")).get("best_attempt_idx"))
        chosen = [call for call in found if call.trial == best] or found
        last = chosen[-1]
        last.metadata = {**(last.metadata or {}), **filled(run=rest(document, _RUN_KEYS))}
    return found


class _Attempt:
    """One run of the agent: its steps and its history brought together."""

    def __init__(self, logged: dict[str, Any], trial: int | None, source: str) -> None:
        self.logged = logged
        self.history = objects(logged.get("history"))
        self.steps = objects(logged.get("trajectory"))
        self.status = text(object_of(logged.get("info")).get("exit_status"))
        replay = _replay_config(logged)
        self.agent = object_of(replay.get("agent"))
        if configs := objects(self.agent.get("agent_configs")):
            self.agent = configs[(trial or 0) % len(configs)]
        self.model = object_of(self.agent.get("model"))
        self.task_id = text(object_of(replay.get("problem_statement")).get("id"))
        if self.task_id is None:
            self.task_id = _name_of(source)
        self.trial = trial
        parser = object_of(object_of(self.agent.get("tools")).get("parse_function")).get("type")
        self.calls_tools = parser == "function_calling" or any(
            entry.get("tool_calls") for entry in self.history
        )
        self.tools = None if self.calls_tools or parser is None else "[]"
        self.path = documents.Path()
        self.known: dict[Message, Digested] = {}
        """Each distinct message once: queries repeat the history in every step."""
        self.calls: list[Call] = []
        self.was_refused = False
        """The newest answer was; the agent's complaint about it stands in queries alone."""
        self.read()

    def read(self) -> None:
        """Make the calls."""
        end: dict[str, Any] = {}
        seen = 0
        """Entries of history up to and with the newest answer's."""
        for place, entry in self._turns():
            step = {} if place is None else self.steps[place]
            if place is not None and self._is_exit(step, place):
                end = filled(exit=rest(step, _STEP_KEYS - {"response"}))
                continue
            self._call(step, place, entry, self._next_answer(seen) if entry is None else entry)
            self.was_refused = entry is None
            seen = seen if entry is None else entry + 1
        if self.calls:
            self._finish(end, seen)

    def _turns(self) -> Iterator[tuple[int | None, int | None]]:
        """Pair steps with the history entries of the same answers; either may be missing."""
        answers = [i for i, entry in enumerate(self.history) if _is_answer(entry)]
        pairs = SequenceMatcher(
            None,
            [_key(step, "response") for step in self.steps],
            [_key(self.history[i], "content") for i in answers],
            autojunk=False,
        )
        for tag, a, a_end, b, b_end in pairs.get_opcodes():
            if tag == "equal":
                yield from ((a + i, answers[b + i]) for i in range(a_end - a))
            else:
                yield from ((place, None) for place in range(a, a_end))
                yield from ((None, answers[i]) for i in range(b, b_end))

    def _is_exit(self, step: dict[str, Any], place: int) -> bool:
        """Tell whether a step is what the agent wrote when it gave up: no model was asked."""
        action = (text(step.get("action")) or "").strip()
        if action.startswith("exit_") or step.get("query") == [{}]:
            return True
        gave_up = "exit_" in (self.status or "") and place == len(self.steps) - 1
        return gave_up and not action and step.get("thought") == step.get("response")

    def _next_answer(self, start: int) -> int:
        following = (i for i in range(start, len(self.history)) if _is_answer(self.history[i]))
        return next(following, len(self.history))

    def _state(self, place: int | None, until: int) -> tuple[list[Digested], str]:
        """Find what the model saw, and how sure that is; until is the end of it in history."""
        query = objects(self.steps[place].get("query")) if place is not None else []
        if query:
            return [self._item(entry) for entry in query], "full"
        kind = "partial" if self.was_refused else "full"
        before = self.steps[place - 1] if place else {}
        if shown := objects(before.get("messages")):
            return [self._item(entry) for entry in shown], kind
        answer = self.history[until] if until < len(self.history) else {}
        agent = answer.get("agent") or (self.calls[-1].agent if self.calls else None)
        kept = [e for e in self.history[:until] if agent is None or e.get("agent") == agent]
        items = [self._item(entry) for entry in kept]
        return items, "partial" if self.was_refused else "reconstructed"

    def _item(self, entry: dict[str, Any]) -> Digested:
        """Read one entry as the message that was sent for it."""
        role = entry.get("role")
        answers = entry.get("tool_call_ids")
        message = to_message(
            {
                "role": "user"
                if role == "system" and self.model.get("convert_system_to_user")
                else role,
                "content": entry.get("content"),
                "tool_calls": entry.get("tool_calls"),
                "thinking_blocks": entry.get("thinking_blocks"),
                "tool_call_id": answers[0] if isinstance(answers, list) and answers else None,
            }
        )
        if (item := self.known.get(message)) is None:
            item = self.known[message] = digested(message)
        return item

    def _call(self, step: dict[str, Any], place: int | None, entry: int | None, until: int) -> None:
        answer = {} if entry is None else self.history[entry]
        said = step.get("response")
        action = to_message(
            {
                "role": "assistant",
                "content": answer.get("content") if said is None else said,
                "tool_calls": answer.get("tool_calls"),
                "thinking_blocks": answer.get("thinking_blocks"),
                "reasoning_content": step.get("reasoning_content"),
            }
        )
        choice = Choice(digested(action))
        choice.warnings = documents.odd_arguments(choice)
        choice.metadata = leftovers(rest(answer, _ENTRY_KEYS), action)
        items, kind = self._state(place, until)
        system, items = split_system(items)
        call = Call(
            state=self.path.to(items),
            choices=[choice],
            system=system,
            tools=self.tools,
            is_cut=True,
            follows=self.calls[-1] if self.calls else None,
            trajectory_key=None if self.trial is None else f"{self.task_id}/{self.trial}",
            task_id=self.task_id,
            trial=self.trial,
            agent=text(answer.get("agent")) or (self.calls[-1].agent if self.calls else None),
            state_kind=kind,
            metadata=self._beside(step or answer, action, entry),
        )
        if entry is None:
            call.warnings.append("answer_refused")
            if self.calls_tools:
                # what the model called was not logged, so its text alone would be half an action
                call.warnings.append("tool_calls_not_logged")
                call.loss_weight = 0.0
        elif kind == "reconstructed" and self._elides():
            call.warnings.append("history_processed")
        parameters = {key: self.model.get(key) for key in _MODEL_KEYS}
        more = object_of(self.model.get("completion_kwargs"))
        set_parameters(
            call, {**rest(parameters, frozenset()), **more, "model": self.model.get("name")}
        )
        self.calls.append(call)

    def _elides(self) -> bool:
        older = self.agent.get("history_processor")
        logged = [*objects(self.agent.get("history_processors")), object_of(older)]
        return any(processor.get("type") in _EDITING for processor in logged)

    def _beside(
        self, logged: dict[str, Any], action: Message, entry: int | None
    ) -> dict[str, Any] | None:
        """Collect what a step holds and its messages do not."""
        held = rest(logged, _STEP_KEYS | {"role", "content", "tool_calls"} | _ENTRY_KEYS)
        results = [] if entry is None else self.history[entry + 1 : self._next_answer(entry + 1)]
        shown = "".join(text_of(self._item(result).message) or "" for result in results)
        parsed = {key: text(logged.get(key)) or "" for key in ("thought", "action", "observation")}
        for key, value in parsed.items():
            if value.strip() in (shown if key == "observation" else action.content or ""):
                held.pop(key, None)
            else:
                held[key] = value
        return filled(**held) or None

    def _finish(self, end: dict[str, Any], seen: int) -> None:
        """Give the calls what the log says about the end of the attempt."""
        documents.mark_missing_tools(self.calls)
        last, status = self.calls[-1], self.status
        if status is not None:
            for call in self.calls:
                call.is_last = call is last
            last.truncated = True if any(limit in status for limit in _LIMITS) else None
            # what was submitted after a limit is what lay there; the environment did not end it
            ended = status in ("submitted", "exit_command", "exit_forfeit")
            last.terminated = True if ended else None
        entries = self.history[seen : self._next_answer(seen)]
        last.final_observation = [self._item(entry).message for entry in entries]
        about = rest(self.logged, frozenset({"trajectory", "history", "attempts"}))
        last.metadata = {**(last.metadata or {}), **end, **about}


def _replay_config(logged: dict[str, Any]) -> dict[str, Any]:
    """Read the configuration of the run, which newer documents hold as JSON text."""
    config = logged.get("replay_config")
    if isinstance(config, str):
        try:
            config = msgspec.json.decode(config)
        except msgspec.DecodeError:
            return {}
    return object_of(config)


def _is_answer(entry: dict[str, Any]) -> bool:
    return entry.get("role") == "assistant" and not entry.get("is_demo")


def _key(logged: dict[str, Any], content: str) -> str:
    """Name an answer by what is the same in both lists: its action, else its text."""
    action = (text(logged.get("action")) or "").strip()
    return action or (text(logged.get(content)) or "").strip()


def _name_of(source: str) -> str | None:
    """Read the id of the task off a file name: the agent names a .traj file by it."""
    name = PurePath(source).name.removesuffix(".gz").removesuffix(".zst")
    return name.removesuffix(_SUFFIX) or None if name.endswith(_SUFFIX) else None
