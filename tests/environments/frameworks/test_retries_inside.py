"""`recover` around real libraries that retry by themselves: the first retry warns, with what to change."""

from __future__ import annotations

import threading
import warnings
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import boto3
import pytest
from botocore.config import Config
from google import genai
from llama_index.llms.openai import OpenAI

from holdfast import Policy, recover
from holdfast.httpx import RecoveryWarning
from holdfast.testing import no_waiting


@pytest.fixture
def down():
    """A server that answers everything with 503, and counts."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers.get("content-length") or 0))
            server.received += 1
            body = b'{"message":"Service Unavailable"}'
            self.send_response(503)
            self.send_header("content-type", "application/json")
            self.send_header("x-amzn-errortype", "ServiceUnavailableException")
            self.send_header("retry-after-ms", "1")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            """It prints nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.received = 0
    server.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with no_waiting():
        yield server
    server.shutdown()
    server.server_close()


def failing(name, call):
    with pytest.raises(Exception), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        recover(name, Policy(attempts=2)).call(call)
    return [warning for warning in caught if warning.category is RecoveryWarning]


def bedrock(url, **retries):
    credentials = {"region_name": "us-east-1", "aws_access_key_id": "x", "aws_secret_access_key": "y"}
    client = boto3.client("bedrock-runtime", endpoint_url=url, config=Config(retries=retries), **credentials)
    return lambda: client.converse(modelId="m", messages=[{"role": "user", "content": [{"text": "hello"}]}])


def test_FI9_botocores_own_retries_are_reported_once_at_the_callers_line(down):
    (warning,) = failing("boto", bedrock(down.url, total_max_attempts=2))
    assert "botocore retried once inside one attempt of boto" in str(warning.message)
    assert 'Config(retries={"total_max_attempts": 1})' in str(warning.message)
    assert warning.filename == __file__
    assert down.received == 4


def test_FI9_also_where_no_connection_could_be_made(down):
    (warning,) = failing("boto-refused", bedrock("http://127.0.0.1:9", total_max_attempts=2))
    assert "botocore" in str(warning.message)


def test_without_retries_of_its_own_nothing_is_reported(down):
    assert failing("boto-quiet", bedrock(down.url, total_max_attempts=1)) == []
    assert down.received == 2


def test_FI9_llama_index_retries_with_tenacity_and_with_the_sdk(down):
    model = OpenAI(model="gpt-4o", api_key="x", api_base=f"{down.url}/v1", max_retries=1)
    (warning,) = failing("llama", lambda: model.complete("hello"))
    assert "retried" in str(warning.message)


def test_FI9_google_genai_with_retry_options(down):
    retries = {"attempts": 2, "initial_delay": 0.001, "jitter": 0}
    client = genai.Client(api_key="x", http_options={"base_url": down.url, "retry_options": retries})
    (warning,) = failing("gemini", lambda: client.models.generate_content(model="m", contents="hello"))
    assert "tenacity retried once" in str(warning.message)
