"""Documents as YAML that a terminal can show: hidden characters are escapes, as in `adlro.text.to_json`."""

from __future__ import annotations

from typing import Any

from adlro.cli.documents import document
from adlro.text import is_hidden


def to_yaml(value: Any) -> str:
    """A document as YAML; records become mappings, enums lower-case names, NaN null."""
    import yaml

    class Dumper(yaml.SafeDumper):
        """Quotes what must be escaped: only a text in double quotes can be."""

        def ignore_aliases(self, data: Any) -> bool:
            """The same value twice is written twice."""
            return True

    def text(dumper: Any, data: str) -> Any:
        style = '"' if any(is_hidden(each) for each in data) else None
        return dumper.represent_scalar("tag:yaml.org,2002:str", data, style=style)

    Dumper.add_representer(str, text)
    made = yaml.dump(document(value), Dumper=Dumper, sort_keys=False, allow_unicode=True, width=1_000_000)
    if made.replace("\n", "").isprintable():
        return made
    return "".join(_escape(each) if is_hidden(each) and each != "\n" else each for each in made)


def _escape(character: str) -> str:
    code = ord(character)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
