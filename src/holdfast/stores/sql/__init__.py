"""The SQL stores without their I/O: the statements and their order, the same for every engine.

    query     a statement; `Script`: a generator of statements that ends with a result
    schema    the tables and their versions
    commits   writing one commit; batch: many at once; leases: owning a session; deletion: dropping what is not needed
    reads     reading; rows: from rows to records
    store     `SqlStore`: every call of a store but commits, from which the stores of the engines derive

An engine runs each writing script in one transaction. Invariant: a script raises only before its first write, so a rejected commit
does not affect the others in the same transaction.
"""

from __future__ import annotations
