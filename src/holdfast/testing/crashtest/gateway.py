"""The HTTP proxy between the program and the services it calls: every request passes here, and is a point.

A service is reached in one of two ways. A target has an address of its own here, which the program gets in an environment variable
(`ANTHROPIC_BASE_URL`). Everything else that is plain HTTP comes through `HTTP_PROXY`; of TLS through `HTTPS_PROXY` only the host is seen.

Invariant: an answer is passed on whole or not at all, so that a program killed `after` a request has not seen any of it.
"""

from __future__ import annotations

import asyncio
import hashlib
import http.client
import ssl
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, Self
from urllib.parse import urlencode, urlsplit

from holdfast.testing.crashtest.links import Links
from holdfast.testing.crashtest.report import Sent, path_name
from holdfast.testing.provider.http import BadRequestError, ReplyHead, Request, RequestReader, head_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Literal

    from holdfast.testing.crashtest.watch import PointWatch

HOST = "127.0.0.1"
_READ_BYTES = 65_536
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"
# Headers of one connection only. The body is passed on whole, so its framing is new.
_HOP_BY_HOP = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-connection",
        "proxy-authorization",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "content-length",
    }
)
_MODEL_PATHS = (
    "/messages",
    "/chat/completions",
    "/responses",
    "/completions",
    "/embeddings",
    ":generateContent",
    ":streamGenerateContent",
)
_READS = frozenset({"GET", "HEAD", "OPTIONS"})


class GatewayTarget(NamedTuple):
    """A service that the program reaches through here."""

    variable: str
    """The environment variable with its address."""
    url: str
    """Where it really is."""
    is_model: bool = False


class ServiceAnswer(NamedTuple):
    """An answer of a service."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes


_NO_ANSWER = ServiceAnswer(502, (("content-type", "text/plain"),), b"the service behind the crash test did not answer")

_DONE = ServiceAnswer(200, (("content-type", "application/json"),), b"{}")


class Gateway:
    """Passes requests on, writes down which were performed, and lets the watch decide whether the program lives on.

    effects: the addresses whose requests are effects; if there are none, those of every service that is not a model.
    live: send every request in every run. Otherwise only the first run sends effects and model requests, and later runs get its answers:
        the test is repeatable, costs the money of one run, and pays for nothing twice in earnest.
    fake_effects: send no effect at all; the answer is 200 and an empty JSON object.
    """

    def __init__(
        self,
        targets: Sequence[GatewayTarget],
        effects: Sequence[str],
        *,
        live: bool,
        fake_effects: bool = False,
        timeout: float = 300.0,
    ) -> None:
        self._targets = tuple(targets)
        self._effects = tuple(effects)
        self._live = live
        self._fake_effects = fake_effects
        self._timeout = timeout
        self._links = Links()
        self._ours: dict[str, GatewayTarget] = {}
        """The targets by their addresses here."""
        self._recorded: dict[tuple[str, str, bytes], ServiceAnswer] = {}
        self._by_name: dict[str, ServiceAnswer] = {}
        """The last answer to an effect, by the name of the request."""
        self.plays = False
        """Whether effects are answered from the record."""
        self._under_way: set[asyncio.Task[ServiceAnswer]] = set()
        self.environment: dict[str, str] = {}
        """The variables that make the program's requests come here."""
        self.sent: list[Sent] = []
        """The requests that were performed since `begin`."""
        self.hidden: set[str] = set()
        """Hosts that were reached with TLS through the proxy."""
        self._watch: PointWatch | None = None

    async def __aenter__(self) -> Self:
        for target in self._targets:
            port = await self._listen(target)
            self._ours[f"{HOST}:{port}"] = target
            path = urlsplit(target.url).path.rstrip("/")
            self.environment[target.variable] = f"http://{HOST}:{port}{path}"
        proxy = f"http://{HOST}:{await self._listen(None)}"
        self.environment |= dict.fromkeys(("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy"), proxy)
        # Services on this machine are called through the proxy too.
        self.environment |= {"NO_PROXY": "", "no_proxy": ""}
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._links.close()

    def begin(self, watch: PointWatch) -> None:
        """Start to write down the requests of a trial."""
        self.watch(watch)
        self.sent = []

    def watch(self, watch: PointWatch) -> None:
        """The next run of the trial begins."""
        self._watch = watch

    async def settle(self) -> None:
        """Wait for requests of a killed program that the services are still performing."""
        while self._under_way:
            await asyncio.wait(self._under_way)

    async def _listen(self, target: GatewayTarget | None) -> int:
        serve = self._links.serving(lambda reader, writer: self._serve(target, reader, writer))
        server = await asyncio.start_server(serve, HOST, 0)
        self._links.add(server)
        port: int = server.sockets[0].getsockname()[1]
        return port

    async def _serve(
        self, target: GatewayTarget | None, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        requests = RequestReader()
        while data := await reader.read(_READ_BYTES):
            # Python's own client asks for tunnels in HTTP/1.0.
            requests.feed(data.replace(b" HTTP/1.0\r\n", b" HTTP/1.1\r\n", 1) if data.startswith(b"CONNECT ") else data)
            try:
                while (request := requests.next()) is not None:
                    if request.method == "CONNECT":
                        await self._tunnel(request, reader, writer)
                        return
                    if not await self._answer(target, request, writer):
                        # The program is being killed, and must not see an answer: wait until it is dead.
                        await reader.read()
                        return
                if requests.expects_continue():
                    writer.write(_CONTINUE)
            except BadRequestError as error:
                writer.write(head_bytes(ReplyHead(error.status, (("connection", "close"),), 0)))
                return

    async def _answer(self, target: GatewayTarget | None, request: Request, writer: asyncio.StreamWriter) -> bool:
        """Perform a request and pass its answer on. Return False if the program is killed at it."""
        if target is None:
            # A client that uses the proxy for all addresses sends requests to our own targets through it, too.
            target = self._ours.get(urlsplit(request.path).netloc)
        answer = await self._perform(_address(target, request), target, request)
        if answer is None:
            return False
        kept = tuple((name, value) for name, value in answer.headers if name.lower() not in _HOP_BY_HOP)
        writer.write(head_bytes(ReplyHead(answer.status, kept, len(answer.body))))
        if request.method != "HEAD":
            writer.write(answer.body)
        await writer.drain()
        return True

    async def _perform(self, url: str, target: GatewayTarget | None, request: Request) -> ServiceAnswer | None:
        """Perform a request as a point. Return None if the program is killed at it."""
        watch = self._watch
        assert watch is not None
        kind = self._kind(url, target, request.method)
        name = _name(url, request)
        nth = watch.reach(kind, name, "before")
        if nth is None:
            return None
        answer = await self._forward(url, kind, request)
        return None if watch.reach(kind, name, "after", nth) is None else answer

    def _kind(self, url: str, target: GatewayTarget | None, method: str) -> Literal["effect", "model", "request"]:
        path = urlsplit(url).path
        if (target is None or target.is_model) and method == "POST" and path.endswith(_MODEL_PATHS):
            return "model"
        if method in _READS or (target is not None and target.is_model):
            return "request"
        return "effect" if not self._effects or url.startswith(self._effects) else "request"

    async def _forward(self, url: str, kind: Literal["effect", "model", "request"], request: Request) -> ServiceAnswer:
        answer = self._played(url, kind, request)
        if answer is None:
            # Also if the program dies meanwhile, the service performs the request. It must be counted.
            work = asyncio.ensure_future(asyncio.to_thread(_fetch, url, request, self._timeout))
            self._under_way.add(work)
            work.add_done_callback(self._under_way.discard)
            try:
                answer = await asyncio.shield(work)
            except OSError:
                answer = None
        if answer is not None and answer.status < 400:
            self._recorded.setdefault((request.method, url, request.body), answer)
            self._by_name[_name(url, request)] = answer
        parts = urlsplit(url)
        self.sent.append(
            Sent(
                kind=kind,
                target=parts.netloc,
                method=request.method,
                path=parts.path,
                body=hashlib.sha256(request.body).hexdigest()[:16],
                key=request.headers.get("idempotency-key", ""),
                status=None if answer is None else answer.status,
            )
        )
        return answer or _NO_ANSWER

    def _played(self, url: str, kind: Literal["effect", "model", "request"], request: Request) -> ServiceAnswer | None:
        """Return the answer of an earlier run; None if the request must be sent."""
        if kind == "request" or (self._live and not (self._fake_effects and kind == "effect")):
            return None
        if kind == "effect" and self._fake_effects:
            return _DONE
        recorded = self._recorded.get((request.method, url, request.body))
        if kind == "model" or not self.plays:
            return recorded if kind == "model" else None
        # An effect with another body than in the first run is not sent, either.
        return recorded or self._by_name.get(_name(url, request), _DONE)

    async def _tunnel(self, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass TLS through, unread."""
        host, _, port = request.path.rpartition(":")
        self.hidden.add(host)
        try:
            far_reader, far_writer = await asyncio.open_connection(host.strip("[]"), int(port))
        except (OSError, ValueError):
            writer.write(head_bytes(ReplyHead(502, (), 0)))
            return
        writer.write(_ESTABLISHED)
        try:
            await asyncio.gather(_copy(reader, far_writer), _copy(far_reader, writer))
        finally:
            far_writer.close()


def _name(url: str, request: Request) -> str:
    """Return the name of a request in the report: `POST /orders/{id}`."""
    return f"{request.method} {path_name(urlsplit(url).path)}"


def _address(target: GatewayTarget | None, request: Request) -> str:
    """Return the real address of a request."""
    query = f"?{urlencode(request.query)}" if request.query else ""
    if target is None:
        return request.path + query
    parts = urlsplit(target.url)
    path = urlsplit(request.path).path if "://" in request.path else request.path
    return f"{parts.scheme}://{parts.netloc}{path}{query}"


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    # A peer that has reset the connection is an OSError where its end is sent.
    with suppress(OSError):
        while data := await reader.read(_READ_BYTES):
            writer.write(data)
            await writer.drain()
        writer.write_eof()


def _fetch(url: str, request: Request, timeout: float) -> ServiceAnswer:
    """Send a request to its service and read the whole answer."""
    parts = urlsplit(url)
    link: Any = (
        http.client.HTTPSConnection(parts.netloc, timeout=timeout, context=ssl.create_default_context())
        if parts.scheme == "https"
        else http.client.HTTPConnection(parts.netloc, timeout=timeout)
    )
    headers = {name: value for name, value in request.headers.items() if name not in _HOP_BY_HOP and name != "host"}
    try:
        link.request(request.method, url[len(f"{parts.scheme}://{parts.netloc}") :] or "/", request.body, headers)
        answer = link.getresponse()
        return ServiceAnswer(answer.status, tuple(answer.getheaders()), answer.read())
    except http.client.HTTPException as error:
        raise ConnectionError(str(error)) from error
    finally:
        link.close()
