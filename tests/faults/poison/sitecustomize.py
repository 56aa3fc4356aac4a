"""Makes the loss of one sample not finite, in the processes that find this folder on their path.

Python imports a module of this name by itself. FAULTS_POISON holds the first tokens of the sample, FAULTS_ONCE the
file that is there once it was hit; without FAULTS_ONCE it is hit every time.
"""

import importlib.abc
import importlib.machinery
import os
import sys

_MODULE = "training.head"


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != _MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        load = spec.loader.exec_module

        def load_and_poison(module):
            load(module)
            _poison(module.SummedLoss)

        spec.loader.exec_module = load_and_poison
        return spec


def _poison(loss) -> None:
    tokens = [int(token) for token in os.environ["FAULTS_POISON"].split(",")]
    healthy = loss.__call__

    def call(self, batch):
        value = healthy(self, batch)
        if batch.input_ids[0, : len(tokens)].tolist() == tokens and _is_due():
            return value * float("nan")
        return value

    loss.__call__ = call


def _is_due() -> bool:
    once = os.environ.get("FAULTS_ONCE")
    if once is None:
        return True
    try:
        os.close(os.open(once, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


if "FAULTS_POISON" in os.environ:
    sys.meta_path.insert(0, _Finder())
