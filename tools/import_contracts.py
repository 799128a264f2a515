"""Two contract types for import-linter, used by `make lint` through pyproject.toml.

import-linter's own types forbid what is listed, which a new dependency slips past, and fail on a package that nobody
imports yet. These look at direct imports only: who knows an interface need not know what lies behind it.
"""

from __future__ import annotations

import re
import sys

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, fields, output


class AllowedImports(Contract):
    """Each module of `importers` imports only what is listed in `allowed`, and the standard library.

    Configuration, all with what lies below them; `*` stands for one part of a name, and what does not exist is
    passed over:
        importers: packages or modules.
        allowed: packages or modules.
        ignore_imports: single imports that are allowed beside those, `importer -> imported`.
    """

    type_name = "allowed"

    importers = fields.ListField(subfield=fields.StringField())
    allowed = fields.ListField(subfield=fields.StringField())
    ignore_imports = fields.ListField(subfield=fields.StringField(), required=False)

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        """Finds the imports that are not on the list."""
        importers: list[str] = self.importers  # type: ignore[assignment]
        allowed: list[str] = self.allowed  # type: ignore[assignment]
        ignored: list[str] = self.ignore_imports or []  # type: ignore[assignment, truthy-bool]
        broken: list[str] = []
        for module in sorted(m for m in graph.modules if _below(m, importers)):
            for imported in graph.find_modules_directly_imported_by(module):
                if f"{module} -> {imported}" in ignored:
                    continue
                if not _below(imported, allowed) and imported.partition(".")[0] not in sys.stdlib_module_names:
                    broken += _lines(graph, module, imported)
        return ContractCheck(kept=not broken, metadata={"broken": sorted(broken)})

    def render_broken_contract(self, check: ContractCheck) -> None:
        """Prints one line for each import that is not on the list."""
        for line in check.metadata["broken"]:
            output.print_error(line)


class ReservedImports(Contract):
    """Only `importers` import the modules of `reserved`.

    Configuration as for `AllowedImports`:
        reserved: packages or modules, such as `grpc`.
        importers: packages or modules.
    """

    type_name = "reserved"

    reserved = fields.ListField(subfield=fields.StringField())
    importers = fields.ListField(subfield=fields.StringField())

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        """Finds the imports by others."""
        reserved: list[str] = self.reserved  # type: ignore[assignment]
        importers: list[str] = self.importers  # type: ignore[assignment]
        broken: list[str] = []
        for imported in (m for m in graph.modules if _below(m, reserved)):
            for module in graph.find_modules_that_directly_import(imported):
                if not _below(module, importers):
                    broken += _lines(graph, module, imported)
        return ContractCheck(kept=not broken, metadata={"broken": sorted(broken)})

    def render_broken_contract(self, check: ContractCheck) -> None:
        """Prints one line for each import by others."""
        for line in check.metadata["broken"]:
            output.print_error(line)


def _below(module: str, packages: list[str]) -> bool:
    patterns = (re.escape(package).replace(r"\*", r"[^.]+") for package in packages)
    return any(re.fullmatch(rf"{pattern}(\..+)?", module) for pattern in patterns)


def _lines(graph: ImportGraph, importer: str, imported: str) -> list[str]:
    details = graph.get_import_details(importer=importer, imported=imported)
    return [f"{importer}:{detail['line_number']} imports {imported}" for detail in details]
