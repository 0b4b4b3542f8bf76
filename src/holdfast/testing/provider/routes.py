"""The paths that the provider serves, and the protocol that each of them speaks."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote

from holdfast.testing.provider import resources
from holdfast.testing.provider.anthropic import ANTHROPIC
from holdfast.testing.provider.bedrock import BEDROCK_ANTHROPIC, BEDROCK_CONVERSE
from holdfast.testing.provider.gemini import GEMINI, GEMINI_ARRAY, VERTEX_ANTHROPIC
from holdfast.testing.provider.openai import (
    AZURE_CHAT,
    AZURE_RESPONSES,
    OPENAI_CHAT,
    OPENAI_RESPONSES,
    XAI_CHAT,
    XAI_RESPONSES,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.testing.provider.dialect import ProviderDialect
    from holdfast.testing.provider.http import Request
    from holdfast.testing.provider.resources import Content, ResourceCall


class Route(NamedTuple):
    """One path. `{name}` stands for a part that varies."""

    method: str
    path: str
    dialect: ProviderDialect
    serve: Callable[[ResourceCall], Content] | None = None
    """Serves a resource. Without it the answer is the reply of a model."""
    stream: bool = False
    """Whether the path itself asks for a stream."""
    charged: bool = False
    """Whether the limits count requests for this resource. They always count replies."""


_V1 = (
    Route("POST", "/v1/messages", ANTHROPIC),
    Route("POST", "/v1/messages/count_tokens", ANTHROPIC, resources.count_tokens),
    Route("POST", "/v1/messages/batches", ANTHROPIC, resources.create_message_batch),
    Route("GET", "/v1/messages/batches", ANTHROPIC, resources.message_batches),
    Route("GET", "/v1/messages/batches/{id}", ANTHROPIC, resources.message_batch),
    Route("DELETE", "/v1/messages/batches/{id}", ANTHROPIC, resources.delete_message_batch),
    Route("POST", "/v1/messages/batches/{id}/cancel", ANTHROPIC, resources.cancel_message_batch),
    Route("GET", "/v1/messages/batches/{id}/results", ANTHROPIC, resources.message_batch_results),
    Route("POST", "/v1/chat/completions", OPENAI_CHAT),
    Route("POST", "/v1/responses", OPENAI_RESPONSES),
    Route("POST", "/v1/responses/input_tokens", OPENAI_RESPONSES, resources.count_input_tokens),
    Route("GET", "/v1/responses/{id}", OPENAI_RESPONSES, resources.response),
    Route("DELETE", "/v1/responses/{id}", OPENAI_RESPONSES, resources.delete_response),
    Route("POST", "/v1/responses/{id}/cancel", OPENAI_RESPONSES, resources.cancel_response),
    Route("GET", "/v1/responses/{id}/input_items", OPENAI_RESPONSES, resources.response_items),
    Route("POST", "/v1/embeddings", OPENAI_CHAT, resources.embeddings, charged=True),
    Route("POST", "/v1/batches", OPENAI_CHAT, resources.create_batch),
    Route("GET", "/v1/batches", OPENAI_CHAT, resources.batches),
    Route("GET", "/v1/batches/{id}", OPENAI_CHAT, resources.batch),
    Route("POST", "/v1/batches/{id}/cancel", OPENAI_CHAT, resources.cancel_batch),
    Route("GET", "/v1/models", OPENAI_CHAT, resources.models),
    Route("GET", "/v1/models/{model}", OPENAI_CHAT, resources.model),
    Route("POST", "/v1/files", OPENAI_CHAT, resources.upload_file),
    Route("GET", "/v1/files", OPENAI_CHAT, resources.files),
    Route("GET", "/v1/files/{id}", OPENAI_CHAT, resources.file),
    Route("GET", "/v1/files/{id}/content", OPENAI_CHAT, resources.file_content),
    Route("DELETE", "/v1/files/{id}", OPENAI_CHAT, resources.delete_file),
)
_GEMINI = (
    Route("POST", "/v1beta/models/{model}:generateContent", GEMINI),
    Route("POST", "/v1beta/models/{model}:streamGenerateContent", GEMINI, stream=True),
    Route("POST", "/v1beta/models/{model}:countTokens", GEMINI, resources.count_gemini_tokens),
    Route("POST", "/v1beta/models/{model}:embedContent", GEMINI, resources.gemini_embedding, charged=True),
    Route("POST", "/v1beta/models/{model}:batchEmbedContents", GEMINI, resources.gemini_embedding, charged=True),
    Route("GET", "/v1beta/models", GEMINI, resources.gemini_models),
    Route("GET", "/v1beta/models/{model}", GEMINI, resources.gemini_model),
)
_MODELS_OF_ANTHROPIC = "/v1/projects/{project}/locations/{location}/publishers/anthropic/models"
_VERTEX = (
    # This path has the place of a model, so it stands before the model's own.
    Route("POST", f"{_MODELS_OF_ANTHROPIC}/count-tokens:rawPredict", VERTEX_ANTHROPIC, resources.count_tokens),
    Route("POST", f"{_MODELS_OF_ANTHROPIC}/{{model}}:rawPredict", VERTEX_ANTHROPIC),
    Route("POST", f"{_MODELS_OF_ANTHROPIC}/{{model}}:streamRawPredict", VERTEX_ANTHROPIC, stream=True),
)
_BEDROCK = (
    Route("POST", "/model/{model}/invoke", BEDROCK_ANTHROPIC),
    Route("POST", "/model/{model}/invoke-with-response-stream", BEDROCK_ANTHROPIC, stream=True),
    Route("POST", "/model/{model}/converse", BEDROCK_CONVERSE),
    Route("POST", "/model/{model}/converse-stream", BEDROCK_CONVERSE, stream=True),
)
ROUTES = (*_V1, *_GEMINI, *_VERTEX, *_BEDROCK)
"""The paths. Those of Azure, and of Gemini on Vertex AI, are first turned into them by `locate`."""

_PATTERNS = [
    (route, re.compile(re.sub(r"\\{(\w+)\\}", r"(?P<\1>[^/]+)", re.escape(route.path)) + r"/?")) for route in ROUTES
]
_USUAL = {(route.method, route.path): route for route in _V1 if route.serve is None}
_DEPLOYMENT = re.compile(r"/openai/deployments/(?P<model>[^/]+)(?P<rest>/.+)")
_AZURE = re.compile(r"/openai(?:/v1)?(?P<rest>/.+)")
_FOUNDRY = re.compile(r"/anthropic(?P<rest>/v1/.+)")
_PUBLISHER = re.compile(r"(?:/v1(?:beta1)?)?(?P<where>/projects/[^/]+/locations/[^/]+/publishers/(?P<who>anthropic|google)/models/(?P<rest>.+))")  # fmt: skip
_GEMINI_VERSION = re.compile(
    r"/v1(?:alpha|beta)?(?P<rest>/models(?:/[^/]+?(?P<method>:[a-zA-Z]+Content|:countTokens|:batchEmbedContents)?)?)"
)
_XAI_MODELS = "grok"
_OF_XAI = {OPENAI_CHAT.name: XAI_CHAT, OPENAI_RESPONSES.name: XAI_RESPONSES}
_OF_AZURE = {OPENAI_CHAT.name: AZURE_CHAT, OPENAI_RESPONSES.name: AZURE_RESPONSES}


class RouteMatch(NamedTuple):
    """Where a request leads. `route` is None if the path is known but its method is wrong."""

    route: Route | None
    dialect: ProviderDialect
    names: dict[str, str]


def locate(request: Request) -> RouteMatch | None:
    """Return where a request leads, and write what its path names into the request. None for an unknown path."""
    # Almost all requests have one of these paths, so they are found without a search.
    if (usual := _USUAL.get((request.method, request.path))) is not None:
        return RouteMatch(usual, _dialect(usual, request, is_azure=False), {})
    path, model, is_azure = _normal(request)
    known: RouteMatch | None = None
    for route, pattern in _PATTERNS:
        if (match := pattern.fullmatch(path)) is None:
            continue
        names = {name: unquote(part) for name, part in match.groupdict().items()}
        request.path_model = model or names.get("model", "")
        request.path_stream = route.stream
        place = RouteMatch(route, _dialect(route, request, is_azure=is_azure), names)
        if route.method == request.method:
            return place
        # The same path may have other methods further down.
        known = known or place._replace(route=None)
    return known


def dialect_of(request: Request) -> ProviderDialect | None:
    """Return the protocol of a request for a reply; None for anything else."""
    place = locate(request)
    return place.dialect if place is not None and place.route is not None and place.route.serve is None else None


def _normal(request: Request) -> tuple[str, str, bool]:
    """Return the path as it stands in `ROUTES`, the model if it was in front of that, and whether it is Azure's."""
    path = request.path
    if match := _DEPLOYMENT.fullmatch(path):
        return f"/v1{match['rest']}", unquote(match["model"]), True
    if match := _AZURE.fullmatch(path):
        return f"/v1{match['rest']}", "", True
    if match := _FOUNDRY.fullmatch(path):
        return match["rest"], "", False
    if match := _PUBLISHER.fullmatch(path):
        # Vertex AI has more than one version, and clients may be given an address with or without one.
        return (f"/v1{match['where']}" if match["who"] == "anthropic" else f"/v1beta/models/{match['rest']}"), "", False
    # Three providers list their models at the same path, but only Google's clients send this header.
    match = _GEMINI_VERSION.fullmatch(path)
    if match and (match["method"] or "x-goog-api-key" in request.headers):
        return f"/v1beta{match['rest']}", "", False
    return path, "", False


def _dialect(route: Route, request: Request, *, is_azure: bool) -> ProviderDialect:
    dialect = route.dialect
    # Anthropic and OpenAI share some paths, but only Anthropic's clients send this header.
    if dialect is OPENAI_CHAT and route.serve is not None and "anthropic-version" in request.headers:
        return ANTHROPIC
    if dialect is GEMINI and route.stream and request.query.get("alt") != "sse":
        return GEMINI_ARRAY
    if is_azure:
        return _OF_AZURE.get(dialect.name, dialect)
    # xAI uses OpenAI's paths, so the model's name decides.
    return _OF_XAI.get(dialect.name, dialect) if request.model.startswith(_XAI_MODELS) else dialect
