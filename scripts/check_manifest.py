"""Check the manifests in deploy/ against the definitions of their operator: no unknown field, no wrong type.

    python -m scripts.check_manifest deploy/kuberay/rayjob.yaml --crd ray.io_rayjobs.yaml

Kubernetes silently drops a field that it does not know; this script reports it as an error. A definition (a CRD) comes
from the operator's release: a file of its Helm chart, or the output of `kubectl get crd rayjobs.ray.io -o yaml`.
`--fields` also compares our own schema with the definition: the tests, which have no definition, use that schema.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jsonschema
import yaml

FIELDS = Path(__file__).parents[1] / "tests" / "unit" / "deploy" / "rayjob.schema.yaml"
_BUILT_IN = ("apps/", "batch/", "networking.k8s.io/", "v1")
"""Kinds of Kubernetes itself, for which no operator has a definition."""


def main(arguments: Sequence[str]) -> None:
    """Print the problems; exit with 1 if there are any, and with 2 if a file cannot be read."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("manifest", type=Path)
    parser.add_argument("--crd", type=Path, required=True, help="the definition that the operator installs")
    parser.add_argument("--fields", type=Path, default=FIELDS, help="our schema of the fields that the manifest uses")
    options = parser.parse_args(arguments)
    try:
        problems = _check(options)
    except (OSError, yaml.YAMLError) as error:
        parser.error(str(error))
    except (IndexError, KeyError, TypeError) as error:
        parser.error(f"{options.manifest} is no manifest, or {options.crd} no definition (a CRD): missing {error}")
    print(*problems or [f"{options.manifest}: agrees with {options.crd}"], sep="\n")
    sys.exit(1 if problems else 0)


def _check(options: argparse.Namespace) -> list[str]:
    crd = load_documents(options.crd)[0]
    fields = load_documents(options.fields)[0]
    kind = crd["spec"]["names"]["kind"]
    problems = [f"{options.fields}: {line}" for line in compare(fields[kind], find_schema(crd, None), kind)]
    for document in load_documents(options.manifest):
        problems += [f"{options.manifest}: {line}" for line in check_document(document, crd, fields)]
    return problems


def check_document(document: Any, crd: Any, fields: Any) -> list[str]:
    """Return the problems of a document, by the definition, or by our schema for a built-in kind of Kubernetes."""
    kind, api_version = document["kind"], document["apiVersion"]
    if kind == crd["spec"]["names"]["kind"]:
        schema = find_schema(crd, api_version)
        return [f"{kind}: {schema}"] if isinstance(schema, str) else find_problems(document, schema)
    if kind in fields and api_version.startswith(_BUILT_IN):
        return find_problems(document, fields[kind])
    return [f"{kind}: check this kind with the --crd of its own operator"]


def load_documents(path: Path) -> list[Any]:
    """Return the documents of a YAML file."""
    return [document for document in yaml.safe_load_all(path.read_text()) if document]


def find_schema(crd: Any, api_version: str | None) -> Any:
    """Return the schema of a version; None: of the stored version. If it is not served, return a text that says so."""
    group, versions = crd["spec"]["group"], crd["spec"]["versions"]
    for version in versions:
        is_asked = version["storage"] if api_version is None else f"{group}/{version['name']}" == api_version
        if is_asked and version["served"]:
            return version["schema"]["openAPIV3Schema"]
    served = ", ".join(f"{group}/{version['name']}" for version in versions if version["served"])
    return f"apiVersion {api_version!r} is not served; set one of {served}"


def find_problems(document: Any, schema: Any) -> list[str]:
    """Return the problems of a document, each with its place. Fields that the schema does not list are problems.

    >>> find_problems({"cpus": 1}, {"type": "object", "properties": {"cpu": {"type": "integer"}}})
    ["$: Additional properties are not allowed ('cpus' was unexpected)"]
    """
    validator = jsonschema.Draft202012Validator(make_strict(schema))
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(document)]


def make_strict(schema: Any) -> Any:
    """Return the schema with all unlisted fields refused. An open mapping stays open.

    `metadata` of the object itself has no fields in a definition, so it stays open: Kubernetes checks it.
    """
    strict = dict(schema)
    if "properties" in schema:
        strict["properties"] = {name: make_strict(part) for name, part in schema["properties"].items()}
        if not schema.get("additionalProperties") and not schema.get("x-kubernetes-preserve-unknown-fields"):
            strict["additionalProperties"] = False
    for name in ("items", "additionalProperties"):
        if isinstance(schema.get(name), dict):
            strict[name] = make_strict(schema[name])
    return strict


def compare(ours: Any, theirs: Any, place: str) -> Iterator[str]:
    """Yield each field of our schema that the definition does not have, or has with another type."""
    if "type" in ours and not _has_type(theirs, ours["type"]):
        yield f"{place}: our type is {ours['type']}, the definition's is {theirs.get('type', 'any')}"
    known = theirs.get("properties")
    for name, part in ours.get("properties", {}).items():
        if known is None:
            continue  # the metadata of the object itself
        if name in known:
            yield from compare(part, known[name], f"{place}.{name}")
        else:
            yield f"{place}.{name}: the definition has no such field"
    if isinstance(ours.get("items"), dict):
        yield from compare(ours["items"], theirs.get("items", {}), f"{place}[]")


def _has_type(schema: Any, name: str) -> bool:
    types = [schema.get("type"), *(part.get("type") for part in schema.get("anyOf", []))]
    return name in types


if __name__ == "__main__":
    main(sys.argv[1:])
