"""Records, outside of a program's own lines, each training batch and each loss: on the import path of its process.

Python imports this module at its start. It acts in the process whose command line has the file `RECORDED_SCRIPT`, once
that has imported torch: one thread, a fixed seed, a line `batch DIGEST COUNT` for each batch that a model gets for
training, and a line `loss VALUE SECONDS` for each backward pass. A line `loaded` stands for each batch that a loader of
stagepipe has yielded. At the loss number `RECORD_KILL_AT` the process kills itself.
"""

import hashlib
import importlib.abc
import importlib.machinery
import os
import random
import signal
import sys
import time


def _count(value):
    """Return the number of samples of a batch: the first axis of the first tensor, or a list's length."""
    if hasattr(value, "shape"):
        return value.shape[0]
    if isinstance(value, list):
        return len(value)
    return next(map(_count, value.values() if hasattr(value, "values") else value), 0)


def _add(value, digest):
    digest.update(type(value).__name__.encode())
    if hasattr(value, "detach"):
        value = value.detach().contiguous().numpy()
    if hasattr(value, "tobytes"):
        digest.update(f"{value.dtype}{value.shape}".encode())
        digest.update(value.tobytes())
    elif hasattr(value, "keys"):
        for key in sorted(value):
            digest.update(str(key).encode())
            _add(value[key], digest)
    elif isinstance(value, list | tuple):
        for each in value:
            _add(each, digest)
    elif value is None or isinstance(value, bool | int | float | str | bytes):
        digest.update(repr(value).encode())
    else:
        raise TypeError(f"a batch has a {type(value).__name__}, which has no digest")


def _record(torch):
    torch.set_num_threads(1)
    torch.manual_seed(17)
    random.seed(17)
    out = open(os.environ["RECORD"], "a", buffering=1, encoding="ascii")  # noqa: PTH123, SIM115 - until the end
    kill_at = int(os.environ.get("RECORD_KILL_AT", "0"))
    call = torch.nn.Module.__call__
    backward = torch.Tensor.backward
    depth = 0
    losses = 0

    def record_call(self, *args, **kwargs):
        nonlocal depth
        is_trained = self.training and torch.is_grad_enabled() and next(self.parameters(), None) is not None
        if depth == 0 and is_trained:
            digest = hashlib.blake2b(digest_size=8)
            _add(args, digest)
            _add(kwargs, digest)
            out.write(f"batch {digest.hexdigest()} {_count((*args, *kwargs.values()))}\n")
        depth += 1
        try:
            return call(self, *args, **kwargs)
        finally:
            depth -= 1

    def record_loss(self, *args, **kwargs):
        nonlocal losses
        out.write(f"loss {float(self.detach()).hex()} {time.monotonic()}\n")
        losses += 1
        if losses == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return backward(self, *args, **kwargs)

    torch.nn.Module.__call__ = record_call
    torch.Tensor.backward = record_loss


def _count_loaded(module):
    """Record each batch that the loader in one of stagepipe's modules yields."""
    loader = getattr(module, "DataLoader" if module.__name__.endswith("data_loader") else "Loader")
    iterate = loader.__iter__
    out = open(os.environ["RECORD"], "a", buffering=1, encoding="ascii")  # noqa: PTH123, SIM115 - until the end

    def iterate_and_count(self):
        for batch in iterate(self):
            out.write("loaded\n")
            yield batch

    loader.__iter__ = iterate_and_count


_ACTIONS = {"torch": _record, "stagepipe.torch.data_loader": _count_loaded, "stagepipe.torch.loader": _count_loaded}


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, fullname, path, target=None):
        if fullname not in _ACTIONS:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        load = spec.loader.exec_module

        def exec_module(module):  # not in `find_spec`: a library may only ask whether torch is there
            load(module)
            _ACTIONS.pop(fullname)(module)

        spec.loader.exec_module = exec_module
        return spec


if os.environ.get("RECORDED_SCRIPT") in sys.orig_argv[1:]:
    sys.meta_path.insert(0, _Finder())
