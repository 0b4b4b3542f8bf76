"""The tests of this room are checked for what they leave behind, as those of the actors are."""

from __future__ import annotations

import runpy
from pathlib import Path

_checks = runpy.run_path(str(Path(__file__).parent.parent / "actors" / "conftest.py"))
leaves_tasks = _checks["leaves_tasks"]
no_task_runs_when_the_loop_ends = _checks["no_task_runs_when_the_loop_ends"]
nothing_is_left_behind = _checks["nothing_is_left_behind"]
