"""What must happen once: which call it is, how it ended, what is in doubt, what a repeated program gets back.

Values and decisions only. `sessions/` performs them; agents, tasks, workflows, stages, tools and integrations use them and keep no copy.
It may import `faults`, `classify`, `policies` and what stands below them.
"""

from __future__ import annotations
