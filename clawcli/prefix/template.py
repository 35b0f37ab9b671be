"""The chat template of a tokenizer: every text and every proof comes from apply_chat_template.

transformers is imported when a template is loaded. Its tokenizer renders, and tokenises prompts
for the proof; ids of rows come from tokenizer.json itself (prefix/encode.py), so the two check
each other.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clawcli.errors import DataError, NotFoundError, UsageError
from clawcli.prefix.exclude import Excluded, Reason
from clawcli.store import tokenizers
from clawcli.store.tokenizers import Tokenizer

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Template:
    """A chat template with its variables."""

    engine: Any
    """The transformers tokenizer that renders."""
    text: str | dict[str, str]
    """The template, or several by name, of which transformers chooses."""
    kwargs: Mapping[str, Any]
    """Variables for the template, such as enable_thinking."""
    template_hash: str
    """blake2b-128 hex of the template and its variables."""

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        generation_prompt: bool = False,
    ) -> str:
        """Render messages to text.

        Raises:
            Excluded: the template raises.
        """
        try:
            return self.engine.apply_chat_template(
                list(messages),
                tools=list(tools) if tools else None,
                chat_template=self.text if isinstance(self.text, str) else None,
                add_generation_prompt=generation_prompt,
                tokenize=False,
                **self.kwargs,
            )
        except Exception as error:  # a template is a program: it may raise anything
            raise Excluded(Reason.TEMPLATE_RAISES, f"{type(error).__name__}: {error}") from error

    def ids(self, text: str) -> list[int]:
        """Tokenise a rendering as apply_chat_template does where it is asked for ids.

        It renders the text first, as render() does, and then makes this very call; so the proof
        need not render a prompt a second time.
        """
        return self.engine(text, add_special_tokens=False)["input_ids"]


def load(
    tokenizer: Tokenizer, *, file: str | None = None, kwargs: Mapping[str, Any] | None = None
) -> Template:
    """Load the chat template of a tokenizer.

    Args:
        tokenizer: whose directory holds the template.
        file: a Jinja file to use instead.
        kwargs: variables for the template.

    Raises:
        NotFoundError: the file does not exist.
        UsageError: there is no template.
        DataError: transformers cannot load the tokenizer.
    """
    engine = _engine(tokenizer)
    text = _read(file) if file is not None else engine.chat_template
    if not text:
        raise UsageError(
            f"Tokenizer {tokenizer.name} has no chat template.",
            "Give one with --chat-template FILE.",
        )
    if "strftime_now" in json.dumps(text):
        logger.warning("The chat template can print today's date: rows may change from day to day.")
    described = json.dumps([text, kwargs or {}], sort_keys=True).encode()
    digest = hashlib.blake2b(described, digest_size=16).hexdigest()
    return Template(engine, text, dict(kwargs or {}), digest)


def _engine(tokenizer: Tokenizer) -> Any:
    # without torch transformers says so on stderr; tokenizers and templates do not need it
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
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
        return Path(file).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise NotFoundError(f"Chat template {file} does not exist.", "Check the path.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"Chat template {file} cannot be read: {error}.", "Give a Jinja text file."
        ) from error
