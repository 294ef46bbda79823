"""The manifest for KubeRay: each of its fields exists, it keeps to itself, and its command is one of ours."""

import copy
import importlib.metadata
import shlex

import pytest
import typer.main
import yaml

from scripts.check_manifest import FIELDS, compare, find_problems, load_documents, main
from stagepipe.cli.app import app
from tests.support.paths import ROOT

MANIFEST = ROOT / "deploy/kuberay/rayjob.yaml"
SCHEMAS = load_documents(FIELDS)[0]
POLICY, JOB = load_documents(MANIFEST)
CLUSTER = JOB["spec"]["rayClusterSpec"]
PODS = [group["template"] for group in (CLUSTER["headGroupSpec"], *CLUSTER["workerGroupSpecs"])]
OPEN_MAPPINGS = {"labels", "matchLabels", "rayStartParams"}


def find_keys(value, path=()):
    """Yield the path of each key, except those of mappings that may have any."""
    if isinstance(value, dict):
        for key, part in value.items():
            yield (*path, key)
            if key not in OPEN_MAPPINGS:
                yield from find_keys(part, (*path, key))
    elif isinstance(value, list):
        for index, part in enumerate(value):
            yield from find_keys(part, (*path, index))


def change(document, path, edit):
    changed = copy.deepcopy(document)  # PyYAML shares what an alias names; so does deepcopy
    parent = changed
    for step in path[:-1]:
        parent = parent[step]
    edit(parent, path[-1])
    return changed


def rename(parent, key):
    parent[f"{key}x"] = parent.pop(key)


@pytest.mark.parametrize("document", [JOB, POLICY], ids=lambda document: document["kind"])
def test_each_field_is_known_and_a_renamed_one_is_found(document):
    schema = SCHEMAS[document["kind"]]
    assert find_problems(document, schema) == []
    paths = list(find_keys(document))
    assert len(paths) > 10
    for path in paths:
        assert find_problems(change(document, path, rename), schema), f"{path} renamed, and nobody noticed"


@pytest.mark.parametrize(
    "path, value",
    [
        ("headGroupSpec.serviceType", "NodePort"),
        ("headGroupSpec.enableIngress", True),
        ("headGroupSpec.rayStartParams.num-cpus", 0),
        ("headGroupSpec.template.spec.securityContext.runAsNonRoot", False),
        ("headGroupSpec.template.spec.volumes.1.emptyDir.medium", ""),
        ("workerGroupSpecs.0.template.spec.containers.0.securityContext.allowPrivilegeEscalation", True),
        ("workerGroupSpecs.0.template.spec.containers.0.image", "registry.example.com/stagepipe-ray:latest"),
        ("workerGroupSpecs.0.template.spec.containers.0.volumeMounts.1.mountPath", "/shm"),
        ("authOptions.mode", "disabled"),
        ("workerGroupSpecs.0.replicas", "8"),
    ],
)
def test_settings_that_would_expose_the_cluster_are_refused(path, value):
    steps = [int(step) if step.isdigit() else step for step in f"spec.rayClusterSpec.{path}".split(".")]
    changed = change(JOB, steps, lambda parent, key: parent.__setitem__(key, value))
    (problem, *_) = find_problems(changed, SCHEMAS["RayJob"])
    assert steps[-1] in problem


def test_the_network_policy_closes_all_pods_of_the_job():
    selected = POLICY["spec"]["podSelector"]["matchLabels"]
    for pod in PODS:
        assert selected.items() <= pod["metadata"]["labels"].items()
    peers = POLICY["spec"]["ingress"][0]["from"]
    assert {"podSelector": {"matchLabels": selected}} in peers
    for peer in peers:
        assert peer["podSelector"]["matchLabels"], "no peer is any pod"
        assert peer.get("namespaceSelector", {"matchLabels": selected})["matchLabels"], "nor a pod of any namespace"


def test_all_nodes_see_the_volume_at_one_path_and_have_shared_memory():
    places = set()
    for pod in PODS:
        (container,) = pod["spec"]["containers"]
        volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
        mounts = {volumes[mount["name"]]["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        places.add((mounts["data"], volumes["data"]["persistentVolumeClaim"]["claimName"]))
        assert mounts["shared-memory"] == "/dev/shm"
        resources = container["resources"]
        assert resources["requests"] == resources["limits"]
        gib = {
            name: int(text.removesuffix("Gi"))
            for name, text in (
                ("memory", resources["limits"]["memory"]),
                ("shm", volumes["shared-memory"]["emptyDir"]["sizeLimit"]),
            )
        }
        assert 0.3 * gib["memory"] <= gib["shm"] <= 0.5 * gib["memory"]
    assert len(places) == 1


def test_the_image_has_the_ray_that_is_tested():
    assert CLUSTER["rayVersion"] == importlib.metadata.version("ray")
    assert {pod["spec"]["containers"][0]["image"].rpartition(":")[2] for pod in PODS} == {CLUSTER["rayVersion"]}


def test_the_entrypoint_is_a_call_of_ours():
    program, name, *arguments = shlex.split(JOB["spec"]["entrypoint"])
    command = typer.main.get_command(app).commands[name]
    parameters = command.make_context(name, arguments).params
    assert program == "stagepipe"
    assert {str(parameters[key]) for key in ("config", "resume")} == {"/data/config.yaml", "/data/position.json"}


def make_crd(**fields):
    """Return the definition of a kind Job with such fields in its spec, in a version that is served and another."""
    spec = {"type": "object", "properties": fields}
    schema = {
        "type": "object",
        "properties": {"apiVersion": {"type": "string"}, "kind": {"type": "string"}, "spec": spec},
    }
    versions = [
        {"name": name, "served": name == "v1", "storage": name == "v1", "schema": {"openAPIV3Schema": schema}}
        for name in ("v1", "v0")
    ]
    return {"spec": {"group": "ray.io", "names": {"kind": "RayJob"}, "versions": versions}}


@pytest.mark.parametrize(
    "manifest, line",
    [
        ({"apiVersion": "ray.io/v1", "spec": {"cpus": 1}}, None),
        ({"apiVersion": "ray.io/v1", "spec": {"cpu": 1}}, "$.spec: Additional properties are not allowed ('cpu' was"),
        ({"apiVersion": "ray.io/v1", "spec": {"cpus": "1"}}, "$.spec.cpus: '1' is not of type 'integer'"),
        ({"apiVersion": "ray.io/v0", "spec": {}}, "'ray.io/v0' is not served; set one of ray.io/v1"),
        ({"apiVersion": "other.io/v1", "kind": "Other"}, "Other: check this kind with the --crd of its own operator"),
    ],
)
def test_the_script_reports_names_that_the_definition_does_not_know(manifest, line, tmp_path, capsys):
    written = {
        "manifest": {"kind": "RayJob"} | manifest,
        "crd": make_crd(cpus={"type": "integer"}),
        "fields": {"RayJob": {"properties": {"spec": {"properties": {"cpus": {"type": "integer"}}}}}},
    }
    for name, document in written.items():
        (tmp_path / name).write_text(yaml.safe_dump(document))
    with pytest.raises(SystemExit) as ended:
        main([str(tmp_path / "manifest"), "--crd", str(tmp_path / "crd"), "--fields", str(tmp_path / "fields")])
    output = capsys.readouterr().out
    assert ended.value.code == (1 if line else 0)
    assert (line or "agrees with") in output


@pytest.mark.parametrize(
    "text, message",
    [(None, "No such file"), ("a: [", "while parsing"), ("a: 1", "no definition (a CRD): missing 'spec'")],
)
def test_a_file_that_is_no_definition_is_named(text, message, tmp_path, capsys):
    if text is not None:
        (tmp_path / "crd").write_text(text)
    with pytest.raises(SystemExit) as ended:
        main([str(MANIFEST), "--crd", str(tmp_path / "crd")])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_our_own_schema_is_compared_with_the_definition():
    ours = {"properties": {"a": {"type": "string"}, "b": {"type": "string"}, "c": {"items": {"properties": {"d": {}}}}}}
    theirs = {"properties": {"a": {"type": "integer"}, "c": {"items": {"properties": {"e": {}}}}}}
    assert list(compare(ours, theirs, "Job")) == [
        "Job.a: our type is string, the definition's is integer",
        "Job.b: the definition has no such field",
        "Job.c[].d: the definition has no such field",
    ]
