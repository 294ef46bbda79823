"""Tokenize gives the ids of its library; Pack cuts documents into sequences of one length, group by group."""

import random
import sys

import numpy as np
import pytest
from datatrove.pipeline.filters import C4QualityFilter, FineWebQualityFilter, LambdaFilter
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from stagepipe import SKIP, Pipeline, defer, from_source
from stagepipe.core import TargetError
from stagepipe.stages import OrderPointStage
from stagepipe.stages.text import Pack, QualityFilter, Tokenize
from tests.support.paths import ROOT

WORDS = ["<pad>", "<s>", "to", "be", "or", "not"]


@pytest.fixture
def tokenizer_file(tmp_path):
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    tokenizer.enable_padding(length=30)
    path = tmp_path / "tokenizer.json"
    tokenizer.save(str(path))
    return path


def test_a_text_becomes_its_ids_without_padding(tokenizer_file):
    tokenize = Tokenize(tokenizer_file)
    ids = tokenize("to be or not")
    assert (ids.tolist(), ids.dtype) == ([1, 2, 3, 4, 5], np.int64)
    assert tokenize(b"not").tolist() == [1, 5]
    assert [row.tolist() for row in tokenize(["to", "be or"])] == [[1, 2], [1, 3, 4]]


def test_ids_are_cut_and_special_tokens_left_out(tokenizer_file):
    assert Tokenize(tokenizer_file, max_length=3)("to be or not").tolist() == [1, 2, 3]
    ids = Tokenize(tokenizer_file, add_special_tokens=False, dtype="uint16")("to be")
    assert (ids.tolist(), ids.dtype) == ([2, 3], np.uint16)
    assert Tokenize(tokenizer_file, add_special_tokens=False)("").tolist() == []


def test_the_pipeline_of_the_page_packs_by_default_names(tokenizer_file, tmp_path, monkeypatch):
    page = (ROOT / "docs" / "how-to" / "ready-stages.md").read_text()
    (tmp_path / "packed.yaml").write_text(page.partition("# packed.yaml\n")[2].partition("```")[0])
    (tmp_path / "data").mkdir()
    tokenizer_file.rename(tmp_path / "data" / "tokenizer.json")
    (tmp_path / "data" / "texts.jsonl").write_text('{"text": "to be"}\n{"text": "or not"}\n')
    monkeypatch.chdir(tmp_path)
    with Pipeline("packed.yaml", overrides=["stages.pack.with.length=8"], inline=True) as pipeline:
        [batch] = pipeline
    assert batch["input_ids"].tolist() == [[1, 2, 3, 0, 1, 4, 5, 0]]


def test_values_that_are_not_texts_or_tokenizers_are_refused(tokenizer_file, tmp_path, monkeypatch):
    with pytest.raises(TypeError, match=r"text.Tokenize: expected a string, found an object of type int"):
        Tokenize(tokenizer_file)(3)
    with pytest.raises(FileNotFoundError, match=r"no tokenizer at .*bert-base; .*nothing is downloaded"):
        Tokenize(tmp_path / "bert-base")
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(TargetError, match=r"requires the package tokenizers; run `pip install 'tokenizers>="):
        Tokenize(tokenizer_file)


def pack(documents, **arguments):
    """All groups of the documents, each a list of (output, samples)."""
    stage = Pack(**arguments)
    groups = [stage.flush(random.Random(0)) for document in documents if stage.add(document, 1)]
    return [*groups, stage.finish(random.Random(0))]


def tokens_of(groups, field="input_ids"):
    return [output[field].tolist() for group in groups for output, _ in group]


DOCUMENTS = [np.arange(start, start + length, dtype=np.int32) for start, length in [(10, 3), (20, 6), (30, 1), (40, 4)]]


def test_documents_are_concatenated_and_cut():
    groups = pack(DOCUMENTS, length=4, sequences=2)
    assert tokens_of(groups) == [[10, 11, 12, 20], [21, 22, 23, 24], [25, 0, 0, 0], [30, 40, 41, 42], [43, 0, 0, 0]]
    assert groups[0][0][0]["input_ids"].dtype == np.int32


def test_the_tail_of_a_group_is_dropped_if_asked_for():
    assert tokens_of(pack(DOCUMENTS, length=4, sequences=2, tail="drop")) == [
        [10, 11, 12, 20],
        [21, 22, 23, 24],
        [30, 40, 41, 42],
    ]


def test_with_a_separator_every_token_stays_in_order():
    rng = np.random.default_rng(0)
    documents = [rng.integers(5, 99, rng.integers(0, 30)) for _ in range(60)]
    flat = [token for document in documents if len(document) for token in [*document.tolist(), 2]]
    packed = tokens_of(pack(documents, length=16, sequences=3, separator=2, pad=1))
    assert all(len(sequence) == 16 for sequence in packed)
    assert [token for sequence in packed for token in sequence if token != 1] == flat
    assert sum(sequence.count(1) for sequence in packed) < 16 * len(
        pack(documents, length=16, sequences=3, separator=2)
    )


def test_segments_number_documents_and_positions_restart():
    [[(first, _), (second, _), (third, _)], []] = pack(DOCUMENTS[:2], length=4, sequences=2, segments=True)
    assert (first["segment_ids"].tolist(), first["position_ids"].tolist()) == ([1, 1, 1, 2], [0, 1, 2, 0])
    assert (second["segment_ids"].tolist(), second["position_ids"].tolist()) == ([1, 1, 1, 1], [0, 1, 2, 3])
    assert (third["segment_ids"].tolist(), third["position_ids"].tolist()) == ([1, 0, 0, 0], [0, 0, 0, 0])


def test_a_document_counts_as_a_sample_of_the_sequence_it_begins_in():
    assert [[samples for _, samples in group] for group in pack(DOCUMENTS, length=4, sequences=2)] == [
        [2, 0, 0],
        [2, 0],
    ]


def test_dict_items_and_lists_are_taken():
    [group] = pack([{"ids": [1, 2]}, {"ids": []}, {"ids": (3,)}], length=4, field="ids")
    assert tokens_of([group], "ids") == [[1, 2, 3, 0]]
    assert group[0][0]["ids"].dtype == np.int64


def test_a_group_that_was_cleared_leaves_nothing_behind():
    stage = Pack(length=4)
    stage.add(DOCUMENTS[0], 1)
    stage.clear()
    assert stage.finish(random.Random(0)) == []
    assert isinstance(stage, OrderPointStage)


@pytest.mark.parametrize(
    "item, error, words",
    [
        ({"text": "a"}, KeyError, "the item has no field `input_ids`; it has `text`; set `field`"),
        ({"input_ids": "abc"}, TypeError, "`input_ids` is abc; give a one-dimensional array of token ids"),
        (np.zeros((2, 2), int), TypeError, r"the item is an array of shape \(2, 2\)"),
        (np.zeros(2), TypeError, "dtype float64"),
    ],
)
def test_an_item_without_token_ids_is_refused(item, error, words):
    with pytest.raises(error, match=words):
        Pack(length=4).add(item, 1)


SENTENCES = "It was a bright day in April.\nThe clocks were striking thirteen."


def test_a_text_of_poor_quality_is_dropped_and_a_good_one_cleaned():
    keep = QualityFilter(
        [C4QualityFilter(min_num_sentences=-1), LambdaFilter(lambda document: len(document.text) > 20)]
    )
    assert keep(SENTENCES) == SENTENCES
    assert keep(f"Home | About\n{SENTENCES}\nThis site uses cookies.") == SENTENCES
    assert keep("Lorem ipsum dolor sit amet.") is SKIP  # C4 says why
    assert keep("Home | About | Contact") is SKIP  # no line is left
    assert QualityFilter([FineWebQualityFilter()])("Buy now\nBest price\nCheap") is SKIP


def test_the_items_of_poor_texts_are_dropped_in_a_pipeline():
    texts = [SENTENCES, "Lorem ipsum dolor sit amet.", f"{SENTENCES}\nmore"]
    keep = defer(QualityFilter, [defer(C4QualityFilter, min_num_sentences=-1)])
    source = from_source([{"id": number, "text": text} for number, text in enumerate(texts)])
    pipeline = source.map(keep, field="text", workers=2, name="keep")
    assert pipeline.take(9) == [{"id": 0, "text": SENTENCES}, {"id": 2, "text": SENTENCES}]


@pytest.mark.parametrize("filters, words", [([], "an empty list"), ([len], "builtin_function_or_method")])
def test_only_filters_of_datatrove_are_accepted(filters, words):
    with pytest.raises(TypeError, match=rf"`filters` has .*{words}; give filters of datatrove.pipeline.filters"):
        QualityFilter(filters)


def test_values_that_are_not_texts_have_no_quality():
    with pytest.raises(TypeError, match="expected a string, found an object of type dict; name the field"):
        QualityFilter([FineWebQualityFilter()])({"text": SENTENCES})


def test_without_datatrove_the_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "datatrove", None)
    monkeypatch.delitem(sys.modules, "datatrove.data", raising=False)
    with pytest.raises(TargetError, match=r"text.QualityFilter requires the package datatrove; run `pip install "):
        QualityFilter([])
