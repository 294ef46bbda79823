"""A contract for import-linter: other folders import only from a folder's `__init__`, its interface."""

from __future__ import annotations

from typing import cast

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, fields, output


class InterfaceContract(Contract):
    """A module may import another one only if the folder of the imported module also contains the importer.

    `stagepipe.engine.local` may import `stagepipe.transport`, but not `stagepipe.transport.codec`.
    `exempt` lists importers that the contract does not bind.
    """

    exempt = fields.ListField(subfield=fields.StringField(), required=False)

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:  # noqa: FBT001 - import-linter's signature
        """Check every import of the package."""
        del verbose
        exempt = set(cast("list[str]", self.exempt or []))  # in an instance, a field is its value
        past = [
            (importer, imported)
            for importer in sorted(graph.modules - exempt)
            for imported in sorted(graph.find_modules_directly_imported_by(importer))
            if find_interface(importer, imported) != imported
        ]
        details = [(*each, graph.get_import_details(importer=each[0], imported=each[1])) for each in past]
        return ContractCheck(kept=not past, metadata={"past": details})

    def render_broken_contract(self, check: ContractCheck) -> None:
        """Print each import that bypasses an interface, and the interface to import from."""
        for importer, imported, details in check.metadata["past"]:
            for detail in details:
                output.print_error(f"{importer}:{detail['line_number']}: {detail['line_contents']}")
            output.print_error(f"    import it from {find_interface(importer, imported)}")


def find_interface(importer: str, imported: str) -> str:
    """Return the longest prefix of `imported` whose parent folder contains `importer`.

    >>> find_interface("stagepipe.engine.local", "stagepipe.transport.packet")
    'stagepipe.transport'
    >>> find_interface("stagepipe.report.build", "stagepipe.report.render.terminal")
    'stagepipe.report.render'
    """
    parts = imported.split(".")
    prefixes = [".".join(parts[:length]) for length in range(len(parts), 0, -1)]
    return next(
        prefix for prefix in prefixes if "." not in prefix or f"{importer}.".startswith(f"{prefix.rpartition('.')[0]}.")
    )
