"""A synthetic request log with every shape that chaining has to survive; each call is tagged.

One function per shape adds the calls of one or more runs. A tag is (run, turn); the truth of a log
is each run's tags in order. The run named in UNRECOVERABLE needs a session key.
"""

import copy
import json
import random
from collections import defaultdict

WORDS = ["amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "heron", "inlet", "juniper"]
UNRECOVERABLE = {"summary_only"}


class RequestLog:
    def __init__(self, seed, *, times=True, ids=True):
        self.random = random.Random(seed)
        self.times, self.ids = times, ids
        self.records, self.truth = [], defaultdict(list)
        self.clock, self.num_calls = 1_700_000_000.0, 0
        self.system = {"role": "system", "content": "You keep a garden. " + self.text(20)}
        self.tools = [{"type": "function", "function": {"name": "look", "parameters": {}}}]

    def text(self, words=8):
        return " ".join(self.random.choices(WORDS, k=words)) + f" {self.random.random():.6f}"

    def user(self, about):
        return {"role": "user", "content": f"{about}: {self.text()}"}

    def action(self, *, reasoning=False, arguments=None):
        self.num_calls += 1
        arguments = arguments or json.dumps({"q": self.text(3)})
        message = {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": f"call_{self.num_calls}",
                    "type": "function",
                    "function": {"name": "look", "arguments": arguments},
                }
            ],
        }
        if reasoning:
            message["reasoning_content"] = "because " + self.text()
        return message

    def result(self, action, content=None):
        return {
            "role": "tool",
            "tool_call_id": action["tool_calls"][0]["id"],
            "content": content or self.text(12),
        }

    def call(self, run, messages, *actions, tools=None, failed=False):
        self.clock += 0.01 + self.random.random()
        turn = len(self.truth[run])
        record = {
            "request": {"model": "m", "messages": messages, "tools": tools or self.tools},
            "run": run,
            "turn": turn,
        }
        if failed:
            record["response"] = {"error": {"message": "rate limit"}}
        else:
            choices = [
                {"index": i, "message": a, "finish_reason": "tool_calls"}
                for i, a in enumerate(actions)
            ]
            record["response"] = {"object": "chat.completion", "choices": choices}
            if self.ids:
                record["response"]["id"] = f"{run}/{turn}"
            self.truth[run].append(turn)
        if self.times:
            record["timestamp"] = self.clock
        self.records.append(copy.deepcopy(record))

    def turn(self, run, messages, **options):
        """One call and its tool result; returns the conversation after both."""
        action = self.action(**options)
        self.call(run, messages, action)
        return [*messages, action, self.result(action)]


def parallel_attempts(log):
    # four attempts of one prompt, interleaved; two begin with the same action and observation
    start = [log.system, log.user("parallel")]
    states = {f"attempt{i}": start for i in range(4)}
    for turn in range(5):
        for run in log.random.sample(sorted(states), 4):
            twin = turn == 0 and run in ("attempt0", "attempt1")
            action = log.action(arguments='{"q":"twin"}' if twin else None)
            log.call(run, states[run], action)
            observation = log.result(action, "the same view" if twin else None)
            states[run] = [*states[run], action, observation]


def fork(log):
    messages = [log.system, log.user("fork")]
    for _ in range(2):
        messages = log.turn("fork", messages)
    log.call("fork_dead_end", messages, log.action())
    for _ in range(3):
        messages = log.turn("fork", messages)


def several_choices(log):
    messages = [log.system, log.user("choices")]
    for turn in range(4):
        actions = [log.action() for _ in range({1: 3, 3: 2}.get(turn, 1))]
        log.call("choices", messages, *actions)
        followed = actions[1] if turn == 1 else actions[0]
        messages = [*messages, followed, log.result(followed)]


def retries(log):
    messages = [log.system, log.user("retries")]
    for turn in range(4):
        if turn == 1:
            log.call("retries", messages, failed=True)
        if turn == 2:
            log.call("retries_timed_out", messages, log.action())
        messages = log.turn("retries", messages)


def reasoning_stripped_at_once(log):
    messages = [log.system, log.user("stripped")]
    for _ in range(4):
        messages = without_reasoning(log.turn("stripped", messages, reasoning=True))


def reasoning_stripped_at_next_user(log):
    messages = [log.system, log.user("stripped later")]
    for turn in range(6):
        messages = log.turn("stripped_later", messages, reasoning=True)
        if turn % 2:
            messages = [*without_reasoning(messages), log.user("go on")]


def without_reasoning(messages):
    return [{k: v for k, v in m.items() if k != "reasoning_content"} for m in messages]


def clock_in_system(log):
    messages = [log.user("clock in system")]
    for turn in range(4):
        now = {"role": "system", "content": log.system["content"] + f" It is {turn} o'clock."}
        messages = log.turn("clock_in_system", [now, *messages])[1:]


def clock_in_first_message(log):
    first = log.user("clock in message")
    messages = [first]
    for turn in range(4):
        now = {"role": "user", "content": first["content"] + f" It is {turn} o'clock."}
        messages = log.turn("clock_in_message", [log.system, now, *messages[1:]])[1:]


def condenser_keeps_ends(log):
    messages = [log.system, log.user("condenser")]
    for turn in range(8):
        messages = log.turn("condenser", messages)
        if turn == 4:
            summary = {"role": "user", "content": "summary " + log.text()}
            messages = [*messages[:2], summary, *messages[-4:]]


def condenser_keeps_summary(log):
    messages = [log.system, log.user("summary only")]
    for turn in range(6):
        messages = log.turn("summary_only", messages)
        if turn == 2:
            messages = [log.system, {"role": "user", "content": "summary " + log.text()}]


def masked_observations(log):
    messages = [log.system, log.user("masked")]
    for _ in range(6):
        messages = log.turn("masked", messages)
        results = [i for i, m in enumerate(messages) if m["role"] == "tool"]
        for i in results[:-2]:
            messages[i] = {**messages[i], "content": "(elided)"}


def tools_change(log):
    messages = [log.system, log.user("tools change")]
    more = [*log.tools, {"type": "function", "function": {"name": "dig"}}]
    for turn in range(4):
        action = log.action()
        log.call("tools_change", messages, action, tools=more if turn > 1 else None)
        messages = [*messages, action, log.result(action)]


def title_call_beside(log):
    first = log.user("titled")
    title = {"role": "assistant", "content": "A title"}
    log.call("title", [{"role": "system", "content": "Write a title."}, first], title)
    messages = [log.system, first]
    for _ in range(3):
        messages = log.turn("titled", messages)


def two_agents_alike(log):
    first = log.user("two agents")
    other = {"role": "system", "content": "You keep a pond."}
    states = {"gardener": [log.system, first], "pond_keeper": [other, first]}
    for turn in range(3):
        for run, messages in states.items():
            action = log.action(arguments='{"q":"ls"}' if turn == 0 else None)
            log.call(run, messages, action)
            observation = log.result(action, "one list" if turn == 0 else None)
            states[run] = [*messages, action, observation]


def user_breaks_in(log):
    messages = [log.system, log.user("break in")]
    for turn in range(4):
        after = log.turn("break_in", messages)
        messages = [*messages, log.user("stop, rather")] if turn == 1 else after


def client_rewrites_its_history(log):
    messages = [log.system, log.user("rewrites")]
    for _ in range(4):
        messages = log.turn("rewrites", messages)
        action = copy.deepcopy(messages[-2])
        function = action["tool_calls"][0]["function"]
        function["arguments"] = json.dumps(json.loads(function["arguments"]), separators=(",", ":"))
        text = [{"type": "text", "text": log.text()}]
        messages[-2:] = [{**action, "content": ""}, {**messages[-1], "content": text}]


SHAPES = (
    parallel_attempts,
    fork,
    several_choices,
    retries,
    reasoning_stripped_at_once,
    reasoning_stripped_at_next_user,
    clock_in_system,
    clock_in_first_message,
    condenser_keeps_ends,
    condenser_keeps_summary,
    masked_observations,
    tools_change,
    title_call_beside,
    two_agents_alike,
    user_breaks_in,
    client_rewrites_its_history,
)


def make(seed, *, times=True, ids=True):
    log = RequestLog(seed, times=times, ids=ids)
    for shape in SHAPES:
        shape(log)
    return log
