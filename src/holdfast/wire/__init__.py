"""The protocol of the bridge, without any I/O: frames and the time go in, effects come out.

envelope    what every message has, and how a frame is read
messages    what each message contains
phases      which messages a client may send when
close       why a connection is closed, and whether a client comes back
position    where a client is in a session's log, and whether it can go on there
replay      the newest messages of a session
outbox      what a client has sent and the server has not acknowledged
reconnect   when a client connects again
heartbeat   whether the other side is still there
server      the server's side of a connection
client      the client's side, over all its connections; its effects in client_effects
examples    one example of every message
description the protocol as JSON Schema, as AsyncAPI and as tables of the reference page
"""

from __future__ import annotations
