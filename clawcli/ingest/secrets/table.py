"""Claw's own rules for secrets.

The triggers of all rules are looked for at once, by an automaton that reads every byte of a log
(RE2); the pattern of a rule (Python's re) sees only a short stretch around its own trigger. So a
trigger asks for as much as it can. Repetitions are bounded wherever backtracking could try one
length after the other. Both read the bytes of UTF-8.
"""

from __future__ import annotations

import re

from clawcli.ingest.secrets import values
from clawcli.ingest.secrets.values import Accept, Rule

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
        mark=prefix,
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
_INNER, _BARE = r"(?:[^\s\"'`]|\\[\"'`])", r"[^\s\"'\\`,;&(){}<>\[\]]"
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
        mark="[78]Q~",
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
        "sendgrid",
        rf"SG\.{_WORD}{{16}}",
        rf"SG\.{_WORD}{{16,64}}\.{_WORD}{{16,128}}",
        ("sg.",),
        mark=r"SG\.",
    ),
    Rule(
        "discord",
        rf"\.{_WORD}{{6}}\.{_WORD}{{16}}",
        rf"(?<!{_WORD})[MNO]{_WORD}{{23,27}}\.{_WORD}{{6}}\.{_WORD}{{27,44}}(?!{_WORD})",
        (".",),
        before_bytes=28,
        mark=rf"\.{_WORD}{{6}}\.",
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
        mark=":AA",
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
        rf"eyJ{_WORD}{{10,}}\.eyJ{_WORD}",
        rf"eyJ{_WORD}{{10,4096}}\.eyJ{_WORD}{{8,8192}}(?:\.{_WORD}{{0,2048}})?",
        ("eyj",),
        reach_bytes=16_384,
        mark="eyJ",
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
