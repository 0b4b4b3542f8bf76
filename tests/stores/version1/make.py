"""Made the files of this folder, once, with the code of commit 43dd20a: the last one that wrote version 1 of the tables.

Run again with later code it would write later tables. `store.db` is a file of SqliteStore, `postgres.sql` a dump of the same
sessions in the schema `version1`, `*.jsonl` are exports.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
from pathlib import Path

from holdfast import tool
from holdfast.sessions import Session
from holdfast.sessions.transfer import export_lines
from holdfast.stores import NewAudit, PostgresStore, SqliteStore
from holdfast.stores.records import Commit
from holdfast.testing.postgres import PrivateServer, binaries

HERE = Path(__file__).parent


def square(n: int) -> int:
    return n * n


@tool(effect="unsafe")
def deploy(plan: str) -> str:
    return f"deployed {plan}"


async def fill(store) -> None:
    async with Session.open("done", store=store, model="m") as session:
        assert await session.step(square, 3) == 9
        assert await session.step(deploy, "v2") == "deployed v2"
        await session.message("hello", id="m-1", client="phone")
        session.context["plan"] = "v2"
        await session.checkpoint()
        await session.step(square, 4)
    try:
        async with Session.open("inflight", store=store) as session:
            await session.step(square, 5)
            await session.step(deploy, "v3")
            raise RuntimeError("killed")
    except RuntimeError:
        pass
    async with Session.open("asking", store=store) as session:
        await session.step(square, 6)
        await session.message({"text": "a longer message"}, role="assistant")
    async with Session.open("closed", store=store) as session:
        await session.step(square, 7)
        await session.close()
    await store.commit(Commit(chain="runtime", audit=(NewAudit(kind="Alert", correlation="r", payload=b'{"n":1}'),)))


async def exported(store) -> None:
    for name in ("done", "inflight"):
        lines = [line async for line in export_lines(store, name)]
        (HERE / f"{name}.jsonl").write_bytes(b"".join(line if line.endswith(b"\n") else line + b"\n" for line in lines))


async def main() -> None:
    async with SqliteStore(HERE / "store.db") as store:
        await fill(store)
        await exported(store)
    for lock in ("-turn", "-use"):
        (HERE / f"store.db{lock}").unlink(missing_ok=True)


async def on_postgres(url: str) -> None:
    async with PostgresStore(url, schema="version1") as store:
        await fill(store)


if __name__ == "__main__":
    asyncio.run(main())
    with PrivateServer() as server:
        asyncio.run(on_postgres(server.url))
        command = [str(binaries() / "pg_dump"), "--inserts", "--no-owner", "--schema=version1", server.url]
        dumped = subprocess.run(command, check=True, capture_output=True, text=True, env=dict(os.environ)).stdout
    lines = [line for line in dumped.splitlines() if line and not line.startswith(("--", "\\"))]
    (HERE / "postgres.sql").write_text("\n".join(lines) + "\n")
