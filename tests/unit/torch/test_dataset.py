"""A pipeline behind a training script's existing DataLoader."""

import pytest
import torch
from torch.utils.data import DataLoader

from stagepipe import UsageError
from stagepipe.torch import StageDataset
from tests.support.pipelines import batch, pipeline, stage

pytestmark = pytest.mark.timeout(60)

BATCHES = pipeline(stage("to_dict"), batch(4), source=16)
SINGLE = pipeline(stage("to_dict"), source=10)


def test_batches_of_the_pipeline_pass_through():
    with StageDataset(BATCHES) as dataset:
        loader = DataLoader(dataset, batch_size=None, num_workers=0)
        assert len(loader) == 4
        for _ in range(2):
            assert [item["id"].tolist() for item in loader] == [list(range(n, n + 4)) for n in (0, 4, 8, 12)]


def test_the_data_loader_may_batch():
    with StageDataset(SINGLE) as dataset:
        batches = list(DataLoader(dataset, batch_size=4, num_workers=0))
        assert [item["x"].shape for item in batches] == [(4, 4, 3), (4, 4, 3), (2, 4, 3)]
        assert torch.cat([item["id"] for item in batches]).tolist() == list(range(10))


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_workers_of_the_data_loader_are_refused_with_a_hint(context):
    with StageDataset(BATCHES) as dataset:
        loader = DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context=context)
        with pytest.raises(UsageError, match=r"DataLoader\(dataset, batch_size=None, "):
            list(loader)
        assert len(list(dataset)) == 4, "and the pipeline still runs"


def test_it_resumes_as_a_loader_does():
    with StageDataset(BATCHES) as dataset:
        items = iter(DataLoader(dataset, batch_size=None, num_workers=0))
        next(items)
        state = dataset.state_dict()
        rest = [item["id"].tolist() for item in items]
    with StageDataset(BATCHES) as dataset:
        dataset.load_state_dict(state)
        dataset.set_epoch(0)
        loader = DataLoader(dataset, batch_size=None, num_workers=0)
        assert [item["id"].tolist() for item in loader] == rest
        assert len(list(loader)) == 4


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
@pytest.mark.parametrize("batch_size", [None, 2])
def test_torchdatas_stateful_data_loader_resumes(batch_size):
    from torchdata import stateful_dataloader as stateful

    with StageDataset(BATCHES) as dataset:
        loader = stateful.StatefulDataLoader(dataset, batch_size=batch_size, num_workers=0)
        items = iter(loader)
        first = next(items)["id"].flatten().tolist()
        state = loader.state_dict()
        rest = [item["id"].flatten().tolist() for item in items]
    with StageDataset(BATCHES) as dataset:
        loader = stateful.StatefulDataLoader(dataset, batch_size=batch_size, num_workers=0)
        loader.load_state_dict(state)
        assert [item["id"].flatten().tolist() for item in loader] == rest
        assert [item["id"].flatten().tolist() for item in loader] == [first, *rest]
