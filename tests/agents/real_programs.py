"""The real Claude Code, Codex and Zed's adapter of Claude Code for the Agent Client Protocol, told to call only a fault provider: own home, a key that is none, no other traffic.

python tests/agents/real_programs.py      records what they print, for tests/agents/lines
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from holdfast import CommandAgent
from holdfast.testing.provider import FaultProvider, Script, Turn, serve_in_thread
from holdfast.testing.provider.script import Rule

ROOT = Path(__file__).parents[2]
LINES = Path(__file__).with_name("lines")
# Nothing listens there, so a call to any other machine fails at once.
NO_NETWORK = dict.fromkeys(
    ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), "http://127.0.0.1:9"
) | dict.fromkeys(("NO_PROXY", "no_proxy"), "127.0.0.1,localhost")
CODEX_SETTINGS = """
model = "gpt-5"
model_provider = "local"
check_for_update_on_startup = false
[analytics]
enabled = false
[model_providers.local]
name = "local"
base_url = "{url}"
env_key = "OPENAI_API_KEY"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 0
"""


def folder() -> Path:
    """Where `scripts/have-agents` installs them."""
    where = subprocess.run([ROOT / "scripts" / "have-agents", "--where"], capture_output=True, text=True, check=True)
    return Path(where.stdout.strip())


def is_installed() -> bool:
    return (folder() / ".ready").exists()


def claude(provider: FaultProvider, home: Path, *more: str, **options) -> CommandAgent:
    argv = [folder() / "node_modules/.bin/claude", "-p", "--bare", "--output-format", "stream-json", "--verbose", *more]
    return _agent(argv, _claude_environment(provider), home, options)


def claude_acp(provider: FaultProvider, home: Path, **options) -> CommandAgent:
    # For root it asks for a sandbox before it starts Claude Code.
    env = {**_claude_environment(provider), "IS_SANDBOX": "1"}
    return _agent([folder() / "node_modules/.bin/claude-code-acp"], env, home, options)


def _claude_environment(provider: FaultProvider) -> dict[str, str]:
    return {
        "ANTHROPIC_BASE_URL": provider.url,
        "ANTHROPIC_API_KEY": "test",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
        "CLAUDE_CODE_MAX_RETRIES": "0",
    }


def codex(provider: FaultProvider, home: Path, *more: str, **options) -> CommandAgent:
    settings = home / ".codex" / "config.toml"
    settings.parent.mkdir(parents=True, exist_ok=True)
    settings.write_text(CODEX_SETTINGS.format(url=provider.openai_url))
    argv = [folder() / "node_modules/.bin/codex", "exec", "--json", "--skip-git-repo-check", *more]
    return _agent(argv, {"OPENAI_API_KEY": "test"}, home, options)


def _agent(argv: list, env: dict[str, str], home: Path, options: dict) -> CommandAgent:
    work = home / "work"
    work.mkdir(parents=True, exist_ok=True)
    whole = {"HOME": str(home), **NO_NETWORK, **env, **options.pop("env", {})}
    return CommandAgent(argv, cwd=work, env=whole, **options)


# --- recording ---

TOOL = {
    "claude": Turn(tool="Bash", arguments={"command": "echo hi", "description": "say hi"}),
    "codex": Turn(tool="exec_command", arguments={"cmd": "echo hi"}),
}
RECORDED = {
    "answer": lambda _: Script(replies=("Hello.",)),
    "tool": lambda name: Script(replies=(TOOL[name], "Done.")),
    "overloaded": lambda _: Script(rules=(Rule(steps="529", loop=True),)),
    "denied": lambda _: Script(rules=(Rule(steps="401", loop=True),)),
    "overflow": lambda _: Script(rules=(Rule(steps="overflow", loop=True),)),
}
MORE = {"claude": ("--allowedTools", "Bash(echo *)"), "codex": ("--dangerously-bypass-approvals-and-sandbox",)}


def record() -> None:
    LINES.mkdir(exist_ok=True)
    for name, make in (("claude", claude), ("codex", codex)):
        for case, script in RECORDED.items():
            with tempfile.TemporaryDirectory() as home, serve_in_thread(script(name)) as provider:
                agent = make(provider, Path(home), *MORE[name])
                command = agent.command(agent.argv(""), "say hello", 60)
                ran = subprocess.run(
                    command.argv, input=b"say hello", capture_output=True, env=command.env, cwd=command.cwd, check=False
                )
                lines = neutral(ran.stdout.decode(), home, provider.port)
            (LINES / f"{name}-{case}.jsonl").write_text(lines, encoding="utf-8")


def neutral(text: str, home: str, port: int) -> str:
    """Without what differs between machines and moments."""
    text = text.replace(home, "~").replace(f":{port}", ":8000")
    ids: dict[str, str] = {}
    text = re.sub(
        r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
        lambda found: ids.setdefault(found[0], f"00000000-0000-4000-8000-{len(ids) + 1:012}"),
        text,
    )
    return "".join(_short(line) + "\n" for line in text.splitlines())


def _short(line: str) -> str:
    """Without the lists of everything that the program offers, which no reader needs."""
    found = json.loads(line)
    if found.get("subtype") == "init":
        found = {name: value for name, value in found.items() if not isinstance(value, list)}
    return json.dumps(found, ensure_ascii=False)


if __name__ == "__main__":
    if not is_installed():
        sys.exit("scripts/have-agents installs them")
    record()
