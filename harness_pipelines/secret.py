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
#: Between a key and its value; also as it is written in an address, in JSON's escapes and in HTML.
_IS = r"(?:=>|->|:=|[:=]|%3[da]|\\+u003[da]|&#(?:61|58|x3[da]);)"
_ADDRESS = re.compile(  # up to the last `@`: passwords may have `@`, `:` and `/` that are not encoded
    r"(?P<kept>\b[a-z][a-z0-9+.-]{0,40}://[^\s:/@?#\"']{0,200}):[^\s\"'<>]{0,2000}@", re.IGNORECASE
)
_TOKEN_AS_USER = re.compile(r"(?P<kept>\bhttps?://)[^\s:/@?#\"'<>]{1,2000}@", re.IGNORECASE)
_SCHEME = re.compile(r"(?P<kept>\b(?:bearer|basic|digest|negotiate)\s+)(?=[^\s\"',;]{8})[^\s\"',;]+", re.IGNORECASE)
_PEM = re.compile(
    r"(?P<kept>-----BEGIN [A-Z ]{0,20}PRIVATE KEY-----).{0,20000}?"
    r"(?=-----(?:BEGIN|END) [A-Z ]{0,20}PRIVATE KEY-----|\Z)",
    re.DOTALL,
)
_BARE = re.compile(  # by what it begins with: ours, AWS, JWT, GitHub, GitLab, Slack, Vault, OpenAI and its like, Google
    r"(?P<kept>)\b(?:harness_[\w-]{43}(?![\w-])|"
    r"(?:AKIA|ASIA)[A-Z0-9]{16}\b|eyJ[\w-]{6,4000}\.[\w-]{6,4000}(?:\.[\w-]{0,4000})?|"
    r"gh[pousr]_\w{16,255}|github_pat_\w{16,255}|glpat-[\w-]{8,255}|xox[abeprs]-[\w-]{8,255}|hvs\.[\w-]{16,255}|"
    r"sk-[\w-]{16,255}|AIza[\w-]{30,60})"
)
_HOOK = re.compile(  # whose path is its secret
    r"(?P<kept>\bhttps?://(?:hooks\.slack\.com/|discord(?:app)?\.com/api/webhooks/|[\w.-]{0,100}webhook\.office\.com/))"
    r"[^\s\"'<>]+",
    re.IGNORECASE,
)
_PAIRS = (
    # JSON inside of JSON, or of a repr: {\"password\": \"x\"}
    re.compile(rf"(?P<kept>{_KEY}\\+[\"']\s*[:=]\s*)\\+[\"'].{{0,2000}}?\\+[\"']", re.IGNORECASE | re.DOTALL),
    # ('sasl.password', 'x')
    re.compile(rf"(?P<kept>{_KEY}[\"']\s*,\s*)(?:{_QUOTED})", re.IGNORECASE | re.DOTALL),
    # <password>x</password>
    re.compile(rf"(?P<kept><[\w.:-]{{0,60}}{_KEY}>)[^<]*", re.IGNORECASE),
    # password='x', "password": "x"
    re.compile(rf"(?P<kept>{_KEY}[\"']?\s*{_IS}\s*)(?:{_QUOTED})", re.IGNORECASE | re.DOTALL),
    # PASSWORD 'x', IDENTIFIED BY 'x', in SQL
    re.compile(
        r"(?P<kept>\b(?:password|identified\s{1,20}by)\s{1,20})(?:'(?:[^']|'')*(?:'|$)|\$\w{0,60}\$.{0,2000}?(?:\$|$))",
        re.IGNORECASE | re.DOTALL,
    ),
    # key: "password" value: "x", as Protobuf writes a map
    re.compile(
        rf"(?P<kept>\bkey:\s{{0,20}}\"[^\"]{{0,200}}{_KEY}[^\"]{{0,60}}\"\s{{1,60}}value:\s{{0,20}})(?:{_QUOTED})",
        re.IGNORECASE | re.DOTALL,
    ),
    # ?password=x&..., ;token=x;...
    re.compile(rf"(?P<kept>[?&;][\w.%-]{{0,60}}?(?:{_KEY}|{_SHORT})=)[^&;\s\"']*", re.IGNORECASE),
    # password=x; a DSN's value continues to the next space
    re.compile(rf"(?P<kept>(?:{_KEY}[\"']?\s*(?!:[^=]){_IS}\s*|{_SHORT}=))(?![\s\"'*])[^\s\"]+", re.IGNORECASE),
    # "password": 7, and a line `password: x`; not "password: it is too short", about a column that is called so
    re.compile(
        rf"(?P<kept>{_KEY}[\"']?\s*:\s*)(?![\s\"'*])[^\s\",;}}]+(?=\s*(?:[,;}}\])]|$))", re.IGNORECASE | re.MULTILINE
    ),
    # --password x
    re.compile(rf"(?P<kept>(?<!\S)--?[\w-]{{0,60}}?{_KEY}\s+)(?![-*\s])(?:{_QUOTED}|\S+)", re.IGNORECASE),
)
#: Each of the pairs has one of these. A line of the log mostly has none, and one search takes a fifth of their time.
_ANY_KEY = re.compile(rf"{_KEY}|{_SHORT}|identified", re.IGNORECASE)
_ALONE = (_PEM, _ADDRESS, _TOKEN_AS_USER, _SCHEME, _BARE, _HOOK)


def redact(text: str) -> str:
    """Return *text* with `HIDDEN` in the place of each secret; the keys and the rest stay readable."""
    for rule in _ALONE:
        text = rule.sub(_hide, text)
    for rule in _PAIRS if _ANY_KEY.search(text) else ():
        text = rule.sub(_hide, text)
    return text


def _hide(found: re.Match[str]) -> str:
    at = "@" if found.re in (_ADDRESS, _TOKEN_AS_USER) else ""
    colon = ":" if found.re is _ADDRESS else ""
    return f"{found['kept']}{colon}{HIDDEN}{at}"
