"""The client of the bridge: it drives a session of an agent from elsewhere, and loses nothing on the way.

client       `Client`: connects, connects again, and hands out sessions
session      `RemoteSession`: send, answer, iterate
messages     what an iteration yields: `Text`, `Question`, `Gap` …
dial         one attempt to connect, and what its failure means
certificate  which certificates are accepted, and why one is not
link         one connection: frames in, frames out
outbox_file  what is kept over a restart: messages that are not acknowledged, and how far each session was read
"""

from __future__ import annotations
