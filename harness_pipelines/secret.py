"""Hide secrets in text that is printed, logged, raised or stored.

A secret is known by its place: the password of an address, the value of a key that names a secret, the signature of a
signed address, what follows ``Bearer``. A secret without such a place cannot be known. Where it is unclear how far a
secret reaches, more is hidden rather than less.
"""

from __future__ import annotations

import re

HIDDEN = "***"
_STRONG = (
    r"(?:pass(?:word|wd|phrase)|pwd|secret|credentials?|api[._-]?key|access[._-]?key|account[._-]?key|"
    r"(?:shared|private|signing|encryption|keystore|ssl)[._-]?key|user[._-]?info|jaas[._-]?config)(?:[._-]?[\w.-]{1,80})?"
)
#: They are parts of other words too, so they count at the start of a word or of a part of it, and at its end.
_WEAK = (
    r"(?:(?<![a-z])|(?<=auth)|(?<=access)|(?<=security)|(?<=session)|(?<=sas))"
    r"(?:tokens?|signature|authorization|cookie)"
)
_SHORT = r"(?<![a-z])(?:pass|sig|sas(?:\.[\w.-]{1,80})?|key_?pem)"  # too common in prose to be followed by a colon
_KEY = rf"(?:{_STRONG}|{_WEAK})"
_QUOTED = (
    r"\"(?:[^\"\\]|\\.)*(?:\"|$)|"  # "with \" inside"
    r"'(?:[^'\\]|\\.|'')*(?:'|$)"  # libpq's 'it\'s', SQL's 'it''s'
)
_ADDRESS = re.compile(  # up to the last `@`: passwords are met with `@`, `:` and `/` that nobody encoded
    r"(?P<kept>\b[a-z][a-z0-9+.-]{0,40}://[^\s:/@?#\"']{0,200}):[^\s\"'<>]{0,2000}@", re.IGNORECASE
)
_TOKEN_AS_USER = re.compile(r"(?P<kept>\bhttps?://)[^\s:/@?#\"'<>]{1,2000}@", re.IGNORECASE)
_SCHEME = re.compile(r"(?P<kept>\b(?:bearer|basic|digest|negotiate)\s+)(?=[^\s\"',;]{8})[^\s\"',;]+", re.IGNORECASE)
_PEM = re.compile(
    r"(?P<kept>-----BEGIN [A-Z ]{0,20}PRIVATE KEY-----).{0,20000}?(?=-----END [A-Z ]{0,20}PRIVATE KEY-----|\Z)",
    re.DOTALL,
)
_BARE = re.compile(r"(?P<kept>)(?:\b(?:AKIA|ASIA)[A-Z0-9]{16}\b|\beyJ[\w-]{6,4000}\.[\w-]{6,4000}(?:\.[\w-]{0,4000})?)")
_PAIRS = (
    # JSON inside of JSON, or of a repr: {\"password\": \"x\"}
    re.compile(rf"(?P<kept>{_KEY}\\+[\"']\s*[:=]\s*)\\+[\"'].{{0,2000}}?\\+[\"']", re.IGNORECASE | re.DOTALL),
    # ('sasl.password', 'x')
    re.compile(rf"(?P<kept>{_KEY}[\"']\s*,\s*)(?:{_QUOTED})", re.IGNORECASE | re.DOTALL),
    # <password>x</password>
    re.compile(rf"(?P<kept><[\w.:-]{{0,60}}{_KEY}>)[^<]*", re.IGNORECASE),
    # password='x', "password": "x"
    re.compile(rf"(?P<kept>{_KEY}[\"']?\s*(?:=>|[:=])\s*)(?:{_QUOTED})", re.IGNORECASE | re.DOTALL),
    # ?password=x&..., ;token=x;...
    re.compile(rf"(?P<kept>[?&;][\w.%-]{{0,60}}?(?:{_KEY}|{_SHORT})=)[^&;\s\"']*", re.IGNORECASE),
    # password=x; a DSN's value continues to the next space
    re.compile(rf"(?P<kept>(?:{_KEY}[\"']?\s*(?:=>|=)\s*|{_SHORT}=))(?![\s\"'*])[^\s\"]+", re.IGNORECASE),
    # "password": 7, and a line `password: x`; not "password: it is too short", about a column that is called so
    re.compile(
        rf"(?P<kept>{_KEY}[\"']?\s*:\s*)(?![\s\"'*])[^\s\",;}}]+(?=\s*(?:[,;}}\])]|$))", re.IGNORECASE | re.MULTILINE
    ),
    # --password x
    re.compile(rf"(?P<kept>(?<!\S)--?[\w-]{{0,60}}?{_KEY}\s+)(?![-*\s])(?:{_QUOTED}|\S+)", re.IGNORECASE),
)
_RULES = (_PEM, _ADDRESS, _TOKEN_AS_USER, _SCHEME, _BARE, *_PAIRS)


def redact(text: str) -> str:
    """Return *text* with `HIDDEN` in the place of each secret; the keys and the rest stay readable."""
    for rule in _RULES:
        text = rule.sub(_hide, text)
    return text


def _hide(found: re.Match[str]) -> str:
    at = "@" if found.re in (_ADDRESS, _TOKEN_AS_USER) else ""
    colon = ":" if found.re is _ADDRESS else ""
    return f"{found['kept']}{colon}{HIDDEN}{at}"
