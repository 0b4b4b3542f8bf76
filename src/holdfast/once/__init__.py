"""What must happen once: which call it is, how it ended, what is in doubt, what a repeated program gets back.

Values and decisions only. `sessions/` performs them; agents, tasks, workflows, stages, tools and integrations use them and keep no copy.
`identity.py`: which step a call is, and its key. `replay.py`: which recorded step it is in this run of the program. `outcome.py`: how it
ended, and what to do about it. `doubt.py`: what is not known, in words. `records.py`: what the log says about a step. The room may import `faults`, `classify`, `policies` and what stands below them.
"""

from __future__ import annotations
