"""`holdfast init`: write a `holdfast.toml` in which every option is explained and commented out.

Invariant: the file as written changes nothing. Each commented line is valid when its `#` is removed, alone or with the others.
"""

from __future__ import annotations

import sys
from pathlib import Path

from holdfast.cli.exits import Exit
from holdfast.cli.output import fail, narrate, show_json
from holdfast.config.sources import FILE_NAME

_SCHEMA = "holdfast.init/1"

# Prose has a space after the `#`; an option has none. Lines have at most 80 columns.
TEMPLATE = """\
# Settings of Holdfast for programs that start in this folder.
#
# Every option is commented out: remove the # in front of what you change. What
# is left out has its default. Variables such as HOLDFAST_ATTEMPTS win over
# this file, and what your code says wins over both.
#
#   holdfast policy check       find mistakes in this file
#   holdfast policy show        what it does to each kind of failure
#   holdfast config schema      the JSON Schema of this file, for your editor

# "recover"; "observe": make the plain call and report what recovery would have
# done; "off": make the plain call. A target may have a mode of its own.
#mode = "recover"

# false: every recovery is a plain call, as with mode = "off".
#enabled = true

# false: retries, fallbacks, circuit changes and failures are not logged.
#log = true

# The policy to start from: "interactive" (somebody waits), "patient" (the work
# may wait for an hour) or "batch" (the same, after all other calls).
#base = "interactive"

[policy] # for every target that has no table of its own

# Calls in all, the first included. "none": as the kind of failure needs, until
# the patience is used up.
#attempts = 4

# Seconds for one attempt. "none": only the client's own limit ends a call that
# hangs.
#timeout = 60

# Seconds for everything, an answer that is still coming included. "none": no
# answer is cut.
#deadline = 300

# Seconds in which further attempts start, where there is no deadline.
#patience = 120

# The delays between attempts. A delay that the service asks for wins.
#backoff = { initial = 1, factor = 2, cap = 30, jitter = 0.2 }

# The longest delay a service may ask for. After a longer one the call falls
# back or fails.
#max_retry_after = 900

# When to stop calling a target that is down: "graded" (the default), a table,
# or "none".
#circuit = { failures = 5, open_for = 30 }

# Calls to one target that run at the same time, and that start per second.
#concurrency = 8
#per_second = 5

# Retries as a share of all calls, so that they do not multiply an outage.
#retry_quota = { share = 0.1, floor = 3 }

# Start a second call if the first is slow. Only where the call may be repeated.
#hedge = { after = 10 }

# Attempts for single codes. holdfast codes lists them.
#per_code.PROVIDER_OVERLOADED = { attempts = 8 }

[targets] # one target, by the name in your code; it starts from [policy]

#claude = { timeout = 120 }
#"tool:bash" = { timeout = 300, attempts = 1 }

[roles] # which agents stand behind a role, and who takes over

#builder = { agent = "coder", understudies = ["coder-simple"] }

[alerts] # when to call a person; holdfast.sinks.raise_alerts reads it

#error_rate = { warning = 0.05, critical = 0.15 }
#webhook = "https://example.com/alerts"

[bridge] # where holdfast serve listens, and its limits

#port = 3000
#grace = 300 # seconds that a session waits for its last client to come back
#connection = { heartbeat = 15 }
"""


def init(*, folder: str, as_json: bool) -> Exit:
    """Write the file into a folder. A file that is there stays as it is."""
    file = Path(folder) / FILE_NAME
    try:
        # "x": two people who do this at once must not overwrite each other's file.
        with file.open("x", encoding="utf-8") as opened:
            opened.write(TEMPLATE)
    except FileExistsError:
        return _not_written(file, "exists already and is left as it is", as_json=as_json)
    except OSError as error:
        return _not_written(file, f"cannot be written: {error.strerror or error}", as_json=as_json)
    if as_json:
        show_json({"schema": _SCHEMA, "file": str(file), "written": True})
    else:
        sys.stdout.write(f"{file}\n")
        narrate("written: every option is explained and commented out, so nothing changes yet")
        narrate("  check it after each change: holdfast policy check")
    return Exit.OK


def _not_written(file: Path, why: str, *, as_json: bool) -> Exit:
    if as_json:
        show_json({"schema": _SCHEMA, "file": str(file), "written": False, "error": why})
    hints = ("see what it does: holdfast policy show",) if file.exists() else ()
    fail(f"{file} {why}", *hints)
    return Exit.REFUSED if file.exists() else Exit.FAILED
