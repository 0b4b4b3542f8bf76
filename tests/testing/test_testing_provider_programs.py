"""Real programs against the fault provider: coding agents from npm, and SDKs that need an environment of their own.

Each is installed once, below pytest's cache. If the registry does not give it, its tests are skipped and say why.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import textwrap
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import pytest

from holdfast.testing import serve_in_thread
from holdfast.testing.provider import Script, Turn

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from holdfast.testing import FaultProvider

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif("HOLDFAST_SOAK" not in os.environ, reason="minutes: make soak"),
]

ANSWER = "A holdfast holds a kelp to its rock."
TRIES = 3
INSTALL_LIMIT, RUN_LIMIT = 600, 300
# The programs have updates to look for and reports to send. All of that ends at a port of this machine that nobody listens on.
NOWHERE = dict.fromkeys(("HTTPS_PROXY", "https_proxy"), "http://127.0.0.1:9") | dict.fromkeys(
    ("NO_PROXY", "no_proxy"), "127.0.0.1,localhost"
)


class Ran(NamedTuple):
    """How a program ended."""

    code: int
    out: str
    err: str

    def __str__(self) -> str:
        return f"exit code {self.code}\n{self.out[-2000:]}\n{self.err[-2000:]}"


class Program(NamedTuple):
    """An agent: its package, how it is started, and the tool with which it writes a file."""

    package: str
    binary: str
    command: Callable[[FaultProvider, Path, str], tuple[list[str], dict[str, str]]]
    """Takes the provider, the program's home and the prompt; returns arguments and environment. It may write settings."""
    writes: Callable[[Path], Turn]
    """Returns the call that makes the agent write its file."""
    faults: str
    """A script that the program survives by its own retries."""


def claude_code(provider, _home, prompt):
    arguments = ["-p", prompt, "--permission-mode", "acceptEdits", "--allowedTools", "Write"]
    return arguments, {**provider.environment, "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"}


def codex(provider, _home, prompt):
    settings = {"openai_base_url": provider.openai_url, "check_for_update_on_startup": False}
    written = [part for name, value in settings.items() for part in ("-c", f"{name}={json.dumps(value)}")]
    arguments = ["exec", "--skip-git-repo-check", "--sandbox", "danger-full-access", *written, prompt]
    return arguments, {"CODEX_API_KEY": "test"}


def opencode(provider, home, prompt):
    settings = {
        "autoupdate": False,
        "share": "disabled",
        "model": "anthropic/claude-sonnet-4-5",
        "small_model": "anthropic/claude-haiku-4-5",
        "permission": {"edit": "allow", "bash": "allow"},
        "provider": {"anthropic": {"options": {"baseURL": provider.openai_url, "apiKey": "test"}}},
    }
    file = home / "opencode.json"
    file.write_text(json.dumps(settings), encoding="utf-8")
    switches = ("AUTOUPDATE", "MODELS_FETCH", "LSP_DOWNLOAD", "DEFAULT_PLUGINS")
    off = {f"OPENCODE_DISABLE_{switch}": "1" for switch in switches}
    return ["run", prompt], {"OPENCODE_CONFIG": str(file), **off}


def gemini_cli(provider, home, prompt):
    settings = {
        # With an address of its own in the environment it would choose another way of signing in.
        "security": {"auth": {"selectedType": "gemini-api-key"}},
        "privacy": {"usageStatisticsEnabled": False},
        "general": {"enableAutoUpdate": False},
    }
    (home / ".gemini").mkdir(exist_ok=True)
    (home / ".gemini" / "settings.json").write_text(json.dumps(settings), encoding="utf-8")
    arguments = ["-p", prompt, "-m", "gemini-2.5-pro", "--skip-trust", "--approval-mode", "auto_edit"]
    return arguments, provider.environment


PROGRAMS = {
    "claude-code": Program(
        "@anthropic-ai/claude-code@2.1.325",
        "claude",
        claude_code,
        lambda folder: Turn(tool="Write", arguments={"file_path": str(folder / "made.txt"), "content": "holdfast"}),
        "529*2, cut;after=2",
    ),
    "codex": Program(
        "@openai/codex@0.166.0",
        "codex",
        codex,
        lambda folder: Turn(tool="exec_command", arguments={"cmd": f"printf holdfast > {folder / 'made.txt'}"}),
        "503, cut;after=2, failed, sse-error",
    ),
    "opencode": Program(
        "opencode-ai@1.18.33",
        "opencode",
        opencode,
        lambda folder: Turn(tool="write", arguments={"filePath": str(folder / "made.txt"), "content": "holdfast"}),
        "529, 429;retry-after=1",
    ),
    "gemini-cli": Program(
        "@google/gemini-cli@0.61.0",
        "gemini",
        gemini_cli,
        lambda folder: Turn(tool="write_file", arguments={"file_path": str(folder / "made.txt"), "content": "holdfast"}),
        "429;hint=1s, 503",
    ),
}  # fmt: skip


def run(arguments: list[str], folder: Path, env: dict[str, str], limit: float = RUN_LIMIT) -> Ran:
    """Run a program with only the given environment. A program that hangs fails the test."""
    done = subprocess.run(
        arguments, cwd=folder, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=limit, check=False
    )  # fmt: skip
    return Ran(done.returncode, done.stdout, done.stderr)


@contextmanager
def only_one(file: Path):
    """Let one process at a time into the block."""
    with file.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def install(folder: Path, command: list[str]) -> None:
    """Install into a folder once. Skip the test, with the installer's own words, if it fails every time."""
    folder.mkdir(parents=True, exist_ok=True)
    # Package indexes are signed by public authorities; tests/conftest.py sets one that signs nothing.
    env = {name: value for name, value in os.environ.items() if name != "SSL_CERT_FILE"}
    done = folder / ".installed"
    with only_one(folder / ".lock"):
        if done.exists() and done.read_text(encoding="utf-8") == str(command):
            return
        for _ in range(TRIES):
            try:
                ran = run(command, folder, env, INSTALL_LIMIT)
            except (OSError, subprocess.TimeoutExpired) as error:
                ran = Ran(1, "", str(error))
            if ran.code == 0:
                done.write_text(str(command), encoding="utf-8")
                return
    pytest.skip(f"{' '.join(command)} failed {TRIES} times: {(ran.err or ran.out)[-500:]}")


class Started(NamedTuple):
    """A program that is installed, with a home and a work folder of its own."""

    program: Program
    binary: Path
    home: Path
    folder: Path

    def ask(self, provider: FaultProvider, prompt: str = "What is a holdfast?") -> Ran:
        arguments, more = self.program.command(provider, self.home, prompt)
        env = {"PATH": os.environ["PATH"], "HOME": str(self.home), "TERM": "xterm-256color", "NO_COLOR": "1"}
        return run([str(self.binary), *arguments], self.folder, {**env, **NOWHERE, **more})


@pytest.fixture(params=PROGRAMS)
def started(request, tmp_path):
    program = PROGRAMS[request.param]
    if shutil.which("npm") is None:
        pytest.skip("npm is not on this machine")
    cached = request.config.cache.mkdir("programs") / request.param
    install(cached, ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(cached), program.package])
    home, folder = tmp_path / "home", tmp_path / "work"
    home.mkdir()
    folder.mkdir()
    return Started(program, cached / "node_modules" / ".bin" / program.binary, home, folder)


def test_FI6_a_program_gets_its_answer(started):
    with serve_in_thread(Script(replies=(ANSWER,))) as provider:
        ran = started.ask(provider)
    assert ran.code == 0, ran
    assert ANSWER in ran.out, ran
    assert provider.counters.answered >= 1
    assert provider.counters.injected == provider.counters.limited == {}


def test_FI6_a_program_runs_a_tool_and_goes_on_with_its_result(started):
    turns = (started.program.writes(started.folder), ANSWER)
    # A title for the session is made with a request of its own, which has no tools. It gets the second turn as well.
    with serve_in_thread(Script(replies=turns)) as provider:
        ran = started.ask(provider, "Write the file.")
    assert ran.code == 0, ran
    assert (started.folder / "made.txt").read_text(encoding="utf-8") == "holdfast", ran
    assert ANSWER in ran.out, ran


def test_FI6_a_program_meets_the_scripted_faults_and_survives_them(started):
    rule = {"steps": started.program.faults}
    with serve_in_thread(json.dumps({"rules": [rule], "replies": [ANSWER]})) as provider:
        ran = started.ask(provider)
        assert ran.code == 0, ran
        assert ANSWER in ran.out, ran
        met = sum(provider.counters.injected.values())
    assert met == len(provider.script.rules[0].steps.replace("529*2", "529, 529").split(",")), provider.counters


def test_FI6_a_program_is_limited_by_its_own_load(started):
    """The first request takes the only place in the bucket, so a program that sends another one too soon is limited."""
    turns = (started.program.writes(started.folder), ANSWER)
    with serve_in_thread(Script(replies=turns), limits=["requests=20;burst=1"]) as provider:
        ran = started.ask(provider, "Write the file.")
    assert ran.code == 0, ran
    assert ANSWER in ran.out, ran
    counted = provider.counters
    assert counted.limited["requests"] >= 1, counted
    assert counted.received == counted.answered + counted.refused + sum(counted.limited.values())


SDKS = textwrap.dedent(
    """
    import sys
    import anthropic, pydantic
    from google import genai

    class Day(pydantic.BaseModel):
        name: str
        degrees: float

    class Forecast(pydantic.BaseModel):
        city: str
        days: list[Day]

    url, answer, model = sys.argv[1], sys.argv[2], "gemini-2.5-pro"
    client = genai.Client(api_key="k", http_options={"base_url": url})
    assert client.models.generate_content(model=model, contents="hello").text == answer
    assert "".join(c.text or "" for c in client.models.generate_content_stream(model=model, contents="hello")) == answer
    assert client.models.count_tokens(model=model, contents="hello").total_tokens > 5
    assert client.models.get(model=model).name == f"models/{model}"
    assert [each.name for each in client.models.list()]
    assert len(client.models.embed_content(model=model, contents="a").embeddings[0].values) == 1536

    messages = [{"role": "user", "content": "hello"}]
    request = {"model": "anthropic.claude-3-5-sonnet-20240620-v1:0", "max_tokens": 9, "messages": messages}
    bedrock = anthropic.AnthropicBedrock(aws_access_key="A", aws_secret_key="s", aws_region="us-east-1", base_url=url)
    assert bedrock.messages.create(**request).content[0].text == answer
    with bedrock.messages.stream(**request) as stream:
        assert stream.get_final_message().content[0].text == answer
    vertex = anthropic.AnthropicVertex(region="global", project_id="p", access_token="t", base_url=url + "/v1")
    assert vertex.messages.create(**request).content[0].text == answer
    with vertex.messages.stream(**request) as stream:
        assert stream.get_final_message().content[0].text == answer
    assert vertex.messages.count_tokens(model="m", messages=messages).input_tokens > 5

    if "--echo" in sys.argv:
        wanted = {"response_mime_type": "application/json", "response_schema": Forecast}
        assert isinstance(client.models.generate_content(model=model, contents="hello", config=wanted).parsed, Forecast)
    """
)


@pytest.fixture
def python_with_sdks(request):
    """The Python of an environment with SDKs that need other versions than ours."""
    folder = request.config.cache.mkdir("programs") / "sdks"
    if not (folder / "bin" / "python").exists():
        install(folder / "venv-made", [sys.executable, "-m", "venv", str(folder)])
    python = str(folder / "bin" / "python")
    wanted = ["google-genai==3.1.0", "anthropic[bedrock,vertex]==2.8.0"]
    install(folder / "sdks-made", [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *wanted])
    return python


def test_FI6_the_sdks_of_google_and_the_clouds_speak_with_it(python_with_sdks, tmp_path):
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), **NOWHERE}
    with serve_in_thread() as provider:
        ran = run([python_with_sdks, "-c", SDKS, provider.url, "You said: hello", "--echo"], tmp_path, env)
        assert ran.code == 0, ran
        assert provider.counters.refused == 0
