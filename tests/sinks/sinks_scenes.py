"""What the sinks are shown: real operations in virtual time, one runtime per test."""

from __future__ import annotations

from holdfast import Policy, Runtime
from holdfast.policies import Backoff
from holdfast.policies.circuit import PROVIDER
from holdfast.runtime.recover import recover
from holdfast.testing import VirtualClock, run, script

CANARY = "sk-ant-api03-canary0123456789abcdefghijklmnopqrstuvwxyz"
"""A key that must not be seen anywhere."""
PROMPT = "the-prompt-nobody-may-read"

STEADY = Policy(attempts=3, backoff=Backoff(initial=1.0, factor=2.0, jitter="none"), circuit=None)


class Stage:
    """A runtime on a virtual clock, and calls made on it."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.runtime = Runtime(clock=self.clock)
        self.runtime.configure(
            Policy(profile="stud", circuit=PROVIDER), {}
        )  # so that a test can count attempts and seconds

    def recovery(self, target="claude", policy=STEADY, **options):
        return recover(target, policy, runtime=self.runtime, **options)

    def play(self, steps, target="claude", policy=STEADY):
        """Call through a recovery what plays these steps; a failure that surfaces is returned."""
        calls = steps if callable(steps) else script(steps).acall
        return self.run(self.recovery(target, policy).call(calls))

    def run(self, coroutine):
        async def main():
            try:
                return await coroutine
            except Exception as error:
                return error

        return run(main(), clock=self.clock)
