"""Datasets that the broken configs name. Importing this file fails the test: reading a config must not."""

from torch.utils.data import Dataset, IterableDataset

raise_on_import = "reading a config imported a target"


class Digits(Dataset):
    def __init__(self, root, split="train"):
        self.root, self.split = root, split

    def __len__(self):
        return 1

    def __getitem__(self, index):
        return index


class Lines(IterableDataset):
    def __init__(self, root):
        self.root = root

    def __iter__(self):
        yield self.root


class LongLines(Lines):
    pass


class Balanced:
    def __init__(self, data_source, count):
        self.data_source, self.count = data_source, count

    def __iter__(self):
        return iter(range(self.count))


def load(root):
    return [root]


def collate(samples):
    return samples


raise RuntimeError(raise_on_import)
