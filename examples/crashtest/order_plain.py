"""An agent without a framework, and without anything but Python: it asks a model, calls a tool, and stores each turn in SQLite.

    holdfast crashtest --script model.toml --fake-effects -- python order_plain.py

It goes on after a crash with the last turn that is stored.
"""

from __future__ import annotations

import json
import os
import sqlite3
import urllib.request
from typing import Any

PAYMENTS_URL = os.environ.get("PAYMENTS_URL", "http://127.0.0.1:8426")
MODEL_URL = os.environ.get("ANTHROPIC_BASE_URL", "https://api.anthropic.com")
PATHS = {"charge": "/charges", "send_receipt": "/receipts"}
TOOLS = [{"name": name, "description": name, "input_schema": {"type": "object"}} for name in PATHS]


def post(url: str, body: Any, **headers: str) -> Any:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json", **headers})
    with urllib.request.urlopen(request) as answer:
        return json.loads(answer.read())


def ask(messages: list[Any]) -> Any:
    body = {"model": "claude-haiku-4-5", "max_tokens": 1000, "tools": TOOLS, "messages": messages}
    key = os.environ.get("ANTHROPIC_API_KEY", "")
    return post(f"{MODEL_URL}/v1/messages", body, **{"x-api-key": key, "anthropic-version": "2023-06-01"})["content"]


db = sqlite3.connect("agent.db")
db.execute("CREATE TABLE IF NOT EXISTS message (body)")
while True:
    stored = [json.loads(body) for (body,) in db.execute("SELECT body FROM message ORDER BY rowid")]
    content = ask([{"role": "user", "content": "Order 42 costs 19.99. Settle it."}, *stored])
    turn = [{"role": "assistant", "content": content}]
    calls = [part for part in content if part["type"] == "tool_use"]
    if not calls:
        print(content[0]["text"])
        break
    results = []
    for call in calls:
        done = post(PAYMENTS_URL + PATHS[call["name"]], call["input"])
        results.append({"type": "tool_result", "tool_use_id": call["id"], "content": json.dumps(done)})
    turn.append({"role": "user", "content": results})
    with db:
        db.executemany("INSERT INTO message VALUES (?)", [(json.dumps(message),) for message in turn])
