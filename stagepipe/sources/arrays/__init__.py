"""Sources whose records are rows of arrays: the elements along the first axis.

npy_source           `NpySource`: the rows of memory-mapped `.npy` files
hdf5_source          `Hdf5Source`: the rows of datasets in HDF5 files
zarr_source          `ZarrSource`: the rows of Zarr arrays
array_store_source   the base of those whose files hold several arrays: HDF5 and Zarr
row_array_source     the base of all of them
row_arrays           the rows of an array that is spread over several files
recently_used        what is costly to open or read, kept for a few keys
"""

from stagepipe.sources.arrays.hdf5_source import Hdf5Source
from stagepipe.sources.arrays.npy_source import NpySource
from stagepipe.sources.arrays.zarr_source import ZarrSource

__all__ = ["Hdf5Source", "NpySource", "ZarrSource"]
