"""Who may use a bridge: tokens, pairing, certificates, and what a request must pass before it is looked at.

`guard` is the way of a request; `admission`, `rates`, `lockout` and `origins` decide for it. Nothing here knows a session.
"""
