"""Whole answers that are none: an error with status 200, or a proxy's page where an object was asked for.

The SDKs hand out both as if they were answers, and the caller fails later, where nobody tries again. A raw response is read
here as its caller would read it: the SDKs keep what they have read, so that it is read once.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from holdfast.faults import Fault, HoldfastError

if TYPE_CHECKING:
    from holdfast.integrations.clients.dialect import Dialect

__all__ = ["Asked"]


class Asked:
    """One request, as far as its answer is looked at."""

    __slots__ = ("cast_to", "client", "dialect", "options")

    def __init__(self, dialect: Dialect, client: Any, cast_to: Any, options: Any) -> None:
        self.dialect = dialect
        self.client = client
        self.cast_to = cast_to
        self.options = options

    def checked(self, answer: Any) -> Any:
        """Return an answer, or raise what it is instead."""
        self._check(answer.parse() if self._is_raw(answer) else answer)
        return answer

    async def checked_async(self, answer: Any) -> Any:
        """The same where reading a raw response may have to be awaited."""
        said = answer.parse() if self._is_raw(answer) else answer
        self._check(await said if inspect.isawaitable(said) else said)
        return answer

    @property
    def _wants_object(self) -> bool:
        return hasattr(self.cast_to, "model_fields")

    def _is_raw(self, answer: Any) -> bool:
        """Whether this is a response whose body is here, and not one that the caller will read bit by bit."""
        if type(answer) is self.cast_to:
            return False
        response = getattr(answer, "http_response", None)
        return response is not None and self._wants_object and bool(response.is_stream_consumed)

    def _check(self, said: Any) -> None:
        if isinstance(said, str) and self._wants_object:
            message = f"{self.client.base_url.host} answered with text where an object was expected"
            raise HoldfastError(Fault.of("PROVIDER_MALFORMED_RESPONSE", message))
        refused = self.dialect.refused(said, self.options)
        if refused is not None:
            raise self.dialect.error(refused.message, self._request(), body=refused.body)

    def _request(self) -> Any:
        """The request that was answered, as far as an exception shows it."""
        client, options = self.client, self.options
        return client._client.build_request(options.method, client._prepare_url(options.url))  # noqa: SLF001 - the SDKs have no public name for it
