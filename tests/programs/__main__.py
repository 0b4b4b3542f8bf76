# ruff: noqa: T201 - a command prints
"""`python -m tests.programs --programs 100 --seed 1`: draw programs, kill them, and print what is wrong with the smallest of each kind."""

from __future__ import annotations

import argparse
import os
import select
import sys
import tempfile
import time
import traceback
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import msgspec
from tests.programs.play import Story, play
from tests.programs.program import KNOWN, SWITCHES, Program, draw
from tests.programs.shrink import shrink

from holdfast.testing.crashtest.inside import forks


class Found(msgspec.Struct):
    """What one program showed."""

    seed: int
    starts: int
    kills: int
    end: str
    kinds: list[str]
    wrong: str = ""
    ends: list[str] = []
    source: str = ""
    again: str = ""
    trace: str = ""


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.programs", description=__doc__)
    parser.add_argument("--programs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1, help="of the first program")
    parser.add_argument("--kills", type=int, default=5, help="for each program")
    parser.add_argument("--store", choices=("sqlite", "postgres"), default="sqlite")
    parser.add_argument("--only", nargs="*", default=[], help="draw from these switches only")
    parser.add_argument("--off", nargs="*", default=[], help="leave these switches out")
    parser.add_argument("--all", action="store_true", help="switch on also what is known to be broken")
    parser.add_argument("--shrink", type=float, nargs="?", const=60.0, default=0.0, metavar="SECONDS")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--switches", action="store_true", help="list them, and end")
    parser.add_argument(
        "--put-back", nargs="*", metavar="BUG", help="put bugs back, by default each, and say which program finds each"
    )
    parser.add_argument(
        "--peers",
        action="store_true",
        help="let DBOS and LangGraph play the same programs, and count what is done twice",
    )
    parser.add_argument("--peer", help=argparse.SUPPRESS)
    parser.add_argument("--show", action="store_true", help="print the source of the first program, and end")
    return parser.parse_args()


def main() -> int:
    given = options()
    on = given.only or [name for name in SWITCHES if (given.all or name not in KNOWN) and name not in given.off]
    if given.switches:
        for name in SWITCHES:
            print(f"{name:20}", "on" if name in on else f"off: {KNOWN.get(name, 'as you say')}")
        return 0
    if given.show:
        print(draw(given.seed, on, kills=given.kills).source(whole=True))
        return 0
    if given.peer:
        from tests.programs.peers import count  # noqa: PLC0415 - it needs the peer

        print(msgspec.json.encode(count(given.peer, given.programs, given.seed, given.kills)).decode())
        return 0
    if given.peers:
        return _peers(given)
    if given.put_back is not None:
        return _hunts(given, on)
    begun = time.monotonic()
    with ExitStack() as stack:
        base = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="programs-", dir=_fast())))
        store = _store(given.store, stack)
        found = list(_work(given, on, base, store))
    return _print(found, time.monotonic() - begun)


def _hunts(given: argparse.Namespace, on: list[str]) -> int:
    """Hunt bugs that are put back; print the program that found each."""
    from tests.programs.hunt import BUGS, hunt  # noqa: PLC0415 - it loads every room that had a bug

    missed = 0
    for bug in given.put_back or BUGS:
        begun = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="programs-", dir=_fast()) as place:
            seeds = range(given.seed, given.seed + given.programs)
            caught = hunt(bug, seeds, on, Path(place), kills=given.kills)
        missed += caught is None
        found = (
            f"not in {given.programs} programs" if caught is None else f"program {caught.number}, {caught.wrong[:110]}"
        )
        print(f"{bug:12} {time.monotonic() - begun:4.0f} s  {found}", flush=True)
    return 1 if missed else 0


def _peers(given: argparse.Namespace) -> int:
    """Print what each contender did twice."""
    from tests.programs.peers import PEERS, compare  # noqa: PLC0415 - it looks for other environments

    found = compare(given.programs, given.seed, given.kills)
    head = ("", "programs", "kills", "effects", "doubled", "programs with doubles", "changed results", "ended well")
    rows = [
        (
            f"{PEERS[each.peer]} {each.version}".strip(),
            *map(
                str,
                (each.programs, each.kills, each.effects, each.doubled, each.with_doubles, each.changed, each.ended),
            ),
        )
        for each in found
        if not each.problem
    ]
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    for row in (head, *rows):
        print(
            "  ".join(
                cell.ljust(width) if not column else cell.rjust(width)
                for column, (cell, width) in enumerate(zip(row, widths, strict=True))
            )
        )
    for each in found:
        if each.errors:
            raised = sorted(each.errors.items(), key=lambda kind: -kind[1])
            print(f"{PEERS[each.peer]} did not end:", ", ".join(f"{error} {number}" for error, number in raised))
    missing = [each for each in found if each.problem]
    for each in missing:
        print(f"\nNOT MEASURED: {PEERS[each.peer]}: {each.problem}")
    return 1 if missing or any(each.doubled for each in found if each.peer == "holdfast") else 0


def _fast() -> str | None:
    """A kill needs no disk that keeps its data, only a file system that does: memory is ten times as fast."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def _store(kind: str, stack: ExitStack) -> str:
    if kind == "sqlite":
        return "sqlite:work.db"
    from holdfast.testing.postgres import PrivateServer  # noqa: PLC0415 - needs PostgreSQL's programs

    return stack.enter_context(PrivateServer()).url


def _work(given: argparse.Namespace, on: list[str], base: Path, store: str) -> list[Found]:
    """Let the workers play the programs. Each is a process with one thread, so that it can fork; their stories come over pipes."""
    readers: dict[int, bytes] = {}
    for worker in range(given.workers):
        reader, writer = os.pipe()
        if os.fork() == 0:
            os.close(reader)
            status = 1
            try:
                _worker(
                    given,
                    on,
                    base,
                    store,
                    range(given.seed + worker, given.seed + given.programs, given.workers),
                    writer,
                )
                status = 0
            except KeyboardInterrupt:
                pass
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        os.close(writer)
        readers[reader] = b""
    found = []
    while readers:
        for reader in select.select(list(readers), [], [])[0]:
            data = os.read(reader, 65_536)
            *lines, readers[reader] = (readers[reader] + data).split(b"\n")
            found += [msgspec.json.decode(line, type=Found) for line in lines]
            for each in found[len(found) - len(lines) :]:
                if each.wrong:
                    print(f"{each.seed}: {each.wrong}", flush=True)
            if not data:
                del readers[reader]
                os.wait()
    return found


def _worker(given: argparse.Namespace, on: list[str], base: Path, store: str, seeds: range, writer: int) -> None:
    place = Path(tempfile.mkdtemp(dir=base))
    forks.preload(())
    for seed in seeds:
        program = draw(seed, on, kills=given.kills)
        story = play(program, place, store)
        if story.wrong and given.shrink:
            kind = story.wrong[0].kind
            smallest = shrink(program, lambda each, kind=kind: _kind(each, place, store) == kind, seconds=given.shrink)
            story = _again(smallest, place, store, kind) or story
        found = _found(seed, story)
        os.write(writer, msgspec.json.encode(found) + b"\n")


def _kind(program: Program, place: Path, store: str) -> str:
    story = play(program, place, store)
    return story.wrong[0].kind if story.wrong else ""


def _again(program: Program, place: Path, store: str, kind: str) -> Story | None:
    """Play the smallest program until it is wrong once more, for the print."""
    for _ in range(5):
        story = play(program, place, store)
        if story.wrong and story.wrong[0].kind == kind:
            return story
    return None


def _found(seed: int, story: Story) -> Found:
    program = story.program
    kinds = sorted({part.kind for part in program.parts} | {f"odd:{part.odd}" for part in program.parts if part.odd})
    kinds += [f"edit:{program.edit}"] if program.edit else []
    kinds += [f"event:{name}" for name, on in (("reopen", program.reopen), ("nobody", not program.attended)) if on]
    kinds += ["event:clock"] if any(start.clock for start in program.starts) else []
    kinds += ["event:disk"] if any(start.slow for start in program.starts) else []
    kinds += ["event:restore"] if any(start.restore for start in program.starts) else []
    kinds += ["event:prune"] if any(start.prune for start in program.starts) else []
    kinds += ["event:behind"] if any(start.behind for start in program.starts) else []
    found = Found(seed=seed, starts=len(story.ends), kills=story.kills, end=story.end, kinds=kinds)
    if story.wrong:
        found.wrong = "; ".join(f"{each.kind}: {each.what}" for each in story.wrong)
        found.ends, found.trace = story.ends, story.trace
        edited = any(start.edited for start in program.starts)
        found.source = program.source() + (f"\n# and after the edit:\n{program.source(edited=True)}" if edited else "")
        found.again = repr(program)
    return found


def _print(found: list[Found], seconds: float) -> int:
    wrong = [each for each in found if each.wrong]
    by_kind: dict[tuple[str, ...], list[Found]] = {}
    for each in wrong:
        by_kind.setdefault((each.wrong.split(":", 1)[0], *each.kinds), []).append(each)
    for alike in sorted(by_kind.values(), key=len, reverse=True):
        first = min(alike, key=lambda each: len(each.source))
        print(f"\n===== {len(alike)} programs like seed {first.seed} ({', '.join(first.kinds)}): {first.wrong}")
        print("starts:", ", ".join(first.ends), "\n" + first.again, "\n" + first.source, first.trace[-1_800:])
    starts, kills = sum(each.starts for each in found), sum(each.kills for each in found)
    rate = 60 / max(seconds, 0.001)
    print(
        f"\n{len(found)} programs, {starts} starts, {kills} kills in {seconds:.0f} s ({len(found) * rate:.0f} programs,"
        f" {kills * rate:.0f} kills a minute); {len(wrong)} were wrong;"
        f" ends: {dict(Counter(each.end or 'wrong' for each in found))}"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
