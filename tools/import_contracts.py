"""A contract type for import-linter: a package may import what is listed, and the standard library, and nothing else.

Used by `make check` through pyproject.toml. import-linter's own types list what is forbidden, which a new
dependency slips past.
"""

from __future__ import annotations

import sys

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, fields, output


class AllowedImports(Contract):
    """Each module of `importers` and below imports directly only what is listed in `allowed`, and the standard library.

    Configuration:
        importers: packages or modules; one that does not exist (yet) is passed over.
        allowed: packages or modules, with all below them.
    """

    type_name = "allowed"

    importers = fields.ListField(subfield=fields.StringField())
    allowed = fields.ListField(subfield=fields.StringField())

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        """Finds the imports that are not on the list."""
        importers: list[str] = self.importers  # type: ignore[assignment]
        allowed: list[str] = self.allowed  # type: ignore[assignment]
        broken: list[str] = []
        for module in sorted(m for m in graph.modules if _below(m, importers)):
            for imported in sorted(graph.find_modules_directly_imported_by(module)):
                if _below(imported, allowed) or imported.partition(".")[0] in sys.stdlib_module_names:
                    continue
                details = graph.get_import_details(importer=module, imported=imported)
                broken.extend(f"{module}:{detail['line_number']} imports {imported}" for detail in details)
        return ContractCheck(kept=not broken, metadata={"broken": broken})

    def render_broken_contract(self, check: ContractCheck) -> None:
        """Prints one line for each import that is not on the list."""
        for line in check.metadata["broken"]:
            output.print_error(line)


def _below(module: str, packages: list[str]) -> bool:
    return any(module == package or module.startswith(package + ".") for package in packages)
