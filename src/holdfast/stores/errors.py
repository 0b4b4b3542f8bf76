"""The errors of a store: one function per reason, so that all stores raise the same errors.

Invariant: these functions decide from a session's record alone. They read and write nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.faults import Code, Fault, HoldfastError, InvalidError
from holdfast.stores.records import FINAL, INTERNAL, SessionState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.stores.records import Commit, WorkChange


def admit(commit: Commit, state: str, fence: int, top: int) -> None:
    """Raise if a session in this state, with this fence and last offset, does not take the commit."""
    # Check this first: what the session is now says nothing about what the writer has done.
    if commit.after is not None and (top < commit.after or fence < (commit.fence or 0)):
        raise set_back(commit.session or "", commit.after, top)
    # Check this before the fence: the former owner of a closed session must get SESS_CLOSED, not SESS_LEASE_LOST.
    if state in FINAL and not _only_rewraps(commit):
        raise HoldfastError(session_ended(commit.session or "", state))
    if commit.fence is not None and commit.fence != fence:
        raise lost(commit.session or "")
    if commit.expect and state not in commit.expect:
        raise _transition(commit.session or "", state, commit.state, commit.expect)


def _only_rewraps(commit: Commit) -> bool:
    """Whether a commit replaces the manifest of an ended session and nothing else: its data key is wrapped by another key."""
    rest = commit.entries or commit.checkpoint or commit.claim or commit.audit or commit.state or commit.create
    expects_end = len(commit.expect) == 1 and commit.expect[0] in FINAL
    return commit.manifest is not None and expects_end and not rest


def session_ended(session: str, state: str = SessionState.CLOSED) -> Fault:
    """Return SESS_CLOSED: the session has ended for good, and writes nothing more. `state` is how: closed, or in error."""
    why = f"Session '{session}' has ended with an error" if state == SessionState.ERROR else None
    return Fault.of("SESS_CLOSED", why, context={"session_id": session, "state": str(state)})


def check_checkpoint(commit: Commit, top: int) -> None:
    """Raise `InvalidError` for a checkpoint beyond the end of the log."""
    new = commit.checkpoint
    if new is not None and new.offset is not None and not 0 <= new.offset <= top:
        raise InvalidError.at("commit.checkpoint.offset", f"an offset of the log (0 to {top})", new.offset)


def missing(session: str) -> HoldfastError:
    """Return SESS_NOT_FOUND: the store has no such session."""
    return _error("SESS_NOT_FOUND", session)


def already_there(session: str) -> HoldfastError:
    """Return SESS_ILLEGAL_TRANSITION: a session with that id exists already."""
    message = f"Session '{session}' exists already: open it, or take another name"
    context = {"session_id": session, "to_state": SessionState.CREATED.value}
    return HoldfastError(Fault.of("SESS_ILLEGAL_TRANSITION", message, context=context))


def lost(session: str) -> HoldfastError:
    """Return SESS_LEASE_LOST: the lease was taken over, or has ended."""
    return _error("SESS_LEASE_LOST", session)


def held_by(session: str, owner: str, left: float) -> HoldfastError:
    """Return SESS_LEASE_LOST: another owner holds the session for `left` seconds more."""
    message = f"Session '{session}' is owned by {owner} for another {max(left, 0.0):.1f} s"
    context = {"session_id": session, "owner": owner}
    return HoldfastError(Fault.of("SESS_LEASE_LOST", message, retry_after=max(left, 0.0), context=context))


def not_in_status(session: str, status: str | None, change: WorkChange) -> HoldfastError:
    """Return SESS_ILLEGAL_TRANSITION: a work item is not in a status in which it may be changed so."""
    found = "no work item" if status is None else status
    message = f"Session '{session}' is {found}, and cannot become {change.status}"
    context = {"session_id": session, "from_state": found, "to_state": change.status}
    return HoldfastError(Fault.of("SESS_ILLEGAL_TRANSITION", message, context=context))


def reserved(session: str) -> InvalidError:
    """Return the error of a write to a session that the store keeps for itself."""
    expected = (
        f"another id than {session}, which is reserved: it holds the key of the audit trail of an encrypted store"
    )
    return InvalidError.saying("session", expected, session)


def admit_removal(session: str, state: str) -> None:
    """Raise if a session in this state cannot be removed."""
    if session in INTERNAL:
        raise reserved(session)
    if state not in FINAL:
        raise _not_closed(session, state)


def _not_closed(session: str, state: str) -> HoldfastError:
    message = f"Session '{session}' is {state}: close it before it is removed"
    context = {"session_id": session, "from_state": state, "to_state": "removed"}
    return HoldfastError(Fault.of("SESS_ILLEGAL_TRANSITION", message, context=context))


def claimed_otherwise(client: str, id_: str) -> HoldfastError:
    """Return PROTO_DUPLICATE_ID: the id was used for another body."""
    message = f"Message {id_} of {client} was stored before with another body"
    return HoldfastError(Fault.of("PROTO_DUPLICATE_ID", message, context={"id": id_, "client": client}))


def damaged(session: str, reason: str) -> HoldfastError:
    """Return SESS_MANIFEST_DRIFT: rows of the session cannot be read. They are left as they are (C25)."""
    message = f"Session '{session}' is damaged in the store: {reason}"
    return HoldfastError(Fault.of("SESS_MANIFEST_DRIFT", message, context={"session_id": session, "fields": reason}))


def set_back(session: str, seen: int, top: int) -> HoldfastError:
    """Return SESS_MANIFEST_DRIFT: the store holds less than, or something else than, what the writer has seen stored."""
    message = (
        f"Session '{session}' was set back in the store: entry {seen} was stored, and now the log ends at entry {top}, or holds another"
        " entry there. A backup was restored, or a standby that was behind took over. Nothing more is written; find out"
        " what the steps since then have done before the session is opened again"
    )
    context = {"session_id": session, "seen": seen, "top": top, "fields": "the store was set back"}
    return HoldfastError(Fault.of("SESS_MANIFEST_DRIFT", message, context=context))


def wrong_key(session: str, key: str, known: Sequence[str]) -> HoldfastError:
    """Return SESS_KEY_WRONG: none of the keys that the store has wraps the session's data key."""
    encrypted = f"Session '{session}' is encrypted{f' with key {key}' if key else ''}, and the store was opened"
    message = (
        f"{encrypted} with {' and '.join(known)}"
        if known
        else f"{encrypted} without a key: add ?key_env=NAME to its address"
    )
    context = {"session_id": session, "key": key, "known": list(known)}
    return HoldfastError(Fault.of("SESS_KEY_WRONG", message, context=context))


def not_encrypted(session: str) -> HoldfastError:
    """Return SESS_KEY_WRONG: the store was opened with a key, and the session was written without one."""
    message = (
        f"Session '{session}' is not encrypted, and the store was opened with a key: export it without the key,"
        " and import it into a new store with the key"
    )
    return HoldfastError(Fault.of("SESS_KEY_WRONG", message, context={"session_id": session}))


def gap(session: str, requested: int, oldest: int, top: int) -> HoldfastError:
    """Return SESS_GAP: the log does not hold the requested entry any more, or not yet."""
    context = {"session_id": session, "requested": requested, "oldest": oldest, "top": top}
    # A client that is ahead has offsets of another log. A client that is behind must reload.
    context["reason"] = "ahead" if requested > top + 1 else "evicted"
    return HoldfastError(Fault.of("SESS_GAP", context=context))


def unavailable(reason: str, **context: object) -> HoldfastError:
    """Return SESS_STORE_UNAVAILABLE: the store itself failed, and a retry may help."""
    return HoldfastError(
        Fault.of("SESS_STORE_UNAVAILABLE", f"The session store failed: {reason}", context={"reason": reason, **context})
    )


def _transition(session: str, state: str, to: SessionState | None, expect: Sequence[SessionState]) -> HoldfastError:
    context = {"session_id": session, "from_state": state, "to_state": to or "written to"}
    if expect:
        context["expected"] = ", ".join(expect)
    return HoldfastError(Fault.of("SESS_ILLEGAL_TRANSITION", context=context))


def _error(code: Code, session: str, **context: object) -> HoldfastError:
    return HoldfastError(Fault.of(code, context={"session_id": session, **context}))
