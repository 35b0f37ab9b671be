"""What a rule for secrets is, and whether what looks like a secret is one.

Documentation and code are full of keys that are none: your-key-here, ${TOKEN}, xxxx, token=tokens[i];
so are logs of paths, counts and cursors that stand behind the words token or key. Each function judges one match of a rule's pattern; the group named secret is the value.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

Accept = Callable[[re.Match[bytes]], bool]

_STAND_IN = re.compile(
    rb"(?i:example|placeholder|dummy|redacted|change[_-]?me|replace[_-]?me|your[_-]|insert[_-]|"
    rb"xxxx|\*\*\*|\.\.\.|process\.env|os\.environ|getenv|undefined)"
    rb"|\A(?:<.*>\Z|\{.*\}\Z|%[(srd]|\$[({]|\$[A-Z_]+\Z)"
)
_WORDS = re.compile(rb"[A-Za-z]+\d{0,3}(?:[-_./:][A-Za-z]*\d{0,3})*")
_SMALL_WORDS = re.compile(rb"[a-z]+\d{0,3}(?:[-_./:][a-z]*\d{0,3})*")
_PATH = re.compile(rb"(?:[a-z][a-z0-9+]{1,9}://|[~.]{0,2}/[a-z0-9_.-]+/|[A-Za-z]:\\)")
_PASSWORD = re.compile(rb"(?i:passw|passphrase|pwd)")
_ABOUT_A_SECRET = re.compile(
    rb"(?i:ids?|type|url|uri|name|path|file|counts?|limit|field|label|arn|ref|endpoint|expir\w*|ttl|"
    rb"len|length|size|usage|budget|index|iz\w*)\Z"
)
_CURSOR = re.compile(rb"(?i:next|page|continuation|sync|cursor)[_-]?\Z")
_LETTER, _NO_LETTER, _DIGIT = (re.compile(text) for text in (rb"[A-Za-z]", rb"[^A-Za-z]", rb"\d"))
_MIN_DISTINCT, _MIN_DISTINCT_ASSIGNED, _MIN_LETTERS_ALONE = 8, 5, 32


def entropy_bits(value: bytes) -> float:
    """Compute the Shannon entropy of a value's bytes, in bits per byte.

    Example:
        >>> entropy_bits(b"abababab")
        1.0
    """
    counts = Counter(value).values()
    return sum(count / len(value) * math.log2(len(value) / count) for count in counts)


def secret_of(match: re.Match[bytes]) -> tuple[int, int]:
    """Return the span of a match that is the secret."""
    return match.span("secret" if "secret" in match.re.groupindex else 0)


def is_varied(match: re.Match[bytes]) -> bool:
    """Turn down what documentation writes in the place of a key: xxxx, EXAMPLE."""
    start, end = secret_of(match)
    value = match.string[start:end]
    return len(set(value)) >= _MIN_DISTINCT and not _STAND_IN.search(value)


def is_key(match: re.Match[bytes]) -> bool:
    """Turn down hyphenated words as well, where the prefix is short: sk-estimator-doc-link."""
    return is_varied(match) and _SMALL_WORDS.fullmatch(match[0]) is None


def is_url_password(match: re.Match[bytes]) -> bool:
    """Judge what stands between user and host; the same word twice is the default of a tool."""
    value = match["secret"]
    is_word = re.fullmatch(rb"(?i:pass(?:word|wd)?|pw|secret|user|token|key)", value) is not None
    return not is_word and value != match["user"] and _STAND_IN.search(value) is None


def is_credential(match: re.Match[bytes]) -> bool:
    """Judge what follows Bearer or Authorization; prose goes on with words there."""
    value = match["secret"]
    if not is_varied(match) or _SMALL_WORDS.fullmatch(value):
        return False
    return _DIGIT.search(value) is not None or len(value) >= _MIN_LETTERS_ALONE


def is_assigned_secret(match: re.Match[bytes]) -> bool:
    """Judge the value that stands behind a key such as api_key, token or password."""
    key, value, is_quoted = match["key"], match["secret"], match["quote"] is not None
    before = match.string[max(0, match.start() - 16) : match.start()]
    if _ABOUT_A_SECRET.search(key) or _CURSOR.search(before):
        return False
    if value[:1] in b",:;})]" or _PATH.match(value) or _STAND_IN.search(value):
        return False
    if len(set(value)) < _MIN_DISTINCT_ASSIGNED:
        return False
    is_password = _PASSWORD.search(key) is not None
    if is_password and is_quoted:
        return _NO_LETTER.search(value) is not None
    if not (_LETTER.search(value) and _DIGIT.search(value)) or _WORDS.fullmatch(value):
        return False
    # code is full of token = name[...] and secret: call(...), which no quotes set apart
    if not is_quoted and match.string[match.end() : match.end() + 1] in (b"(", b"[", b"{"):
        return False
    least, least_digits, bits = (12, 1, 3.0) if is_quoted else (16, 2, 3.3)
    is_long = len(value) >= least and len(_DIGIT.findall(value)) >= least_digits
    return is_password or (is_long and entropy_bits(value) >= bits)


@dataclass(frozen=True, slots=True)
class MinEntropy:
    """Accept secrets of at least so many bits per byte (Shannon)."""

    bits: float

    def __call__(self, match: re.Match[bytes]) -> bool:
        """Tell whether a match is a secret."""
        start, end = secret_of(match)
        return entropy_bits(match.string[start:end]) >= self.bits


@dataclass(frozen=True, slots=True)
class Rule:
    """One kind of secret."""

    name: str
    """Lower case; it stands in the placeholder and in the counts. Several rules may share it."""
    trigger: str
    """Expression that RE2 and Python both read, and that occurs in every match of the pattern."""
    pattern: str
    """Python expression; its group named secret is the secret, else all of the match."""
    keywords: tuple[str, ...]
    """Lower-case texts of which every trigger holds one, in capitals or not; () = none are known."""
    accept: Accept | None = is_varied
    """Tells whether a match is a secret; None = every match is."""
    reach_bytes: int = 512
    """Bytes after the beginning of the trigger that the pattern sees."""
    before_bytes: int = 0
    """Bytes by which a match may begin before its trigger."""
    mark: str | None = None
    """Beginning of the trigger that holds nothing of the secret, so that the trigger of another
    rule may begin in what follows; None = the whole trigger."""
