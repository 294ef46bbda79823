"""Sources whose records are the rows of tables, each a dict.

parquet_source        `ParquetSource`: the rows of Parquet files
arrow_source          `ArrowSource`: the rows of Arrow IPC files
hugging_face_source   `HuggingFaceSource`: a dataset of Hugging Face, map-style or streamed
lance_source          `LanceSource`: the rows of a Lance dataset
arrow_groups          the base of those that read groups of rows whole: Parquet and Arrow IPC
arrow_rows            the rows of a table of pyarrow, each as a dict
"""

from stagepipe.sources.tables.arrow_source import ArrowSource
from stagepipe.sources.tables.hugging_face_source import HuggingFaceSource
from stagepipe.sources.tables.lance_source import LanceSource
from stagepipe.sources.tables.parquet_source import ParquetSource

__all__ = ["ArrowSource", "HuggingFaceSource", "LanceSource", "ParquetSource"]
