"""A task in parts: how it is split, how many parts run at once, and what is left when one of them fails.

    decomposition   the parts of a task and how their results are merged: `by_section`, `by_items`, `by_model`
    slots           places for parts that run at once
    split_failure   the fault of a split task; `partials`: the partial results in it, kept small

Invariant: a part is smaller than its task. It uses the tasks beside it, and no session.
"""

from __future__ import annotations
