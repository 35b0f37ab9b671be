"""The chat template of a tokenizer: every text and every proof comes from apply_chat_template.

transformers is imported when a template is loaded. Its tokenizer renders, and tokenises prompts
for the proof; ids of rows come from tokenizer.json itself (prefix/encode.py), so the two check
each other.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clawcli.errors import DataError, NotFoundError, UsageError
from clawcli.prefix.exclude import Excluded, Reason
from clawcli.prefix.probe import Habits, probe
from clawcli.store import tokenizers
from clawcli.store.tokenizers import Tokenizer

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Template:
    """A chat template with its settings and habits."""

    engine: Any
    """The transformers tokenizer that renders."""
    text: Any
    """The template: a string, or named ones as a mapping."""
    kwargs: Mapping[str, Any]
    """Variables for the template, such as enable_thinking."""
    template_hash: str
    """blake2b-128 hex of the template and its variables."""
    habits: Habits

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        generation_prompt: bool = False,
    ) -> str:
        """Render messages of the template's own form to text.

        Raises:
            Excluded: the template raises.
        """
        return _render(
            self.engine,
            self.text,
            self.kwargs,
            messages,
            tools,
            generation_prompt=generation_prompt,
        )

    def prompt_ids(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None
    ) -> list[int]:
        """Ids that apply_chat_template itself gives for a prompt: what the proof compares with."""
        return self.engine.apply_chat_template(
            list(messages),
            tools=list(tools) if tools else None,
            chat_template=self.text if isinstance(self.text, str) else None,
            add_generation_prompt=True,
            tokenize=True,
            return_dict=False,
            **self.kwargs,
        )


def load(
    tokenizer: Tokenizer, *, file: str | None = None, kwargs: Mapping[str, Any] | None = None
) -> Template:
    """Load the chat template of a tokenizer and probe it.

    Args:
        tokenizer: whose directory holds the template.
        file: a Jinja file to use instead.
        kwargs: variables for the template.

    Raises:
        NotFoundError: the file does not exist.
        UsageError: there is no template.
        DataError: transformers cannot load the tokenizer, or the template prints no conversation,
            or ends a turn with something that is not one token.
    """
    engine = _engine(tokenizer)
    text = _read(file) if file is not None else engine.chat_template
    if not text:
        raise UsageError(
            f"Tokenizer {tokenizer.name} has no chat template.",
            "Give one with --chat-template FILE.",
        )
    kwargs = dict(kwargs or {})
    if "strftime_now" in json.dumps(text):
        logger.warning("The chat template can print today's date: rows may change from day to day.")

    def render(messages: Any, tools: Any = None, *, generation_prompt: bool = False) -> str:
        return _render(engine, text, kwargs, messages, tools, generation_prompt=generation_prompt)

    described = json.dumps([text, kwargs], sort_keys=True).encode()
    return Template(
        engine=engine,
        text=text,
        kwargs=kwargs,
        template_hash=hashlib.blake2b(described, digest_size=16).hexdigest(),
        habits=probe(render, tokenizer),
    )


def _render(
    engine: Any,
    text: Any,
    kwargs: Mapping[str, Any],
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None,
    *,
    generation_prompt: bool,
) -> str:
    try:
        return engine.apply_chat_template(
            list(messages),
            tools=list(tools) if tools else None,
            chat_template=text if isinstance(text, str) else None,
            add_generation_prompt=generation_prompt,
            tokenize=False,
            **kwargs,
        )
    except Exception as error:  # a template is a program: it may raise anything
        raise Excluded(Reason.TEMPLATE_RAISES, f"{type(error).__name__}: {error}") from error


def _engine(tokenizer: Tokenizer) -> Any:
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    config = tokenizer.directory / "tokenizer_config.json"
    try:
        if tokenizer.json_path.name == tokenizers.FILE and config.is_file():
            engine = AutoTokenizer.from_pretrained(
                str(tokenizer.directory), local_files_only=True, trust_remote_code=False
            )
        else:
            engine = PreTrainedTokenizerFast(tokenizer_file=str(tokenizer.json_path))
    except Exception as error:  # transformers raises many kinds for a directory it cannot use
        raise DataError(
            f"transformers cannot load the tokenizer in {tokenizer.directory}: {error}.",
            "Give a directory that AutoTokenizer.from_pretrained opens.",
        ) from error
    engine.model_max_length = 10**9  # a long prompt is no reason for a warning: nothing is cut
    return engine


def _read(file: str) -> str:
    try:
        return Path(file).read_text()
    except FileNotFoundError:
        raise NotFoundError(f"Chat template {file} does not exist.", "Check the path.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"Chat template {file} cannot be read: {error}.", "Give a Jinja text file."
        ) from error
