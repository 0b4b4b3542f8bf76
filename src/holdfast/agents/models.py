"""Models by name: `model_of("claude-sonnet")`, `model_of(["anthropic/claude-opus-5", "gpt-5"])`.

The client of the provider's SDK is made from the environment when the first request is sent, never before. An agent can so
be written at the top of a module, where no key is set yet.

Invariant: every client that is made here is closed: when its last user leaves `opened`, or after a single request.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard
from weakref import WeakKeyDictionary

from holdfast import options
from holdfast.extras import needs_extra
from holdfast.faults import Fault, HoldfastError, InvalidError
from holdfast.policies.models.prices import LIST_PRICES
from holdfast.policies.models.prompt_cache import USD_PER_SECOND
from holdfast.providers.anthropic import anthropic_model
from holdfast.providers.chain import ModelChain
from holdfast.providers.offers import offers_of
from holdfast.providers.openai import openai_model
from holdfast.providers.xai import XAI_URL, xai_model

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator

    from holdfast.policies import Consent, Policy
    from holdfast.providers.messages import Part, Reply, Request
    from holdfast.providers.model import AfterFirst, Model, ModelOptions, Parts, RecoveringModel
    from holdfast.runtime.runtime import Runtime

__all__ = ["NamedModel", "listed_names", "model_of", "opened"]

# The current model of each family, from platform.claude.com/docs (models overview), read on 16 November 2026. An alias moves
# to the next model of its family with a release of Holdfast. Write the model's own id where that must not happen.
_ALIASES = {
    "claude-haiku": "claude-haiku-5-5",
    "claude-opus": "claude-opus-5-5",
    "claude-sonnet": "claude-sonnet-5-5",
}


@options.suggests
def model_of(
    given: str | Model | Sequence[str | Model],
    *,
    consent: Consent = "configured",
    policy: Policy | None = None,
    usd_per_second: float | None = USD_PER_SECOND,
    runtime: Runtime | None = None,
) -> Model:
    """Return the model of a name, or the chain of models of several names. A `Model` is returned as it is.

    A name has its provider in front (`anthropic/…`, `openai/…`, `xai/…`), or begins with `claude-`, `gpt-`, `o3` or `grok-`.
    `claude-haiku`, `claude-opus` and `claude-sonnet` are the current models of these families. The keys are read from
    `ANTHROPIC_API_KEY`, `OPENAI_API_KEY` and `XAI_API_KEY`, other addresses from `ANTHROPIC_BASE_URL`, `OPENAI_BASE_URL` and
    `XAI_BASE_URL`, when the first request is sent.

    `consent`, and `usd_per_second`, which a second of waiting for a warm prompt cache is worth, are those of `ModelChain`.

    A name that is not known raises `InvalidError` with similar names. The first request raises `MissingExtraError` if the
    provider's package is not installed, and `HoldfastError` (`AUTH_FAILED`) if there is no key.

        model = model_of(["claude-sonnet", "gpt-5"])
        async with opened(model):
            reply = await model.exchange(Request(messages=(User(text="hi"),)))
    """
    if isinstance(given, str):
        return _named(given, policy, runtime)
    if _is_model(given):
        return given
    if not isinstance(given, Sequence) or not given:
        raise InvalidError.at("model", "a name, a Model, or a list of names and Models", given)
    models = [model_of(one, policy=policy, runtime=runtime) for one in given]
    if len(models) == 1:
        return models[0]
    return ModelChain(models, consent=consent, usd_per_second=usd_per_second, runtime=runtime)


@asynccontextmanager
async def opened(model: Model) -> AsyncGenerator[Model, None]:
    """Keep the clients of a model by name open inside the block, and close them after it.

    A client is still made by the first request that needs it. Without the block every request makes a client and a
    connection of its own. A `Model` of yours is yours to close: `async with opened(model_of("claude-sonnet")) as model: ...`.
    """
    async with AsyncExitStack() as stack:
        for one in _parts_of(model):
            await stack.enter_async_context(one.kept())
        yield model


def listed_names(model: Model) -> Iterator[str]:
    """Yield the names under which the models of a chain, or the one model, have a price: those of their providers."""
    if isinstance(model, ModelChain):
        for one in model.models:
            yield from listed_names(one)
    else:
        yield model.name.partition("/")[2] or model.name


def _parts_of(model: Model) -> Iterator[NamedModel]:
    if isinstance(model, NamedModel):
        yield model
    elif isinstance(model, ModelChain):
        for one in model.models:
            yield from _parts_of(one)


class NamedModel:
    """A model whose client is made from the environment when it is first used. `model_of` makes it."""

    negotiates = True

    def __init__(
        self, provider: str, model: str, *, policy: Policy | None = None, runtime: Runtime | None = None
    ) -> None:
        self.name = f"{provider}/{model}"
        self.offers = offers_of(model)
        self._provider = _PROVIDERS[provider]
        self._model = model
        self._options: ModelOptions = {"policy": policy, "runtime": runtime}
        # The connections of a client belong to one event loop, and a program may run several loops, one after the other.
        self._open: WeakKeyDictionary[asyncio.AbstractEventLoop, _Open] = WeakKeyDictionary()

    async def exchange(self, request: Request) -> Reply:
        """Return the complete answer, with retries."""
        async with self.kept() as client:
            return await self._made(client).exchange(request)

    def stream(self, request: Request, *, after_first: AfterFirst = "raise") -> Parts:
        """Return the answer in parts. A failure before the first part is retried."""
        return self._stream(request, after_first)

    @asynccontextmanager
    async def _stream(self, request: Request, after_first: AfterFirst) -> AsyncGenerator[AsyncIterator[Part], None]:
        async with self.kept() as client, self._made(client).stream(request, after_first=after_first) as parts:
            yield parts

    @asynccontextmanager
    async def kept(self) -> AsyncGenerator[_Open, None]:
        """Keep a client open that is made inside the block, until its last user has left."""
        loop = asyncio.get_running_loop()
        client = self._open.get(loop)
        if client is None:
            client = self._open[loop] = _Open()
        client.users += 1
        try:
            yield client
        finally:
            client.users -= 1
            if not client.users:
                del self._open[loop]
                await client.close()

    def _made(self, client: _Open) -> RecoveringModel:
        if client.model is None:
            with needs_extra(f"the model {self.name}", self._provider.package, self._provider.package):
                client.sdk, client.model = self._provider.make(self.name, self._model, self._options)
        return client.model

    def __repr__(self) -> str:
        return f"model_of({self.name!r})"


class _Open:
    """The client of one event loop, once it is made, and how many use it."""

    sdk: Any = None
    model: RecoveringModel | None = None
    users = 0

    async def close(self) -> None:
        if self.sdk is not None:
            await self.sdk.close()


# --- names ---


def _named(name: str, policy: Policy | None, runtime: Runtime | None) -> NamedModel:
    provider, slash, model = name.strip().partition("/")
    if slash:
        if provider not in _PROVIDERS or not model:
            raise InvalidError.at("model", f"{', '.join(f'{one}/…' for one in _PROVIDERS)} or a model's name", name)
        return NamedModel(provider, _ALIASES.get(model, model), policy=policy, runtime=runtime)
    model = _ALIASES.get(provider, provider)
    found = [one for one, maker in _PROVIDERS.items() if model.startswith(maker.prefixes)]
    if not found or _is_misspelt(model):
        raise InvalidError.at("model", _expected(name, found), name)
    return NamedModel(found[0], model, policy=policy, runtime=runtime)


def _is_misspelt(model: str) -> bool:
    """Whether a name looks wrong: a word is almost one of the known names, or it has no number, as all ids of models have.

    A new model has new numbers, and may be of a new family, so a name that is not listed is not wrong for that.
    """
    words = {word for name in _known() for word in name.split("-")}
    strange = [word for word in model.split("-") if word.isalpha() and word not in words]
    return not any(map(str.isdigit, model)) or any(get_close_matches(word, words, 1, 0.8) for word in strange)


def _expected(name: str, providers: list[str]) -> str:
    near = get_close_matches(name.replace(":", "/", 1).rpartition("/")[2], _known(), 3)
    hint = f"did you mean {' or '.join(near)}?" if near else f"such as {', '.join(_ALIASES)}, gpt-5"
    sure = providers[0] if providers else "anthropic"
    return f"the name of a model ({hint} With its provider in front, as in {sure}/{name or '…'}, any name is sent)"


def _known() -> list[str]:
    return [*_ALIASES, *LIST_PRICES.table]


def _is_model(given: object) -> TypeGuard[Model]:
    return all(hasattr(given, name) for name in ("name", "offers", "exchange", "stream"))


# --- providers ---


class _Maker(NamedTuple):
    """How a provider's models are recognised and made."""

    package: str
    """The package of the SDK, and the extra that installs it."""
    prefixes: tuple[str, ...]
    make: Callable[[str, str, ModelOptions], tuple[Any, RecoveringModel]]


def _anthropic(name: str, model: str, options: ModelOptions) -> tuple[Any, RecoveringModel]:
    from anthropic import AsyncAnthropic  # noqa: PLC0415 - an SDK is loaded only when it is used

    client = AsyncAnthropic()
    # The SDK finds credentials in more places than the variable: tokens, profiles, identities of workloads.
    if not any(getattr(client, place, None) for place in ("api_key", "auth_token", "credentials")):
        raise _no_key(name, "ANTHROPIC_API_KEY")
    return client, anthropic_model(model, client, **options)


def _openai(name: str, model: str, options: ModelOptions) -> tuple[Any, RecoveringModel]:
    from openai import AsyncOpenAI, OpenAIError  # noqa: PLC0415

    try:
        client = AsyncOpenAI()
    except OpenAIError as error:
        raise _no_key(name, "OPENAI_API_KEY") from error
    return client, openai_model(model, client, **options)


def _xai(name: str, model: str, options: ModelOptions) -> tuple[Any, RecoveringModel]:
    from openai import AsyncOpenAI  # noqa: PLC0415

    # Without a key of its own the client would send OpenAI's key to xAI.
    key = os.environ.get("XAI_API_KEY")
    if not key:
        raise _no_key(name, "XAI_API_KEY")
    client = AsyncOpenAI(base_url=os.environ.get("XAI_BASE_URL") or XAI_URL, api_key=key)
    return client, xai_model(model, client, **options)


def _no_key(name: str, variable: str) -> HoldfastError:
    context = {"model": name, "variable": variable}
    message = (
        f"{name} needs a key: set the environment variable {variable}, or give the agent a Model with a client of yours"
    )
    return HoldfastError(Fault.of("AUTH_FAILED", message, context=context))


_PROVIDERS = {
    "anthropic": _Maker(package="anthropic", prefixes=("claude-",), make=_anthropic),
    "openai": _Maker(package="openai", prefixes=("gpt-", "chatgpt-", "o1", "o3", "o4"), make=_openai),
    "xai": _Maker(package="openai", prefixes=("grok-",), make=_xai),
}
