"""What replaces the classes of other libraries in their own tests.

The folder above is on the path of those tests, because the name `tests` may be theirs.

uses         which tests reached an adapter
faults       what a broken adapter does, for runs that show which tests would find it
groups       the stage that groups items, for all of them
selection    a pytest plugin: what is not applicable is not run
data_loader  torch's DataLoader and torchdata's StatefulDataLoader
nodes        torchdata.nodes
grain_loader Grain's DataLoader
webdataset_pipeline  webdataset's WebDataset and DataPipeline
"""
