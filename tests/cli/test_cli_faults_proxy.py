"""`holdfast faults proxy`"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading

import pytest
from cli_runs import SCRIPT, environment, holdfast


@pytest.fixture
def server():
    """Answers every connection with what it was sent first, and closes."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                with connection:
                    connection.sendall(connection.recv(100))

        threading.Thread(target=serve, daemon=True).start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)


def test_it_says_where_it_listens_and_what_is_wrong_there():
    result = holdfast("faults", "proxy", "--to", "127.0.0.1:9", "--toxic", "latency=0.05", "--seconds", "0.01")
    assert result.exit_code == 0
    assert "passes to 127.0.0.1:9; toxics: Latency(seconds=0.05); Ctrl-C ends it" in result.stderr
    assert "connections  0" in result.stdout


def test_it_is_the_same_in_json():
    result = holdfast("faults", "proxy", "--to", "h:9", "--toxic", "reset=5", "--seconds", "0.01", "--json")
    shown = json.loads(result.stdout)
    assert (shown["schema"], shown["to"]) == ("holdfast.faults.proxy/1", "h:9")
    assert shown["toxics"] == [{"toxic": "reset", "after": 5}]
    assert shown["counters"]["connections"] == 0


def test_the_real_command_proxies_until_ctrl_c_and_counts(server):
    command = [SCRIPT, "faults", "proxy", "--to", server, "--toxic", "limit=3;direction=down", "--json"]
    with subprocess.Popen(
        command, env=environment(PYTHONPATH=os.pathsep.join(sys.path)), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        address = process.stderr.readline().split()[0].decode()
        host, _, port = address.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=5) as client:
            client.sendall(b"hello")
            assert client.makefile("rb").read() == b"hel"
        process.send_signal(signal.SIGINT)
        shown = json.loads(process.stdout.read())
        assert process.wait(10) == 130
    assert shown["counters"]["connections"] == 1
    assert (shown["counters"]["bytes_up"], shown["counters"]["bytes_down"]) == (5, 3)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--to", "nowhere"), "upstream: expected HOST:PORT"),
        (("--to", "h:1", "--listen", "x"), "listen: expected HOST:PORT"),
        (("--to", "h:1", "--toxic", "latncy=1"), "toxic: expected one of bandwidth, black-hole"),
        (("--to", "h:1", "--seconds", "-1"), "--seconds: expected a finite number of seconds > 0 or None, got -1"),
        (("--to", "h:1", "--seed", "-1"), "seed: expected a whole number"),
    ],
)
def test_a_bad_option_is_a_usage_error_that_says_where(arguments, told):
    result = holdfast("faults", "proxy", *arguments)
    assert result.exit_code == 2
    assert told in result.stderr
