"""Builds the pipeline of tokenizer.yaml in Python.

From the root of the repository:

    python scripts/make_tokenizer.py
    python configs/build_tokenizer.py
"""

import codecs
from functools import partial

from transformers import PreTrainedTokenizerFast

from stagepipe import defer, from_source, sources

TEXT = "data/text"
LENGTH = 256

# The method itself: its arguments except `self` go into each call of the tokenizer, which each worker builds once.
tokenize = partial(
    PreTrainedTokenizerFast.__call__,
    self=defer(PreTrainedTokenizerFast, tokenizer_file=f"{TEXT}/tokenizer.json", pad_token="<pad>"),  # noqa: S106 - no password
    padding="max_length",
    truncation=True,
    max_length=LENGTH,
    return_tensors="np",
)

builder = (
    from_source(defer(sources.files, f"{TEXT}/texts/*.txt", read=True))
    .map_field({"obj": "data"}, partial(codecs.decode, encoding="utf-8"))  # bytes to str
    .map_field(
        {"text": "data"},  # tokenizer(text=[...]) adds the fields input_ids and attention_mask
        tokenize,
        name="tokenize",
        batch_size=16,  # the tokenizer is fastest on lists
        env={"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"},
    )
    .batch(32)
    .with_options(name="tokenizer")
)

if __name__ == "__main__":
    builder.run().show()
