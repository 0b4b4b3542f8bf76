"""Alerts to a web address, from a thread of their own.

Invariant: whoever raises an alert never waits for the network, and the address, which may hold a token, is never shown. It
comes from the settings only, and an answer cannot send us elsewhere.
"""

from __future__ import annotations

import queue
import threading
import urllib.request
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.faults import Fault, Redactor
from holdfast.runtime.fault_of import fault_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.policies.alerts import Alert

__all__ = ["Webhook"]

MOST_WAITING = 100


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


class Webhook:
    """Posts alerts one after the other."""

    def __init__(self, address: str, timeout: float, failed: Callable[[Fault], object]) -> None:
        self._address = address
        self._timeout = timeout
        self._failed = failed
        self._opener = urllib.request.build_opener(_NoRedirects)
        self._redactor = Redactor.knowing((address, address.partition("://")[2].partition("/")[2]))
        self._waiting: queue.Queue[bytes | None] = queue.Queue(MOST_WAITING)
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def send(self, alert: Alert, at: float) -> None:
        """Have an alert posted."""
        document = {"schema": "holdfast.alert/1", "at": at, "text": alert.text, **msgspec.to_builtins(alert)}
        try:
            self._waiting.put_nowait(msgspec.json.encode(document))
        except queue.Full:
            message = f"{MOST_WAITING} alerts wait for the webhook already"
            self._failed(Fault.of("SYS_RESOURCE_EXHAUSTED", message))
            return
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="holdfast-webhook", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Post what waits, for as long as one post may take, and end."""
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is None:
            return
        try:
            self._waiting.put_nowait(None)
        except queue.Full:
            return
        thread.join(self._timeout)

    def _run(self) -> None:
        while (body := self._waiting.get()) is not None:
            try:
                self._post(body)
            except Exception as error:  # noqa: BLE001 - whatever the network does, the next alert is posted
                self._failed(fault_of(error).masked(self._redactor))

    def _post(self, body: bytes) -> None:
        headers = {"content-type": "application/json", "user-agent": "holdfast"}
        request = urllib.request.Request(self._address, body, headers, method="POST")  # noqa: S310 - http(s), from the settings
        with self._opener.open(request, timeout=self._timeout) as answer:
            answer.read(1)
