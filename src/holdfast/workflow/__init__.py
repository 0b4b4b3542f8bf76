"""The workflow language, without any I/O: the text of a program goes in, requests come out, and the answers go back in.

syntax        symbols and lists with their positions
reader        text → forms
values        closures, primitives; comparing and showing values
environment   what names are bound to
failure       a failure on its way through a program
errors        the exceptions
meter         what a program may use
requests      what a program asks of the world
frames        what waits on the machine's stack, and the table of special forms
forms         conditions, bindings, functions, map, filter, reduce
calls         calls of tasks, tools and functions
recovery      try, retry, retry-later, fallback, with-budget
loops         loop, director-evaluator-loop, iterative-loop
primitives    functions of values
machine       the machine that evaluates a program
check         mistakes that can be found without running it
formatter     one layout for every program

stage_lifecycle   one execution of a stage: which phase follows which, and how it ends
stage_plan        which stage follows which: sequences, parallel stages and their join
"""

from __future__ import annotations

from holdfast.workflow.check import Finding, check_program
from holdfast.workflow.errors import UnboundSymbolError, WorkflowError, WorkflowSyntaxError
from holdfast.workflow.formatter import format_source
from holdfast.workflow.machine import Machine
from holdfast.workflow.meter import Limits
from holdfast.workflow.reader import ReadLimits, read, read_one
from holdfast.workflow.requests import Operators
from holdfast.workflow.syntax import Form, Position, Symbol
from holdfast.workflow.values import show

__all__ = [
    "Finding",
    "Form",
    "Limits",
    "Machine",
    "Operators",
    "Position",
    "ReadLimits",
    "Symbol",
    "UnboundSymbolError",
    "WorkflowError",
    "WorkflowSyntaxError",
    "check_program",
    "format_source",
    "read",
    "read_one",
    "show",
]
