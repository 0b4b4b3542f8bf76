"""`open_store`: a store by its address, and the default address.

    memory:                                in this process, lost when it ends
    sqlite:PATH, or a path                 one file; sqlite:PATH?durability=fast, sqlite:PATH?mode=ro, sqlite:PATH?busy=60
    postgresql://user@host/db?schema=NAME  a schema on a server; ?pool=transaction behind a pooler; others as in PostgreSQL

Each of them with `?key_env=NAME` is encrypted with the key in that environment variable; `?key_env=NEW,OLD` also reads what the old
key encrypted.

Invariant: no message shows a whole address, because it may hold a password.
"""

from __future__ import annotations

import os
import re
import shlex
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from holdfast import options
from holdfast.extras import needs_extra
from holdfast.faults import InvalidError
from holdfast.stores.encryption import EncryptedStore, key_from_env
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite import SqliteStore

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.clock import Clock
    from holdfast.faults import Redactor
    from holdfast.stores.store import Store

_EXPECTED = "memory:, sqlite:PATH, a path or postgresql://…"
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):")
_PARAMETERS = re.compile(r"\?(\w+=[^?/]*)\Z")
_KNOWN = ("durability", "mode", "busy")
_OF_POSTGRES = ("schema", "pool")
_KEY_ENV = re.compile(r"([?&])key_env=([A-Za-z0-9_,]*)(?=&|\Z)")


@options.suggests
def open_store(url: str | Path | None = None, *, clock: Clock | None = None, redactor: Redactor | None = None) -> Store:
    """Return the store at an address, by default at `default_url()`. Open it with `async with`.

        async with open_store("sqlite:work.db") as store:
            print(await store.sessions())

    With `?key_env=NAME` in the address the store is encrypted: see `EncryptedStore`. `clock` replaces the store's own clock. `redactor` knows the secrets that must not be stored; by default those of the process.
    Raises `InvalidError` for an unknown kind of address, and SYS_DEPENDENCY_MISSING without the PostgreSQL driver.
    """
    where = default_url() if url is None else str(url)
    given: dict[str, Any] = {"clock": clock, "redactor": redactor}
    # A Path is never parsed, because a file may be called `memory:`.
    if isinstance(url, Path):
        return SqliteStore(url, **given)
    where, names = _without_key(where)
    store = _plain_store(where, given)
    if names is None:
        return store
    keys = key_from_env(names)
    if not keys:
        raise InvalidError.saying("store", "the name of an environment variable after key_env=", "none")
    return EncryptedStore(store, keys[0], old_keys=keys[1:], redactor=redactor)


def _plain_store(where: str, given: dict[str, Any]) -> Store:
    match = _SCHEME.match(where)
    scheme = match[1].lower() if match else ""
    if scheme in {"postgresql", "postgres"}:
        return _postgres(where, given)
    if where == "memory:":
        return MemoryStore(**given)
    # A single letter before a colon is a Windows drive, not a scheme.
    if scheme in {"", "sqlite"} and where and not where.startswith("sqlite://"):
        return _sqlite(where.removeprefix("sqlite:"), given)
    if scheme == "sqlite":
        # This is SQLAlchemy's form, in which three slashes mean a relative path and four an absolute path. Do not guess.
        expected = "sqlite:PATH without //: sqlite:work.db, or sqlite:/srv/work.db"
        raise InvalidError.saying("store", expected, repr(where))
    raise InvalidError.saying("store", _EXPECTED, repr(shown(where)))


def default_url(environ: Mapping[str, str] | None = None) -> str:
    """Return `HOLDFAST_STORE`, or the file `holdfast/holdfast.db` in the user's state folder (`XDG_STATE_HOME`).

    `Session.open("release-42", store=default_url())` is the same as `Session.open("release-42")`.
    """
    environ = os.environ if environ is None else environ
    named = environ.get("HOLDFAST_STORE", "").strip()
    if named:
        return named
    state = environ.get("XDG_STATE_HOME", "")
    # The XDG specification says to ignore a relative path.
    folder = Path(state) if Path(state).is_absolute() else Path.home() / ".local" / "state"
    return f"sqlite:{folder / 'holdfast' / 'holdfast.db'}"


def cli_option(store: Store) -> str:
    """Return the option with which the command line finds a store, after a space; empty where it finds it by itself."""
    url = default_url()
    path = getattr(store, "path", None)
    if isinstance(path, Path):
        place = url.removeprefix("sqlite:").partition("?")[0]
        return (
            ""
            if path.absolute() == Path(place).expanduser().absolute()
            else f" --store {shlex.quote(f'sqlite:{path.absolute()}')}"
        )
    # The address of a server holds a password. One in memory cannot be reached from outside.
    is_known = isinstance(store, MemoryStore) or url.startswith(("postgresql:", "postgres:"))
    return "" if is_known else " --store ADDRESS"


def shown(url: str) -> str:
    """Return an address without user, password and parameters, to show it to people."""
    scheme = _SCHEME.match(url)
    if scheme is None or scheme[1].lower() == "sqlite" or url == "memory:":
        return url
    _, found, rest = url.partition("://")
    if not found:
        return f"{scheme[1]}:…"
    place = rest.partition("?")[0].rpartition("@")[2]
    return f"{scheme[1]}://{place}"


def _without_key(url: str) -> tuple[str, str | None]:
    """Return an address without its parameter `key_env`, and the value of that."""
    found = _KEY_ENV.search(url)
    if found is None:
        return url, None
    before, after = url[: found.start()], url[found.end() :]
    # The next parameter may have become the first.
    return before + (found[1] + after[1:] if after else ""), found[2]


def _sqlite(path: str, given: dict[str, Any]) -> Store:
    # A file name may contain `?`, but not with a parameter after it. A typing error must not create a file of that name.
    if (found := _PARAMETERS.search(path)) is not None:
        path, parameters = path[: found.start()], parse_qsl(found[1], keep_blank_values=True)
        for name, value in parameters:
            if name not in _KNOWN:
                expected = f"one of the parameters {', '.join((*_KNOWN, 'key_env'))} (give a Path for a file with ? in its name)"
                raise InvalidError.saying("store", expected, name)
            given = {**given, name: _seconds(value) if name == "busy" else value}
    if not path:
        raise InvalidError.saying("store", "a path after sqlite:", "no path")
    return SqliteStore(Path(path).expanduser(), **given)


def _seconds(value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise InvalidError.saying("store", "a number of seconds after busy=", repr(value)) from None


def _postgres(url: str, given: dict[str, Any]) -> Store:
    try:
        parts = urlsplit(url)
    except ValueError:
        # Raise without the cause, because its message repeats the address, which may hold a password.
        raise InvalidError.saying("store", _EXPECTED, "an address that cannot be read") from None
    parameters = parse_qsl(parts.query, keep_blank_values=True)
    ours = {name: value for name, value in parameters if name in _OF_POSTGRES}
    # PostgreSQL does not know these parameters and would reject the whole address.
    if ours:
        rest = urlencode([pair for pair in parameters if pair[0] not in ours], safe="/")
        url, given = urlunsplit(parts._replace(query=rest)), {**given, **ours}
    # Each by itself, so that the message names the one that is missing.
    for package in ("psycopg", "psycopg_pool"):
        with needs_extra("a store on PostgreSQL", package.replace("_", "-"), "postgres"):
            import_module(package)
    with needs_extra("a store on PostgreSQL", "psycopg", "postgres"):
        module = import_module("holdfast.stores.postgres")
    store: Store = module.PostgresStore(url, **given)
    return store
