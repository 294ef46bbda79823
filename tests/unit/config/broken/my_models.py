"""A model that the design's example names."""


class Detector:
    def __call__(self, items):
        return items
