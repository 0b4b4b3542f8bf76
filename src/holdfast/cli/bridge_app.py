"""The flags of the verbs about a bridge: `holdfast serve`, `tokens …`, `tls …`, `pair` and `attach`.

Each verb imports its implementation when it runs, so that `--help` and shell completion stay instant.
"""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from holdfast.cli.exits import perform
from holdfast.cli.store_app import CommandGroup

__all__ = ["attach", "pair", "serve", "tls", "tokens"]

tokens = typer.Typer(cls=CommandGroup, help="Make, list and revoke the tokens of a bridge.", no_args_is_help=True)
tls = typer.Typer(
    cls=CommandGroup, help="Make and exchange the certificate of a bridge, and show its pins.", no_args_is_help=True
)

_Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]
_Home = Annotated[
    Path | None,
    typer.Option(
        help="The folder with the bridge's tokens and keys; by default, holdfast/bridge in your state folder.",
        envvar="HOLDFAST_BRIDGE_HOME",
    ),
]
_Role = Annotated[str, typer.Option(help="The most that it may be in a session: controller or observer.")]
_Sessions = Annotated[
    list[str] | None, typer.Option("--session", help="Only this session; may be repeated. By default, all.")
]
_Expires = Annotated[str | None, typer.Option(help="How long the token is valid: 12h, 90d. By default, until revoked.")]
_Names = Annotated[
    list[str] | None, typer.Argument(help="Host names and addresses under which clients reach the bridge.")
]
_Days = Annotated[int, typer.Option(min=1, help="How many days the certificate is valid.")]


def _home(named: Path | None) -> Path:
    from holdfast.bridge.access.private_files import state_folder

    return state_folder() if named is None else named


_Served = Annotated[
    str | None,
    typer.Argument(
        metavar="[MODULE:NAME]",
        help="An agent of yours, or `async def agent(turn)`; by default, one with tools for the files and the shell here.",
    ),
]
_Host = Annotated[str | None, typer.Option(help="The address to listen on; by default HOST, or else 127.0.0.1.")]
_Port = Annotated[
    int | None, typer.Option(min=0, max=65535, help="The port; 0 takes a free one; by default PORT, or else 3000.")
]
_Store = Annotated[
    str | None,
    typer.Option(help="Where sessions are stored; by default, where programs here do.", envvar="HOLDFAST_STORE"),
]
_Model = Annotated[list[str] | None, typer.Option(help="The model of the default agent; repeat it for fallbacks.")]
_Root = Annotated[
    Path | None, typer.Option(help="The folder whose files clients may read; by default ALLOWED_PROJECT_ROOT.")
]
_Cert = Annotated[
    Path | None,
    typer.Option(
        help="The certificate (PEM); by default that of `holdfast tls` if other machines can reach the bridge."
    ),
]
_Key = Annotated[Path | None, typer.Option(help="Its private key (PEM).")]
_AllowHost = Annotated[list[str] | None, typer.Option(help="A name under which clients reach it; may be repeated.")]
_AllowOrigin = Annotated[
    list[str] | None, typer.Option(help="A page of another server that may connect; may be repeated.")
]
_Proxy = Annotated[
    list[str] | None, typer.Option(help="A proxy whose X-Forwarded headers are believed; may be repeated.")
]
_Grace = Annotated[
    float | None, typer.Option(min=0, help="Seconds that a session waits for its last client to come back.")
]
_Profile = Annotated[str | None, typer.Option(help="bridge: the smaller limits of older bridges.")]
_Insecure = Annotated[
    bool, typer.Option("--insecure", help="Start without TLS or tokens although others can reach it.")
]
_Detach = Annotated[
    bool,
    typer.Option(
        "--detach-agents", help="Run the agents in a process that goes on when the server ends, and is found again."
    ),
]
_EndAgents = Annotated[
    bool, typer.Option("--end-agents", help="Serve nothing: end the agents that --detach-agents left, in order.")
]


def serve(
    agent: _Served = None,
    host: _Host = None,
    port: _Port = None,
    store: _Store = None,
    model: _Model = None,
    root: _Root = None,
    tls_cert: _Cert = None,
    tls_key: _Key = None,
    allow_host: _AllowHost = None,
    allow_origin: _AllowOrigin = None,
    proxy: _Proxy = None,
    grace: _Grace = None,
    profile: _Profile = None,
    insecure: _Insecure = False,
    detach_agents: _Detach = False,
    end_agents: _EndAgents = False,
    home: _Home = None,
    as_json: _Json = False,
) -> None:
    """Serve an agent to phones, browsers and other terminals, until Ctrl-C."""
    from holdfast.cli.serve import ServeFlags
    from holdfast.cli.serve import serve as verb

    given: dict[str, Any] = {
        "host": host,
        "port": port,
        "project_root": root,
        "tls_cert": tls_cert,
        "tls_key": tls_key,
        "grace": grace,
    }
    lists = {"allowed_hosts": allow_host, "allowed_origins": allow_origin, "trusted_proxies": proxy}
    given |= {name: tuple(values) for name, values in lists.items() if values}
    given |= {"insecure": True} if insecure else {}
    flags = ServeFlags(
        agent=agent,
        store=store,
        models=tuple(model or ()),
        home=_home(home),
        profile=profile,
        as_json=as_json,
        detaches_agents=detach_agents,
        ends_agents=end_agents,
        given={name: value for name, value in given.items() if value is not None},
    )
    perform(lambda: verb(flags))


@tokens.command("create")
def tokens_create(
    name: Annotated[str, typer.Argument(help='What you call its holder: "Ada\'s phone".')],
    kind: Annotated[
        str,
        typer.Option(
            help="device: a client. hook: may send hook events. metrics: may read metrics. admin: everything."
        ),
    ] = "device",
    role: _Role = "controller",
    session: _Sessions = None,
    expires: _Expires = None,
    home: _Home = None,
    as_json: _Json = False,
) -> None:
    """Make a token and print it. Only its digest is stored, so it cannot be shown again."""
    from holdfast.cli.tokens import tokens_create as verb

    sessions = session or []
    perform(lambda: verb(_home(home), name, kind=kind, role=role, sessions=sessions, expires=expires, as_json=as_json))


@tokens.command("list")
def tokens_list(home: _Home = None, as_json: _Json = False) -> None:
    """List the tokens, without their secrets."""
    from holdfast.cli.tokens import tokens_list as verb

    perform(lambda: verb(_home(home), as_json=as_json))


@tokens.command("revoke")
def tokens_revoke(
    which: Annotated[str, typer.Argument(help="The id of a token, or its name if only one has it.")],
    home: _Home = None,
    as_json: _Json = False,
) -> None:
    """Revoke a token. A running bridge closes its connections within a second."""
    from holdfast.cli.tokens import tokens_revoke as verb

    perform(lambda: verb(_home(home), which, as_json=as_json))


@tls.command("create")
def tls_create(names: _Names = None, days: _Days = 365, home: _Home = None, as_json: _Json = False) -> None:
    """Make a self-signed certificate, and the key that comes after it."""
    from holdfast.cli.tls import tls_create as verb

    perform(lambda: verb(_home(home), names or [], days=days, as_json=as_json))


@tls.command("show")
def tls_show(names: _Names = None, home: _Home = None, as_json: _Json = False) -> None:
    """Show the certificate, its pins, and what clients would complain about. Exit 1 if there is something."""
    from holdfast.cli.tls import tls_show as verb

    perform(lambda: verb(_home(home), names or [], as_json=as_json))


@tls.command("rotate")
def tls_rotate(
    names: _Names = None,
    days: _Days = 365,
    delay: Annotated[
        str | None, typer.Option("--in", help="Rotate after this time, and tell connected clients now: 24h.")
    ] = None,
    home: _Home = None,
    as_json: _Json = False,
) -> None:
    """Bring the next key into use with a new certificate. A running bridge takes it without a restart."""
    from holdfast.cli.tls import tls_rotate as verb

    perform(lambda: verb(_home(home), names or [], days=days, delay=delay, as_json=as_json))


def pair(
    url: Annotated[
        str | None,
        typer.Option(
            help="Where the device reaches the bridge: https://192.168.1.5:3000; by default, the address of the bridge that runs."
        ),
    ] = None,
    role: _Role = "controller",
    session: _Sessions = None,
    expires: _Expires = None,
    wait: Annotated[
        bool | None, typer.Option("--wait/--no-wait", help="Wait until the code is used; by default, on a terminal.")
    ] = None,
    home: _Home = None,
    as_json: _Json = False,
) -> None:
    """Show a one-time code, as a QR code, with which a new device gets a token of its own."""
    from holdfast.cli.tokens import pair as verb

    waits = sys.stdout.isatty() if wait is None else wait
    sessions = session or []
    perform(
        lambda: verb(_home(home), url=url, role=role, sessions=sessions, expires=expires, wait=waits, as_json=as_json)
    )


def attach(
    session: Annotated[str, typer.Argument(help="The session to follow.")],
    url: Annotated[
        str, typer.Option(help="The address of the bridge.", envvar="HOLDFAST_BRIDGE_URL")
    ] = "ws://127.0.0.1:3000/ws",
    token_file: Annotated[
        Path | None, typer.Option(help="A file with the token; by default, the variable BRIDGE_TOKEN.")
    ] = None,
    pin: Annotated[
        list[str] | None,
        typer.Option("--pin", help="The pin of the bridge's key, as `holdfast tls show` prints it; may be repeated."),
    ] = None,
    ca: Annotated[Path | None, typer.Option(help="Certificate authorities to trust, in place of the system's.")] = None,
    outbox: Annotated[
        Path | None, typer.Option(help="A file that keeps unsent messages, and how far you have read.")
    ] = None,
    create: Annotated[bool, typer.Option("--create", help="Make the session if it does not exist.")] = False,
    observe: Annotated[bool, typer.Option("--observe", help="Only follow: nothing that is typed is sent.")] = False,
    history: Annotated[str, typer.Option(help="What comes first: tail, full, pending or none.")] = "tail",
    accept_public: Annotated[
        bool, typer.Option("--accept-public", help="Accept a bridge on the public internet without a tunnel.")
    ] = False,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Allow ws:// to another machine: others can read the token.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document a line for each message.")] = False,
) -> None:
    """Follow a session of a bridge in this terminal, and take part: lines that you type go to the agent or answer its questions."""
    from holdfast.cli.attach import AttachFlags
    from holdfast.cli.attach import attach as verb

    flags = AttachFlags(
        session=session,
        url=url,
        token_file=token_file,
        pins=tuple(pin or ()),
        ca=None if ca is None else str(ca),
        outbox=outbox,
        creates=create,
        observes=observe,
        history=history,
        accept_public=accept_public,
        insecure=insecure,
        as_json=as_json,
    )
    perform(lambda: verb(flags))
