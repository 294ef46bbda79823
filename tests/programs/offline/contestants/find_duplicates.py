"""Finds near duplicates among the signatures of sign.yaml, and names all but the first of each group in a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

BUCKETS, ROWS = 14, 8


class IsUnique:
    """A predicate: whether the id of an item is not in the file."""

    def __init__(self, duplicates: str) -> None:
        self._duplicates = set(Path(duplicates).read_text().split())

    def __call__(self, item: dict[str, Any]) -> bool:
        """Return whether an item is to be kept."""
        return item["id"] not in self._duplicates


def find_duplicates(pattern: str, path: str) -> None:
    """Write the ids of the duplicates."""
    import pyarrow.parquet as pq
    from datasketch import MinHash, MinHashLSH

    index = MinHashLSH(num_perm=BUCKETS * ROWS, params=(BUCKETS, ROWS))
    duplicates = []
    for file in sorted(Path.cwd().glob(pattern)):
        for row in pq.read_table(file, columns=["id", "signature"]).to_pylist():
            signature = MinHash(hashvalues=row["signature"], seed=1, scheme="affine32")
            if index.query(signature):
                duplicates.append(row["id"])
            else:
                index.insert(row["id"], signature)
    partial = Path(f"{path}.partial")
    partial.write_text("".join(f"{name}\n" for name in duplicates))
    partial.replace(path)


if __name__ == "__main__":
    find_duplicates("signatures/*.parquet", "duplicates.txt")
