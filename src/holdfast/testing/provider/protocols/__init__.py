"""The protocols the provider speaks, one module each; which one a request is in shows in its path and model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.testing.provider.protocols.anthropic import ANTHROPIC
from holdfast.testing.provider.protocols.openai_chat import OPENAI_CHAT, XAI_CHAT
from holdfast.testing.provider.protocols.openai_responses import OPENAI_RESPONSES, XAI_RESPONSES

if TYPE_CHECKING:
    from holdfast.testing.provider.protocols.base import Dialect
    from holdfast.testing.provider.requests import Request

__all__ = ["MODELS", "dialect_of", "list_models"]

MODELS = ("claude-sonnet-4-5", "claude-haiku-4-5", "gpt-5", "gpt-5-mini", "grok-4")
_XAI = "grok"
_PATHS = {
    "/v1/messages": (ANTHROPIC, ANTHROPIC),
    "/v1/chat/completions": (OPENAI_CHAT, XAI_CHAT),
    "/v1/responses": (OPENAI_RESPONSES, XAI_RESPONSES),
}


def dialect_of(request: Request) -> Dialect | None:
    """Return the protocol a request is in; None where the path is none we speak."""
    if request.path == "/v1/models":
        return ANTHROPIC if "anthropic-version" in request.headers else OPENAI_CHAT
    usual, xai = _PATHS.get(request.path, (None, None))
    return xai if request.model.startswith(_XAI) else usual


def list_models(dialect: Dialect) -> dict[str, Any]:
    """Return the models there are, in a provider's words."""
    if dialect is not ANTHROPIC:
        models = [{"id": name, "object": "model", "created": 1_735_689_600, "owned_by": "holdfast"} for name in MODELS]
        return {"object": "list", "data": models}
    made = "2025-01-01T00:00:00Z"
    shown = [{"type": "model", "id": name, "display_name": name, "created_at": made, "lifecycle": "active"} for name in MODELS]  # fmt: skip
    return {"data": shown, "has_more": False, "first_id": MODELS[0], "last_id": MODELS[-1]}
