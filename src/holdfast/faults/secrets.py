"""How secrets look: vendors' keys by their shape, others by the name they stand under.

Invariant: every pattern is linear in the text, since a remote side chooses it, and `_MARKS` holds a piece of every text
the pattern can match.
"""

from __future__ import annotations

import re

__all__ = ["MASK", "is_secret_name", "mask_secrets"]

MASK = "[redacted]"

# A key has digits or mixed case; `hf_hub_download` and `pk_orders` have neither, and are shorter. Bounded, or a run of prefixes would cost its square.
_DIGIT_AHEAD = r"(?=[A-Za-z_*-]{0,120}?(?:\d|[a-z][A-Z]))"
_START = r"(?:\b|(?<=\\[nrt]))"
"""A word begins, also after an escape in a repr."""
_KEYS = (
    rf"{_START}(?:sk|pk|rk|xai|gsk|hf|pplx|nvapi|tgp|csk|fw|r8)[-_](?:{_DIGIT_AHEAD}[A-Za-z0-9_-]{{12,}}|[A-Za-z0-9_-]{{32,}})(?:\*+[A-Za-z0-9]*)?"
    rf"|{_START}(?:gh[oprsu]_|github_pat_|glpat-|xox[abeoprs]-|ya29\.)[A-Za-z0-9_-]{{10,}}"
    rf"|{_START}AIza[A-Za-z0-9_-]{{20,}}|{_START}(?:AKIA|ASIA)[A-Z0-9]{{12,}}"
    rf"|{_START}eyJ[A-Za-z0-9_-]{{8,400}}+\.[A-Za-z0-9_-]{{4,8000}}+\.[A-Za-z0-9_-]*"
    r"|-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----(?s:.)*?(?:-----END [A-Z ]{0,40}PRIVATE KEY-----|\Z)"
)
_NAMES = (
    r"(?:api[-_ ]?key|secret(?:[-_]?key)?|passw(?:or)?d|passwd|passphrase|pwd|private[-_]?key|access[-_]?key|credentials?"
    r"|token|authorization)"
)
_IS = r"\\{0,4}[\"']?\s{0,4}[:=]\s{0,4}"
_UNMASKED = r"(?!\[redacted\])"
_VALUE = r"[^\s\"',;&}\])\\]{6,}"
_ASSIGNED = (
    rf"(?P<name>{_NAMES}{_IS})(?P<quote>\\{{0,4}}[\"']?){_UNMASKED}(?:(?:bearer|basic)\s{{1,4}})?{_UNMASKED}{_VALUE}"
)
_PAIR = r"[^\s=;,\"')]{1,200}=[^\s;,\"')]{1,4096}"
_COOKIES = rf"(?P<cookie>cookie{_IS}\\{{0,4}}[\"']?){_UNMASKED}(?:{_PAIR}(?:;\s?{_PAIR})*|{_VALUE})"
# A scheme's credentials have digits, inner capitals or padding; `Bearer authentication is required` has none.
_SCHEME = r"(?P<scheme>(?:\b|(?<=\\[nrt]))(?:bearer|basic)\s{1,4})(?=(?-i:[A-Za-z._~+/-]{0,200}?(?:\d|[a-z][A-Z]|=)))[A-Za-z0-9._~+/=-]{8,}"
_USERINFO = r"(?P<url>://)[^/\s:@]{0,200}:[^/\s@]{1,1000}(?=@)"

_ANY_SECRET = re.compile(rf"(?-i:{_KEYS})|{_SCHEME}|{_COOKIES}|{_ASSIGNED}|{_USERINFO}", re.IGNORECASE)
_MARKS = (
    *(prefix + mark for prefix in ("sk", "pk", "rk", "xai", "hf", "pplx", "nvapi", "tgp", "fw", "r8") for mark in "-_"),
    "gho_", "ghp_", "ghr_", "ghs_", "ghu_", "github_pat_", "glpat-", "xox", "ya29.", "aiza", "akia", "asia", "eyj", "private",
    "key", "secret", "passw", "passp", "pwd", "credential", "token", "authorization", "cookie", "bearer", "basic", "://",
)  # fmt: skip

_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_SECRET_NAME = re.compile(
    r"(?:.*[-_. ])?(?:api[-_ ]?key|secret(?:[-_]key)?|passw(?:or)?d|passwd|passphrase|pwd|private[-_]?key|access[-_]?key"
    r"|credentials?|token|authorization|cookie)",
    re.IGNORECASE | re.DOTALL,
)


def mask_secrets(text: str) -> str:
    """Return `text` with everything masked that looks like a secret or stands under a secret's name."""
    folded = text.lower()
    for mark in _MARKS:
        if mark in folded:
            return _ANY_SECRET.sub(_mask, text)
    return text


def is_secret_name(name: str) -> bool:
    """Whether a field of this name holds a secret: `apiKey`, `DB_PASSWORD`, `id-token`; not `max_tokens`, not `key`."""
    return len(name) <= 200 and _SECRET_NAME.fullmatch(_HUMP.sub("_", name)) is not None


def _mask(match: re.Match[str]) -> str:
    kept = match["name"] or match["scheme"] or match["cookie"] or match["url"] or ""
    return kept + (match["quote"] or "") + MASK
