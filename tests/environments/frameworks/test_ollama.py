"""The real Ollama client in front of nothing."""

from __future__ import annotations

import asyncio

import ollama
import pytest

from holdfast import fault_of


def test_FI11_a_server_that_does_not_run_refuses_the_connection():
    with pytest.raises(ConnectionError) as caught:
        ollama.Client(host="http://127.0.0.1:9").chat(model="m", messages=[])
    assert fault_of(caught.value).code == "CONN_REFUSED"
    with pytest.raises(ConnectionError) as caught:
        asyncio.run(ollama.AsyncClient(host="http://127.0.0.1:9").chat(model="m", messages=[]))
    assert fault_of(caught.value).code == "CONN_REFUSED"
