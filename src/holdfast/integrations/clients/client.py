"""Copies of SDK clients whose `request` is ours. Every API call of either SDK goes through that one public method.

`recover_clients` makes copies that recover. `checked_client` makes a copy for a framework that recovers its own calls. This
copy does not retry. It raises where the SDK would return a failure as an answer, or a broken stream as a complete one.

A copy has the same class as the given client, with three methods of its own on the instance. It is not a subclass, because
the SDKs check the class.

Invariant: nothing changes on the clients that were given. A copy of a copy (`with_options`) recovers or checks too.
"""

from __future__ import annotations

from copy import copy as copy_object
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, TypeVar, get_origin

from holdfast._steps import Steps, finish, finish_async, twin
from holdfast.faults import HoldfastError, InvalidError
from holdfast.integrations.calls import check_after_first
from holdfast.integrations.clients.exchange import Exchange, named_retries, with_limit, without_retries
from holdfast.integrations.clients.plain import PlainCall, with_own_retries
from holdfast.integrations.clients.pool import (
    SENDING,
    ClientPool,
    KeyChoice,
    PoolMember,
    note_limits,
    note_limits_async,
)
from holdfast.integrations.clients.streams import check_end, check_end_async, open_stream
from holdfast.integrations.recovery_warnings import warn, warn_of_sync_hedge, warn_of_transport
from holdfast.policies.pool import check_weights
from holdfast.runtime.ambient import AMBIENT, in_force
from holdfast.runtime.operation.drivers import drive, drive_async
from holdfast.runtime.operation.operation import Operation
from holdfast.runtime.runtime import default_runtime
from holdfast.runtime.secrets import credential_of
from holdfast.runtime.streams.flow import StreamDialect

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.integrations.clients.sdk import Sdk
    from holdfast.policies import Policy
    from holdfast.policies.decide import AfterFirst
    from holdfast.runtime.runtime import Runtime

__all__ = ["checked_client", "recover_clients"]

C = TypeVar("C")

_POOL = "__holdfast_pool__"
_LINES = StreamDialect(timeout_is_silence=True)
"""The dialect of a response that is read line by line."""
_KEYS = ("api_key", "auth_token")
_SDKS = ("anthropic.", "openai.")
_CREDENTIALS = ("api_key", "auth_token", "credentials", "config", "profile", "admin_api_key", "workload_identity")
"""Options of `copy` that replace the key."""


# --- clients that recover ---


def recover_clients(
    clients: Sequence[C],
    *,
    sdk: Sdk,
    policy: Policy | None,
    name: str | None,
    weights: Sequence[float] | None,
    after_first: AfterFirst,
    runtime: Runtime | None,
) -> C:
    """Return a client like the first of `clients`, whose calls recover and are distributed over all of them."""
    given: Sequence[Any] = clients
    _check(given, sdk)
    if name is not None and not name:
        raise InvalidError.at("recovering.name", "a name such as 'anthropic', or None", name)
    check_after_first("recovering", after_first, ("raise", "restart"), None)
    shares = [1.0] * len(clients) if weights is None else weights
    check_weights(shares, len(clients))
    for client in given:
        warn_of_transport(getattr(client._client, "_transport", None))  # noqa: SLF001 - the SDKs have no public name for it
    members = [_member(index, client, several=len(given) > 1) for index, client in enumerate(given)]
    if isinstance(given[0], sdk.sync):
        warn_of_sync_hedge(policy, type(given[0]).__name__)
    provider = name or sdk.name_of(given[0])
    pool = ClientPool(
        members,
        sdk=sdk,
        name=provider,
        policy=policy,
        weights=shares,
        after_first=after_first,
        bare_attempts=1 + max(client.max_retries for client in given),
        runtime=runtime,
    )
    # A policy that is not valid must raise here, where the user wrote it, and not at the first call.
    pool.plan(members[0], "", None)
    recovered: C = _take_over(pool)
    return recovered


def _check(clients: Sequence[Any], sdk: Sdk) -> None:
    for client in clients:
        if not isinstance(client, sdk.sync + sdk.async_):
            raise InvalidError.at("recovering.client", f"a client such as {sdk.sync[0].__name__}", client)
        if _POOL in vars(client):
            raise InvalidError.saying(
                "recovering.client", "a client that does not recover yet", "a client that recovers"
            )
    if len({isinstance(client, sdk.sync) for client in clients}) > 1:
        raise InvalidError.saying("recovering.more", "clients of one kind, sync or async", "clients of both kinds")


def _member(index: int, given: Any, *, several: bool) -> PoolMember:
    client = _same_without_retries(given)
    # A key that is not plain text has no fingerprint. In a pool it still needs a name, for its own circuit.
    credential = credential_of(client) or (f"client-{index + 1}" if several else "")
    member = PoolMember(index, client, credential, given.max_retries)
    member.send = _follow_keys(given, client)
    return member


def _same_without_retries(given: Any) -> Any:
    """Return a client with everything that the given one has, also what its subclass has added, but no retries of its own.

    The SDK's `copy` makes a new client of the options that the SDK knows. It loses all else, and a subclass may need more.
    """
    client = copy_object(given)
    client.max_retries = 0
    for name, value in list(vars(client).items()):
        # Resources hold the client that made them. They are made when they are first used, or in older SDKs with the client.
        if isinstance(getattr(type(client), name, None), cached_property):
            del vars(client)[name]
        elif getattr(value, "_client", None) is given and type(value).__module__.startswith(_SDKS):
            setattr(client, name, type(value)(client))
    return client


def _follow_keys(given: Any, client: Any) -> Callable[..., Any]:
    """Return the client's `request`, which uses a key that was rotated on the given client."""
    send, seen = client.request, {name: getattr(given, name, None) for name in _KEYS}

    def request(*args: Any, **kwargs: Any) -> Any:
        for name, before in seen.items():
            if (now := getattr(given, name, None)) is not before:
                seen[name] = now
                setattr(client, name, now)
        return send(*args, **kwargs)

    return request


def _take_over(pool: ClientPool, index: int = 0) -> Any:
    """Give every member of the pool the methods that make it recover; return the client at `index`.

    All of them need the methods: an object in an answer, such as a page, makes its next request with the client that
    received the answer.
    """
    head = pool.members[index].client
    is_sync = isinstance(head, pool.sdk.sync)
    for member in pool.members:
        client = member.client
        client.request = _request(pool, member, is_sync=is_sync)
        client.copy = client.with_options = _copy(pool, member)
        setattr(client, _POOL, pool)
        _add_hook(client, note_limits if is_sync else note_limits_async)
    # The caller has only the first client, so closing it closes them all.
    if pool.several:
        head.close = twin(partial(_close, pool), is_sync=is_sync)
    return head


def _add_hook(client: Any, hook: Callable[[Any], Any]) -> None:
    hooks = client._client.event_hooks["response"]  # noqa: SLF001 - the client's HTTP client has no public name
    if hook not in hooks:
        hooks.append(hook)


def _request(pool: ClientPool, first: PoolMember, *, is_sync: bool) -> Callable[..., Any]:
    """Return the `request` of a client that recovers."""
    blocks, drives = (finish, drive) if is_sync else (finish_async, drive_async)

    def steps(cast_to: Any, options: Any, *, stream: bool = False, stream_cls: Any = None) -> Steps[Any]:
        keys = KeyChoice(pool, first, without_retries(first.client, options), named_retries(options))
        if keys.plan().off:
            plain = PlainCall(keys, _dialect(pool.sdk, cast_to), cast_to, options)
            return (yield blocks(plain.steps(is_sync=is_sync, stream=stream, stream_cls=stream_cls)))

        def sent(op: Operation) -> Steps[Any]:
            member, given = keys.member, keys.options
            # The variable is set for this request only. A response to a nested call must not count for this key.
            token = SENDING.set(keys.sends(op if is_sync else None))
            try:
                if is_sync:
                    given = with_limit(op.limit(), given, member.client)
                return keys.received((yield member.send(cast_to, given, stream=stream, stream_cls=stream_cls)), op)
            finally:
                SENDING.reset(token)
                keys.ends()

        def send(op: Operation) -> Any:
            return blocks(sent(op))

        exchange = partial(_exchange, keys, cast_to)
        if stream:
            dialect = keys.request_usage(_dialect(pool.sdk, cast_to))
            return (yield from open_stream(keys.stream_of(dialect), send, exchange, is_sync=is_sync))
        op = Operation(keys.plan(), keys)

        def attempt() -> Steps[Any]:
            response = yield from sent(op)
            return (yield from exchange().checked(response))

        try:
            return (yield drives(op, lambda: blocks(attempt()), (), {}))
        except HoldfastError as error:
            exchange().make_sdk_error(error)
            raise

    return twin(steps, is_sync=is_sync)


def _dialect(sdk: Sdk, cast_to: Any) -> StreamDialect:
    # The results of a batch are lines, one for each request. They have no last event, so any end is complete.
    return _LINES if hasattr(get_origin(cast_to), "__decode__") else sdk.events


def _exchange(keys: KeyChoice, cast_to: Any) -> Exchange:
    return Exchange(keys.pool.sdk, keys.member.client, cast_to, keys.options)


def _copy(pool: ClientPool, member: PoolMember) -> Callable[..., Any]:
    def copy(**changes: Any) -> Any:
        """Return a client with some options changed. They apply to all clients of a pool. A new key makes a pool of one."""
        if changes.get("max_retries"):
            warn(
                "the policy decides about retries of calls to models, so max_retries stays 0: "
                "give `recovering` a policy with attempts=…"
            )
        given = changes.pop("max_retries", None)
        given = given if isinstance(given, int) else None
        if any(changes.get(option) for option in _CREDENTIALS):
            # A client with another key shares no limits, pauses or circuits with the pool.
            one = _changed(member, changes, given)
            alone = pool.of_one(PoolMember(0, one.client, credential_of(one.client), one.retries))
            return _take_over(alone.with_retries(given))
        changed = pool.like([_changed(one, changes, given) for one in pool.members])
        return _take_over(changed.with_retries(given), member.index)

    return copy


def _changed(member: PoolMember, changes: dict[str, Any], given: int | None) -> PoolMember:
    """Return a member with a changed copy of its client. `given` are the retries that it has while recovery is off."""
    client = type(member.client).copy(member.client, max_retries=0, **changes)
    return PoolMember(member.index, client, member.credential, member.retries if given is None else given)


def _close(pool: ClientPool) -> Steps[None]:
    for member in pool.members:
        yield type(member.client).close(member.client)


# --- clients for frameworks, which do the recovery themselves ---


def checked_client(client: C, sdk: Sdk, runtime: Runtime | None = None, retries: int | None = None) -> C:
    """Return a client like `client` without retries. It raises for failures that the SDK would return as answers.

    To a framework, a stream that ends in the middle of a tool call looks complete, and an error with status 200 looks like
    an answer without content. Only the client can see the difference. While recovery is off in `runtime`, or in the default
    runtime, answers pass unchecked, and the client retries by itself: as often as `retries` says, by default as `client` does.
    """
    own: int = client.max_retries if retries is None else retries  # type: ignore[attr-defined] # as below
    checked: Any = _same_without_retries(client)
    own_copy = checked.copy

    def copy(**changes: Any) -> Any:
        # Frameworks sometimes make a copy without retries for one call. This client has no retries already.
        return checked if changes == {"max_retries": 0} else checked_client(own_copy(**changes), sdk, runtime, own)

    checked.request = twin(_checked_request(checked, sdk, runtime, own), is_sync=isinstance(checked, sdk.sync))
    checked.copy = checked.with_options = copy
    result: C = checked
    return result


def _checked_request(client: Any, sdk: Sdk, runtime: Runtime | None, retries: int) -> Callable[..., Steps[Any]]:
    send, check = client.request, check_end if isinstance(client, sdk.sync) else check_end_async

    def steps(cast_to: Any, options: Any, **how: Any) -> Steps[Any]:
        if not _recovers(runtime):
            return (yield send(cast_to, with_own_retries(options, retries), **how))
        answer = yield send(cast_to, options, **how)
        if check(answer, _dialect(sdk, cast_to)):
            return answer
        return (yield from Exchange(sdk, client, cast_to, options).checked(answer))

    return steps


def _recovers(runtime: Runtime | None) -> bool:
    """Whether the framework's call that sends a request now recovers. The client does not know its target."""
    runtime = runtime or default_runtime()
    if not runtime.has_own_modes:
        return runtime.mode == "recover"
    # A plain call is no scope, so an operation is in force here only if it recovers.
    op = in_force(AMBIENT.get())
    return isinstance(op, Operation) and op.adapter is not None
