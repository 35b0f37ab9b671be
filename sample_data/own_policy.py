"""Write own-policy.jsonl: answers that the `tiny` model itself drew, as an engine logs them.

Run as `python sample_data/own_policy.py [FILE]`; it needs the train extra. Eight wordings of one
small game, 16 attempts each, one call an attempt: the model is asked for a word that begins with
a letter from a to e, and an answer that does is rewarded with 1, any other with 0. The model has
random weights and draws about evenly from its 1,024 tokens, so it wins about one game in five
by chance, and training has something to find.

Token ids and log-probs (natural, temperature 1, over the whole vocabulary) are those of the draw:
this is on-policy data for `claw train --model tiny --objective ppo`. Lines have the shape of
vLLM's answers to a request with return_token_ids and logprobs.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoTokenizer

import clawcli
from clawcli.train.model import tiny_model

HERE = Path(__file__).parent
TOKENIZER = Path(clawcli.__file__).parent / "assets" / "tiny"
# of the seeds from 20260303 on, one that draws <|im_end|> and no other special token: engines leave
# special tokens out of the text, and one within an answer would make text and ids disagree
SEED = 20260328
START_S = 1772532000.0  # 2026-03-03 10:00 UTC
ATTEMPTS = 16
MAX_TOKENS = 2
POLICY_VERSION = 1
LETTERS = "abcde"

TASKS = {
    "word": "Say a word that begins with a letter from a to e.",
    "animal": "Name an animal. It should begin with a letter from a to e.",
    "tool": "Which tool begins with a letter from a to e?",
    "city": "Guess my city. It begins with one of the letters a, b, c, d and e.",
    "name": "What is my name? The first letter is between a and e.",
    "fruit": "I like a fruit that begins with a, b, c, d or e. Which one?",
    "colour": "Choose a colour. The first five letters of the alphabet win.",
    "verb": "Answer with a verb whose first letter comes before f.",
}


def reward_of(text: str) -> float:
    """Judge an answer: 1 if its first letter is one of LETTERS."""
    return float(text.strip().lower().startswith(tuple(LETTERS)))


class Engine:
    """The tiny model as a sampler at temperature 1 that reports what it drew."""

    def __init__(self) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(TOKENIZER)
        self.model = tiny_model(len(self.tokenizer), eos_token_id=self.tokenizer.eos_token_id)
        self.model.eval()

    def prompt_ids(self, messages: list[dict[str, str]]) -> list[int]:
        """Render messages up to where the answer begins."""
        return self.tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_dict=False
        )

    def draw(self, prompt_ids: list[int], rng: random.Random) -> tuple[list[int], list[float]]:
        """Draw an answer: its ids, the end token included if it was drawn, and log-probs."""
        ids: list[int] = []
        logprobs: list[float] = []
        while len(ids) < MAX_TOKENS and ids[-1:] != [self.tokenizer.eos_token_id]:
            with torch.no_grad():
                logits = self.model(torch.tensor([prompt_ids + ids])).logits[0, -1]
            all_logprobs = torch.log_softmax(logits.float(), dim=-1).numpy()
            bounds = np.cumsum(np.exp(all_logprobs.astype(np.float64)))
            drawn = int(np.searchsorted(bounds / bounds[-1], rng.random(), side="right"))
            ids.append(drawn)
            # the shortest decimal that reads back as the same float32
            logprobs.append(float(str(all_logprobs[drawn])))
        return ids, logprobs


def record(engine: Engine, task_id: str, trial: int, index: int) -> dict[str, Any]:
    """Play one attempt and return its log line."""
    rng = random.Random(f"{SEED} {task_id} {trial}")
    messages = [{"role": "user", "content": TASKS[task_id]}]
    prompt_ids = engine.prompt_ids(messages)
    ids, logprobs = engine.draw(prompt_ids, rng)
    text = engine.tokenizer.decode(ids, skip_special_tokens=True)
    ended = ids[-1] == engine.tokenizer.eos_token_id
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": text},
        "logprobs": {"content": _logprob_entries(engine, ids, logprobs)},
        "finish_reason": "stop" if ended else "length",
        "token_ids": ids,
    }
    now_s = START_S + index / 4
    usage = {
        "prompt_tokens": len(prompt_ids),
        "completion_tokens": len(ids),
        "total_tokens": len(prompt_ids) + len(ids),
    }
    response = {
        "id": f"chatcmpl-{rng.randbytes(8).hex()}",
        "object": "chat.completion",
        "created": int(now_s),
        "model": "tiny",
        "choices": [choice],
        "usage": usage,
        "prompt_token_ids": prompt_ids,
    }
    request = {
        "model": "tiny",
        "messages": messages,
        "temperature": 1.0,
        "top_p": 1.0,
        "max_tokens": MAX_TOKENS,
        "logprobs": True,
        "return_token_ids": True,
    }
    return {
        "request": request,
        "response": response,
        "timestamp": now_s,
        "task_id": task_id,
        "trial": trial,
        "policy_version": POLICY_VERSION,
        "reward": reward_of(text),
    }


def _logprob_entries(engine: Engine, ids: list[int], logprobs: list[float]) -> list[dict[str, Any]]:
    entries = []
    for token_id, logprob in zip(ids, logprobs, strict=True):
        token = engine.tokenizer.decode([token_id])
        entries.append({"token": token, "logprob": logprob, "top_logprobs": []})
    return entries


def write(path: Path) -> None:
    """Play all attempts in the order of the tasks and write their lines."""
    engine = Engine()
    games = [(task_id, trial) for task_id in TASKS for trial in range(ATTEMPTS)]
    lines = [json.dumps(record(engine, *game, index)) for index, game in enumerate(games)]
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "own-policy.jsonl")
