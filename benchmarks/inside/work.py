"""Workers of Holdfast and DBOS, and who submits to them: each in a process of its own. See `benchmarks.work`.

The workers and the submitter run on one machine, so their wall clocks are one.
"""

from __future__ import annotations

import asyncio
import resource
import threading
import time
from contextlib import suppress

QUEUE = "default"


def _cpu():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


class Bench:
    """A worker, or a submitter, of one contender."""

    def __init__(self, name):
        self._own = {"holdfast": Ours, "dbos": Dbos}[name]()

    def start(self, *, url, concurrency):
        self._own.start(url, concurrency)
        return True

    def idle(self, *, seconds):
        """Return the processor seconds that a second of waiting takes."""
        began, cpu = time.perf_counter(), _cpu()
        time.sleep(seconds)
        return (_cpu() - cpu) / (time.perf_counter() - began)

    def stop(self):
        began = time.perf_counter()
        self._own.stop()
        return time.perf_counter() - began

    def one_by_one(self, *, url, count, pause):
        """Submit programs with a pause between; return the seconds from before each submission to the start of its program."""
        return self._own.one_by_one(url, count, pause)

    def many(self, *, url, count):
        """Submit programs at once, wait for all, and return when each of them ran."""
        return self._own.many(url, count)

    def fill(self, *, url, count):
        """Add items that wait for a time to come; return the seconds it takes."""
        return self._own.fill(url, count)


async def _now():
    return time.time()


class Ours:
    """Programs with one step."""

    def __init__(self):
        from holdfast import Session  # noqa: TC001 - its hints are read
        from holdfast.work import program

        @program("bench")
        async def bench(session: Session, number: int) -> float:
            del number
            return await session.step(_now)

        self.program = bench

    def start(self, url, concurrency):
        from holdfast.work import Worker

        self._stopping = threading.Event()
        ready = threading.Event()

        async def main():
            async with Worker(url, [self.program], concurrency=concurrency):
                ready.set()
                while not self._stopping.is_set():  # noqa: ASYNC110 - another thread sets it
                    await asyncio.sleep(0.05)

        self._thread = threading.Thread(target=asyncio.run, args=(main(),))
        self._thread.start()
        ready.wait(30)

    def stop(self):
        self._stopping.set()
        self._thread.join()

    def one_by_one(self, url, count, pause):
        from holdfast.stores import open_store
        from holdfast.work import submit

        async def main():
            found = []
            async with open_store(url) as store:
                for number in range(count):
                    began = time.time()
                    handle = await submit(self.program, number, store=store)
                    found.append(await handle - began)
                    await asyncio.sleep(pause)
            return found

        return asyncio.run(main())

    def many(self, url, count):
        from holdfast.stores import open_store
        from holdfast.work import submit

        async def main():
            async with open_store(url) as store:
                await store.pause_work(QUEUE, paused=True)
                handles = await asyncio.gather(*(submit(self.program, n, store=store) for n in range(count)))
                await store.pause_work(QUEUE, paused=False)
                while await store.work(statuses=["ready", "running", "waiting"], limit=1):  # noqa: ASYNC110 - they are in other processes
                    await asyncio.sleep(0.1)
                return [await handle for handle in handles]

        return asyncio.run(main())

    def fill(self, url, count):
        from holdfast.stores import open_store
        from holdfast.work import submit

        async def main():
            began = time.perf_counter()
            async with open_store(url) as store:
                for first in range(0, count, 1_000):
                    at = time.time() + 86_400 + first
                    numbers = range(first, min(first + 1_000, count))
                    await asyncio.gather(*(submit(self.program, n, at=at + n, store=store) for n in numbers))
            return time.perf_counter() - began

        return asyncio.run(main())


class Dbos:
    """Workflows with one step, on a queue."""

    def start(self, url, concurrency):
        from dbos import DBOS

        DBOS(config=_config(url))

        @DBOS.step()
        async def now():
            return time.time()

        @DBOS.workflow(name="bench")
        async def bench(number):
            del number
            return await now()

        DBOS.launch()
        DBOS.register_queue("bench", worker_concurrency=concurrency)

    def stop(self):
        from dbos import DBOS

        DBOS.destroy()

    def one_by_one(self, url, count, pause):
        client, options = self._client(url)
        found = []
        for number in range(count):
            began = time.time()
            handle = client.enqueue(options, number)
            found.append(handle.get_result() - began)
            time.sleep(pause)
        return found

    def many(self, url, count):
        client, options = self._client(url)
        handles = [client.enqueue(options, number) for number in range(count)]
        return [handle.get_result() for handle in handles]

    def fill(self, url, count):
        raise NotImplementedError

    def _client(self, url):
        from dbos import DBOSClient

        return DBOSClient(system_database_url=_address(url)), {
            "queue_name": "bench",
            "workflow_name": "bench",
            "app_version": "1",
        }


def _address(url):
    return f"sqlite:///{url.removeprefix('sqlite:')}.dbos" if url.startswith("sqlite:") else url


def _config(url):
    with suppress(ImportError):
        import psycopg  # noqa: F401
    return {
        "name": "bench",
        "application_version": "1",
        "system_database_url": _address(url),
        "run_admin_server": False,
        "log_level": "ERROR",
    }
