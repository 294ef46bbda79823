"""Builds the pipeline of digits.yaml in Python, and runs it.

    python examples/build_digits.py

Requires the `demo` extra, for the digits of scikit-learn.
"""

from digits import Digits, augment

from stagepipe import defer, from_dataset

builder = (
    from_dataset(defer(Digits, "train"), shuffle=True, workers=2)  # the stage that calls Digits.__getitem__
    .map(augment)
    .batch(32, drop_last=True)
    .with_options(name="digits", seed=17)
)

if __name__ == "__main__":
    builder.run().show()
