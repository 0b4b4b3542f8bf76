"""The verbs on a store: its sessions and its audit trail.

    flags      what the command line offers
    access     opens the store that a verb works on, whether `--store` names it or not
    sessions   list, close, answer, export, import, prune; `history`: show, resume; `repairs`: resolve, retry, abandon, fork
    audit      tail, query, verify, export; `observe`: what observe mode has reported there

Invariant: only `import` makes a store that is not there. It uses `holdfast.sessions` and `holdfast.stores`.
"""

from __future__ import annotations
