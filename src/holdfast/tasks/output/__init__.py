"""The form that a task's output must have.

    format   `OutputFormat`: what a prompt says about it, and how an answer is read
    xml      answers as XML

Invariant: an answer is a value of the form, or the reason why not. It uses the checks of `holdfast.tools.schema`.
"""

from __future__ import annotations
