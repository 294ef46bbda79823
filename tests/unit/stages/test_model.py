"""Module gives each item the row that the module itself gives; a pipeline of transformers, the same result."""

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from stagepipe import Pipeline
from stagepipe.runtime.execution.fields import FieldAdapter
from stagepipe.stages.model import HuggingFacePipeline, Module


class TwoInputs(nn.Module):
    """Returns a dict, a part of which is no tensor."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, x, scale=1):
        y = self.linear(x) * torch.as_tensor(scale).reshape(-1, 1)
        return {"y": y, "pair": (y[:, 0], y[:, 1]), "cache": object()}


@pytest.fixture
def linear():
    torch.manual_seed(0)
    return nn.Linear(3, 2)


ARRAYS = [np.full(3, number, np.float32) for number in range(4)]


def expected(module, arrays=ARRAYS):
    with torch.no_grad():
        return module(torch.from_numpy(np.stack(arrays))).numpy()


def test_a_list_gives_a_row_for_each_item_and_one_item_its_row(linear):
    rows = Module(linear)(ARRAYS)
    np.testing.assert_allclose(rows, expected(linear), rtol=1e-6)
    assert all(isinstance(row, np.ndarray) for row in rows)
    np.testing.assert_allclose(Module(linear)(ARRAYS[1]), expected(linear)[1], rtol=1e-6)


def test_tensors_and_other_float_types_are_taken(linear):
    rows = Module(linear)([torch.full((3,), 2.0, dtype=torch.float64, requires_grad=True)])
    np.testing.assert_allclose(rows[0], expected(linear)[2], rtol=1e-6)


def test_numbers_and_integers_keep_their_type():
    assert Module(nn.Embedding(5, 2))([np.int64(3), np.int64(4)])[1].shape == (2,)
    assert Module(nn.Identity())([3, 4]) == [3, 4]


def test_it_runs_in_inference_mode_and_evaluates(linear):
    class Probe(nn.Module):
        def forward(self, x):
            return x + torch.is_inference_mode_enabled() + 10 * self.training

    assert Module(Probe())([0.0])[0] == 1


def test_fields_are_mapped_to_arguments_and_results_to_fields():
    module = TwoInputs()
    adapter = FieldAdapter(Module(module, outputs="y"), {"x": "image", "scale": "factor"}, None, "m", batched=True)
    items = [{"image": array, "factor": number, "id": number} for number, array in enumerate(ARRAYS)]
    with pytest.raises(TypeError, match="ambiguous"):
        adapter(items)
    adapter = FieldAdapter(Module(module, outputs=["y"]), {"x": "image", "scale": "factor"}, None, "m", batched=True)
    results = adapter(items)
    assert [item["id"] for item in results] == [0, 1, 2, 3]
    np.testing.assert_allclose(results[3]["y"], 3 * expected(module.linear)[3], rtol=1e-6)


def test_a_dict_item_gives_the_arguments():
    module = TwoInputs()
    results = Module(module, outputs=["y", "pair"])([{"x": array, "scale": 2} for array in ARRAYS])
    np.testing.assert_allclose(results[2]["y"], 2 * expected(module.linear)[2], rtol=1e-6)
    np.testing.assert_allclose(results[2]["pair"], results[2]["y"])
    assert Module(module, outputs="y")({"x": ARRAYS[0]}).shape == (2,)


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_a_state_is_loaded(linear, suffix, tmp_path):
    path = tmp_path / f"state{suffix}"
    (save_file if suffix == ".safetensors" else torch.save)(linear.state_dict(), path)
    stage = Module(lambda: nn.Linear(3, 2), state=path)
    np.testing.assert_allclose(stage(ARRAYS), expected(linear), rtol=1e-6)


def test_a_state_that_does_not_fit_is_refused(linear, tmp_path):
    torch.save(linear.state_dict(), tmp_path / "s.pt")
    with pytest.raises(RuntimeError, match="size mismatch for weight"):
        Module(nn.Linear(4, 2), state=tmp_path / "s.pt")
    with pytest.raises(FileNotFoundError, match=r"model.Module: no state file"):
        Module(nn.Linear(4, 2), state=tmp_path / "none.pt")


def test_bfloat16_comes_back_as_float32(linear):
    reference = expected(linear)
    rows = Module(linear, dtype="bfloat16")(ARRAYS)
    assert rows[0].dtype == np.float32
    np.testing.assert_allclose(rows, reference, atol=0.05)


@pytest.mark.parametrize(
    "values, error, words",
    [
        (
            [np.zeros(3), np.zeros(4)],
            ValueError,
            r"the item cannot be stacked: an array of shape \(3,\).* and .*\(4,\)",
        ),
        (["a", "b"], TypeError, "the item is a; give arrays, tensors or numbers"),
    ],
)
def test_values_that_cannot_be_stacked_are_refused(linear, values, error, words):
    with pytest.raises(error, match=words):
        Module(linear)(values)


def test_results_without_a_row_for_each_item_are_refused():
    with pytest.raises(
        TypeError, match=r"`output.cache` is of type object, not a tensor; name the outputs .* `outputs`"
    ):
        Module(TwoInputs())([{"x": ARRAYS[0]}])
    with pytest.raises(KeyError, match="returned no `z`; it returned `y`, `pair`, `cache`"):
        Module(TwoInputs(), outputs="z")([{"x": ARRAYS[0]}])
    with pytest.raises(ValueError, match=r"`output` has the shape \(12,\) for 4 items"):
        Module(nn.Flatten(0))(ARRAYS)


def test_values_that_are_not_modules_or_devices_are_refused(linear, monkeypatch):
    with pytest.raises(TypeError, match=r"module is of type int, not a torch.nn.Module"):
        Module(3)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="device is cuda, but torch finds no GPU; use `device: cpu`"):
        Module(linear, device="cuda")


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    """A folder with a tiny text classifier of random weights and its tokenizer."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("classifier")
    words = ["[PAD]", "[UNK]", "good", "bad"]
    tokenizer = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]").save_pretrained(folder)
    torch.manual_seed(0)
    sizes = {
        "vocab_size": 4,
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "intermediate_size": 8,
    }
    BertForSequenceClassification(BertConfig(**sizes)).save_pretrained(folder)
    return folder


def test_a_pipeline_of_transformers_runs_from_a_folder(classifier):
    import transformers

    texts = ["good good", "bad"]
    reference = transformers.pipeline("text-classification", model=str(classifier), device="cpu")(texts)
    stage = HuggingFacePipeline("text-classification", classifier)
    results = stage(texts)
    assert [result["label"] for result in results] == [result["label"] for result in reference]
    assert [result["score"] for result in results] == pytest.approx([result["score"] for result in reference], rel=1e-4)
    assert stage("bad")["label"] == reference[1]["label"]


def test_a_pipeline_of_transformers_is_a_stage_with_batches_and_a_dtype(classifier):
    import transformers

    texts = ["good", "bad good", "other", "bad bad good", "good bad"]
    build = transformers.pipeline
    reference = build("text-classification", model=str(classifier), device="cpu", dtype="bfloat16")(texts, top_k=1)
    stage = {
        "name": "classify",
        "uses": "stagepipe.stages.model.HuggingFacePipeline",
        "with": {
            "task": "text-classification",
            "path": str(classifier),
            "options": {"dtype": "bfloat16"},
            "call_options": {"top_k": 1},
        },
        "field": "text",
        "into": "sentiment",
        "batch": {"size": 3},
    }
    source = [{"text": text, "id": number} for number, text in enumerate(texts)]
    with Pipeline({"source": {"uses": source}, "stages": [stage]}, inline=True) as running:
        items = list(running)
        model = HuggingFacePipeline("text-classification", classifier, options={"dtype": "bfloat16"})._pipeline.model
    assert model.dtype == torch.bfloat16
    assert [item["id"] for item in items] == [0, 1, 2, 3, 4]
    for item, ((expected,),) in zip(items, zip(reference, strict=True), strict=True):
        (found,) = item["sentiment"]
        assert found["label"] == expected["label"]
        assert found["score"] == pytest.approx(expected["score"], rel=0.02)


def test_a_tokenizer_of_a_folder_gives_ids(classifier):
    from stagepipe.stages.text import Tokenize

    assert [ids.tolist() for ids in Tokenize(classifier)(["good bad", "other"])] == [[2, 3], [1]]
    assert Tokenize(classifier, max_length=1)("good bad").tolist() == [2]


def test_a_model_that_is_not_on_this_machine_is_refused():
    with pytest.raises(FileNotFoundError, match=r"no folder .*/bert-base.*nothing is downloaded"):
        HuggingFacePipeline("text-classification", "bert-base")
