"""`BridgeSettings`: every option of the server, checked, and what it refuses to start with.

    settings = BridgeSettings.from_env({"PORT": "3000", "BRIDGE_TOKEN": "…", "HOOK_TOKEN": "…"})
    settings = BridgeSettings(host="0.0.0.0", tls_cert=cert, tls_key=key, allowed_hosts=("bridge.example",))

Invariant: a server that others can reach runs with TLS and tokens, or not at all. Somebody who wants it otherwise writes `insecure`.
"""

from __future__ import annotations

import ipaddress
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from holdfast import options
from holdfast.bridge.access.lockout import LockoutLimits
from holdfast.bridge.access.private_files import state_folder
from holdfast.faults import Fault, HoldfastError, InvalidError
from holdfast.wire.bridge_options import BridgeOptions, OnGraceExpiry
from holdfast.wire.server import ServerLimits

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from holdfast.bridge.access.identity import TokenKind
    from holdfast.policies.profiles import ProfileName

__all__ = ["PROFILE_BRIDGE", "BridgeSettings", "OnGraceExpiry", "is_loopback"]

_LEAST_GIVEN = 32
"""Characters of a token in the settings of a server that others can reach. `openssl rand -hex 32` makes 64."""
_NAMES = ("allowed_hosts", "allowed_origins", "trusted_proxies")


class BridgeSettings(BridgeOptions, frozen=True, kw_only=True, omit_defaults=True, repr_omit_defaults=True):
    """The options of a bridge. Wrong ones raise `InvalidError`; `check_start` says what is missing to start.

    For example:
        BridgeSettings(port=4000, grace=600).replace(max_sessions=20)
    """

    # --- who may come ---
    tls_cert: Path | None = None
    """The certificate and its chain as PEM; `holdfast tls create` makes one."""
    tls_key: Path | None = None
    """Its private key as PEM, with mode 600."""
    insecure: bool = False
    """Start without TLS or tokens although others can reach the server. Only for tests, or behind a proxy that has TLS."""
    allowed_hosts: tuple[str, ...] = ()
    """The names under which clients reach it, besides `host` and those of loopback: against DNS rebinding."""
    allowed_origins: tuple[str, ...] = ()
    """The pages of other servers that may connect: `https://example.org:8443`, exactly."""
    trusted_proxies: tuple[str, ...] = ()
    """Addresses and networks whose `X-Forwarded-For` and `X-Forwarded-Proto` are believed."""

    # --- tokens ---
    tokens_file: Path | None = None
    """Where tokens are kept; by default `tokens.json` in the bridge's state folder."""
    bridge_token: str | None = None
    """A device token from the settings. None: those of `holdfast tokens`; on loopback one is made if there is none."""
    hook_token: str | None = None
    metrics_token: str | None = None
    admin_token: str | None = None
    lockout: LockoutLimits = LockoutLimits()
    """What slows down whoever guesses tokens."""

    project_root: Path | None = None
    """The folder whose files clients may read. None: on loopback the current folder, otherwise none may be read."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in _NAMES:
            _check_names(f"bridge.{name}", getattr(self, name))
        options.flag("bridge.insecure", self.insecure)
        if (self.tls_cert is None) != (self.tls_key is None):
            missing = "tls_key" if self.tls_key is None else "tls_cert"
            raise InvalidError.saying(f"bridge.{missing}", "the other half of the pair tls_cert and tls_key", "nothing")
        for network in self.trusted_proxies:
            _check_network("bridge.trusted_proxies", network)
        for origin in self.allowed_origins:
            _check_origin("bridge.allowed_origins", origin)

    def __repr__(self) -> str:
        # Logs and test reports print settings, so the tokens in them are left out.
        kept = {name: getattr(self, name) for name in self.__struct_fields__ if not name.endswith("_token")}
        defaults = dict(zip(self.__struct_fields__, self.__struct_defaults__, strict=True))
        shown = [f"{name}={value!r}" for name, value in kept.items() if value != defaults[name]]
        shown += [
            f"{name}='[redacted]'" for name in self.__struct_fields__ if name.endswith("_token") and getattr(self, name)
        ]
        return f"BridgeSettings({', '.join(shown)})"

    def replace(self, **changes: Any) -> BridgeSettings:
        """Return the settings with some options changed, checked like new ones."""
        return self._replaced(changes)

    @classmethod
    def from_env(
        cls,
        environ: Mapping[str, str] | None = None,
        *,
        file: BridgeOptions | None = None,
        profile: ProfileName = "holdfast",
        **given: Any,
    ) -> BridgeSettings:
        """Return the settings of the environment. What is `given` comes first, then the environment, the `[bridge]` of a `file`, the profile.

        Read are PORT, HOST, BRIDGE_TOKEN, HOOK_TOKEN, METRICS_TOKEN, ADMIN_TOKEN, ALLOWED_PROJECT_ROOT, TLS_CERT and TLS_KEY, each also with
        HOLDFAST_ before it, which wins. A variable that is set and empty is a mistake, not a missing one: it raises CONFIG_INVALID.
        On an address that others can reach, the certificate of `holdfast tls create` is used if no other is named.
        """
        environ = os.environ if environ is None else environ
        found: dict[str, Any] = {}
        empty: list[str] = []
        for variable, (name, convert) in _ENVIRONMENT.items():
            names = (f"HOLDFAST_{variable}", variable)
            # Kubernetes sets such variables for a service of that name: HOLDFAST_PORT=tcp://10.0.0.1:80.
            chosen = next((each for each in names if each in environ and not environ[each].startswith("tcp://")), None)
            if chosen is None or name in given:
                continue
            if not environ[chosen].strip():
                empty.append(chosen)
            else:
                found[name] = _converted(chosen, environ[chosen].strip(), convert)
        if empty:
            raise _refused([f"{variable} is set, but empty: give it a value, or unset it" for variable in empty])
        written = {} if file is None else msgspec.structs.asdict(file)
        defaults = msgspec.structs.asdict(BridgeOptions())
        written = {name: value for name, value in written.items() if value != defaults[name]}
        settings = cls.of_profile(profile, **{**written, **found, **given})
        own = state_folder(environ) / "tls"
        if settings.is_loopback or settings.has_tls or not (own / "cert.pem").exists():
            return settings
        return settings.replace(tls_cert=own / "cert.pem", tls_key=own / "key.pem")

    @classmethod
    def of_profile(cls, profile: ProfileName, **given: Any) -> BridgeSettings:
        """Return the settings of a profile, with what is `given` in place of its own: `BridgeSettings.of_profile("bridge", port=4000)`."""
        return cls(**{**(PROFILE_BRIDGE if profile == "bridge" else {}), **given})

    @property
    def is_loopback(self) -> bool:
        """Whether only programs on this machine can reach the server."""
        return is_loopback(self.host)

    @property
    def has_tls(self) -> bool:
        """Whether connections are encrypted by the server itself."""
        return self.tls_cert is not None

    @property
    def scheme(self) -> str:
        """The scheme of its pages: `https` or `http`."""
        return "https" if self.has_tls else "http"

    @property
    def tokens_path(self) -> Path:
        """Where tokens are kept."""
        return state_folder() / "tokens.json" if self.tokens_file is None else self.tokens_file

    @property
    def given_tokens(self) -> dict[TokenKind, str]:
        """The tokens that stand in the settings themselves, by kind."""
        all_: dict[TokenKind, str | None] = {
            "device": self.bridge_token,
            "hook": self.hook_token,
            "metrics": self.metrics_token,
            "admin": self.admin_token,
        }
        return {kind: text for kind, text in all_.items() if text is not None}

    @property
    def known_hosts(self) -> frozenset[str]:
        """The host names, without a port, under which requests are taken."""
        own = () if self.host in _EVERYWHERE else (self.host.lower(),)
        return frozenset([*_LOOPBACK_NAMES, *own, *(name.lower() for name in self.allowed_hosts)])

    @property
    def served_root(self) -> Path | None:
        """The folder whose files may be read; None: none."""
        if self.project_root is not None:
            return self.project_root
        return Path.cwd() if self.is_loopback else None

    def check_start(self, tokens: Collection[TokenKind] = ()) -> list[str]:
        """Return warnings for whoever starts the server. `tokens` are the kinds of tokens that are stored already.

        Raises CONFIG_INVALID with everything that is missing.
        """
        wrong = self._empty_tokens()
        if self.project_root is not None and not self.project_root.is_dir():
            wrong.append(f"project_root: there is no folder {self.project_root}")
        exposed = self._exposed(tokens)
        if not self.insecure:
            wrong += exposed
        if wrong:
            raise _refused(wrong)
        return [f"INSECURE, as you asked: {each}" for each in exposed]

    def _empty_tokens(self) -> list[str]:
        empty = [kind for kind, text in self.given_tokens.items() if not text.strip()]
        return [f"the {kind} token is set, but empty: give it a value, or leave it out" for kind in empty]

    def _exposed(self, tokens: Collection[TokenKind]) -> list[str]:
        """Return what is missing for a server that others can reach."""
        if self.is_loopback:
            return []
        at = f"{self.host or 'every address'} can be reached by others"
        missing: list[str] = []
        if not self.has_tls:
            missing.append(f"{at}, and there is no TLS: run `holdfast tls create`, or listen on 127.0.0.1")
        have = {*tokens, *self.given_tokens}
        missing += [
            f"{at}, and there is no {kind} token: run `holdfast tokens create NAME --kind {kind}`, or set {variable}"
            for kind, variable in (("device", "BRIDGE_TOKEN"), ("hook", "HOOK_TOKEN"))
            if kind not in have and not (kind == "device" and "admin" in have)
        ]
        missing += [
            f"{at}, and the {kind} token of the settings is short: use {_LEAST_GIVEN} random characters or more"
            for kind, text in self.given_tokens.items()
            if 0 < len(text.strip()) < _LEAST_GIVEN
        ]
        if self.project_root is None:
            missing.append(f"{at}, and ALLOWED_PROJECT_ROOT is not set: name the folder whose files clients may read")
        return missing


PROFILE_BRIDGE: Final[Mapping[str, Any]] = {
    "max_sessions": 10,
    "max_connections": 5,
    "max_connections_per_address": 5,
    "connection": ServerLimits(max_frame=10 * 1024 * 1024),
    "info_per_minute": 60,
    "hooks_per_minute": 120,
    "batches_per_minute": 10,
    "sessions_per_minute": 30,
    "files_per_minute": 60,
    "extended_hooks": False,
}
"""What the profile `bridge` has in place of our defaults: smaller numbers, and seven hook events. `BridgeSettings.of_profile("bridge")`."""

_EVERYWHERE = frozenset({"", "0.0.0.0", "::"})  # noqa: S104 - it is compared, not listened on
_LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")
_ENVIRONMENT: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "HOST": ("host", str),
    "PORT": ("port", int),
    "BRIDGE_TOKEN": ("bridge_token", str),
    "HOOK_TOKEN": ("hook_token", str),
    "METRICS_TOKEN": ("metrics_token", str),
    "ADMIN_TOKEN": ("admin_token", str),
    "ALLOWED_PROJECT_ROOT": ("project_root", Path),
    "TLS_CERT": ("tls_cert", Path),
    "TLS_KEY": ("tls_key", Path),
}


def is_loopback(host: str) -> bool:
    """Return whether a server on this host can be reached from this machine only.

    >>> is_loopback("localhost"), is_loopback("::1"), is_loopback("0.0.0.0"), is_loopback("localhost.example")
    (True, True, False, False)
    """
    if host.lower() == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:  # a name: what it resolves to may change, so it counts as reachable
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def _refused(reasons: list[str]) -> HoldfastError:
    message = f"The bridge does not start: {'; '.join(reasons)}"
    return HoldfastError(Fault.of("CONFIG_INVALID", message, context={"problems": reasons}))


def _converted(variable: str, text: str, convert: Callable[[str], Any]) -> Any:
    try:
        return convert(text)
    except ValueError:
        raise InvalidError.at(variable, "a whole number", text) from None


def _check_names(path: str, value: Any) -> None:
    for name in options.listed(path, value, "texts"):
        options.name(path, name)


def _check_network(path: str, value: str) -> None:
    try:
        ipaddress.ip_network(value, strict=False)
    except ValueError:
        raise InvalidError.at(path, "addresses or networks, such as 10.0.0.0/8", value) from None


def _check_origin(path: str, value: str) -> None:
    scheme, _, rest = value.partition("://")
    if scheme not in {"http", "https"} or not rest or "/" in rest or "*" in rest or "@" in rest:
        raise InvalidError.at(path, "origins as browsers send them, such as https://example.org", value)
