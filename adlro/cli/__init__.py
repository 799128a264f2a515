"""The `adlro` command. It speaks to the services through `adlro.client`, and starts them as processes; it imports none.

One file a group of commands. A new one: write a function with typer options in the file it belongs to, add it in
`adlro.cli.app`, print through `adlro.cli.shell`, and give a reading command `-o json`.
"""


def main() -> None:
    """Runs the command line; the entry point `adlro`."""
    from adlro.cli.app import app

    app(prog_name="adlro")
