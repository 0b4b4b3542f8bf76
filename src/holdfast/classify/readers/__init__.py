"""Readers turn one kind of foreign failure into `Evidence`. They decide nothing: that is the task of the rules."""

from __future__ import annotations
