"""The flags of the verbs about a bridge: `holdfast serve`, `tokens …`, `tls …`, `pair` and `attach`."""

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from holdfast.cli.flags import JsonOption
from holdfast.cli.verbs import group_of, verb

bridge = typer.Typer()
"""The verbs that stand directly under `holdfast`."""
tokens = group_of("Make, list and revoke the tokens of a bridge.")
tls = group_of("Make and exchange the certificate of a bridge, and show its pins.")


def _state_folder() -> Path:
    from holdfast.bridge.access.private_files import state_folder

    return state_folder()


_Home = Annotated[
    Path,
    typer.Option(
        help="The folder with the bridge's tokens and keys; by default, holdfast/bridge in your state folder.",
        envvar="HOLDFAST_BRIDGE_HOME",
        default_factory=_state_folder,
        show_default=False,
    ),
]
_Names = Annotated[
    list[str] | None, typer.Argument(help="Host names and addresses under which clients reach the bridge.")
]
_Days = Annotated[int, typer.Option(min=1, help="How many days the certificate is valid.")]


class ServeFlags(msgspec.Struct, frozen=True, kw_only=True):
    """The flags of `holdfast serve`."""

    agent: Annotated[
        str | None,
        typer.Argument(
            metavar="[MODULE:NAME]",
            help="An agent of yours, or `async def agent(turn)`; by default, one with tools for the files and the shell here.",
        ),
    ] = None
    host: Annotated[str | None, typer.Option(help="The address to listen on; by default HOST, or else 127.0.0.1.")] = (
        None
    )
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="The port; 0 takes a free one; by default PORT, or else 3000.")
    ] = None
    store: Annotated[
        str | None,
        typer.Option(help="Where sessions are stored; by default, where programs here do.", envvar="HOLDFAST_STORE"),
    ] = None
    model: Annotated[
        list[str] | None, typer.Option(help="The model of the default agent; repeat it for fallbacks.")
    ] = None
    project_root: Annotated[
        Path | None,
        typer.Option("--root", help="The folder whose files clients may read; by default ALLOWED_PROJECT_ROOT."),
    ] = None
    tls_cert: Annotated[
        Path | None,
        typer.Option(
            help="The certificate (PEM); by default that of `holdfast tls` if other machines can reach the bridge."
        ),
    ] = None
    tls_key: Annotated[Path | None, typer.Option(help="Its private key (PEM).")] = None
    allowed_hosts: Annotated[
        list[str] | None,
        typer.Option("--allow-host", help="A name under which clients reach it; may be repeated."),
    ] = None
    allowed_origins: Annotated[
        list[str] | None,
        typer.Option("--allow-origin", help="A page of another server that may connect; may be repeated."),
    ] = None
    trusted_proxies: Annotated[
        list[str] | None,
        typer.Option("--proxy", help="A proxy whose X-Forwarded headers are believed; may be repeated."),
    ] = None
    grace: Annotated[
        float | None, typer.Option(min=0, help="Seconds that a session waits for its last client to come back.")
    ] = None
    profile: Annotated[str | None, typer.Option(help="bridge: the smaller limits of older bridges.")] = None
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Start without TLS or tokens although others can reach it.")
    ] = False
    detach_agents: Annotated[
        bool,
        typer.Option(
            "--detach-agents",
            help="Run the agents in a process that goes on when the server ends, and is found again.",
        ),
    ] = False
    end_agents: Annotated[
        bool,
        typer.Option("--end-agents", help="Serve nothing: end the agents that --detach-agents left, in order."),
    ] = False
    home: _Home
    as_json: JsonOption = False


@verb(bridge, "serve", "bridge.serve")
def serve(flags: ServeFlags) -> None:
    """Serve an agent to phones, browsers and other terminals, until Ctrl-C."""


class GrantFlags(msgspec.Struct, frozen=True, kw_only=True):
    """What a new token allows, and for how long."""

    role: Annotated[str, typer.Option(help="The most that it may be in a session: controller or observer.")] = (
        "controller"
    )
    session: Annotated[list[str] | None, typer.Option(help="Only this session; may be repeated. By default, all.")] = (
        None
    )
    expires: Annotated[
        str | None, typer.Option(help="How long the token is valid: 12h, 90d. By default, until revoked.")
    ] = None
    home: _Home


@verb(tokens, "create", "bridge.tokens")
def tokens_create(
    name: Annotated[str, typer.Argument(help='What you call its holder: "Ada\'s phone".')],
    kind: Annotated[
        str,
        typer.Option(
            help="device: a client. hook: may send hook events. metrics: may read metrics. admin: everything."
        ),
    ] = "device",
    *,
    grant: GrantFlags,
    as_json: JsonOption = False,
) -> None:
    """Make a token and print it. Only its digest is stored, so it cannot be shown again."""


@verb(tokens, "list", "bridge.tokens")
def tokens_list(*, home: _Home, as_json: JsonOption = False) -> None:
    """List the tokens, without their secrets."""


@verb(tokens, "revoke", "bridge.tokens")
def tokens_revoke(
    which: Annotated[str, typer.Argument(help="The id of a token, or its name if only one has it.")],
    *,
    home: _Home,
    as_json: JsonOption = False,
) -> None:
    """Revoke a token. A running bridge closes its connections within a second."""


@verb(tls, "create", "bridge.tls")
def tls_create(names: _Names = None, days: _Days = 365, *, home: _Home, as_json: JsonOption = False) -> None:
    """Make a self-signed certificate, and the key that comes after it."""


@verb(tls, "show", "bridge.tls")
def tls_show(names: _Names = None, *, home: _Home, as_json: JsonOption = False) -> None:
    """Show the certificate, its pins, and what clients would complain about. Exit 1 if there is something."""


@verb(tls, "rotate", "bridge.tls")
def tls_rotate(
    names: _Names = None,
    days: _Days = 365,
    delay: Annotated[
        str | None, typer.Option("--in", help="Rotate after this time, and tell connected clients now: 24h.")
    ] = None,
    *,
    home: _Home,
    as_json: JsonOption = False,
) -> None:
    """Bring the next key into use with a new certificate. A running bridge takes it without a restart."""


@verb(bridge, "pair", "bridge.tokens")
def pair(
    url: Annotated[
        str | None,
        typer.Option(
            help="Where the device reaches the bridge: https://192.168.1.5:3000; by default, the address of the bridge that runs."
        ),
    ] = None,
    *,
    grant: GrantFlags,
    wait: Annotated[
        bool | None, typer.Option("--wait/--no-wait", help="Wait until the code is used; by default, on a terminal.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show a one-time code, as a QR code, with which a new device gets a token of its own."""


class AttachFlags(msgspec.Struct, frozen=True, kw_only=True):
    """The flags of `holdfast attach`."""

    session: Annotated[str, typer.Argument(help="The session to follow.")]
    url: Annotated[str, typer.Option(help="The address of the bridge.", envvar="HOLDFAST_BRIDGE_URL")] = (
        "ws://127.0.0.1:3000/ws"
    )
    token_file: Annotated[
        Path | None, typer.Option(help="A file with the token; by default, the variable BRIDGE_TOKEN.")
    ] = None
    pin: Annotated[
        list[str] | None,
        typer.Option(help="The pin of the bridge's key, as `holdfast tls show` prints it; may be repeated."),
    ] = None
    ca: Annotated[Path | None, typer.Option(help="Certificate authorities to trust, in place of the system's.")] = None
    outbox: Annotated[
        Path | None, typer.Option(help="A file that keeps unsent messages, and how far you have read.")
    ] = None
    create: Annotated[bool, typer.Option("--create", help="Make the session if it does not exist.")] = False
    observe: Annotated[bool, typer.Option("--observe", help="Only follow: nothing that is typed is sent.")] = False
    history: Annotated[str, typer.Option(help="What comes first: tail, full, pending or none.")] = "tail"
    accept_public: Annotated[
        bool, typer.Option("--accept-public", help="Accept a bridge on the public internet without a tunnel.")
    ] = False
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Allow ws:// to another machine: others can read the token.")
    ] = False
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document a line for each message.")] = False


@verb(bridge, "attach", "bridge.attach")
def attach(flags: AttachFlags) -> None:
    """Follow a session of a bridge in this terminal, and take part: lines that you type go to the agent or answer its questions."""
