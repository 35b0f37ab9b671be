"""Why a step has no row: stable codes, raised where it is found and counted by prefix/run.py."""

from __future__ import annotations

from enum import StrEnum


class Reason(StrEnum):
    """Why a step has no row; the codes are stable."""

    NO_ACTION = "no_action"
    """The action is empty, or nothing of it may be trained."""
    NO_STATE = "no_state"
    """The log holds no message that the model saw."""
    MEDIA = "media"
    """A message holds an image, sound or file, which is not text."""
    PARTS_NOT_TEXT = "parts_not_text"
    """A message holds a part of another kind that is not text."""
    SPECIAL_TOKEN_IN_TEXT = "special_token_in_text"
    """A text of the log spells a special token, which would close or open a turn."""
    ARGUMENTS_NOT_RENDERABLE = "arguments_not_renderable"
    """The template needs arguments as a mapping, but the logged string is no JSON object."""
    TOOLS_NOT_OBJECTS = "tools_not_objects"
    """The logged tools are no list of JSON objects."""
    NOT_UNICODE = "not_unicode"
    """The rendering holds half of a surrogate pair, which has no UTF-8 and so no tokens."""
    TEMPLATE_RAISES = "template_raises"
    """The template refuses the conversation."""
    TEMPLATE_DROPS_MESSAGE = "template_drops_message"
    """A message does not appear in the rendering."""
    TEMPLATE_DROPS_TOOLS = "template_drops_tools"
    """The tool schemas do not appear in the rendering."""
    TEMPLATE_DROPS_CALLS = "template_drops_calls"
    """A tool call does not appear in the rendering."""
    TEMPLATE_DROPS_REASONING = "template_drops_reasoning"
    """The action's reasoning does not appear in the rendering."""
    REASONING_MISSING = "reasoning_missing"
    """The log has no reasoning of the action, and --reasoning require asks for it."""
    TEMPLATE_EDITS_TEXT = "template_edits_text"
    """A message appears, but not with its text."""
    ACTION_NOT_LOCATED = "action_not_located"
    """The full rendering does not continue the prompt, or not by a closed turn."""
    PROMPT_DIFFERS = "prompt_differs"
    """The prompt's ids are not those of apply_chat_template."""


class Disproved(Exception):  # noqa: N818  the run begins again, more carefully
    """A prompt that stands for others is not what the template gives; caught by prefix/make.py."""


class Excluded(Exception):  # noqa: N818  it is an outcome that is counted, no error
    """A step that cannot be rendered truthfully; caught and counted by prefix/run.py."""

    def __init__(self, reason: Reason, detail: str = "") -> None:
        """Keep the code and, in words, what was found."""
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = detail
