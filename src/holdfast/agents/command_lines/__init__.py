"""What command-line agents print, line by line: one module for each form of lines.

report   what is known from the lines         form     what a form is, and how one is chosen
claude   Claude Code's `stream-json`           codex    Codex's `exec --json`
acp      the Agent Client Protocol, a conversation in both directions
plain    text, or JSON lines as documented for programs of your own

Invariant: reading does no I/O and never raises. An unknown line is ignored, and text that is not JSON is kept.
"""

from __future__ import annotations

from holdfast.agents.command_lines.acp import AcpLines, Asked
from holdfast.agents.command_lines.form import FORMS, Form, FormName, Guessing, form_of
from holdfast.agents.command_lines.report import LineReader, ProgramFailure, Report

__all__ = [
    "FORMS",
    "AcpLines",
    "Asked",
    "Form",
    "FormName",
    "Guessing",
    "LineReader",
    "ProgramFailure",
    "Report",
    "form_of",
]
