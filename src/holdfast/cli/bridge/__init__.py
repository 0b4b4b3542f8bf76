"""The verbs about a bridge: serve an agent, let devices in, take part from a terminal.

    flags     what the command line offers
    serve     `holdfast serve`, which writes its address down (`address`); `tokens` (and `pair`), `tls`
    attach    `holdfast attach`: a client at the terminal

Invariant: a token is shown once, when it is made. It uses `holdfast.bridge`, and no other room uses it.
"""

from __future__ import annotations
