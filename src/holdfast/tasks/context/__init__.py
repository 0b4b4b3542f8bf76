"""What a task should know beyond its prompt.

    index    `ContextIndex`: finds the files that fit a question
    lookup   the background of a task: what is found for it, and the files that it names

Invariant: nothing is read that the index or the task does not name. It uses the tasks beside it, and no session.
"""

from __future__ import annotations
