"""`web_fetch` and `http_tool`: pages of the web for a model, and an HTTP service as a tool.

Invariant: `web_fetch` connects only to hosts that are listed, and never to an address of this machine or its network unless that
address is listed. Every redirect is checked as the first address was.
"""

from __future__ import annotations

import fnmatch
import html
import ipaddress
import re
import string
import time
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote, unquote, urljoin

import msgspec

from holdfast import options
from holdfast.faults import Fault, HoldfastError, InvalidError
from holdfast.runtime.runtime import default_runtime
from holdfast.runtime.tool import ToolContract, call_key, takes_arguments
from holdfast.tools.http import HTTPRequest, HTTPResponse, fault_of_response, parts_of, send
from holdfast.tools.threads import call_in_thread
from holdfast.tools.toolbox import TIME_LIMIT, Tool

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from holdfast.faults import Code
    from holdfast.policies import Effect, Tries

__all__ = ["http_tool", "web_fetch"]

_MOST_REDIRECTS = 5
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_WEB_FETCH_S = 30.0
_CAP = 1_048_576
_TEXTS = (
    "text/",
    "application/json",
    "application/xml",
    "application/xhtml",
    "application/javascript",
    "+json",
    "+xml",
)
_EMBEDDED = tuple(
    ipaddress.ip_network(net)
    for net in ("::/96", "64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "2001::/32", "fec0::/10")
)
"""Networks whose addresses stand for an IPv4 address somewhere else."""
_EFFECTS: Mapping[str, Effect] = {
    "GET": "read",
    "HEAD": "read",
    "OPTIONS": "read",
    "PUT": "idempotent",
    "DELETE": "idempotent",
}


@options.suggests
def web_fetch(hosts: Collection[str], *, timeout: float | None = None, cap: int = _CAP) -> Tool:
    """Return the tool `web_fetch`: it gets a page from one of these hosts, as text.

        from holdfast.tools import Toolbox, web_fetch

        toolbox = Toolbox([web_fetch(["docs.python.org", "*.example.org"])])
        text = await toolbox.call("web_fetch", {"url": "https://docs.python.org/3/"})

    hosts: names, `*.example.org` for all names below one, `*` for every host of the public internet. Addresses of this machine and of
        private networks are rejected even if a listed name has one, unless you list the address (`127.0.0.1`), its network
        (`10.0.0.0/8`) or `localhost`. A redirect from https to http is rejected, unless the host is listed as `http://example.org`.
    cap: the most bytes that are read of a page.

    Names are resolved once, and the connection goes to the address that was checked. Redirects are followed five times at most. A call
    may take 30 s.
    """
    allowed = _Hosts(hosts)

    async def fetch(
        url: Annotated[str, msgspec.Meta(description="The address of the page, with https://")],
    ) -> str:
        """Get a page from the web, as text."""
        limit = TIME_LIMIT.get() or timeout or _WEB_FETCH_S
        response = await _follow(url, allowed, limit, cap)
        if (fault := fault_of_response(response, time.time())) is not None:
            raise HoldfastError(fault)
        # A page of a megabyte takes a moment, and others want the event loop meanwhile.
        text: str = await call_in_thread(
            default_runtime().abandoned_threads,
            lambda: _readable(response),
            owner=f"host {parts_of(url)[1]}",
        )
        return text

    contract = ToolContract(effect="read", name="web_fetch", timeout=timeout, operation="web-fetch")
    return Tool(fetch, contract, ends_itself=1.0)


async def _follow(url: str, allowed: _Hosts, limit: float, cap: int) -> HTTPResponse:
    until = time.monotonic() + limit
    for _ in range(_MOST_REDIRECTS + 1):
        allowed.check_name(parts_of(url)[1])
        left = max(0.1, until - time.monotonic())
        response = await send(HTTPRequest(url=url, timeout=left, cap=cap), allowed.check_addresses)
        target = response.headers.get("location")
        if response.status not in _REDIRECTS or target is None:
            return response
        try:
            joined = urljoin(url, target)
        except ValueError as error:
            reason = f"{url} redirects to {target[:200]!r}, which is no address"
            raise HoldfastError(Fault.of("TOOL_OUTPUT_MALFORMED", reason, context={"reason": reason})) from error
        url = allowed.redirect(url, joined)
    raise _forbidden(f"{url}: more than {_MOST_REDIRECTS} redirects")


class _Hosts:
    """Which hosts and addresses may be connected to."""

    def __init__(self, hosts: Collection[str]) -> None:
        if isinstance(hosts, str) or not hosts or not all(hosts):
            raise InvalidError.at("web_fetch.hosts", "a list of hosts, such as ['docs.python.org'], or ['*']", hosts)
        plain = [_plain_host(host) for host in hosts if "://" in host]
        self._names = list(dict.fromkeys([host.lower() for host in hosts if "://" not in host] + plain))
        self._plain = plain
        """Hosts that a redirect from https to http may lead to."""
        self._networks: list[Any] = []
        for host in self._names:
            try:
                self._networks.append(ipaddress.ip_network(host))
            except ValueError:
                # A name or a pattern, which `check_name` compares. One with more than a host would match nothing.
                if set(host) & set("/?#@:"):
                    expected = "a host without a port or a path: all ports of a listed host may be fetched"
                    raise InvalidError.at("web_fetch.hosts", expected, host) from None

    def check_name(self, host: str) -> None:
        host = host.lower().rstrip(".")
        if any(fnmatch.fnmatchcase(host, name) for name in self._names) or self._is_listed(host):
            return
        raise _forbidden(f"{host} is not a host that may be fetched; allowed are {', '.join(self._names)}")

    def redirect(self, origin: str, target: str) -> str:
        """Return where a redirect leads to. Raises if it gives up the encryption and that is not listed."""
        host = parts_of(target)[1]
        is_weaker = parts_of(origin)[0] == "https" and parts_of(target)[0] == "http"
        if is_weaker and not any(fnmatch.fnmatchcase(host.lower(), name) for name in self._plain):
            raise _forbidden(
                f"{origin} redirects to {target}, which is not encrypted; list 'http://{host}' to allow that"
            )
        return target

    def check_addresses(self, host: str, addresses: list[str]) -> None:
        for address in addresses:
            if not _is_public(address) and not self._is_listed(address) and not self._is_local(host, address):
                raise _forbidden(f"{host} is at {address}, which is not a public address")

    def _is_local(self, host: str, address: str) -> bool:
        return host.lower() == "localhost" and "localhost" in self._names and ipaddress.ip_address(address).is_loopback

    def _is_listed(self, text: str) -> bool:
        try:
            address = ipaddress.ip_address(text)
        except ValueError:
            return False
        return any(address in network for network in self._networks if network.version == address.version)


def _plain_host(listed: str) -> str:
    scheme, _, host = listed.lower().partition("://")
    if scheme != "http" or not host or set(host) & set("/?#@:"):
        raise InvalidError.at(
            "web_fetch.hosts",
            "a host such as 'example.org', or 'http://example.org' for redirects to plain http",
            listed,
        )
    return host


def _is_public(text: str) -> bool:
    address: Any = ipaddress.ip_address(text.partition("%")[0])
    if address.version == 6:
        if address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        elif any(address in network for network in _EMBEDDED):
            return False
    return bool(address.is_global) and not address.is_multicast


def _forbidden(reason: str) -> HoldfastError:
    return HoldfastError(Fault.of("TOOL_FORBIDDEN", reason, context={"reason": reason}, maybe_executed=False))


def _readable(response: HTTPResponse) -> str:
    kind = response.headers.get("content-type", "text/plain").lower()
    if not any(part in kind for part in _TEXTS):
        reason = f"{response.url} is {kind.partition(';')[0]}, which is not text"
        raise HoldfastError(Fault.of("TOOL_INPUT_INVALID", reason, context={"field": "url", "reason": reason}))
    text = _without_tags(response.text) if "html" in kind else response.text
    return f"{text}\n…[cut at {len(response.body)} bytes]" if response.truncated else text


_BLOCKS = frozenset(("p", "div", "br", "li", "tr", "h1", "h2", "h3", "h4", "h5", "h6", "pre", "section", "article"))
_HIDDEN = frozenset(("script", "style", "noscript", "template"))
_MARKUP = re.compile(r"<(?:(?P<comment>!--)|(?P<slash>/?)(?P<name>[A-Za-z][^\s/>]*+)|[!?/])")
_TAG_END = re.compile(r"""(?:[^>"'=]++|=\s*+(?:"[^"]*+"|'[^']*+')?+|["'])*+>""")
"""The end of a tag; a `>` within a quoted value is none."""
_RAW_END = {name: re.compile(rf"</{name}(?=[\s/>])", re.IGNORECASE) for name in ("script", "style")}
"""What is between these tags is no markup."""


def _without_tags(page: str) -> str:
    """Return the text of a page.

    Python's own parser takes hours for a page of a megabyte that somebody made for that. Here every sign is looked at a bounded number of
    times: where something has no end, the page ends.
    """
    parts, at, hidden = list[str](), 0, 0
    while (found := _MARKUP.search(page, at)) is not None:
        if not hidden:
            parts.append(_unescaped(page[at : found.start()]))
        name = (found["name"] or "").lower()
        at = _end_of(found, page)
        if at < 0:
            break
        if name in _HIDDEN:
            hidden = max(0, hidden - 1) if found["slash"] else hidden + 1
        elif name in _BLOCKS and not found["slash"]:
            parts.append("\n")
        if name in _RAW_END and not found["slash"]:
            end = _RAW_END[name].search(page, at)
            if end is None:
                break
            at = end.start()
    else:
        parts.append("" if hidden else _unescaped(page[at:]))
    lines = (" ".join(line.split()) for line in "".join(parts).splitlines())
    return "\n".join(line for line in lines if line)


def _end_of(markup: re.Match[str], page: str) -> int:
    """Return the place behind a tag or a comment; -1 if it has no end."""
    if markup["comment"]:
        # `<!-->` is a whole comment.
        end = page.find("-->", markup.end() - 2)
        return end + 3 if end >= 0 else -1
    if markup["name"]:
        closed = _TAG_END.match(page, markup.end())
        return closed.end() if closed is not None else -1
    end = page.find(">", markup.end())
    return end + 1 if end >= 0 else -1


def _unescaped(text: str) -> str:
    try:
        return html.unescape(text)
    except ValueError:
        # `&#` and more digits than Python reads.
        return text


@options.suggests
def http_tool(
    name: str,
    url: str,
    *,
    method: str = "GET",
    effect: Effect | None = None,
    description: str = "",
    input: Any = None,  # noqa: A002 - the word of every tool API
    headers: Mapping[str, str] | Callable[[], Mapping[str, str]] | None = None,
    timeout: float | None = None,
    retry: Tries | None = None,
    codes: Mapping[Code, bool] | None = None,
    verify: Callable[..., Any] | None = None,
    check: Callable[..., Any] | None = None,
    output_cap: int | None = None,
    cap: int = _CAP,
) -> Tool:
    """Return a tool that sends a request to an HTTP service, and whose result is the answer: decoded JSON, or text.

        from holdfast.tools import Toolbox, http_tool

        weather = http_tool("weather", "https://api.example.org/cities/{city}", description="The weather in a city.")

    url: `{city}` stands for the argument `city`, which stays in its place: "..", "." and "" are rejected in a path, encoded or not. In the
        host it needs a fixed ending, as in `https://{region}.example.org`.
        Arguments that are not in the URL are sent as JSON, or in the query of a GET.
    effect: by default `read` for GET and HEAD, `idempotent` for PUT and DELETE, `unsafe` for POST. With `keyed`, every attempt sends the
        same `Idempotency-Key`.
    input: a JSON Schema or a type with the arguments; by default those of the URL, each a text.
    headers: for every request; or a function that returns them, for keys that change.
    cap: the most bytes of an answer that are read. A longer one is a failure (TOOL_OUTPUT_TOO_LARGE).

    A status of 400 or more is a failure: `Retry-After` is kept, and 429, 5xx and lost connections are retried if the effect allows it.
    Wrong options raise `InvalidError`.
    """
    options.name("http_tool.name", name)
    service = _Service(name, url, method.upper(), headers, limit=timeout, cap=cap, takes_type=_is_type(input))
    service.effect = effect or _EFFECTS.get(service.method, "unsafe")
    contract = ToolContract(
        effect=service.effect,
        name=name,
        description=description or f"{service.method} {url}",
        input=service.schema() if input is None else input,
        timeout=timeout,
        retry=retry,
        codes={str(code): wanted for code, wanted in (codes or {}).items()},
        verify=verify,
        check=check,
        checks_arguments=takes_arguments(check),
        output_cap=output_cap,
        operation="web-fetch",
    )
    return Tool(service.call, contract, ends_itself=1.0)


def _is_type(declared: Any) -> bool:
    return declared is not None and not isinstance(declared, dict)


class _Service:
    """An HTTP service behind a tool."""

    effect: Effect = "unsafe"

    def __init__(
        self, name: str, url: str, method: str, headers: Any, *, limit: float | None, cap: int, takes_type: bool
    ) -> None:
        self.url, self.method = url, method
        self._headers: Any = headers
        self._limit, self._cap = limit, cap
        self._takes_type = takes_type
        """The arguments come as one value of the declared type."""
        self._fields = _fields(name, url)

    def schema(self) -> dict[str, Any]:
        """Return the schema of the arguments in the URL."""
        properties = {field: {"type": "string"} for field in self._fields}
        return {"type": "object", "properties": properties, "required": self._fields}

    async def call(self, **arguments: Any) -> Any:
        given = msgspec.to_builtins(arguments["arguments"], enc_hook=_dumped) if self._takes_type else arguments
        own: Any = self._headers() if callable(self._headers) else self._headers or {}
        request = _request(self.url, self.method, fields=self._fields, given=given, headers={**own}, effect=self.effect)
        limit = TIME_LIMIT.get() or self._limit or _WEB_FETCH_S
        return _result(await send(msgspec.structs.replace(request, timeout=limit, cap=self._cap)))


def _dumped(value: Any) -> Any:
    return value.model_dump(mode="json")


def _fields(name: str, url: str) -> list[str]:
    try:
        host = parts_of(url)[1]
        if "{" in host and not re.search(r"\}\.[^{}]+$", host):
            raise ValueError(f"the host {host}, which an argument could make any host")  # noqa: TRY301 - one error for all
        found = [field for _, field, _, _ in string.Formatter().parse(url) if field is not None]
    except ValueError as error:
        raise InvalidError.saying(f"http_tool {name}.url", "an address with {name} for arguments", str(error)) from None
    for field in found:
        if not field.isidentifier():
            raise InvalidError.saying(f"http_tool {name}.url", "{name} with the name of an argument", f"{{{field}}}")
    return list(dict.fromkeys(found))


def _request(
    url: str, method: str, *, fields: list[str], given: dict[str, Any], headers: dict[str, str], effect: Effect
) -> HTTPRequest:
    # Every sign is quoted: an argument stays in its place, whatever slashes and question marks it holds.
    filled = url.format(**{field: quote(str(given.get(field, "")), safe="") for field in fields})
    _check_places(url, fields, filled)
    rest = {name: value for name, value in given.items() if name not in fields}
    body = None
    if rest and method in ("GET", "HEAD", "DELETE"):
        query = "&".join(f"{quote(name, safe='')}={quote(str(value), safe='')}" for name, value in rest.items())
        filled += ("&" if "?" in filled else "?") + query
    elif rest:
        body = msgspec.json.encode(rest)
        headers.setdefault("Content-Type", "application/json")
    if effect == "keyed" and (key := call_key()):
        headers.setdefault("Idempotency-Key", key)
    return HTTPRequest(url=filled, method=method, headers=headers, body=body)


def _check_places(url: str, fields: list[str], filled: str) -> None:
    """Raise `HoldfastError` (TOOL_INPUT_INVALID) if an argument leads out of its place in the path: "..", or nothing at all.

    Servers and proxies decode a path once or twice, and some take a backslash for a slash and what follows a semicolon for a note.
    """
    templates, parts = url.partition("?")[0].split("/"), filled.partition("?")[0].split("/")
    for template, part in zip(templates, parts, strict=True):
        named = [field for field in fields if f"{{{field}" in template]
        if not named:
            continue
        decoded = part
        for _ in range(_DECODINGS):
            decoded = unquote(decoded)
        names = [name.partition(";")[0].strip(_IGNORED) for name in decoded.replace("\\", "/").split("/")]
        if not part or "." in names or ".." in names:
            reason = f"argument `{named[0]}`: expected a name for one place in the path, got {decoded!r}"
            raise HoldfastError(
                Fault.of(
                    "TOOL_INPUT_INVALID", reason, context={"field": named[0], "reason": reason}, maybe_executed=False
                )
            )


_DECODINGS = 3
_IGNORED = "".join(map(chr, range(33)))


def _result(response: HTTPResponse) -> Any:
    if (fault := fault_of_response(response, time.time())) is not None:
        raise HoldfastError(fault)
    if response.truncated:
        reason = f"the answer has more than {len(response.body)} bytes"
        raise HoldfastError(Fault.of("TOOL_OUTPUT_TOO_LARGE", reason, context={"reason": reason}))
    if "json" in response.headers.get("content-type", ""):
        try:
            return msgspec.json.decode(response.body)
        except msgspec.DecodeError as error:
            fault = Fault.of("TOOL_OUTPUT_MALFORMED", context={"reason": f"the answer is no JSON: {error}"})
            raise HoldfastError(fault) from None
    return response.text
