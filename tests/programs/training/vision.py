"""Image programs: torchvision's references, timm's script and an example of Transformers."""

from __future__ import annotations

from tests.programs.sources import Origin
from tests.programs.training.images import make_coco_folder, make_image_folder, make_vit_folder
from tests.programs.training.runner import Edit, Program
from tests.programs.training.text import TAKE_OVER

_TORCHVISION = Origin.github("pytorch/vision", "v0.21.0")
_TIMM = Origin.github("huggingface/pytorch-image-models", "aa4b5850c1543fa488abf260f18390eda46cf85d")
_EXAMPLES = Origin.github("PerforatedAI/PerforatedAI-Transformers", "746e0e9151c668ca6e19f9432b8b2a1e1c6cb4e8")
"""A fork whose folder `examples` is that of Transformers; the repository itself is too large for some mirrors."""

_OWN_LOADERS = (
    Edit("import utils", "import utils\nfrom stagepipe.torch import DataLoader"),
    Edit("data_loader = torch.utils.data.DataLoader(", "data_loader = DataLoader("),
    Edit("data_loader_test = torch.utils.data.DataLoader(", "data_loader_test = DataLoader("),
)
_LOAD_ITS_CHECKPOINT = Edit('args.resume, map_location="cpu", weights_only=True', "args.resume, weights_only=False")

PROGRAMS = (
    Program(
        name="torchvision-classification",
        origin=_TORCHVISION,
        script="references/classification/train.py",
        arguments=(
            *("--data-path", "{data}", "--model", "mobilenet_v3_small", "--device", "cpu", "--epochs", "2"),
            *("--batch-size", "16", "--workers", "{workers}", "--output-dir", "{out}", "--lr", "0.01"),
            *("--train-crop-size", "64", "--val-resize-size", "72", "--val-crop-size", "64"),
        ),
        edits=_OWN_LOADERS,
        fixed=(
            Edit("T.RandomResizedCrop(crop_size", "T.Resize((crop_size, crop_size)", "presets.py"),
            Edit("if hflip_prob > 0", "if hflip_prob > 1", "presets.py"),
            _LOAD_ITS_CHECKPOINT,
        ),
        resume=("--resume", "{out}/checkpoint.pth"),
        kill_at=14,
        make_data=make_image_folder,
        environment="vision",
        packages=("torch", "torchvision"),
        notes="MobileNetV3; resumes at an epoch",
    ),
    Program(
        name="torchvision-detection",
        origin=_TORCHVISION,
        script="references/detection/train.py",
        arguments=(
            *("--data-path", "{data}", "--model", "fasterrcnn_mobilenet_v3_large_320_fpn", "--device", "cpu"),
            *("--epochs", "2", "--batch-size", "2", "--workers", "{workers}", "--output-dir", "{out}"),
            *("--lr", "0.001"),
        ),
        edits=_OWN_LOADERS,
        fixed=(Edit("hflip_prob=0.5", "hflip_prob=0.0", "presets.py"), _LOAD_ITS_CHECKPOINT),
        resume=("--resume", "{out}/checkpoint.pth"),
        kill_at=6,
        make_data=make_coco_folder,
        environment="vision",
        packages=("torch", "torchvision", "pycocotools"),
        notes="Faster R-CNN, batches grouped by aspect ratio; resumes at an epoch",
    ),
    Program(
        name="timm",
        origin=_TIMM,
        script="train.py",
        arguments=(
            *("--data-dir", "{data}", "--train-split", "train", "--val-split", "val", "--model", "resnet10t"),
            *("--num-classes", "6", "--img-size", "64", "--batch-size", "16", "--epochs", "2", "--warmup-epochs", "0"),
            *("--workers", "{workers}", "--device", "cpu", "--output", "{out}", "--experiment", "run", "--lr", "0.01"),
            *("--sched", "step", "--no-aug"),
        ),
        edits=(
            Edit("import torchvision.utils", "import torchvision.utils\nfrom stagepipe.torch import DataLoader"),
            Edit("loader_eval = None", "loader_eval = None\n    loader_train = DataLoader.take_over(loader_train)"),
        ),
        resume=("--resume", "{out}/run/last.pth.tar"),
        kill_at=14,
        make_data=make_image_folder,
        environment="vision",
        packages=("torch", "torchvision", "timm"),
        import_path=".",
        notes="ResNet-10 behind timm's PrefetchLoader; resumes at an epoch",
    ),
    Program(
        name="hf-image-classification",
        origin=_EXAMPLES,
        script="examples/pytorch/image-classification/run_image_classification.py",
        arguments=(
            *("--model_name_or_path", "{data}/model", "--train_dir", "{data}/train", "--validation_dir", "{data}/val"),
            *("--do_train", "--num_train_epochs", "2", "--per_device_train_batch_size", "16", "--output_dir", "{out}"),
            *("--dataloader_num_workers", "{workers}", "--remove_unused_columns", "False", "--use_cpu"),
            *("--save_steps", "4", "--report_to", "none", "--label_column_name", "label"),
        ),
        edits=(Edit("import evaluate", f"{TAKE_OVER}import evaluate"),),
        fixed=(
            Edit("RandomResizedCrop(size)", "Resize(size)"),
            Edit("RandomHorizontalFlip(),", ""),
            Edit('evaluate.load("accuracy", ', "dict("),  # nothing may be downloaded
        ),
        resume=("--resume_from_checkpoint", "{out}/checkpoint-12"),
        kill_at=14,
        make_data=make_vit_folder,
        environment="transformers",
        packages=("torch", "torchvision", "transformers", "evaluate", "accelerate", "datasets"),
        notes="a ViT in Trainer; resumes in mid-epoch, but Transformers 5 does not read back all weights of a ViT that "
        "it has saved: their names differ",
    ),
)
