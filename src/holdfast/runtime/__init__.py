"""Performs decisions: the first room below the I/O line.

`fault_of`, which gives the fault of anything that failed; the catalog's pages; the process's secrets.
"""

from __future__ import annotations

from holdfast.runtime.fault_of import FAULT_ATTRIBUTE, fault_of
from holdfast.runtime.pages import page_of
from holdfast.runtime.secrets import process_redactor, redactor_for

__all__ = ["FAULT_ATTRIBUTE", "fault_of", "page_of", "process_redactor", "redactor_for"]
