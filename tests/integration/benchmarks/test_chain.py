"""An array that three stages and several sinks read is copied once, after it is made."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks import chain

SHAPE = (2, 3, 128, 128)
ARRAY_BYTES = 4 * int(np.prod(SHAPE))
ITEMS = 6


def test_three_models_and_three_sinks_copy_an_array_once(tmp_path: Path):
    sinks = (chain.TextSink, chain.ThumbnailSink, chain.StatisticsSink)
    report = chain.run((0.0, 0.0, 0.0), ITEMS, shape=SHAPE, sinks=sinks, folder=str(tmp_path))
    assert len(report.hops) == 9
    assert chain.count_copied_bytes(report) <= 1.01 * ITEMS * ARRAY_BYTES
    shards = sorted((tmp_path / "ThumbnailSink").glob("*.npy"))
    thumbnails = np.concatenate([np.load(shard) for shard in shards])
    assert thumbnails[:, 1, 2, 3, 4].tolist() == list(range(ITEMS))
    for sink, fields in ((chain.TextSink, 4), (chain.StatisticsSink, 3)):
        lines = (tmp_path / sink.__name__ / "000000.txt").read_text().splitlines()
        assert lines == [" ".join([str(number)] * fields) for number in range(ITEMS)]
