"""The verbs that run something of the user's, or look at it while it runs.

    run        a command with limits and retries; `crashtest`: a program that is killed at every point
    agent      an agent on a prompt; `workflow`: a program of the workflow language, with `flags`; `repl`
    faults     providers and networks that fail on script
    actors     the supervisors and actors of running programs

Invariant: only the result goes to stdout, and a run that was cut says with which command it goes on. It uses agents, tasks, tools, actors and testing.
"""

from __future__ import annotations
