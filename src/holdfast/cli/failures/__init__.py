"""The verbs that say what a failure is and what is done about it. Nothing here runs anything of the user's.

    explain    what a code, a status or a traceback means; `codes`: the catalog as a table
    classify   what a failure is: one that flags describe, or many as JSON Lines
    policy     show, check and simulate policies
    doctor     what is installed and configured; `sdk_checks`: the SDKs

Invariant: what a person reads and what `--json` holds is the same. It uses the pure rooms, `holdfast.config` and, for the doctor, stores.
"""

from __future__ import annotations
