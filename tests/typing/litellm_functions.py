"""What `holdfast.litellm.recovering` gives is called like what it was given. Checked, never run."""

from __future__ import annotations

from typing import assert_type

from holdfast import BATCH, Runtime
from holdfast.litellm import recovering


def completion(model: str, messages: list[dict[str, str]], *, stream: bool = False) -> int:
    """Stand in for LiteLLM's, which is not installed here."""
    return len(model) + len(messages) + stream


recovered = recovering(
    completion,
    policy=BATCH,
    name="openai",
    fallbacks=["openai/gpt-5", {"model": "m", "api_key": "k"}],
    runtime=Runtime(),
)
assert_type(recovered("openai/gpt-5", []), int)
recovering(completion, fallbacks=[7])  # type: ignore[list-item] # pyright: ignore[reportArgumentType]
