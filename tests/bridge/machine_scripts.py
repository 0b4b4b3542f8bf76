"""Scripts for the machine of a client: run through Python's machine here, and through JavaScript's by Node.

A script is a JSON document: `{"options": {…}, "steps": [{"do": "connect"}, {"do": "received", "frame": {…}}, …]}`.
"""

from __future__ import annotations

import itertools
import json
import random
import shutil
import subprocess
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest

from holdfast.faults import Fault, HoldfastError
from holdfast.testing import VirtualClock
from holdfast.wire.client import ClientConnection
from holdfast.wire.outbox import Outbox
from holdfast.wire.position import Position
from holdfast.wire.reconnect import BRIDGE, DEFAULT, LINEAR

__all__ = ["in_node", "in_python", "node", "random_script"]

RUNNER = Path(__file__).parent / "javascript" / "run_scripts.mjs"
SERVER_TIMES = ("2025-01-01T01:00:00.000Z", "2024-12-31T23:00:00.250Z", "2025-01-01T00:00:00.5+01:00", "soon", None)
"""The clock of the server: an hour ahead of the client's at the beginning of a script, an hour behind it, and what is no time."""
SCHEDULES = {"default": DEFAULT, "bridge": BRIDGE, "linear": LINEAR}
NAMES = {
    "Connect": "connect",
    "Send": "send",
    "Drop": "drop",
    "Deliver": "deliver",
    "Acked": "acked",
    "Expired": "expired",
    "GapFound": "gap",
    "Held": "held",
    "Online": "online",
    "Joined": "joined",
    "NotJoined": "not_joined",
    "TokenNeeded": "token_needed",
    "Failed": "failed",
}


def node() -> str:
    """Return the path of Node, or skip the test."""
    found = shutil.which("node")
    if found is None:
        pytest.skip(
            "Node.js is missing: the tests of the JavaScript client are SKIPPED (Debian: apt-get install nodejs)"
        )
    return found


def in_node(scripts: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Run scripts through the JavaScript machine."""
    lines = "\n".join(json.dumps(script) for script in scripts)
    done = subprocess.run([node(), str(RUNNER)], input=lines, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    # The one word that differs: how an option is written in each language.
    return [json.loads(line) for line in done.stdout.replace("acceptPublic: true", "accept_public=True").splitlines()]


def in_python(script: dict[str, Any]) -> list[dict[str, Any]]:
    """Run a script through the Python machine."""
    run = Run(script.get("options", {}))
    return [run.step(step) for step in script["steps"]]


class Draws:
    def __init__(self, numbers: list[float]) -> None:
        self._numbers = itertools.cycle(numbers)

    def random(self) -> float:
        return next(self._numbers)


class Run:
    """One machine in Python, and what a script does to it."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.clock = VirtualClock(wall=1735689600.0)
        numbers = itertools.count(1)
        self.client = ClientConnection(
            "token",
            clock=self.clock,
            rng=Draws(options.get("random", [0.5])),  # type: ignore[arg-type]
            new_id=lambda: str(UUID(int=next(numbers))),
            client_id="phone",
            platform="test",
            schedule=SCHEDULES[options.get("schedule", "default")],
            outbox=Outbox(max_count=options.get("max_count", 1000), window=options.get("window", 32)),
            accept_public=options.get("accept_public", False),
        )

    def step(self, step: dict[str, Any]) -> dict[str, Any]:
        args = {name: value for name, value in step.items() if name not in ("do", "effects", "status", "raised")}
        try:
            effects = getattr(self, f"do_{step['do']}", getattr(self.client, step["do"], None))(**args)
        except HoldfastError as error:
            return {"raised": error.fault.code}
        except KeyError:
            # A session that was not joined.
            return {"raised": "CONFIG_OPTION_INVALID"}
        client = self.client
        places = {name: found.position for name, found in client._sessions.items()}
        return {
            "effects": [shown(effect) for effect in effects or []],
            "status": client.status,
            "next_at": client.next_at,
            "fault": client.fault.code if client.fault else None,
            "positions": {name: None if each is None else msgspec.to_builtins(each) for name, each in places.items()},
            "waiting": len(client.outbox),
            "held": list(client.outbox.held),
        }

    def do_advance(self, seconds: float) -> None:
        self.clock.advance(seconds)

    def do_jump(self, seconds: float) -> None:
        self.clock.jump(seconds)

    def do_join(self, session: str, after: dict[str, Any] | None = None, **options: Any) -> Any:
        place = None if after is None else msgspec.convert(after, Position)
        return self.client.join(session, after=place, **options)

    def do_send(self, session: str, text: str, expires: float | None = None) -> Any:
        at = None if expires is None else self.clock.wall() + expires
        return self.client.send(session, "session_message", {"content": text}, expires_at=at)[1]

    def do_discard(self, place: int) -> Any:
        waiting = [each.id for each in self.client.outbox]
        if place < len(waiting):
            self.client.outbox.discard(waiting[place])
        return self.client.flush()

    def do_ask(self, type: str, payload: dict[str, Any]) -> Any:  # noqa: A002 - the script's own name for it
        return self.client.ask(type, payload)[1]

    def do_taken(self, session: str) -> Any:
        place = self.client.position(session)
        return [] if place is None else self.client.taken(session, place)

    def do_connect_failed(self, code: Any) -> Any:
        return self.client.connect_failed(Fault.of(code, "No connection"))

    def do_received(self, frame: Any) -> Any:
        return self.client.received(frame if isinstance(frame, str) else json.dumps(frame))


def shown(effect: Any) -> dict[str, Any]:
    """Return an effect as JSON."""
    fields = effect._asdict()
    for name, value in fields.items():
        if isinstance(value, Fault):
            # `said` is for writing the fault again exactly as it came, which only servers do.
            context = {key: fact for key, fact in value.context.items() if key != "said"}
            fields[name] = {"code": value.code, "message": value.message, "context": context}
    match NAMES[type(effect).__name__]:
        case "send":
            return {"effect": "send", "frame": json.loads(effect.frame)}
        case "deliver":
            return {"effect": "deliver", "message": msgspec.to_builtins(effect.message)}
        case "acked":
            return {"effect": "acked", "id": effect.message.id, "result": msgspec.to_builtins(effect.result)}
        case "expired":
            return {"effect": "expired", "id": effect.message.id}
        case "held":
            return {"effect": "held", "id": effect.message.id, "fault": fields["fault"]}
        case name:
            return {"effect": name, **fields}


# --- random scripts ---

EPOCHS = ("e1", "e1", "e1", "e2")
STAMP = "2026-11-15T01:02:03.004Z"


def random_script(seed: int, length: int = 60) -> dict[str, Any]:
    """Return a script in which a server, a network and a user do what they like, most of it plausible."""
    return _Writer(random.Random(seed)).write(length)


class _Writer:
    """Writes a script while the Python machine performs it, so that answers fit what was sent."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.options = {
            "schedule": rng.choice(["default", "default", "bridge", "linear"]),
            "window": rng.choice([1, 2, 32]),
            "max_count": rng.choice([3, 1000]),
            "accept_public": rng.random() < 0.5,
            "random": [round(rng.random(), 3) for _ in range(7)],
        }
        self.run = Run(self.options)
        self.sent: list[dict[str, Any]] = []
        self.made = 0

    def write(self, length: int) -> dict[str, Any]:
        steps: list[dict[str, Any]] = [{"do": "join", "session": "s1"}, {"do": "connect"}]
        for step in steps:
            self.perform(step)
        for _ in range(length):
            step = self.choose()
            steps.append(step)
            self.perform(step)
        return {"options": self.options, "steps": steps}

    def perform(self, step: dict[str, Any]) -> None:
        for effect in self.run.step(step).get("effects", []):
            if effect["effect"] == "send":
                self.sent.append(effect["frame"])

    def choose(self) -> dict[str, Any]:
        rng, status = self.rng, self.run.client.status
        session = rng.choice(["s1", "s1", "s2"])
        if status == "connected" and rng.random() < 0.6:
            return {"do": "received", "frame": self.frame(session)}
        if status in ("connecting", "reconnecting") and rng.random() < 0.6:
            if rng.random() < 0.5:
                return {"do": "opened"}
            return {"do": "received", "frame": self.hello()}
        if status in ("disconnected", "error") and rng.random() < 0.6:
            return {"do": "connect"}
        return self.user(session)

    def user(self, session: str) -> dict[str, Any]:
        rng = self.rng
        after = {"epoch": rng.choice(EPOCHS), "offset": rng.randrange(4), "id": "m-1"}
        return rng.choice([
            {"do": "advance", "seconds": rng.choice([0.25, 1.0, 3.0, 10.0, 15.0, 50.0, 400.0])},
            {"do": "advance", "seconds": rng.choice([0.25, 1.0, 3.0, 10.0, 15.0])},
            {"do": "tick"},
            {"do": "tick"},
            {"do": "jump", "seconds": rng.choice([-600, 86400])},
            {"do": "join", "session": session, "role": "observer", "history": "full"},
            {"do": "join", "session": session, "after": after},
            {"do": "join", "session": session, "creation": {"title": "New"}},
            {"do": "leave", "session": session},
            {"do": "send", "session": session, "text": "hello"},
            {"do": "send", "session": session, "text": "ünï 🙂"},
            {"do": "send", "session": session, "text": "soon", "expires": 5.0},
            {"do": "send", "session": session, "text": "long " * rng.randrange(30)},
            {"do": "discard", "place": rng.randrange(3)},
            {"do": "reload", "session": "s1"},
            {"do": "hold_back", "session": session},
            {"do": "catch_up", "session": session},
            {"do": "taken", "session": session},
            {"do": "taken", "session": session},
            {"do": "woke_up"},
            {"do": "ask", "type": "session_list", "payload": {}},
            {"do": "closed", "code": rng.choice([1000, 1001, 1006, 1002, 1009, 1009, 1009, 1012, 1013, 4000, 4005, 4499, 4500, 4502, 4507]), "reason": rng.choice(["", "", "too big"])},
            {"do": "closed", "code": 1006},
            {"do": "connect_failed", "code": rng.choice(["CONN_TIMEOUT", "CONN_TIMEOUT", "CONN_REFUSED", "CONN_TLS_HANDSHAKE_FAILED"])},
            {"do": "disconnect"} if rng.random() < 0.2 else {"do": "tick"},
        ])  # fmt: skip

    def envelope(self, type_: str, payload: dict[str, Any], **more: Any) -> dict[str, Any]:
        self.made += 1
        return {"type": type_, "id": f"m-{self.made}", "timestamp": STAMP, "payload": payload, **more}

    def hello(self) -> Any:
        interval = self.rng.choice([15000, 5000, 0, None])
        mode = self.rng.choice(["local_only", "local_only", "local_only", "direct_public"])
        more = self.rng.choice([{}, {}, {"limits": {"max_frame": self.rng.choice([180, 250, 1_000_000])}}])
        time = self.rng.choice([{}, *({"server_time": each} for each in SERVER_TIMES)])
        return self.envelope(
            "connection_ack", {"heartbeat_interval_ms": interval, "connection_mode": mode, **more, **time}
        )

    def durable(self, session: str) -> dict[str, Any]:
        place = self.run.client.position(session)
        offset = (place.offset if place else 0) + self.rng.choice([1, 1, 1, 1, 0, 2, -1])
        epoch = place.epoch if place and self.rng.random() < 0.9 else self.rng.choice(EPOCHS)
        return self.envelope("stream_chunk", {"text": "x"}, session_id=session, epoch=epoch, offset=max(1, offset))

    def frame(self, session: str) -> Any:
        rng = self.rng
        requests = [each for each in self.sent[-6:] if each["type"] in ("session_join", "session_create")]
        snapshots = [each["id"] for each in self.sent[-6:] if each["type"] == "session_snapshot"]
        messages = [each["id"] for each in self.sent[-6:] if each["type"] == "session_message"]
        gap = {"reason": "evicted", "requested": 1, "oldest_offset": 5, "top_offset": 9}
        error = {
            "code": rng.choice(["SESS_NOT_FOUND", "AUTH_FORBIDDEN", "SESS_ILLEGAL_TRANSITION"]), "message": "No", "recoverable": False, "details": {"currentPhase": "joined"},
        } if rng.random() < 0.8 else {"code": "SESS_STORE_UNAVAILABLE", "message": "Later", "recoverable": True}  # fmt: skip
        choices: list[Any] = [
            *([self.durable(session)] * 5),
            self.envelope("heartbeat_ping", {}),
            self.envelope("heartbeat_pong", {"offsets": {"s1": rng.randrange(6), "s2": rng.randrange(6)}}),
            self.envelope("gap", {**gap, "session_id": session}),
            self.envelope("presence", {"session_id": session, "clients": 2}),
            self.envelope("constructor", {}),
            self.envelope("acknowledgment_accepted", {"warning_code": "DIRECT_PUBLIC_CONNECTION"}),
            self.envelope("connection_error", {"code": "AUTH_TOKEN_EXPIRED", "message": "The token has expired", "recoverable": False}),
            self.envelope("connection_error", {"message": "No code"}),
            self.envelope("replay_buffer", {"messages": [self.durable(session), json.dumps(self.durable(session))]}),
            "{", "[]", "null", {"type": "Bad Type", "id": "x", "timestamp": STAMP, "payload": {}},
            {**self.durable(session), "offset": -1},
            {**self.durable(session), "timestamp": rng.choice(["2026-02-30T00:00:00Z", "2024-02-29T00:00:00Z", "2026-11-15 01:02:03"])},
            {"type": "connection_error", "id": None, "timestamp": STAMP, "payload": {"code": "PROTO_INVALID_MESSAGE", "message": "No"}},
        ]  # fmt: skip
        if requests:
            asked = rng.choice(requests)
            joined = {
                "session_id": asked["payload"]["session_id"], "epoch": rng.choice(EPOCHS), "from_offset": rng.randrange(3), "resume_token": "r",
            }  # fmt: skip
            if rng.random() < 0.15:
                joined["gap"] = gap
            choices += [self.envelope("session_joined", joined, re=asked["id"])] * 8
            choices += [{**self.envelope("error", error), "id": asked["id"]}] * 2
        if messages:
            one = rng.choice(messages)
            results = [
                {"id": each, "status": rng.choice(["stored", "duplicate", "rejected"]), "offset": 3}
                for each in messages
            ]
            choices += [self.envelope("ack", {"ids": messages, "results": results})] * 3
            choices += [{**self.envelope("error", error), "id": one}, self.envelope("ack", {"results": [{"id": one}]})]
        snapshot = {"session_id": session, "epoch": rng.choice(EPOCHS), "offset": rng.randrange(9), "state": {}}
        choices += [self.envelope("snapshot", snapshot, re=rng.choice(snapshots))] * 6 if snapshots else []
        return rng.choice(choices)
