"""How each contender gets a failure and how its answer is read. Runs in the peers' environment.

A contender turns a failure into a call (a function and its arguments; what the peer's own client library would have
done before is done here, untimed) and an answer into `{categories, retryable, delay}`. A coarse answer is read
generously: it stands for every category it could mean. None for a call means the contender cannot take that failure.
"""

from __future__ import annotations

import contextlib
import importlib
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

if TYPE_CHECKING:
    from benchmarks.cases import Failure

Call = tuple[Callable[..., Any], tuple[Any, ...]]
Answer = dict[str, Any]

OPENAI_LIKE = frozenset(
    {
        "openai",
        "azure_openai",
        "openrouter",
        "groq",
        "deepseek",
        "xai",
        "together",
        "fireworks",
        "perplexity",
        "cerebras",
        "moonshot",
        "zai",
        "vllm",
        "lmstudio",
        "llama.cpp",
        "alibaba_dashscope",
        "volcengine",
        "github_copilot",
        "litellm_proxy",
        "vercel_ai_gateway",
    }
)
"""Providers whose answers reach a Python program through the openai SDK."""


class Contender(Protocol):
    def call(self, failure: Failure) -> Call | None: ...

    def read(self, answer: Any) -> Answer: ...


class Holdfast:
    def __init__(self) -> None:
        self.doors = importlib.import_module("holdfast.classify")

    def call(self, failure: Failure) -> Call | None:
        if failure.kind == "live":
            return self.doors.from_exception, (sdk_error(failure),)
        if failure.kind == "http" and not failure.line.get("now"):
            return self.doors.from_http, (failure.status, failure.headers, failure.body)
        return self.doors.from_record, (self.doors.read_record(json.dumps(failure.line)),)

    def read(self, answer: Any) -> Answer:
        return {"categories": [str(answer.category)], "retryable": answer.retryable, "delay": answer.retry_after}


class Table:
    """The floor: status in, category out. Nothing is read but the status."""

    NAMES: ClassVar = {
        400: "invalid", 401: "auth", 402: "rate_limit", 403: "auth", 404: "not_found", 408: "timeout", 409: "invalid",
        413: "overflow", 422: "invalid", 429: "rate_limit", 499: "cancelled", 504: "timeout", 524: "timeout",
    }  # fmt: skip
    AGAIN = frozenset({408, 409, 429})

    def call(self, failure: Failure) -> Call | None:
        return None if failure.status is None else (self.look_up, (failure.status,))

    def look_up(self, status: int) -> tuple[str, bool]:
        if status < 400:
            return "unknown", False
        usual = "invalid" if status < 500 else "unavailable"
        return self.NAMES.get(status, usual), status in self.AGAIN or (status >= 500 and status != 501)

    def read(self, answer: Any) -> Answer:
        return {"categories": [answer[0]], "retryable": answer[1], "delay": None}


class Redress:
    """The classifier redress ships for the SDK at hand, its http one for the rest."""

    MEANS: ClassVar = {
        "AUTH": ["auth"], "PERMISSION": ["auth"], "PERMANENT": ["invalid", "not_found", "overflow"],
        "CONCURRENCY": ["invalid"], "RATE_LIMIT": ["rate_limit"], "SERVER_ERROR": ["unavailable", "timeout"],
        "TRANSIENT": ["timeout", "network", "unavailable"], "UNKNOWN": ["unknown"],
    }  # fmt: skip
    NEVER = frozenset({"AUTH", "PERMISSION", "PERMANENT"})
    """What its policies never retry (`redress.policy.state`); UNKNOWN they retry, twice by default."""

    def __init__(self) -> None:
        self.anthropic = importlib.import_module("redress.contrib.anthropic").anthropic_classifier
        self.openai = importlib.import_module("redress.contrib.openai").openai_classifier
        self.http = importlib.import_module("redress.extras.http").http_retry_after_classifier

    def call(self, failure: Failure) -> Call | None:
        if (error := live_error(failure)) is None:
            return None
        if failure.kind in {"http", "live"} and failure.provider == "anthropic":
            return self.anthropic, (error,)
        if failure.kind in {"http", "live"} and failure.provider in OPENAI_LIKE:
            return self.openai, (error,)
        return self.http, (error,)

    def read(self, answer: Any) -> Answer:
        name = getattr(answer, "klass", answer).name
        delay = getattr(answer, "retry_after_s", None)
        return {"categories": self.MEANS[name], "retryable": name not in self.NEVER, "delay": delay}


class RedressDefault(Redress):
    """`redress.default_classifier`: it reads `.status`, which no SDK error has, so it is given one that does."""

    def __init__(self) -> None:
        self.default = importlib.import_module("redress").default_classifier

    def call(self, failure: Failure) -> Call | None:
        if failure.kind == "live" or (error := live_error(failure)) is None:
            return None
        if failure.kind == "http":
            error = HttpError(failure)
        if failure.status is not None:
            error.status = failure.status  # type: ignore[attr-defined]
        return self.default, (error,)


class LiteLLM:
    """`exception_type` on the error LiteLLM's own handlers raise for that answer; it raises what it maps to."""

    PROVIDERS: ClassVar = {
        "azure_openai": "azure", "google_gemini": "gemini", "google_vertex": "vertex_ai", "aws_bedrock": "bedrock",
        "vllm": "hosted_vllm", "lmstudio": "lm_studio", "together": "together_ai", "fireworks": "fireworks_ai",
        "alibaba_dashscope": "dashscope",
    }  # fmt: skip
    SAME = frozenset(
        {
            "openai",
            "anthropic",
            "openrouter",
            "groq",
            "deepseek",
            "cohere",
            "ollama",
            "xai",
            "perplexity",
            "cerebras",
            "moonshot",
            "zai",
            "volcengine",
            "github_copilot",
            "litellm_proxy",
            "vercel_ai_gateway",
        }
    )
    MEANS: ClassVar = {
        "ContextWindowExceededError": ["overflow"], "PaymentRequiredError": ["rate_limit", "auth"],
        "BadRequestError": ["invalid"], "UnprocessableEntityError": ["invalid"], "AuthenticationError": ["auth"],
        "PermissionDeniedError": ["auth"], "NotFoundError": ["not_found"], "Timeout": ["timeout"],
        "RateLimitError": ["rate_limit"], "ServiceUnavailableError": ["unavailable"],
        "InternalServerError": ["unavailable"], "BadGatewayError": ["unavailable"], "APIConnectionError": ["network"],
        "APIResponseValidationError": ["validation"],
    }  # fmt: skip

    def __init__(self) -> None:
        self.litellm = importlib.import_module("litellm")
        self.litellm.suppress_debug_info = True
        self.mapping = importlib.import_module("litellm.litellm_core_utils.exception_mapping_utils").exception_type
        self.openai_error = importlib.import_module("litellm.llms.openai.common_utils").OpenAIError
        self.anthropic_error = importlib.import_module("litellm.llms.anthropic.common_utils").AnthropicError
        self.other_error = importlib.import_module("litellm.llms.base_llm.chat.transformation").BaseLLMException

    def call(self, failure: Failure) -> Call | None:
        if (error := self._error(failure)) is None:
            return None
        name = failure.provider if failure.provider in self.SAME else self.PROVIDERS.get(failure.provider, "openai")
        return self.ask, (error, name)

    def ask(self, error: Exception, provider: str) -> Exception:
        try:
            return self.mapping("some-model", error, provider)
        except Exception as mapped:
            return mapped

    def read(self, answer: Any) -> Answer:
        names = (cls.__name__ for cls in type(answer).__mro__)
        status = getattr(answer, "status_code", None)
        # Its APIError says no more than the status it carries, so it is read as that status.
        usual = ["unknown"] if status is None else [Table().look_up(status)[0]]
        means = next((self.MEANS[name] for name in names if name in self.MEANS), usual)
        return {"categories": means, "retryable": status is None or self.litellm.should_retry(status), "delay": None}

    def _error(self, failure: Failure) -> Exception | None:
        error = live_error(failure)
        if error is None or failure.kind in {"live", "exception"}:
            return error
        if failure.kind != "http":
            return None
        if failure.provider in OPENAI_LIKE:
            # What litellm/llms/openai/openai.py does with the SDK's error.
            headers, body = error.response.headers, error.body  # type: ignore[attr-defined]
            return self.openai_error(status_code=failure.status, message=str(error), headers=headers, body=body)
        kind = self.anthropic_error if failure.provider == "anthropic" else self.other_error
        return kind(status_code=failure.status, message=failure.body, headers=failure.headers)


class PydanticAI:
    """The typed error that pydantic-ai's openai and anthropic adapters raise in place of the SDK's error."""

    MEANS: ClassVar = {
        "ModelContextWindowExceededError": ["overflow"], "ModelAuthenticationError": ["auth"],
        "ModelNotFoundError": ["not_found"], "ModelRequestRejectedError": ["invalid"],
        "ModelRateLimitError": ["rate_limit"], "ModelQuotaExceededError": ["rate_limit", "auth"],
        "ModelUnavailableError": ["unavailable"], "ModelServerError": ["unavailable"],
        "ModelTimeoutError": ["timeout"], "ModelConnectionError": ["network"],
    }  # fmt: skip
    NEVER = frozenset({"ModelRequestRejectedError", "ModelQuotaExceededError"})
    """What it calls a rejection of the request (with its subclasses) or a used-up quota."""

    def __init__(self) -> None:
        self.openai = getattr(importlib.import_module("pydantic_ai.models.openai"), "_map_api_errors")  # noqa: B009
        self.anthropic = importlib.import_module("pydantic_ai.models.anthropic._errors").map_api_errors

    def call(self, failure: Failure) -> Call | None:
        error = sdk_failure(failure)
        return error and (self.ask, (error, self.anthropic if failure.provider == "anthropic" else self.openai))

    def ask(self, error: Exception, mapping: Any) -> Exception:
        try:
            with mapping("some-model"):
                _raise(error)
        except Exception as mapped:
            return mapped
        return error

    def read(self, answer: Any) -> Answer:
        names = [cls.__name__ for cls in type(answer).__mro__]
        # An error without a category says no more than its status, so it is read as that status.
        usual, again = Table().look_up(getattr(answer, "status_code", None) or 0)
        typed = next((name for name in names if name in self.MEANS), None)
        if typed is None:
            return {"categories": [usual], "retryable": again, "delay": None}
        return {"categories": self.MEANS[typed], "retryable": self.NEVER.isdisjoint(names), "delay": None}


class LangChain:
    """The error that langchain-openai and langchain-anthropic raise, a `ModelError` of langchain-core."""

    MEANS: ClassVar = {
        "ContextOverflowError": ["overflow"], "ModelAuthenticationError": ["auth"],
        "ModelPermissionDeniedError": ["auth"], "ModelInvalidRequestError": ["invalid"],
        "ModelNotFoundError": ["not_found"], "ModelRateLimitError": ["rate_limit"],
        "ModelAPIError": ["unavailable", "timeout"], "ModelConnectionError": ["network"],
        "ModelTimeoutError": ["timeout"],
    }  # fmt: skip

    def __init__(self) -> None:
        self.openai = importlib.import_module("langchain_openai.chat_models.base")
        self.anthropic = importlib.import_module("langchain_anthropic.chat_models")

    def call(self, failure: Failure) -> Call | None:
        if (error := sdk_failure(failure)) is None:
            return None
        sdk = "anthropic" if failure.provider == "anthropic" else "openai"
        what = "bad_request" if type(error).__name__ == "BadRequestError" else "api_error"
        return self.ask, (error, getattr(getattr(self, sdk), f"_handle_{sdk}_{what}"))

    def ask(self, error: Exception, handler: Any) -> Exception:
        try:
            try:
                _raise(error)
            except Exception as raised:
                handler(raised)
        except Exception as mapped:
            return mapped
        return error

    def read(self, answer: Any) -> Answer:
        names = [cls.__name__ for cls in type(answer).__mro__]
        means = next((self.MEANS[name] for name in names if name in self.MEANS), ["unknown"])
        return {"categories": means, "retryable": bool(getattr(answer, "is_retryable", False)), "delay": None}


def _raise(error: Exception) -> None:
    raise error


class HttpError(Exception):
    """An HTTP failure as a plain client shows it."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(f"HTTP {failure.status}: {failure.body}")
        self.status_code = failure.status
        self.headers = failure.headers
        self.body = failure.body


def live_error(failure: Failure) -> Any:
    """Return the exception a program would have in hand, or None where it would have none that a peer handles."""
    if failure.kind in {"http", "live"}:
        if (failure.status or 0) < 400:
            return None
        sdk = failure.provider == "anthropic" or failure.provider in OPENAI_LIKE
        return sdk_error(failure) if sdk else HttpError(failure)
    if failure.kind not in {"exception", "subprocess"} or not failure.line.get("exception"):
        return None
    error = _raised(failure.line["exception"])
    if not isinstance(error, Exception):
        return None
    if failure.status is not None:
        setattr(error, "code" if type(error).__name__ == "HTTPError" else "status_code", failure.status)
    return error


def sdk_failure(failure: Failure) -> Any:
    """Return the error of the provider's own SDK, or None where the answer reaches no such SDK."""
    if failure.kind not in {"http", "live"} or (failure.status or 0) < 400:
        return None
    return sdk_error(failure) if failure.provider == "anthropic" or failure.provider in OPENAI_LIKE else None


def sdk_error(failure: Failure) -> Any:
    """Return what the provider's own SDK raises for that answer: a real client over a transport that answers so."""
    httpx2 = importlib.import_module("httpx2")
    answer = httpx2.Response(failure.status, headers=_plain(failure.headers), content=failure.body.encode())
    sdk = importlib.import_module("anthropic" if failure.provider == "anthropic" else "openai")
    factory = sdk.Anthropic if failure.provider == "anthropic" else sdk.OpenAI
    with httpx2.Client(transport=httpx2.MockTransport(lambda _request: answer)) as http:
        client = factory(api_key="none", base_url="http://localhost", max_retries=0, http_client=http)
        try:
            client.post("/", cast_to=object)
        except sdk.APIStatusError as error:
            return error
    raise AssertionError(f"{sdk.__name__} raised nothing for {failure.status}")


def _plain(headers: dict[str, Any]) -> dict[str, str]:
    # The lengths and codings were those of the wire; the body here is already decoded.
    return {k: str(v) for k, v in headers.items() if k.lower() not in {"content-length", "content-encoding"}}


def _raised(spec: dict[str, Any]) -> BaseException:
    """Return a live exception of the recorded class, or of a class with its name where it is not installed."""
    kind: Any = None
    with contextlib.suppress(ImportError, ValueError):
        kind = getattr(importlib.import_module(spec["module"]), spec["type"], None)
    if kind is None:
        kind = type(spec["type"] or "Exception", (Exception,), {"__module__": spec["module"], "__str__": _first})
    if issubclass(kind, BaseExceptionGroup):
        return kind(spec["message"], [_raised(one) for one in spec["exceptions"]])
    try:
        error = kind.__new__(kind, spec["message"])
        error.args = (spec["message"],)
        str(error)
    except Exception:
        plain = type(kind.__name__, (Exception,), {"__module__": spec["module"], "__str__": _first})
        error = plain(spec["message"])
    causes = spec.get("cause", [])
    if isinstance(causes, dict):
        error.__cause__ = _raised(causes)
    elif causes:
        error.__cause__ = _raised({**causes[0], "cause": causes[1:]})
    return error


def _first(error: BaseException) -> str:
    return str(error.args[0])


CONTENDERS: dict[str, type[Contender]] = {
    "holdfast": Holdfast,
    "litellm": LiteLLM,
    "pydantic-ai": PydanticAI,
    "langchain": LangChain,
    "redress": Redress,
    "redress default": RedressDefault,
    "status table": Table,
}
