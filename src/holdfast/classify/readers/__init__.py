"""Readers turn one kind of foreign failure into `Evidence`. They decide nothing; the rules decide."""

from __future__ import annotations
