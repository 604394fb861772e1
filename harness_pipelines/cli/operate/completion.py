"""`harness completion`: shell completion for `harness`."""

from __future__ import annotations

import click


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script of a shell.

    \b
    Examples:
      echo 'eval "$(harness completion bash)"' >> ~/.bashrc
      echo 'eval "$(harness completion zsh)"' >> ~/.zshrc
      harness completion fish > ~/.config/fish/completions/harness.fish
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f"no completion for {shell}")
    click.echo(kind(ctx.find_root().command, {}, "harness", "_HARNESS_COMPLETE").source())
