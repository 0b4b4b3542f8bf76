"""Histories of conversations that providers accept: every tool call has one result, in its place.

    from holdfast.transcript import repair

    messages, changes = repair(messages)

repair     `repair` and `check`
forms      Anthropic, Chat Completions, Responses, LangChain, pydantic-ai: how they are read and written, and their rules
pairs      which result belongs to which call, and where it must stand
changes    what a repair reports, and what a model reads in place of a missing result
turns      a history as the repair sees it
"""

from __future__ import annotations

from holdfast.transcript.changes import Change, OpenCall, Outcome, What
from holdfast.transcript.forms import FormName
from holdfast.transcript.repair import Repaired, check, repair

__all__ = ["Change", "FormName", "OpenCall", "Outcome", "Repaired", "What", "check", "repair"]
