"""What the tests with the real LiteLLM share: no network but loopback, no lines on the screen, no waiting."""

from __future__ import annotations

import os

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
os.environ["LITELLM_LOG"] = "CRITICAL"

import litellm
import pytest

from holdfast import Runtime
from holdfast.testing import Capture, Midpoint, no_waiting, serve_in_thread, use_runtime

litellm.suppress_debug_info = True
litellm.telemetry = False

ASKED = {"messages": [{"role": "user", "content": "hello"}]}


@pytest.fixture(autouse=True)
def runtime():
    """A runtime of the test's own, where waiting takes no time."""
    with use_runtime(Runtime(rng=Midpoint())) as fresh, no_waiting():
        yield fresh


@pytest.fixture
def heard(runtime):
    capture = Capture()
    runtime.on(capture)
    return capture


@pytest.fixture
def stage():
    """Providers that fail on script; each call of it starts one."""
    stack = []

    def start(script: str):
        served = serve_in_thread(script)
        stack.append(served)
        return served.__enter__()

    yield start
    while stack:
        stack.pop().__exit__(None, None, None)


@pytest.fixture(params=["openai", "anthropic"])
def asking(request):
    """The arguments of a call to either provider; LiteLLM speaks to one through its SDK, to the other by itself."""

    def arguments(provider, **more):
        if request.param == "openai":
            where = {"model": "openai/gpt-5", "api_base": provider.openai_url}
        else:
            where = {"model": "anthropic/claude-haiku-4-5", "api_base": provider.url}
        return {**where, "api_key": "test", **ASKED, **more}

    arguments.name = request.param
    return arguments
