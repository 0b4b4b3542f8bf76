"""Workflows, run on a session so that they survive a crash of their process.

function      `workflow`: a workflow in plain Python
workflow      `Workflow`: a program together with what it may call
registered    the tasks, tools and functions that a program may call
run           one run: performs what the machine asks for
durable       results, failures and bindings in the session's log
shell         expressions that are typed in one after the other
bindings      reading what a session has bound, and forking from there
observation   what a run tells those who watch it
"""

from __future__ import annotations

from holdfast.tasks.workflows.bindings import StoredBinding, bindings_of, fork_from_binding
from holdfast.tasks.workflows.observation import BindingKept, CallEnded, CallStarted, Logged, Observation, WaitStarted
from holdfast.tasks.workflows.workflow import Workflow

__all__ = [
    "BindingKept",
    "CallEnded",
    "CallStarted",
    "Logged",
    "Observation",
    "StoredBinding",
    "WaitStarted",
    "Workflow",
    "bindings_of",
    "fork_from_binding",
]
