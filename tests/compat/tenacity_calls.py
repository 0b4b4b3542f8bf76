"""Functions that fail as often as a test wants."""

from __future__ import annotations


class Calls:
    """A function whose calls end as given: an exception is raised, another value returned. The last one repeats."""

    def __init__(self, *ends):
        self.ends = list(ends)
        self.count = 0

    def __call__(self, *args, **kwargs):
        self.count += 1
        end = self.ends.pop(0) if len(self.ends) > 1 else self.ends[0]
        if isinstance(end, BaseException):
            raise end
        return end

    async def later(self, *args, **kwargs):
        return self(*args, **kwargs)


def broken(times, then="done"):
    return Calls(*[OSError(str(n)) for n in range(1, times + 1)], then)


def block(retrying, body):
    """Run a block of code as a loop of attempts."""
    for attempt in retrying:
        with attempt:
            body()
