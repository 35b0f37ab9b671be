"""What counts as a secret: a table of rules, each a trigger that is cheap to look for and a pattern.

The triggers of all rules are looked for at once, by an automaton that reads every byte of a log
(RE2); the pattern of a rule (Python's re) sees only a short stretch around its own trigger. So a
trigger asks for as much as it can, and every quantifier of a pattern has an upper bound. Both read
UTF-8 bytes. Values that stand in for a secret (your-key-here, ${TOKEN}, xxxx) are no secrets.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from clawcli.config import resolve
from clawcli.errors import ConfigError, DataError, NotFoundError

Accept = Callable[[re.Match[bytes]], bool]


@dataclass(frozen=True, slots=True)
class Rule:
    """One kind of secret."""

    name: str
    """Lower case; it stands in the placeholder and in the counts."""
    trigger: str
    """Expression that RE2 and Python both read, and that occurs in every match of the pattern."""
    pattern: str
    """Python expression; its group named secret is the secret, else all of the match."""
    accept: Accept | None = None
    """Tells whether a match is a secret; None = every match is."""
    before_bytes: int = 0
    """Bytes by which a match may begin before its trigger."""
    reach_bytes: int = 512
    """Bytes after the beginning of the trigger that the pattern sees."""
    mark: str | None = None
    """Beginning of the trigger that holds nothing of the secret, in which another rule's trigger
    may begin; None = the whole trigger."""


# -- what a value must be to count ----------------------------------------------------------------

_STAND_IN = re.compile(
    rb"(?i:example|placeholder|dummy|redacted|change[_-]?me|replace[_-]?me|your[_-]|insert[_-]|"
    rb"xxxx|\*\*\*|\.\.\.|process\.env|os\.environ|getenv|undefined)|\A(?:[<{%*]|\$[A-Z_({])"
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


def _is_varied(match: re.Match[bytes]) -> bool:
    """Turn down what documentation writes in the place of a key: xxxx, EXAMPLE."""
    start, end = secret_of(match)
    value = match.string[start:end]
    return len(set(value)) >= _MIN_DISTINCT and not _STAND_IN.search(value)


def _is_key(match: re.Match[bytes]) -> bool:
    """Turn down hyphenated words as well, where the prefix is short: sk-estimator-doc-link."""
    return _is_varied(match) and _SMALL_WORDS.fullmatch(match[0]) is None


def _is_url_password(match: re.Match[bytes]) -> bool:
    value = match["secret"]
    is_word = re.fullmatch(rb"(?i:pass(?:word|wd)?|pw|secret|user|token|key)", value) is not None
    return not is_word and value != match["user"] and _STAND_IN.search(value) is None


def _is_credential(match: re.Match[bytes]) -> bool:
    """Judge what follows Bearer or Authorization; prose goes on with words there."""
    value = match["secret"]
    if not _is_varied(match) or _SMALL_WORDS.fullmatch(value):
        return False
    return _DIGIT.search(value) is not None or len(value) >= _MIN_LETTERS_ALONE


def _is_assigned_secret(match: re.Match[bytes]) -> bool:
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


# -- the rules ------------------------------------------------------------------------------------

_WORD = "[A-Za-z0-9_-]"
_ALNUM = "[A-Za-z0-9]"
_BASE64 = r"(?:[A-Za-z0-9+/=]|\\+/)"
_TRIGGER_CHARS = 16
"""Characters of a key that its trigger asks for: enough to tell sk-... from a hyphenated word."""


def _prefixed(
    name: str,
    prefix: str,
    body: str,
    least: int,
    most: int,
    *,
    edge: str = "",
    end: str = "",
    accept: Accept = _is_varied,
) -> Rule:
    """Make the rule of a key that says by its first letters what it is."""
    return Rule(
        name,
        trigger=f"(?:{prefix}){body}{{{min(_TRIGGER_CHARS, least)}}}",
        pattern=f"{edge}(?:{prefix}){body}{{{least},{most}}}{end}",
        accept=accept,
        # escapes may stand between the characters
        reach_bytes=most + 128,
    )


_NOT_IN_BASE64 = "(?<![A-Za-z0-9+/])"
_NOT_IN_WORD = "(?<![A-Za-z0-9])"
_PEM_EDGE = r"[A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
_PEM_GAP = r"""(?:\s|\\+[nr]|["'+])"""
# logs of language models are full of tokens: the plural is a count or a list
_KEY = (
    r"(?:(?:passw(?:or)?d|passphrase|pwd|secret|credential|(?:api|access|private|signing|"
    r"encryption|account|auth|master|client|shared)[_. -]?key)[a-z0-9_-]{0,24}"
    r"|token(?:[a-rt-z0-9_-][a-z0-9_-]{0,23})?)"
)
_GAP = r"""(?:\s|\\+[nr]|["'+])"""
_KEY = (
    r"(?:passw(?:or)?d|passphrase|pwd|secret|token|credential|(?:api|access|private|signing|"
    r"encryption|account|auth|master|client|shared)[_. -]?key)[a-z0-9_-]{0,24}"
)
_GAP = r"(?:\s|\\+[nrt]){0,16}"
# key = value, "key": "value", key => value, {"name": "key", "value": "value"}
_IS = rf"(?:\\*[\"'],?{_GAP}\\*[\"']value)?\\*[\"']?\]?[ \t]{{0,4}}!?[:=]{{1,3}}>?{_GAP}"
_BARE = r"[^\s\"'\\`,;&(){}<>\[\]]"
_VALUE_BEGINS = rf"(?:[a-z]{{0,2}}(?:\\*[\"'`]){{1,3}}[^\s\"'`]{{8}}|(?:{_BARE}|\\+/){{8}})"
# A quote that is escaped itself is one of a deeper level, and looked at there. Other quotes never
# stand around a double quote: a value that ran over one would leave broken JSON behind.
_VALUE = (
    r"(?:[a-z]{0,2}(?P<quote>(?<!\\)(?:(?P<double>\"(?:\"\")?)|'(?:'')?|`)))?(?P<secret>(?(quote)"
    r"(?:(?!(?P=quote))[^\\\s\"]|\\[^\s\"]|(?(double)\\\"|(?!))){8,256}"
    rf"|{_BARE}{{8,256}}))(?(quote)(?P=quote))"
)

_AWS_SECRET_IS = rf"(?i:secret[a-z_]{{0,16}})[\"'\\]{{0,8}}[ \t]{{0,4}}[:=,]{_GAP}[\"'\\]{{0,8}}"
_AWS_PAIR = r"(?:AKIA|ASIA)[A-Z0-9]{16}[\"'\\]{0,8}[,;:\s]{1,4}[\"'\\]{0,8}"
_AUTHORIZATION_IS = (
    rf"(?i:authorization)[\"'\\]{{0,8}}[ \t]{{0,4}}[:=,]{_GAP}[\"'\\]{{0,8}}"
    r"(?i:(?:basic|token|apikey|digest)(?:\s|%20|\+){1,4})?"
)
_BEARER = r"(?i:bearer)(?:\s|%20|\+){1,4}"

RULES: tuple[Rule, ...] = (
    Rule(
        "private_key",
        trigger="-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY",
        # whole, or cut off in the middle of its lines
        pattern=rf"-----BEGIN {_PEM_EDGE}(?:(?:[^\"'-]|-(?!----)){{40,16384}}?-----END {_PEM_EDGE}"
        rf"|(?:{_PEM_GAP}{{1,12}}[A-Za-z0-9+/=]{{24,80}}){{1,300}}"
        rf"(?:(?:{_PEM_GAP}{{1,12}}[A-Za-z0-9+/=]{{1,80}})?{_PEM_GAP}{{0,12}}-----END {_PEM_EDGE})?)",
        reach_bytes=20_000,
    ),
    _prefixed("anthropic", "sk-ant-", _WORD, 20, 256, edge=_NOT_IN_WORD),
    _prefixed("openai", "sk-", _WORD, 20, 256, edge=_NOT_IN_WORD, accept=_is_key),
    _prefixed("github", "gh[pousr]_", _ALNUM, 36, 255),
    _prefixed("github", "github_pat_", "[A-Za-z0-9_]", 36, 255),
    _prefixed(
        "gitlab", "gl(?:pat|oas|dt|rt|cbt|ptt|ft|imt|agent|soat)-", "[A-Za-z0-9_.-]", 20, 320
    ),
    _prefixed(
        "aws_key_id",
        "AKIA|ASIA",
        "[A-Z0-9]",
        16,
        16,
        edge=_NOT_IN_BASE64,
        end="(?![A-Za-z0-9+/=])",
    ),
    Rule(
        "aws_secret",
        trigger=f"{_AWS_SECRET_IS}{_BASE64}{{16}}",
        pattern=f"{_AWS_SECRET_IS}(?P<secret>[A-Za-z0-9+/]{{40}})(?![A-Za-z0-9+/=])",
        accept=_is_varied,
        mark=_AWS_SECRET_IS,
    ),
    # the file of credentials that the console hands out: id,secret
    Rule(
        "aws_secret",
        trigger=f"{_AWS_PAIR}{_BASE64}{{16}}",
        pattern=rf"{_AWS_PAIR}(?P<secret>[A-Za-z0-9+/]{{40}})(?![A-Za-z0-9+/=])",
        accept=_is_varied,
    ),
    _prefixed("google", "AIza", _WORD, 35, 45, edge=_NOT_IN_BASE64),
    _prefixed("google", "GOCSPX-", _WORD, 24, 64),
    _prefixed("google", r"ya29\.", r"[A-Za-z0-9_.-]", 20, 512),
    Rule(
        "azure",
        trigger=rf"(?i:AccountKey|SharedAccessKey)={_BASE64}{{20}}",
        pattern=r"(?i:AccountKey|SharedAccessKey)=(?P<secret>[A-Za-z0-9+/]{40,100}={0,2})",
        accept=_is_varied,
    ),
    Rule(
        "azure",
        trigger=r"[?&;]sig=(?:[A-Za-z0-9%+/]|\\+/){20}",
        pattern=r"[?&;]sig=(?P<secret>[A-Za-z0-9%+/]{40,128}={0,2})",
        accept=_is_varied,
    ),
    Rule(
        "azure",
        trigger=r"[78]Q~[A-Za-z0-9_.~-]{31}",
        pattern=r"[A-Za-z0-9_.~-]{3}[78]Q~[A-Za-z0-9_.~-]{31,34}",
        accept=_is_varied,
        before_bytes=3,
    ),
    _prefixed("slack", r"xox[abeoprs](?:\.xox[bp])?-|xapp-", "[A-Za-z0-9-]", 16, 400),
    Rule(
        "slack",
        trigger=r"hooks\.slack\.com(?:\\*/)(?:services|workflows|triggers)",
        pattern=r"hooks\.slack\.com/(?:services|workflows|triggers)/(?P<secret>[A-Za-z0-9_/+-]{24,200})",
        accept=_is_varied,
    ),
    _prefixed("huggingface", "hf_|api_org_", _ALNUM, 30, 64, edge=_NOT_IN_WORD),
    _prefixed("stripe", "[sr]k_(?:live|test)_|whsec_", _ALNUM, 16, 255),
    _prefixed("npm", "npm_", _ALNUM, 36, 64),
    _prefixed("pypi", "pypi-Ag", _WORD, 50, 1024),
    _prefixed("twilio", "SK", "[0-9a-f]", 32, 32, edge=_NOT_IN_WORD, end="(?![A-Za-z0-9])"),
    Rule(
        "sendgrid",
        trigger=rf"SG\.{_WORD}{{16,64}}\.{_WORD}{{16}}",
        pattern=rf"SG\.{_WORD}{{16,64}}\.{_WORD}{{16,128}}",
        accept=_is_varied,
    ),
    Rule(
        "discord",
        trigger=rf"\.{_WORD}{{6}}\.{_WORD}{{27}}",
        pattern=rf"(?<!{_WORD})[MNO]{_WORD}{{23,27}}\.{_WORD}{{6}}\.{_WORD}{{27,44}}(?!{_WORD})",
        accept=_is_varied,
        before_bytes=28,
    ),
    Rule(
        "discord",
        trigger=r"discord(?:app)?\.com(?:\\*/)api(?:\\*/)webhooks",
        pattern=rf"discord(?:app)?\.com/api/webhooks/\d{{1,24}}/(?P<secret>{_WORD}{{40,128}})",
        accept=_is_varied,
    ),
    Rule(
        "telegram",
        trigger=rf":AA{_WORD}{{32}}",
        pattern=rf"(?<!\d)\d{{8,12}}:AA{_WORD}{{32,34}}(?!{_WORD})",
        accept=_is_varied,
        before_bytes=12,
    ),
    # other keys that agents of language models carry about
    _prefixed(
        "vendor",
        r"gsk_|xai-|nvapi-|pplx-|r8_|dop_v1_|dapi|shp(?:at|ca|pa|ss)_|lin_api_|hvs\.|dckr_pat_|"
        r"ATATT3|AGE-SECRET-KEY-1|tvly-",
        _WORD,
        30,
        255,
        edge=_NOT_IN_WORD,
        accept=_is_key,
    ),
    Rule(
        "jwt",
        trigger=rf"eyJ{_WORD}{{10}}",
        pattern=rf"eyJ{_WORD}{{10,4096}}\.eyJ{_WORD}{{8,8192}}(?:\.{_WORD}{{0,2048}})?",
        accept=_is_varied,
        reach_bytes=16_384,
    ),
    Rule(
        "url_password",
        trigger=r":(?:\\*/){2}[^\s/@:\"'\\<>]*:[^\s/@\"'<>]+@",
        pattern=r"://(?P<user>[^\s/@:\"'\\<>]{0,128}):(?P<secret>[^\s/@\"'\\<>]{3,512})@(?=[A-Za-z0-9\[])",
        accept=_is_url_password,
        reach_bytes=1024,
        mark=r":(?:\\*/){2}",
    ),
    Rule(
        "authorization",
        trigger=rf"{_BEARER}(?:[A-Za-z0-9._~+/=-]|\\+/){{16}}",
        pattern=rf"{_BEARER}(?P<secret>[A-Za-z0-9._~+/=-]{{16,4096}})",
        accept=_is_credential,
        reach_bytes=4400,
        mark=_BEARER,
    ),
    Rule(
        "authorization",
        trigger=rf"{_AUTHORIZATION_IS}(?:[A-Za-z0-9._~+/=:-]|\\+/){{12}}",
        pattern=rf"{_AUTHORIZATION_IS}(?P<secret>[A-Za-z0-9._~+/=:-]{{12,4096}})",
        accept=_is_credential,
        reach_bytes=4400,
        mark="(?i:authorization)",
    ),
    # last, so that a key with a name of its own keeps it
    Rule(
        "assignment",
        trigger=f"(?i:{_KEY}{_IS}){_VALUE_BEGINS}",
        pattern=f"(?i:(?P<key>{_KEY}){_IS}){_VALUE}",
        accept=_is_assigned_secret,
        reach_bytes=420,
        mark=f"(?i:{_KEY}{_IS})",
    ),
    Rule(
        "assignment",
        trigger=rf"-(?i:{_KEY})[ \t]{{1,4}}{_VALUE_BEGINS}",
        pattern=rf"-(?i:(?P<key>{_KEY}))[ \t]{{1,4}}{_VALUE}",
        accept=_is_assigned_secret,
        reach_bytes=420,
        mark=rf"-(?i:{_KEY})[ \t]{{1,4}}",
    ),
)
"""Claw's own rules; where two of them find one text, the earlier one names it."""


# -- rules of the user ----------------------------------------------------------------------------

_NAME = re.compile(r"[a-z][a-z0-9_-]{0,39}")
_LEADING_FLAGS = re.compile(r"\A\(\?([ims]+)\)")
_USER_BEFORE_BYTES, _USER_REACH_BYTES = 1024, 8192


@dataclass(frozen=True, kw_only=True, slots=True)
class _RuleText:
    """One [[rules]] table of a --redact-rules file."""

    name: str
    pattern: str
    keywords: tuple[str, ...] = ()
    min_entropy: float = 0.0


@dataclass(frozen=True, slots=True)
class MinEntropy:
    """Accept secrets of at least so many bits per byte (Shannon)."""

    bits: float

    def __call__(self, match: re.Match[bytes]) -> bool:
        """Tell whether a match is a secret."""
        start, end = secret_of(match)
        return entropy_bits(match.string[start:end]) >= self.bits


def read_rules(path: str) -> list[Rule]:
    """Read the rules of a --redact-rules file, to be used beside RULES.

    The file is TOML with tables [[rules]]: name, pattern (Python's re on UTF-8 bytes; a group named
    secret, if there is one, is what goes), keywords (texts of which every match holds one, in
    upper or lower case; without any the pattern itself must be one that RE2 can read), min_entropy
    (bits per byte that a secret must have; 0 = any). A match is at most 8 KiB long.

    Raises:
        NotFoundError: there is no such file.
        DataError: it is no TOML.
        ConfigError: a rule is not one that can be used; the message names it.
    """
    try:
        tables = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise NotFoundError(
            f"--redact-rules {path} cannot be read ({error.strerror}).", "Name a TOML file."
        ) from error
    except ValueError as error:
        raise DataError(f"{path} is no TOML: {error}.", "Correct it.", path) from error
    rules = tables.pop("rules", None)
    if tables or not isinstance(rules, list) or not all(isinstance(rule, dict) for rule in rules):
        raise ConfigError(f"{path} is no list of rules.", "Write [[rules]] tables alone.", path)
    return [_rule(table, f"rule {number} of {path}") for number, table in enumerate(rules, 1)]


def _rule(table: dict[str, Any], where: str) -> Rule:
    try:
        text = resolve(_RuleText, {}, file=table)
    except ConfigError as error:
        raise ConfigError(f"In {where}: {error.message}", error.hint, where) from error
    where = f"{where} ({text.name})" if _NAME.fullmatch(text.name) else where
    problem = _problem(text)
    if problem is not None:
        raise ConfigError(f"In {where}: {problem[0]}", problem[1], where)
    accept = MinEntropy(text.min_entropy) if text.min_entropy > 0 else None
    if text.keywords:
        trigger = f"(?i:{'|'.join(re.escape(word) for word in text.keywords)})"
        before = _USER_BEFORE_BYTES
    else:
        # flags may stand at the beginning of an expression only, and the triggers become one
        trigger, before = _LEADING_FLAGS.sub("", text.pattern), 0
        flags = _LEADING_FLAGS.match(text.pattern)
        trigger = f"(?{flags[1]}:{trigger})" if flags else trigger
    return Rule(text.name, trigger, text.pattern, accept, before, _USER_REACH_BYTES)


def _problem(text: _RuleText) -> tuple[str, str] | None:
    """Say what is wrong with a rule, and what to do about it."""
    if not _NAME.fullmatch(text.name):
        return "a name is missing or has other characters.", "Name it like build_badge."
    if text.name in {rule.name for rule in RULES}:
        return "the name is that of one of claw's own rules.", "Choose another."
    if not all(text.keywords):
        return "a keyword is empty.", "Leave it out."
    try:
        pattern = re.compile(text.pattern.encode())
    except re.error as error:
        return f"the pattern is no regular expression ({error}).", "Correct it."
    if pattern.search(b"") is not None:
        return "the pattern matches nothing at all everywhere.", "Ask for at least one character."
    if not text.keywords:
        try:
            pc.match_substring_regex(pa.array([b""]), text.pattern)
        except pa.ArrowInvalid:
            return (
                "the pattern looks around or back, which the search of whole logs cannot.",
                "Add keywords = [...], of which every match holds one.",
            )
    return None
