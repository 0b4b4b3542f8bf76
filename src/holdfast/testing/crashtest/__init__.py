"""Kills a program at every request, tool call and write that can be seen, and counts what its next runs double and lose.

    from holdfast.testing import CrashTest

    report = CrashTest(["python", "agent.py"], effects=["http://127.0.0.1:9000"]).run()
    assert not report.damage, report.text()

crashtest  CrashTest: observes, kills, runs again     watch     the marks a run reaches, and the kill at one of them
points     which kills leave different states         state     the copy of the program's folder for each trial
report     rows, verdicts and their comparison        inside/   what runs in the program: reports its writes, forks it
forked     runs that are forked from a process with the program's imports, where that is safe
gateway    the HTTP proxy: forwards, records, counts    links     the connections of both, which end with the test
"""

from __future__ import annotations

from holdfast.testing.crashtest.crashtest import CrashTest
from holdfast.testing.crashtest.points import Kill, Mark
from holdfast.testing.crashtest.report import Report, Row, Run, Sent, Trial

__all__ = ["CrashTest", "Kill", "Mark", "Report", "Row", "Run", "Sent", "Trial"]
