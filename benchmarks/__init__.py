"""The benchmarks: `python -m benchmarks.NAME`, from the folder of the project. docs/benchmarks.md lists them."""
