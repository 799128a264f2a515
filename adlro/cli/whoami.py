"""`adlro whoami`: whose token the services see, and what it may do."""

from __future__ import annotations

from adlro.cli.documents import document
from adlro.cli.shell import Output, OutputOption, ServerOption, connect, emit_json, stdout
from adlro.terminal import escape


def whoami(server: ServerOption = None, output: OutputOption = Output.TABLE) -> None:
    """Show the user and the roles of your token, as the services see them."""
    with connect(server) as client:
        found = client.whoami()
    if output is Output.JSON:
        emit_json(document(found))
    elif found.tokens_needed:
        stdout().print(f"{escape(found.user)} ({', '.join(found.roles)})")
    else:
        stdout().print("No tokens are needed here: everybody may use every method.")
