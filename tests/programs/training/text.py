"""Programs for text: examples of Transformers and Accelerate, and nanoGPT with its memory-mapped tokens.

The sentences are made of random words. The data folder has folders that are called `bert-base-cased`, `nyu-mll/glue`
and like the metrics, and the programs run there: so the names in them find a small model with random weights, our rows
and a metric of ours, and no line has to change for it.
"""

from __future__ import annotations

import json
import pickle
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.programs.sources import Origin
from tests.programs.training.runner import Edit, Program

EXAMPLES = Origin.github("PerforatedAI/PerforatedAI-Transformers", "746e0e9151c668ca6e19f9432b8b2a1e1c6cb4e8")
"""A fork whose folder `examples` is that of Transformers; the repository itself is too large for some mirrors."""
PACKAGES = ("torch", "transformers", "evaluate", "accelerate", "datasets", "seqeval")
TAKE_OVER = (
    "import accelerate.data_loader\nfrom stagepipe.torch import DataLoader\n"
    "DataLoader.take_over(accelerate.data_loader)\n"
)
"""A Trainer's DataLoaders are made there, also the one that leaves out the batches before a checkpoint."""

_ACCELERATE = Origin.github("huggingface/accelerate", "16cb6eb80dd9aa8b4df1a63ef57863e455d53b83")
_NANOGPT = Origin.github("karpathy/nanoGPT", "3adf61e154c3fe3fca428ad6bc3818b27a3b8291")
_SYLLABLES = ("ka", "lo", "mi", "ra", "ten", "su", "vor", "pel", "an", "dri", "go", "sha", "ber", "li", "no")
_METRIC = """
import datasets
import evaluate


class Metric(evaluate.Metric):
    def _info(self):
        kind = {kind}
        features = datasets.Features({{"predictions": kind, "references": kind}})
        return evaluate.MetricInfo(description="", citation="", inputs_description="", features=features)

    def _compute(self, predictions, references):
        rate = sum(one == other for one, other in zip(predictions, references)) / len(references)
        return dict.fromkeys({keys}, float(rate))
"""


def write_metric(folder: Path, name: str, kind: str, keys: Sequence[str]) -> None:
    """Write a metric, the rate of equal values, that `evaluate.load(name)` finds in the current directory."""
    (folder / name).mkdir()
    (folder / name / f"{name}.py").write_text(_METRIC.format(kind=kind, keys=list(keys)))


def make_sentences(folder: Path) -> None:
    """Write 640 and 64 rows for both examples, a tokenizer trained on them, a small BERT, and the metrics."""
    import torch
    from tokenizers import BertWordPieceTokenizer
    from transformers import BertConfig, BertForSequenceClassification, BertTokenizerFast

    draw = random.Random(17)
    words = sorted({"".join(draw.choices(_SYLLABLES, k=draw.randint(1, 4))) for _ in range(1500)})
    glue = folder / "nyu-mll" / "glue"
    glue.mkdir(parents=True)
    card = ["---", "configs:", "- config_name: mrpc", "  data_files:"]
    for split, count in (("train", 640), ("validation", 64)):
        rows = list(_draw_sentences(draw, words, count))
        _write_lines(folder / f"{split}.json", rows)
        texts = [" ".join(row["tokens"]) for row in rows]
        pairs = [
            {"sentence1": text, "sentence2": text[::2], "label": draw.randint(0, 1), "idx": index}
            for index, text in enumerate(texts)
        ]
        _write_lines(glue / f"{split}.jsonl", pairs)
        card.append(f"  - {{split: {split}, path: {split}.jsonl}}")
    (glue / "README.md").write_text("\n".join([*card, "---", ""]))
    write_metric(folder, "glue", 'datasets.Value("int64")', ["accuracy"])
    names = [f"overall_{name}" for name in ("precision", "recall", "f1", "accuracy")]
    write_metric(folder, "seqeval", 'datasets.Sequence(datasets.Value("string"))', names)
    model = folder / "bert-base-cased"
    model.mkdir()
    tokenizer = BertWordPieceTokenizer(lowercase=False)
    texts = [" ".join(words), " ".join(word.capitalize() for word in words)]
    tokenizer.train_from_iterator(texts, vocab_size=800, show_progress=False)
    tokenizer.save_model(str(model))
    vocabulary = str(model / "vocab.txt")
    BertTokenizerFast(vocab=vocabulary, do_lower_case=False, model_max_length=128).save_pretrained(model)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=160,
    )
    BertForSequenceClassification(config).save_pretrained(model)


def _draw_sentences(draw: random.Random, words: Sequence[str], count: int) -> Iterator[dict[str, Any]]:
    for _ in range(count):
        chosen = draw.choices(words, k=draw.randint(5, 60))
        tags = ["B-PER" if draw.random() < 0.15 else "O" for _ in chosen]
        tokens = [word if tag == "O" else word.capitalize() for word, tag in zip(chosen, tags, strict=True)]
        yield {"tokens": tokens, "ner_tags": tags}


def _write_lines(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def make_tokens(folder: Path) -> None:
    """Write two files of tokens of 16 bits, 2,000,000 and 100,000, and their number of different values."""
    import numpy as np

    rng = np.random.default_rng(17)
    for split, count in (("train", 2_000_000), ("val", 100_000)):
        rng.integers(256, size=count).astype(np.uint16).tofile(folder / f"{split}.bin")
    (folder / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": 256}))


PROGRAMS = (
    Program(
        name="hf-token-classification",
        origin=EXAMPLES,
        script="examples/pytorch/token-classification/run_ner.py",
        arguments=(
            *("--model_name_or_path", "bert-base-cased", "--train_file", "train.json", "--do_train"),
            *("--num_train_epochs", "2", "--per_device_train_batch_size", "16", "--output_dir", "{out}"),
            *("--dataloader_num_workers", "{workers}", "--save_steps", "20", "--use_cpu", "--report_to", "none"),
        ),
        edits=(Edit("logger = logging", f"{TAKE_OVER}logger = logging"),),
        make_data=make_sentences,
        environment="transformers",
        packages=PACKAGES,
        runs_in_data=True,
        kill_at=50,
        resume=("--resume_from_checkpoint", "{out}/checkpoint-40"),
        notes="a BERT in Trainer; resumes in mid-epoch",
    ),
    Program(
        name="accelerate-nlp",
        origin=_ACCELERATE,
        script="examples/by_feature/checkpointing.py",
        arguments=("--cpu", "--checkpointing_steps", "30", "--output_dir", "{out}"),
        fixed=(Edit('["train"], shuffle=True,', '["train"], shuffle=True, num_workers=2,'),),
        edits=(
            Edit("from accelerate.utils import set_seed", f"{TAKE_OVER}from accelerate.utils import set_seed"),
            Edit("from torch.utils.data import DataLoader\n", ""),
        ),
        make_data=make_sentences,
        environment="transformers",
        packages=PACKAGES,
        runs_in_data=True,
        kill_at=50,
        resume=("--resume_from_checkpoint", "{out}/step_30"),
        notes="a BERT; two workers instead of none on both sides; resumes in mid-epoch",
    ),
    Program(
        name="nanogpt",
        origin=_NANOGPT,
        script="train.py",
        arguments=(
            *("--dataset={data}", "--out_dir={out}", "--device=cpu", "--compile=False", "--dtype=float32"),
            *("--eval_iters=2", "--eval_interval=20", "--block_size=64", "--n_layer=2", "--n_head=2", "--n_embd=32"),
            *("--max_iters=60", "--gradient_accumulation_steps=2"),
        ),
        edits=(
            Edit("from model import", "import itertools, stagepipe\nfrom model import"),
            Edit(
                "X, Y = get_batch('train') # fetch",
                "batches = iter(stagepipe.from_source(lambda: itertools.count(iter_num * gradient_accumulation_steps))"
                ".map(lambda number: torch.manual_seed(number) and get_batch('train'), workers=2).loader())\n"
                "X, Y = next(batches) # fetch",
            ),
            Edit("        X, Y = get_batch('train')", "        X, Y = next(batches)"),
        ),
        make_data=make_tokens,
        environment="transformers",
        packages=PACKAGES,
        kill_at=50,
        resume=("--init_from=resume",),
        notes="no DataLoader: `get_batch` becomes a stage that seeds torch with the number of the batch. The original "
        "draws all from one generator in turn, so no worker can draw ahead, and its resume draws other batches",
    ),
)
