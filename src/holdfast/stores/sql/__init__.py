"""The stores on SQL, without their I/O: what is asked and written, and in which order, once for every engine.

    query    a statement to be run; `Script`: a generator of statements that ends with a result
    schema   the tables, and their versions
    commits  writing; leases: owning; reading: what is read; readable: the reading half of a store; rows: from rows to records

An engine runs each script of a write in one transaction. Invariant: a script raises only before its first write, so a
refused commit leaves others in the same transaction alone.
"""

from __future__ import annotations
