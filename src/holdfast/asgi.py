"""Requests of web servers, named in every event (FastAPI, Starlette, Django: whatever speaks ASGI).

from starlette.applications import Starlette
from holdfast.asgi import RequestIds

app = Starlette()
app.add_middleware(RequestIds)
"""

from __future__ import annotations

from holdfast.integrations.asgi import RequestIds

__all__ = ["RequestIds"]
