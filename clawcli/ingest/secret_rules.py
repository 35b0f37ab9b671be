"""What counts as a secret: a table of rules, each a trigger that is cheap to look for and a pattern.

The triggers of all rules are looked for at once, by an automaton that reads every byte of a log
(RE2); the pattern of a rule (Python's re) sees only a short stretch around its own trigger. So a
trigger asks for as much as it can, and every repetition has an upper bound. Both read UTF-8 bytes.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from clawcli.config import resolve
from clawcli.errors import ConfigError, DataError, NotFoundError
from clawcli.ingest import secret_values as values
from clawcli.ingest.secret_values import Accept


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
    accept: Accept | None = values.is_varied
    """Tells whether a match is a secret; None = every match is."""
    reach_bytes: int = 512
    """Bytes after the beginning of the trigger that the pattern sees."""
    before_bytes: int = 0
    """Bytes by which a match may begin before its trigger."""
    mark: str | None = None
    """Beginning of the trigger that holds nothing of the secret, so that the trigger of another
    rule may begin in what follows; None = the whole trigger."""


_WORD, _ALNUM = "[A-Za-z0-9_-]", "[A-Za-z0-9]"
_NOT_IN_WORD, _NOT_IN_BASE64 = "(?<![A-Za-z0-9])", "(?<![A-Za-z0-9+/])"
_SLASH = r"\\{0,8}/"
_TRIGGER_CHARS = 16
"""Characters of a key that its trigger asks for: enough to tell sk-... from a hyphenated word."""


def _prefixed(
    name: str,
    prefixes: str,
    body: str,
    least: int,
    most: int,
    *,
    edge: str = "",
    end: str = "",
    accept: Accept = values.is_varied,
) -> Rule:
    """Make the rule of a key that says by its first letters what it is."""
    words = tuple(prefixes.split())
    prefix = f"(?:{'|'.join(re.escape(word) for word in words)})"
    return Rule(
        name,
        f"{prefix}{body}{{{min(_TRIGGER_CHARS, least)}}}",
        f"{edge}{prefix}{body}{{{least},{most}}}{end}",
        tuple(word.lower() for word in words),
        accept,
        # the prefix, and what must not follow
        reach_bytes=most + 32,
    )


def _following(
    name: str,
    keywords: str,
    lead: str,
    body: str,
    least: int,
    most: int,
    end: str = "",
    accept: Accept = values.is_varied,
) -> Rule:
    """Make the rule of a secret that is one by what stands before it; slashes may be escaped."""
    return Rule(
        name,
        rf"{lead}(?:{body}|{_SLASH}){{{min(_TRIGGER_CHARS, least)}}}",
        f"{lead}(?P<secret>{body}{{{least},{most}}}{end})",
        tuple(keywords.split()),
        accept,
        reach_bytes=most + 160,
        mark=lead,
    )


_GAP = r"(?:\s|\\{1,8}[nrt]){0,16}"
_QUOTES = r"[\"'\\]{0,8}"
_BASE64 = "[A-Za-z0-9+/]"
_NO_BASE64 = "(?![A-Za-z0-9+/=])"
_SPACE = r"(?:\s|%20|\+){1,4}"

_PEM = r"[A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
_PEM_GAP = r"(?:\s|\\{1,8}[nr]|[\"'+])"

_PASSWORD_WORDS = "password passwd passphrase pwd"
_KEY_WORDS = "secret credential token key"
_PASSWORD = "(?:passw(?:or)?d|passphrase|pwd)[a-z0-9_-]{0,24}"
# logs of language models are full of tokens: the plural is a count or a list
_KEY = (
    r"(?:(?:secret|credential|(?:api|access|private|signing|encryption|account|auth|master|client|"
    r"shared)[_. -]?key)[a-z0-9_-]{0,24}|token(?:[a-rt-z0-9_-][a-z0-9_-]{0,23})?)"
)
# key = value, "key": "value", key => value, {"name": "key", "value": "value"}
_IS = (
    rf"(?i:\\{{0,8}}[\"'],?{_GAP}\\{{0,8}}[\"']value)?"
    rf"\\{{0,8}}[\"']?\]?[ \t]{{0,4}}!?[:=]{{1,3}}>?{_GAP}"
)
_OPEN = r"(?:[a-z]{0,2}(?:\\{0,8}[\"'`]){1,3})"
_INNER, _BARE = r"[^\s\"'`]", r"[^\s\"'\\`,;&(){}<>\[\]]"
_BARE_ESCAPED = rf"(?:{_BARE}|{_SLASH})"
# code says token = name all day: what has no digit is turned down before Python sees it
_VALUE_BEGINS = (
    rf"(?:{_OPEN}{_INNER}{{0,6}}[0-9]{_INNER}{{5}}|{_OPEN}{_INNER}{{7,}}[0-9]"
    rf"|{_BARE_ESCAPED}{{0,6}}[0-9]{_BARE_ESCAPED}{{5}}|{_BARE_ESCAPED}{{7,}}[0-9])"
)
_SYMBOL = r"[^A-Za-z\s\"'`\\]"
_PASSWORD_BEGINS = (
    rf"(?:{_OPEN}{_INNER}{{0,3}}{_SYMBOL}{_INNER}{{4}}|{_OPEN}{_INNER}{{4,}}{_SYMBOL}"
    rf"|{_BARE_ESCAPED}*[0-9])"
)
# A quote that is escaped itself is one of a deeper level, and looked at there. Other quotes never
# stand around a double quote: a value that ran over one would leave broken JSON behind.
_VALUE = (
    r"(?:[a-z]{0,2}(?P<quote>(?<!\\)(?:(?P<double>\"(?:\"\")?)|'(?:'')?|`)))?(?P<secret>(?(quote)"
    r"(?:(?!(?P=quote))[^\\\s\"]|\\[^\s\"]|(?(double)\\\"|(?!))){8,256}"
    rf"|{_BARE}{{8,256}}))(?(quote)(?P=quote))"
)


def _assigned(words: str, lead: str, key: str, link: str, value_begins: str) -> Rule:
    """Make the rule of a value that stands behind a key such as api_key, token or password."""
    return Rule(
        "assignment",
        f"{lead}(?i:{key}){link}{value_begins}",
        f"{lead}(?P<key>(?i:{key})){link}{_VALUE}",
        tuple(words.split()),
        values.is_assigned_secret,
        reach_bytes=420,
        mark=f"{lead}(?i:{key}){link}",
    )


RULES: tuple[Rule, ...] = (
    Rule(
        "private_key",
        "-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY",
        # whole, or cut off in the middle of its lines
        rf"-----BEGIN {_PEM}(?:(?:[^\"'-]|-(?!----)){{40,16384}}?-----END {_PEM}"
        rf"|(?:{_PEM_GAP}{{1,12}}[A-Za-z0-9+/=]{{24,80}}){{1,300}}"
        rf"(?:(?:{_PEM_GAP}{{1,12}}[A-Za-z0-9+/=]{{1,80}})?{_PEM_GAP}{{0,12}}-----END {_PEM})?)",
        ("private key",),
        reach_bytes=20_000,
    ),
    _prefixed("anthropic", "sk-ant-", _WORD, 20, 256, edge=_NOT_IN_WORD),
    _prefixed("openai", "sk-", _WORD, 20, 256, edge=_NOT_IN_WORD, accept=values.is_key),
    _prefixed("github", "ghp_ gho_ ghu_ ghs_ ghr_", _ALNUM, 36, 255),
    _prefixed("github", "github_pat_", "[A-Za-z0-9_]", 36, 255),
    _prefixed(
        "gitlab",
        "glpat- gloas- gldt- glrt- glcbt- glptt- glft- glimt- glsoat-",
        "[A-Za-z0-9_.-]",
        20,
        320,
    ),
    _prefixed("aws_key_id", "AKIA ASIA", "[A-Z0-9]", 16, 16, edge=_NOT_IN_BASE64, end=_NO_BASE64),
    # the file that the console hands out: id,secret
    _following(
        "aws_secret",
        "akia asia",
        rf"A[KS]IA[A-Z0-9]{{16}}{_QUOTES}[,;:\s]{{1,4}}{_QUOTES}",
        _BASE64,
        40,
        40,
        _NO_BASE64,
    ),
    _following(
        "aws_secret",
        "secret",
        rf"(?i:secret[a-z_]{{0,16}}){_QUOTES}[ \t]{{0,4}}[:=,]{_GAP}{_QUOTES}",
        _BASE64,
        40,
        40,
        _NO_BASE64,
    ),
    _prefixed("google", "AIza", _WORD, 35, 45, edge=_NOT_IN_BASE64),
    _prefixed("google", "GOCSPX-", _WORD, 24, 64),
    _prefixed("google", "ya29.", "[A-Za-z0-9_.-]", 20, 512),
    _following(
        "azure",
        "accountkey= sharedaccesskey=",
        "(?i:AccountKey|SharedAccessKey)=",
        _BASE64,
        40,
        100,
        "={0,2}",
    ),
    _following("azure", "sig=", "[?&;]sig=", "[A-Za-z0-9%+/]", 40, 128, "={0,2}"),
    Rule(
        "azure",
        "[78]Q~[A-Za-z0-9_.~-]{16}",
        "[A-Za-z0-9_.~-]{3}[78]Q~[A-Za-z0-9_.~-]{31,34}",
        ("q~",),
        before_bytes=3,
    ),
    _prefixed(
        "slack",
        "xoxa- xoxb- xoxe- xoxo- xoxp- xoxr- xoxs- xoxe.xoxb- xoxe.xoxp- xapp-",
        "[A-Za-z0-9-]",
        16,
        400,
    ),
    _following(
        "slack",
        "hooks.slack.com",
        rf"hooks\.slack\.com{_SLASH}(?:services|workflows|triggers){_SLASH}",
        "[A-Za-z0-9_/+-]",
        24,
        200,
    ),
    _prefixed("huggingface", "hf_ api_org_", _ALNUM, 30, 64, edge=_NOT_IN_WORD),
    _prefixed("stripe", "sk_live_ sk_test_ rk_live_ rk_test_ whsec_", _ALNUM, 16, 255),
    _prefixed("npm", "npm_", _ALNUM, 36, 64),
    _prefixed("pypi", "pypi-Ag", _WORD, 50, 1024),
    _prefixed("twilio", "SK", "[0-9a-f]", 32, 32, edge=_NOT_IN_WORD, end="(?![A-Za-z0-9])"),
    Rule(
        "sendgrid", rf"SG\.{_WORD}{{16}}", rf"SG\.{_WORD}{{16,64}}\.{_WORD}{{16,128}}", ("sg.",)
    ),
    Rule(
        "discord",
        rf"\.{_WORD}{{6}}\.{_WORD}{{16}}",
        rf"(?<!{_WORD})[MNO]{_WORD}{{23,27}}\.{_WORD}{{6}}\.{_WORD}{{27,44}}(?!{_WORD})",
        (".",),
        before_bytes=28,
    ),
    _following(
        "discord",
        "webhooks",
        rf"discord(?:app)?\.com{_SLASH}api{_SLASH}webhooks{_SLASH}\d{{1,24}}{_SLASH}",
        _WORD,
        40,
        128,
    ),
    Rule(
        "telegram",
        rf":AA{_WORD}{{16}}",
        rf"(?<!\d)\d{{8,12}}:AA{_WORD}{{32,34}}(?!{_WORD})",
        (":aa",),
        before_bytes=12,
    ),
    # other keys that agents of language models carry about
    _prefixed(
        "vendor",
        "gsk_ xai- nvapi- pplx- r8_ dop_v1_ dapi shpat_ shpca_ shppa_ shpss_ lin_api_ hvs. "
        "dckr_pat_ ATATT3 AGE-SECRET-KEY-1 tvly-",
        _WORD,
        30,
        255,
        edge=_NOT_IN_WORD,
        accept=values.is_key,
    ),
    Rule(
        "jwt",
        rf"eyJ{_WORD}{{10}}",
        rf"eyJ{_WORD}{{10,4096}}\.eyJ{_WORD}{{8,8192}}(?:\.{_WORD}{{0,2048}})?",
        ("eyj",),
        reach_bytes=16_384,
    ),
    Rule(
        "url_password",
        rf":{_SLASH}{_SLASH}[^\s/@:\"'\\<>]*:[^\s/@\"'<>]+@",
        r"://(?P<user>[^\s/@:\"'\\<>]{0,128}):(?P<secret>[^\s/@\"'\\<>]{3,512})@(?=[A-Za-z0-9\[])",
        ("@",),
        values.is_url_password,
        reach_bytes=1024,
        mark=rf":{_SLASH}{_SLASH}",
    ),
    _following(
        "authorization",
        "bearer",
        rf"(?i:bearer){_SPACE}",
        "[A-Za-z0-9._~+/=-]",
        16,
        4096,
        accept=values.is_credential,
    ),
    _following(
        "authorization",
        "authorization",
        rf"(?i:authorization){_QUOTES}[ \t]{{0,4}}[:=,]{_GAP}{_QUOTES}"
        rf"(?i:(?:basic|token|apikey|digest){_SPACE})?",
        "[A-Za-z0-9._~+/=:-]",
        12,
        4096,
        accept=values.is_credential,
    ),
    # last, so that a key with a name of its own keeps it
    _assigned(_PASSWORD_WORDS, "", _PASSWORD, _IS, _PASSWORD_BEGINS),
    _assigned(_KEY_WORDS, "", _KEY, _IS, _VALUE_BEGINS),
    _assigned(
        f"{_PASSWORD_WORDS} {_KEY_WORDS}",
        "-",
        f"(?:{_PASSWORD}|{_KEY})",
        r"[ \t]{1,4}",
        _VALUE_BEGINS,
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
    accept = values.MinEntropy(text.min_entropy) if text.min_entropy > 0 else None
    if text.keywords:
        trigger = f"(?i:{'|'.join(re.escape(word) for word in text.keywords)})"
        before = _USER_BEFORE_BYTES
    else:
        # flags may stand at the beginning of an expression only, and the triggers become one
        trigger, before = _LEADING_FLAGS.sub("", text.pattern), 0
        flags = _LEADING_FLAGS.match(text.pattern)
        trigger = f"(?{flags[1]}:{trigger})" if flags else trigger
    keywords = tuple(word.lower() for word in text.keywords)
    return Rule(text.name, trigger, text.pattern, keywords, accept, _USER_REACH_BYTES, before)


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
