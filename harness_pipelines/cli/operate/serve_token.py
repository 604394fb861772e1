"""`harness serve token`: the tokens by which clients of `harness serve` log in."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import click

from harness_pipelines.cli.common import duration, opened
from harness_pipelines.show.output import emit, json_option, note
from harness_pipelines.spec.settings import Settings

if TYPE_CHECKING:
    from harness_pipelines.ports.serving.tokens import MadeToken, Token

NEVER = "never"


def _lasts(ctx: click.Context, option: click.Parameter, value: str) -> timedelta | None:
    """Turn ``90d`` or ``never`` into how long a token lasts (a click callback)."""
    seconds = None if value == NEVER else duration(ctx, option, value)
    return None if seconds is None else timedelta(seconds=seconds)


def _show(made: MadeToken, json_target: str | None) -> None:
    def human() -> None:
        note(f"harness: {_described(made.token)}; its secret is shown only now")
        click.echo(made.secret)

    emit({**made.token.to_json(), "secret": made.secret}, json_target, human, is_private=True)


@click.group()
def token() -> None:
    """Create, list, rotate and revoke the tokens of engines."""


@token.command()
@click.argument("name")
@click.option(
    "--tables", "globs", multiple=True, required=True, metavar="GLOB",
    help="Tables that it may read, such as 'shop.*' or '*'; may be repeated.",
)  # fmt: skip
@click.option(
    "--expires", "lasts", callback=_lasts, default="90d", show_default=True, metavar="TIME",
    help="How long it is valid, such as 90d or 12h, or `never`.",
)  # fmt: skip
@json_option
@click.pass_obj
def create(
    settings: Settings, /, name: str, globs: tuple[str, ...], lasts: timedelta | None, json_target: str | None
) -> None:
    """Make a token called NAME and print its secret, which is shown only now.

    An engine sends it as a bearer token, or by OAuth 2 with NAME as the client's id and the secret as its secret.
    The log of the server names who read what by NAME.

    \b
    Examples:
      harness serve token create trino --tables 'shop.*' --expires 90d
      export HARNESS_TOKEN=$(harness serve token create me --tables '*')
    """
    with opened(settings) as harness:
        made = harness.stores.tokens.create(name, globs, lasts=lasts)
    _show(made, json_target)


@token.command()
@click.argument("name")
@click.option(
    "--overlap", "overlap_s", callback=duration, default="1h", show_default=True, metavar="TIME",
    help="How long the old secret is good besides, but no longer than it was; at most 30d, 0s: not at all.",
)  # fmt: skip
@click.option(
    "--expires", "lasts", callback=_lasts, default="90d", show_default=True, metavar="TIME",
    help="How long the token is valid from now on, such as 90d or 12h, or `never`.",
)  # fmt: skip
@json_option
@click.pass_obj
def rotate(
    settings: Settings, /, name: str, overlap_s: float, lasts: timedelta | None, json_target: str | None
) -> None:
    """Give the token NAME another secret and print it; it is shown only now.

    The old secret stays good for the overlap, so that each engine can be given the new one. Of two rotations within an
    overlap the secret before the first one ends at once.

    \b
    Examples:
      harness serve token rotate trino
      harness serve token rotate trino --overlap 2d --expires 180d
    """
    with opened(settings) as harness:
        made = harness.stores.tokens.rotate(name, lasts=lasts, overlap=timedelta(seconds=overlap_s))
    _show(made, json_target)


@token.command("list")
@json_option
@click.pass_obj
def list_command(settings: Settings, /, json_target: str | None) -> None:
    """List all tokens, also those that have expired or were revoked; their secrets are not known.

    Of one that expires within seven days it says so: `harness serve token rotate` gives it another secret.

    \b
    Example:
      harness serve token list
    """
    with opened(settings) as harness:
        found = harness.stores.tokens.list()

    def human() -> None:
        for one in found:
            click.echo(_described(one))
        if not found:
            click.echo("no token yet: `harness serve token create NAME --tables GLOB` makes one")

    emit({"tokens": [one.to_json() for one in found]}, json_target, human)


@token.command()
@click.argument("name")
@json_option
@click.pass_obj
def revoke(settings: Settings, /, name: str, json_target: str | None) -> None:
    """Let a token be valid no more, for good; servers refuse it within three seconds.

    \b
    Example:
      harness serve token revoke trino
    """
    with opened(settings) as harness:
        gone = harness.stores.tokens.revoke(name)
    emit(gone.to_json(), json_target, lambda: click.echo(_described(gone)))


def _described(one: Token) -> str:
    from harness_pipelines.ports.serving.tokens import ends_soon

    if one.revoked_at is not None:
        state = f"revoked at {_at(one.revoked_at)}"
    elif one.expires_at is None:
        state = "does not expire"
    else:
        soon = " soon," if ends_soon(one.expires_at, datetime.now(UTC)) else ""
        state = f"{'expires' if one.valid else 'expired'}{soon} at {_at(one.expires_at)}"
    if one.old_until is not None and one.revoked_at is None:
        state += f", its old secret at {_at(one.old_until)}"
    return f"{one.name}: {', '.join(one.globs)}; {state}; created at {_at(one.created_at)} by {one.created_by}"


def _at(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"
