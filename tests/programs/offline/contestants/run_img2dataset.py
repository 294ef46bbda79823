"""Downloads urls.jsonl of the current folder into out/ with img2dataset, in its own environment."""

from img2dataset import download

if __name__ == "__main__":
    download(
        url_list="urls.jsonl",
        input_format="jsonl",
        url_col="url",
        save_additional_columns=["id"],
        output_folder="out",
        output_format="webdataset",
        number_sample_per_shard=250,
        processes_count=2,
        thread_count=32,
        image_size=256,
        resize_mode="center_crop",
        encode_quality=95,
        timeout=2,
        retries=2,
        compute_hash=None,
        extract_exif=False,
        incremental_mode="incremental",
    )
