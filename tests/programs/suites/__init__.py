"""The tests of other data loaders, run through adapters.

running   runs a suite, and compares what fails with docs/reference/test-suites.md
on_path   the adapters, which replace classes of the libraries in the processes of their tests
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from tests.programs.sources import Origin
from tests.programs.suites.running import Part, Suite, run_case
from tests.programs.tables import Table

_DATA_LOADER = "suite_adapters.data_loader:DataLoader"
_NODES = {
    "adapters": ("IterableWrapper", "MapStyleWrapper", "SamplerWrapper"),
    "batch": ("Batcher", "Unbatcher"),
    "filter": ("Filter",),
    "header": ("Header",),
    "map": ("Mapper", "ParallelMapper"),
    "pin_memory": ("PinMemory",),
    "prefetch": ("Prefetcher",),
}
_TORCHDATA = Origin.github("pytorch/data", "088e43477c1c750c26ea6c1466b708c45cc8ba30")
_STATES = "test/stateful_dataloader/test_state_dict.py"
_TEST_TOOLS = ("expecttest", "parameterized")


def make_photographs(source: Path) -> None:
    """Make the archive of 47 images that webdataset's tests read and that the checkout may lack."""
    import io
    import tarfile

    import numpy as np
    from PIL import Image

    path = source / "testdata" / "imagenet-000000.tgz"
    if path.exists():
        return
    random = np.random.default_rng(17)
    with tarfile.open(path, "w:gz", compresslevel=1) as archive:
        for number in range(47):
            height, width = (793, 600) if number == 0 else (64, 48)  # the first has the size that a test asks for
            colours = random.integers(0, 240, (height // 8 + 1, width // 8 + 1, 3), dtype=np.uint8)
            image = io.BytesIO()
            Image.fromarray(colours.repeat(8, 0).repeat(8, 1)[:height, :width]).save(image, "png")
            fields = {"cls": b"%d" % number, "png": image.getvalue(), "wnid": b"n%08d" % number, "xml": b"None"}
            for name, content in fields.items():
                member = tarfile.TarInfo(f"{number:04}.{name}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))


SUITES = [
    Suite(
        name="DataLoader",
        origin=Origin.github("pytorch/pytorch", "v2.6.0"),
        parts=[
            Part(files=["test/test_dataloader.py"], only=only)
            for only in (
                "TestDataLoader and not Persistent and (test_b or test_c or test_e or test_f or test_g or test_i)",
                "TestDataLoader and not Persistent and (test_l or test_m or test_n or test_r or test_sa or test_du)",
                "TestDataLoader and not Persistent and (test_se or test_sh or test_t or test_w or test_p)",
                "Persistent and (dataset_not_reset or test_e or test_s)",
                "not TestDataLoader",
            )
        ],
        sample=Part(files=["test/test_dataloader.py"], only="TestDataLoader and not Persistent and test_se"),
        adapters={"torch.utils.data:DataLoader": _DATA_LOADER},
        environment="suites",
        packages=_TEST_TOOLS,
    ),
    Suite(
        name="StatefulDataLoader",
        origin=_TORCHDATA,
        parts=[
            Part(files=["test/stateful_dataloader/test_sampler.py"]),
            Part(files=[_STATES], only="shard0 and not Iterable2"),
            Part(files=[_STATES], only="shard1 or shard3 or Iterable2"),
            Part(files=[_STATES], only="not shard0 and not shard1 and not shard3"),
        ],
        sample=Part(files=[_STATES], only="TestJsonSerDe or TestSnapshotEnd"),
        adapters={"torchdata.stateful_dataloader:StatefulDataLoader": _DATA_LOADER},
        environment="suites",
        packages=_TEST_TOOLS,
        imports_source=True,
    ),
    Suite(
        name="nodes",
        origin=_TORCHDATA,
        parts=[
            Part(files=[f"test/nodes/test_{name}.py" for name in names])
            for names in (
                ("adapters", "batch", "cycler", "filter", "header"),
                ("loader", "map", "pin_memory", "prefetch"),
            )
        ],
        sample=Part(files=["test/nodes/test_batch.py"]),
        adapters={
            f"torchdata.nodes.{module}:{name}": f"suite_adapters.nodes:{name}"
            for module, names in _NODES.items()
            for name in names
        },
        environment="suites",
        packages=_TEST_TOOLS,
        imports_source=True,
    ),
    Suite(
        name="webdataset",
        origin=Origin.github("webdataset/webdataset", "e0953f9bba17b416d5792d5a263b171c266e78be"),
        parts=[
            Part(
                files=[
                    f"tests/test_{name}.py" for name in ("compat", "decode", "handlers", "mix", "pipeline", "shuffles")
                ]
            )
        ],
        sample=Part(files=["tests/test_pipeline.py"], only="trivial or repeat"),
        adapters={
            f"webdataset:{name}": f"suite_adapters.webdataset_pipeline:{name}"
            for name in ("DataPipeline", "WebDataset")
        },
        environment="suites",
        packages=_TEST_TOOLS,
        prepare=make_photographs,
    ),
    Suite(
        name="Grain",
        origin=Origin.pypi("grain", "0.2.18"),
        parts=[Part(files=["grain/_src/python/data_loader_test.py", "grain/_src/python/load_test.py"])],
        sample=Part(files=["grain/_src/python/load_test.py"]),
        adapters={"grain._src.python.data_loader:DataLoader": "suite_adapters.grain_loader:DataLoader"},
        environment="grain",
        packages=("grain==0.2.18", "absl-py", "parameterized"),
        is_installed=True,
    ),
]

TABLE = Table(
    name="suites",
    headings=("suite", "of", "passed", "not applicable", "failed", "notes"),
    cases={suite.name: partial(run_case, suite) for suite in SUITES},
)
