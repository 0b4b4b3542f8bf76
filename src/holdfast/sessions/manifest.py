"""The manifest of a session: what it was started with, and how that differs when it is resumed.

Invariant: fields are compared one by one, and a field that one side lacks is no difference. Only the policy decides whether the
session can be resumed in spite of a difference. A session is made with its manifest, once, whoever opens it first.
"""

from __future__ import annotations

import warnings
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

from holdfast import options
from holdfast.faults import Fault, HoldfastError, InvalidError
from holdfast.sessions import machine
from holdfast.sessions.journal import audit
from holdfast.stores import NewSession, SessionState
from holdfast.stores.encryption import sealed_manifest
from holdfast.stores.errors import wrong_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from holdfast.sessions.journal import Journal
    from holdfast.stores import Store

__all__ = [
    "Drift",
    "DriftPolicy",
    "DriftWarning",
    "Manifest",
    "allowed_names",
    "check_options",
    "check_resumable",
    "compare",
    "decode_manifest",
    "drift",
    "drift_error",
    "encode_manifest",
    "find_or_make",
    "loses_with_epoch",
    "manifest_fields",
    "mismatch",
    "set_back_since",
]

DriftPolicy: TypeAlias = Literal["warn", "refuse", "accept"]
"""What happens if a session is resumed with other settings than it was started with."""

# The other fields (dates, ids, state) always differ, and do not affect the work of the session.
_COMPARED = ("project_root", "mode", "allowed_tools", "model", "config", "tools", "store_epoch")


class Manifest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """What a session was started with: project, mode, model, settings and tools.

    It holds no secret, because it contains only hashes of settings and tool schemas. `Session.open` makes it with
    `Manifest.hash_of`.
    """

    session_id: str
    store_id: str
    """The store that holds the session."""
    created_at: float = 0.0
    """Wall clock of the session's runtime."""
    updated_at: float = 0.0
    project_root: str | None = None
    mode: Literal["ask", "yolo", "allowlist"] = "ask"
    """Which tool calls of an agent run: with `ask` a person is asked about unsafe ones, with `allowlist` only the tools of a list run,
    with `yolo` all. With `yolo` questions get automatic answers, too, if nobody is attached.
    """
    allowed_tools: tuple[str, ...] | None = None
    """The names of the tools that mode `allowlist` lets run; None in the other modes."""
    model: str | None = None
    config: str | None = None
    """The hash of the settings."""
    tools: dict[str, str] | None = None
    """Each tool's name, and the hash of its schema. Empty means no tools; None means that nobody named them."""
    resumable: bool = True
    agent_type: str = ""
    """The kind of agent, for bridge clients (`agentType`)."""
    title: str = ""
    """What people call the session."""
    sm_state: dict[str, str] | None = None
    """A state machine that drives the session: `smExtId` and `stateSlotRef`."""
    store_epoch: str | None = None
    """The epoch of the store when the session was resumed last. Another one now: the store was set back, or moved, since. None: it has none."""
    parked_until: float | None = None
    """When the first of the runs that are parked goes on (wall clock); None: none is parked."""

    @staticmethod
    def hash_of(value: Any) -> str:
        """Return the hash by which settings or a tool's schema are compared: `Manifest.hash_of({"effort": "high"})`."""
        return sha256(msgspec.json.encode(value, order="deterministic")).hexdigest()[:32]


class DriftWarning(UserWarning):
    """A session was resumed with other tools, another model or other settings than it was started with.

    `Session.open(on_drift="refuse")` makes it an error, `"accept"` stores the new values without a warning.
    """


class Drift(msgspec.Struct, frozen=True, kw_only=True):
    """One field of a manifest that differs, with its old and new value: `print(*session.drift)`."""

    field: str
    was: str | None
    now: str | None

    def __str__(self) -> str:
        if self.field == "store_epoch":
            return (
                "the store was set back to an earlier state, or another server took over, since the session ran: the end of its log may be"
                f" missing, and steps that ran may run again ({self.was} is {self.now} now). To resume it nevertheless: on_drift='accept', or"
                " holdfast sessions resume ID --accept-set-back"
            )
        return f"{self.field} was {self.was or 'not set'}, is {self.now or 'not set'}"


def manifest_fields(*, config: Any, tools: dict[str, Any] | None, **fields: Any) -> dict[str, Any]:
    """Return what a session is started with, with hashes of the config and of each tool's schema."""
    return fields | {
        "config": None if config is None else Manifest.hash_of(config),
        "tools": None if tools is None else {name: Manifest.hash_of(schema) for name, schema in tools.items()},
    }


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the manifest's JSON, keys in order."""
    return msgspec.json.encode(manifest, order="sorted")


def decode_manifest(session: str, stored: bytes) -> Manifest:
    """Return a stored manifest.

    Raise SESS_MANIFEST_INVALID if it cannot be decoded, SESS_KEY_WRONG if it is encrypted and the store has no key for it, and
    SESS_MANIFEST_DRIFT if it names no store (N2-12).
    """
    if (sealed := sealed_manifest(stored)) is not None:
        raise wrong_key(session, sealed.key, ())
    try:
        manifest = msgspec.json.decode(stored, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        message = f"Session '{session}' has a manifest that cannot be read: {error}"
        context = {"session_id": session, "reason": str(error)}
        raise HoldfastError(Fault.of("SESS_MANIFEST_INVALID", message, context=context)) from error
    if not manifest.store_id:
        raise drift_error(session, (Drift(field="storeId", was=None, now=None),))
    return manifest


def drift(was: Manifest, now: Manifest) -> tuple[Drift, ...]:
    """Return every field in which two manifests differ. A field that one of them lacks is no difference."""
    found: list[Drift] = []
    for field in _COMPARED:
        before, after = getattr(was, field), getattr(now, field)
        if field == "tools":
            found += _tools(before, after)
        elif before is not None and after is not None and before != after:
            found.append(Drift(field=field, was=str(before), now=str(after)))
    return tuple(found)


def mismatch(session: str, manifest: Manifest, store: str) -> HoldfastError | None:
    """Return the error of a session that belongs to another store (B101)."""
    if manifest.store_id == store:
        return None
    context = {"session_id": session, "expected": manifest.store_id, "received": store}
    return HoldfastError(Fault.of("SESS_RESUME_MISMATCH", context=context))


def drift_error(session: str, fields: tuple[Drift, ...]) -> HoldfastError:
    """Return SESS_MANIFEST_DRIFT with these fields."""
    summary = "; ".join(str(field) for field in fields)
    changes = [msgspec.to_builtins(field) for field in fields]
    context = {"session_id": session, "fields": summary, "drift": changes}
    return HoldfastError(Fault.of("SESS_MANIFEST_DRIFT", context=context))


async def find_or_make(journal: Journal, first: Callable[[], Manifest], *, strict: bool, on_crash: str) -> None:
    """Make the session of the journal with its first manifest, if it does not exist. Raise if it can be neither made nor resumed."""
    session = journal.session
    try:
        record = await journal.store.session(session)
    except HoldfastError as error:
        if error.fault.code != "SESS_NOT_FOUND" or strict:
            raise
        return await _make(journal, first())
    manifest = decode_manifest(session, bytes(record.manifest))
    # `strict` only resumes. A session that was created but never used has nothing to resume.
    usable = {SessionState.ACTIVE} if strict else {SessionState.ACTIVE, SessionState.CREATED}
    if record.state not in usable:
        # An active session is checked after we own it, because another process may still work in it.
        check_resumable(session, record.state, manifest)
    if strict and on_crash == "abandon" and record.checkpoint is None:
        raise HoldfastError(Fault.of("SESS_NO_SNAPSHOT", context={"session_id": session}))
    return None


async def _make(journal: Journal, manifest: Manifest) -> None:
    made = audit("SessionLifecycle", journal.session, state="created")
    try:
        await journal.write(create=NewSession(manifest=encode_manifest(manifest)), audit=(made,))
    except HoldfastError as error:
        # Another process created it meanwhile. The lease decides who works in it.
        if error.fault.code != "SESS_ILLEGAL_TRANSITION":
            raise


def check_resumable(session: str, state: SessionState, manifest: Manifest) -> None:
    """Raise the error of a session that cannot be resumed."""
    error = machine.not_resumable(session, state, resumable=manifest.resumable)
    if error is not None:
        raise error


async def compare(journal: Journal, was: Manifest, now: Manifest, policy: DriftPolicy) -> tuple[Drift, ...]:
    """Return the fields that differ, after doing what the policy says: warn, or store the new values.

    Raise SESS_MANIFEST_DRIFT with the policy `refuse`, and SESS_RESUME_MISMATCH if the session belongs to another store.
    """
    error = mismatch(journal.session, was, now.store_id)
    if error is not None:
        raise error
    fields = drift(was, now)
    kept = msgspec.structs.replace(was, store_epoch=now.store_epoch)
    if not fields:
        if kept != was:
            await journal.write(manifest=encode_manifest(kept))
        return ()
    if was.store_epoch and was.store_epoch != now.store_epoch and policy == "warn" and loses_with_epoch(journal.store):
        # It is no difference in settings: what the session has done is not known any more.
        policy = "refuse"
    record = audit("Integrity", journal.session, drift=[str(field) for field in fields], policy=policy)
    if policy == "refuse":
        error = drift_error(journal.session, fields)
        try:
            await journal.write(audit=(record,))
        except HoldfastError as unsaved:
            error.add_note(f"and it could not be recorded: {unsaved}")
        raise error
    if policy == "warn":
        # The warning must point to the application's `async with`, five frames up (compare, _open, _enter, __aenter__).
        warnings.warn(f"session {journal.session}: {'; '.join(map(str, fields))}", DriftWarning, stacklevel=5)
        await journal.write(audit=(record,), manifest=None if kept == was else encode_manifest(kept))
    else:
        # The session keeps its creation date, its title and its state machine.
        kept = msgspec.structs.replace(
            now,
            created_at=was.created_at,
            title=was.title,
            sm_state=was.sm_state,
            parked_until=was.parked_until,
        )
        await journal.write(audit=(record,), manifest=encode_manifest(kept))
    return fields


def set_back_since(manifest: Manifest, store: Store) -> Drift | None:
    """Return the difference between the store's epoch and that of the session's last run, or None."""
    epoch: str | None = getattr(store, "epoch", None)
    if not manifest.store_epoch or not epoch or manifest.store_epoch == epoch:
        return None
    return Drift(field="store_epoch", was=manifest.store_epoch, now=epoch)


def loses_with_epoch(store: Store) -> bool:
    """Whether another epoch of the store proves that entries were lost. On a server, another one may have taken over without a loss."""
    return bool(getattr(store, "loses_with_epoch", False))


def _tools(was: dict[str, str] | None, now: dict[str, str] | None) -> list[Drift]:
    # Nobody named the tools on one side, which is no difference. Having no tools is one.
    if was is None or now is None:
        return []
    changed = sorted(name for name in was.keys() | now.keys() if was.get(name) != now.get(name))
    return [Drift(field=f"tools.{name}", was=was.get(name), now=now.get(name)) for name in changed]


def allowed_names(mode: str, given: Iterable[Any] | None) -> tuple[str, ...] | None:
    """Return the list of allowed tools as the manifest has it. The order means nothing, so it must be no difference."""
    if given is None:
        return None
    names = (given,) if isinstance(given, str) else tuple(given)
    if isinstance(given, str) or not all(isinstance(name, str) and name for name in names):
        # Python would take a plain string as the list of its letters.
        raise InvalidError.at("session.allowed_tools", "a list of names of tools", given)
    if mode != "allowlist":
        # Ignoring the list would let tools run that its author did not mean.
        raise InvalidError.saying("session.allowed_tools", 'a list only with mode="allowlist"', f"mode={mode!r}")
    return tuple(sorted(set(names)))


def check_options(mode: str, on_drift: str, on_crash: str, lease: float, wait: float, *, threads: bool) -> None:
    """Raise `InvalidError` for an option that no session has."""
    options.one_of("session.on_drift", on_drift, ("warn", "refuse", "accept"))
    options.one_of("session.on_crash", on_crash, ("resume", "abandon"))
    options.one_of("session.mode", mode, ("ask", "allowlist", "yolo"))
    options.seconds("session.lease", lease)
    options.seconds("session.wait", wait, zero=True)
    options.flag("session.threads", threads)
