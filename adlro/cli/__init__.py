"""The `adlro` command. It calls the services through `adlro.client`, and starts them as processes; it imports none.

Each group of commands is a file. For a new command: write a function with typer options in its group's file, add it in
`adlro.cli.app`, print through `adlro.cli.shell`, and give a reading command `-o json`.
"""


def main() -> None:
    """Runs the command line; the entry point `adlro`."""
    from adlro.cli.app import app

    app(prog_name="adlro")
