"""Programs for audio: an example of Transformers, on tones that are generated."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from tests.programs.sources import check_library
from tests.programs.training.runner import Edit, Program
from tests.programs.training.text import EXAMPLES, PACKAGES, TAKE_OVER, write_metric

_RATE_HZ = 16_000
_FFMPEG = [f"libavutil.so.{version}" for version in range(56, 61)]
"""Of FFmpeg 4 to 8: torchcodec, with which the program decodes, brings none."""
_TONES_HZ = {"low": 220.0, "middle": 440.0, "high": 880.0}


def make_tones(folder: Path) -> None:
    """Write a folder of WAV files of 1.5 to 2.5 s for each class, and a small Wav2Vec2 with random weights."""
    import numpy as np
    import soundfile
    import torch
    from transformers import Wav2Vec2Config, Wav2Vec2FeatureExtractor, Wav2Vec2ForSequenceClassification

    rng = np.random.default_rng(17)
    for split, count in (("train", 32), ("validation", 2)):
        for name, tone_hz in _TONES_HZ.items():
            (folder / "tones" / split / name).mkdir(parents=True)
            for number in range(count):
                seconds = np.arange(int(_RATE_HZ * rng.uniform(1.5, 2.5))) / _RATE_HZ
                wave = np.sin(2 * np.pi * tone_hz * seconds) + rng.normal(scale=0.1, size=len(seconds))
                path = folder / "tones" / split / name / f"{number:03}.wav"
                soundfile.write(path, wave / 2, _RATE_HZ, subtype="PCM_16")
    write_metric(folder, "accuracy", 'datasets.Value("int64")', ["accuracy"])
    torch.manual_seed(0)
    config = Wav2Vec2Config(
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        conv_dim=(16, 16, 16),
        conv_stride=(10, 8, 4),
        conv_kernel=(10, 8, 4),
        num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=4,
        classifier_proj_size=32,
        mask_time_prob=0.0,
        num_labels=len(_TONES_HZ),
    )
    model = folder / "wav2vec2"
    Wav2Vec2ForSequenceClassification(config).save_pretrained(model)
    Wav2Vec2FeatureExtractor(sampling_rate=_RATE_HZ, return_attention_mask=False).save_pretrained(model)


PROGRAMS = (
    Program(
        name="hf-audio-classification",
        origin=EXAMPLES,
        script="examples/pytorch/audio-classification/run_audio_classification.py",
        arguments=(
            *("--model_name_or_path", "wav2vec2", "--dataset_name", "tones", "--do_train", "--num_train_epochs", "2"),
            *("--per_device_train_batch_size", "4", "--max_length_seconds", "1", "--output_dir", "{out}"),
            *("--remove_unused_columns", "False", "--attention_mask", "False", "--freeze_feature_encoder", "False"),
            *("--dataloader_num_workers", "{workers}", "--save_steps", "10", "--use_cpu", "--report_to", "none"),
        ),
        edits=(Edit("logger = logging", f"{TAKE_OVER}logger = logging"),),
        fixed=(Edit("randint(0, len(wav) - sample_length - 1)", "0"),),
        make_data=make_tones,
        environment="transformers",
        packages=(*PACKAGES, "torchcodec"),
        check=partial(check_library, _FFMPEG, "apt-get install ffmpeg, or set LD_LIBRARY_PATH to its folder"),
        runs_in_data=True,
        kill_at=35,
        resume=("--resume_from_checkpoint", "{out}/checkpoint-30"),
        notes="a Wav2Vec2 in Trainer; a data set with a transform; resumes in mid-epoch",
    ),
)
