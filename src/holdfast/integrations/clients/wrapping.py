"""Clones of the clients whose `request` recovers. Every API call of either SDK goes through that one public method.

The clone is of the very class that was given, with three methods of its own set on the instance: a subclass would be
another type to code that asks for it, and the SDKs do.

Invariant: nothing changes on the clients that were given; copies of a clone (`with_options`) recover as it does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.faults import InvalidError
from holdfast.integrations.clients.answers import Asked
from holdfast.integrations.clients.operation import ClientOperation, StreamOperation
from holdfast.integrations.clients.pool import ASKING, Member, Pool, listen, listen_async
from holdfast.integrations.clients.requests import copied, limited_to
from holdfast.integrations.clients.streams import open_stream, open_stream_async
from holdfast.integrations.recovery_warning import warn, warn_of_transport
from holdfast.policies.pool import check_weights
from holdfast.runtime.credentials import credential_of
from holdfast.runtime.drivers import drive, drive_async
from holdfast.runtime.surroundings import Surroundings

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.integrations.clients.dialect import Dialect
    from holdfast.policies import Policy
    from holdfast.runtime.runtime import Runtime

__all__ = ["recover_clients"]

C = TypeVar("C")

_POOL = "__holdfast_pool__"
_CREDENTIALS = ("api_key", "auth_token", "credentials", "config", "profile", "admin_api_key", "workload_identity")
"""Options of `copy` that put another key in place."""


def recover_clients(
    clients: Sequence[C],
    *,
    dialect: Dialect,
    policy: Policy | None,
    name: str | None,
    weights: Sequence[float] | None,
    runtime: Runtime | None,
) -> C:
    """Return a client like the first of `clients`, whose calls recover and are shared out over all of them."""
    given: Sequence[Any] = clients
    _check(given, dialect)
    if name is not None and not name:
        raise InvalidError.at("recovering.name", "a name such as 'anthropic', or None", name)
    shares = [1.0] * len(clients) if weights is None else weights
    check_weights(shares, len(clients))
    for client in given:
        warn_of_transport(getattr(client._client, "_transport", None), above=1)  # noqa: SLF001 - nowhere else to see it
    clones = [type(client).copy(client, max_retries=0) for client in given]
    members = [_member(index, clone, several=len(clones) > 1) for index, clone in enumerate(clones)]
    called = name or _name_of(given[0], dialect)
    pool = Pool(members, dialect=dialect, name=called, policy=policy, weights=shares, runtime=runtime)
    pool.plan(members[0], "", None)  # a policy that cannot be had is told here, not at the first call
    recovered: C = _take_over(pool)
    return recovered


def _check(clients: Sequence[Any], dialect: Dialect) -> None:
    kinds = (dialect.sync, dialect.async_)
    for client in clients:
        if not isinstance(client, dialect.sync + dialect.async_):
            raise InvalidError.at("recovering.client", f"a client such as {dialect.sync[0].__name__}", client)
        if _POOL in vars(client):
            raise InvalidError.saying("recovering.client", "a client that does not recover yet", "one that does")
    if len({isinstance(client, kinds[0]) for client in clients}) > 1:
        raise InvalidError.saying("recovering.more", "clients of one kind, sync or async", "both")


def _member(index: int, clone: Any, *, several: bool) -> Member:
    credential = credential_of(clone) or (f"client-{index + 1}" if several else "")
    return Member(index, clone, credential, clone.request)


def _name_of(client: Any, dialect: Dialect) -> str:
    host = client.base_url.host
    return dialect.names.get(host, host)


def _take_over(pool: Pool, index: int = 0) -> Any:
    """Give every member of the pool the methods that make it recover; return the one at `index`.

    All of them, since what an answer carries (the next page, say) is asked for from the client that gave the answer.
    """
    head = pool.members[index].client
    is_sync = isinstance(head, pool.dialect.sync)
    for member in pool.members:
        client = member.client
        client.request = _request(pool, member) if is_sync else _request_async(pool, member)
        client.copy = client.with_options = _copy(pool, member)
        setattr(client, _POOL, pool)
        if pool.several:
            _listen_to(client, listen if is_sync else listen_async)
    if pool.several:
        head.close = _close(pool) if is_sync else _close_async(pool)
    return head


def _listen_to(client: Any, hook: Callable[[Any], Any]) -> None:
    hooks = client._client.event_hooks["response"]  # noqa: SLF001 - the client's HTTP client has no public name
    if hook not in hooks:
        hooks.append(hook)


def _request(pool: Pool, first: Member) -> Callable[..., Any]:
    def request(cast_to: Any, options: Any, *, stream: bool = False, stream_cls: Any = None) -> Any:
        if pool.plan(first, "", None).off:
            return first.send(cast_to, options, stream=stream, stream_cls=stream_cls)
        options = copied(first.client, options)
        op = (StreamOperation if stream else ClientOperation)(pool, first, options)

        def attempt() -> Any:
            tokens = (*op.surround(), ASKING.set((pool, op.member.index)))
            try:
                sent = limited_to(op.limit(), options, op.member.client)
                answer = op.member.send(cast_to, sent, stream=stream, stream_cls=stream_cls)
                if isinstance(op, StreamOperation):
                    return open_stream(op, answer)
                return Asked(pool.dialect, op.member.client, cast_to, options).checked(answer)
            finally:
                Surroundings.leave(tokens)

        return drive(op, attempt, (), {})

    return request


def _request_async(pool: Pool, first: Member) -> Callable[..., Any]:
    async def request(cast_to: Any, options: Any, *, stream: bool = False, stream_cls: Any = None) -> Any:
        if pool.plan(first, "", None).off:
            return await first.send(cast_to, options, stream=stream, stream_cls=stream_cls)
        options = copied(first.client, options)
        op = (StreamOperation if stream else ClientOperation)(pool, first, options)

        async def attempt() -> Any:
            tokens = (*op.surround(), ASKING.set((pool, op.member.index)))
            try:
                answer = await op.member.send(cast_to, options, stream=stream, stream_cls=stream_cls)
                if isinstance(op, StreamOperation):
                    return await open_stream_async(op, answer)
                return await Asked(pool.dialect, op.member.client, cast_to, options).checked_async(answer)
            finally:
                Surroundings.leave(tokens)

        return await drive_async(op, attempt, (), {})

    return request


def _copy(pool: Pool, member: Member) -> Callable[..., Any]:
    def copy(**changes: Any) -> Any:
        """Return a client with some options changed; all clients of a pool have them, except a key, which is one's own."""
        if changes.get("max_retries"):
            warn("retries are the policy's here, so max_retries stays 0: give `recovering` a policy with attempts=…")
        changes["max_retries"] = 0
        if any(changes.get(option) for option in _CREDENTIALS):
            clone = type(member.client).copy(member.client, **changes)
            return _take_over(pool.of_one(Member(0, clone, credential_of(clone), clone.request)))
        return _take_over(pool.like([_clone(one, changes) for one in pool.members]), member.index)

    return copy


def _clone(member: Member, changes: dict[str, Any]) -> Member:
    clone = type(member.client).copy(member.client, **changes)
    return Member(member.index, clone, member.credential, clone.request)


def _close(pool: Pool) -> Callable[[], None]:
    def close() -> None:
        for member in pool.members:
            type(member.client).close(member.client)

    return close


def _close_async(pool: Pool) -> Callable[[], Any]:
    async def close() -> None:
        for member in pool.members:
            await type(member.client).close(member.client)

    return close
