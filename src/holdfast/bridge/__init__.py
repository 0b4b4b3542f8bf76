"""The bridge: a server on which people drive their agents from elsewhere, and the client. The protocol is `holdfast.wire`."""

from __future__ import annotations
