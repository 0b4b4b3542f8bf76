#!/usr/bin/env python3
"""Write the reference page of the workflow language from the docstrings of its forms and primitives.

python scripts/workflow_reference.py            # writes docs/reference/workflow-language.md
"""

from __future__ import annotations

from pathlib import Path

from holdfast.workflow.frames import SPECIAL
from holdfast.workflow.machine import Machine
from holdfast.workflow.meter import Limits
from holdfast.workflow.primitives import PRIMITIVES

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "workflow-language.md"
HEAD = """\
# The workflow language

A program is a sequence of expressions; its value is the value of the last one. This page is written by `scripts/workflow_reference.py`. How to
run programs is in [Workflows that survive](../how-to/workflows.md).

## Syntax

| written | is |
|---|---|
| `12`, `-1.5`, `2e3` | a number |
| `"text"` | a text; `\\\\n \\\\t \\\\r \\\\" \\\\\\\\ \\\\u00e9` are escapes |
| `true`, `false`, `none`, `nil` | truth, Python's None, the empty list |
| `name` | what the name is bound to |
| `(f a b)` | a call, or a special form |
| `'x` | the expression itself: `(quote x)` |
| `:name` | names the argument after it: `(review :text document)` |
| `; …` | a comment, to the end of the line |

Truth is Python's: `0`, `""`, `nil`, `none` and `false` are false. Values are those of JSON, symbols and functions. A list is nested at most
1,000 deep.

The head of a list is looked for in this order: special form, binding, primitive, atomic task, tool, Python function.

An atomic task or tool takes its arguments by name, `(review :text x)` or `(review (text x))`, or in the order of its parameters.

"""
TAIL = """\

`(get_context (query "…"))` calls the function that is registered as the context. `(system:run_script "pytest -q")` runs a command, if that is allowed, and
gives a dict with `stdout`, `stderr` and `exit_code`.

## Loops of plan, work and check

The functions of the two loops are called in this order, with the iteration counted from 1:

| | `director-evaluator-loop` | `iterative-loop` |
|---|---|---|
| clauses | `max-iterations`, `initial-director-input`, `director`, `executor`, `evaluator`, `controller` | `max-iterations`, `initial-input`, `test-command`, `executor`, `validator`, `controller` |
| plan | `director(input, i)` | |
| work | `executor(plan, i)` | `executor(input, i)` |
| check | `evaluator(result, plan, i)` | `validator(command, i)` |
| decide | `controller(feedback, plan, result, i)` | `controller(result, validation, input, i)` |

The controller gives `(list 'continue next-input)` or `(list 'stop value)`. After the last iteration the value is the executor's last result; with no
iteration it is nil. The functions see `*loop-config*`. A failure in any of them ends the loop, and carries `iteration`, `phase` and
`iteration_history`.

## Limits of a run

| limit | default |
|---|---|
{limits}

What a whole run may use cannot be caught by `try`. A failure is a dict: `code`, `reason`, `message`, `retryable`, `expression`, `line`, `column`, and
`partial` or `value` where there is one.
"""


def _row(text: str) -> str:
    usage, _, meaning = " ".join(text.split()).partition(": ")
    return f"| `{usage}` | {meaning} |".replace("\\|", "|")


def page() -> str:
    """Return the page."""
    assert Machine
    forms = dict.fromkeys(begin.__doc__ or "" for begin in SPECIAL.values())
    primitives = dict.fromkeys(primitive.run.__doc__ or "" for primitive in PRIMITIVES.values())
    names = {doc: [name for name in PRIMITIVES if PRIMITIVES[name].run.__doc__ == doc] for doc in primitives}
    lines = ["## Special forms", "", "| written | does |", "|---|---|", *(_row(doc) for doc in forms), ""]
    lines += ["## Primitives", "", "| written | is | also called |", "|---|---|---|"]
    for doc in primitives:
        others = ", ".join(f"`{name}`" for name in names[doc] if f"({name} " not in doc)
        lines.append(f"{_row(doc)} {others} |")
    limits = "\n".join(f"| `{name}` | {getattr(Limits(), name):,} |" for name in Limits.__struct_fields__)
    return HEAD.replace("\\\\", "\\") + "\n".join(lines) + "\n" + TAIL.format(limits=limits)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
