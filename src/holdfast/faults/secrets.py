"""How secrets look: vendors' keys by their shape, others by the name they stand under.

Invariant: every pattern is linear in the text, since a remote side chooses it, and `_may_hold_one` is true of every text
in which the pattern finds something.
"""

from __future__ import annotations

import re

__all__ = ["LONGEST_SECRET", "MASK", "begins_a_key", "is_secret_name", "mask_secrets"]

MASK = "[redacted]"

LONGEST_SECRET = 1_500
"""How far beyond a cut a text has to be searched, so that no secret is cut in two and shows its head."""

# A key has digits or mixed case; `hf_hub_download` and `pk_orders` have neither, and are shorter. Bounded, or a run of prefixes would cost its square.
_DIGIT_AHEAD = r"(?=[A-Za-z_*-]{0,120}?(?:\d|[a-z][A-Z]))"
_START = r"(?:\b|(?<=\\[nrt]))"
"""A word begins, also after an escape in a repr."""
_KEYS = (
    rf"{_START}(?:sk|pk|rk|xai|gsk|hf|pplx|nvapi|tgp|csk|fw|r8)[-_](?:{_DIGIT_AHEAD}[A-Za-z0-9_-]{{12,}}|[A-Za-z0-9_-]{{32,}})(?:\*+[A-Za-z0-9]*)?"
    rf"|{_START}(?:gh[oprsu]_|github_pat_|glpat-|xox[abeoprs]-|ya29\.)[A-Za-z0-9_-]{{10,}}"
    rf"|{_START}AIza[A-Za-z0-9_-]{{20,}}|{_START}(?:AKIA|ASIA)[A-Z0-9]{{12,}}[A-Za-z0-9_-]*"
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
# Every alternative begins with a letter of its own and no boundary is asked for: `re` then skips what begins none of them.
_KEY_START = re.compile(
    "sk[-_]|pk[-_]|rk[-_]|xai[-_]|gsk[-_]|hf[-_]|pplx[-_]|nvapi[-_]|tgp[-_]|csk[-_]|fw[-_]|r8[-_]|gh[oprsu]_|github_pat_|glpat-"
    "|xox[abeoprs]-|aiza|akia|asia"
)
_UNJOINTED = ("aiza", "akia", "asia")
"""Keys that have neither hyphen nor underscore after their first letters."""
_KEY_CHARACTERS = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-"
_SHAPE = bytes(ord("k") if code in _KEY_CHARACTERS else ord(" ") for code in range(256))
_SHORTEST_KEY = b"k" * 14
_NAME_ENDINGS = (
    "key", "secret", "password", "passwd", "passphrase", "pwd", "credential", "credentials", "token", "authorization", "cookie",
)  # fmt: skip
_ASSIGNS = re.compile(_IS)
_MANY = 100
"""Names to look at; a text with more of them is searched whole."""

_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_SECRET_NAME = re.compile(
    r"(?:.*[-_. ])?(?:api[-_ ]?key|secret(?:[-_]key)?|passw(?:or)?d|passwd|passphrase|pwd|private[-_]?key|access[-_]?key"
    r"|credentials?|token|authorization|cookie)",
    re.IGNORECASE | re.DOTALL,
)


def mask_secrets(text: str) -> str:
    """Return `text` with everything masked that looks like a secret or stands under a secret's name."""
    return _ANY_SECRET.sub(_mask, text) if _may_hold_one(text) else text


def begins_a_key(folded: str) -> bool:
    """Whether a word as long as a key begins like one; `folded` is in lower case. Rather yes than no."""
    if ("j" in folded and "eyj" in folded) or "ya29." in folded or "-----begin" in folded:
        return True
    shape = folded.encode("ascii", "replace").translate(_SHAPE)
    start = shape.find(_SHORTEST_KEY)
    while start >= 0:
        end = shape.find(b" ", start)
        if end < 0:
            end = len(folded)
        word = folded[start:end]
        # Most long words are no keys: those without a joint can only begin like these, and that is found sooner.
        if _KEY_START.search(word) if "-" in word or "_" in word else any(key in word for key in _UNJOINTED):
            return True
        start = shape.find(_SHORTEST_KEY, end)
    return False


def is_secret_name(name: str) -> bool:
    """Whether a field of this name holds a secret: `apiKey`, `DB_PASSWORD`, `id-token`; not `max_tokens`, not `key`."""
    return len(name) <= 200 and _SECRET_NAME.fullmatch(_HUMP.sub("_", name)) is not None


def _mask(match: re.Match[str]) -> str:
    kept = match["name"] or match["scheme"] or match["cookie"] or match["url"] or ""
    return kept + (match["quote"] or "") + MASK


def _may_hold_one(text: str) -> bool:
    """Whether the search can find anything. It tries its patterns at every character; this looks for what they all need.

    Most texts hold nothing to hide, and finding that out here costs a twentieth of the search.
    """
    folded = text.casefold()
    if ("@" in text and "://" in text) or "bearer" in folded or "basic" in folded:
        return True
    for ending in _NAME_ENDINGS:
        if ending in folded and _is_assigned(ending, folded):
            return True
    return begins_a_key(folded)


def _is_assigned(name: str, folded: str) -> bool:
    """Whether a name is followed by a colon or an equals sign anywhere."""
    at = folded.find(name)
    for _ in range(_MANY):
        if at < 0:
            return False
        at += len(name)
        if _ASSIGNS.match(folded, at):
            return True
        at = folded.find(name, at)
    return True
