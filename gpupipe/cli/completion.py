"""gpupipe completion: the script with which a shell completes commands, configs and settings."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

PROGRAM, _VARIABLE = "gpupipe", "_GPUPIPE_COMPLETE"
_WORD_BREAKS = "COMP_WORDBREAKS=${COMP_WORDBREAKS//=/}\n"
SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print the script that completes commands, configs and KEY=VALUE in SHELL.

    bash: add to ~/.bashrc: eval "$(gpupipe completion bash)"

    zsh: add to ~/.zshrc: eval "$(gpupipe completion zsh)"

    fish: gpupipe completion fish > ~/.config/fish/completions/gpupipe.fish
    """
    complete = get_completion_class(shell)
    assert complete is not None  # click has a class for each of SHELLS
    # Not complete.source(): it runs bash to find out its version.
    program = click.get_current_context().find_root().command
    source = complete(program, {}, PROGRAM, _VARIABLE)
    script = source.source_template % source.source_vars()
    click.echo(_ADAPT[shell](script) if shell in _ADAPT else script)


def _adapt_bash(script: str) -> str:
    """Let bash complete KEY=VALUE: it splits words at "=", and writes a space after each word."""
    reply = "COMPREPLY+=($value)"
    no_space = "[[ $value == *= ]] && compopt -o nospace"
    return _WORD_BREAKS + script.replace(reply, f"{reply}\n            {no_space}")


def _adapt_zsh(script: str) -> str:
    """Let zsh write no space after KEY=."""
    add = "compadd -U -V unsorted"
    choose = "local space=' '; [[ -n ${completions[(r)*=]} ]] && space=''\n        "
    return script.replace(f"{add} -a", f'{choose}{add} -S "$space" -a')


_ADAPT = {"bash": _adapt_bash, "zsh": _adapt_zsh}
"""fish needs no change: it writes no space after "=" by itself."""
