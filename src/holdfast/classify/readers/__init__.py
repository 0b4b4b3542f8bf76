"""Readers turn one kind of foreign failure into `Evidence`. They recognise nothing: that is the rules' work."""

from __future__ import annotations
