"""Makes mel features of audio/ of the current folder in out/ with Hugging Face datasets, in its own environment."""

import json
from pathlib import Path

import soundfile
from datasets import Array2D, Features, Value, load_dataset
from work import MEL_BANDS, LogMel, note

_log_mel = LogMel()


def add_mel(row):
    """Add the features of a file."""
    note(Path(row["path"]).name)
    samples, _ = soundfile.read(row["path"], dtype="float32")
    return {"mel": _log_mel(samples)}


if __name__ == "__main__":
    if not Path("paths.jsonl").exists():
        lines = (json.dumps({"path": str(path)}) + "\n" for path in sorted(Path("audio").glob("*")))
        Path("paths.jsonl").write_text("".join(lines))
    paths = load_dataset("json", data_files="paths.jsonl", split="train", cache_dir="cache")
    features = Features({"path": Value("string"), "mel": Array2D((None, MEL_BANDS), "float32")})
    Path("out").mkdir(exist_ok=True)
    paths.map(add_mel, num_proc=2, features=features, writer_batch_size=64).to_parquet("out/000.parquet")
