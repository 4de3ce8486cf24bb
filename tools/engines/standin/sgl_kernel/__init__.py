"""Stand-in for `sgl_kernel` on a machine without a GPU: names to import, nothing to compute with.

SGLang imports its compiled kernels also where it never calls them, and the published `sglang-kernel` holds
CUDA code alone: it does not load without a CUDA driver. `setup_engine.py sglang-cpu` puts this module into
the engine environment instead. On a CPU without AMX tiles SGLang computes with torch, so that all it needs of
the kernels are their names. Whatever is called that does not exist here raises, with its name.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Sequence
from typing import NoReturn

import torch

__version__ = "0.4.7+standin"


class Absent:
    """A kernel that is not there: has every attribute, and raises when called."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Absent:
        return absent(f"{self._name}.{attribute}", attribute)

    def __call__(self, *_arguments: object, **_options: object) -> NoReturn:
        raise NotImplementedError(
            f"{self._name} needs SGLang's compiled kernels, which are made for GPUs alone"
        )


def absent(path: str, attribute: str) -> Absent:
    """What stands for `path`. Python's own attributes are never made up."""
    if attribute.startswith("__"):
        raise AttributeError(f"{path} is not there")
    return Absent(path)


def __getattr__(name: str) -> Absent:
    return absent(f"sgl_kernel.{name}", name)


class Submodules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Makes every module below `sgl_kernel` importable."""

    def find_spec(
        self, fullname: str, _path: Sequence[str] | None, _target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not fullname.startswith(f"{__name__}."):
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, _spec: importlib.machinery.ModuleSpec) -> None:
        return None

    def exec_module(self, module: types.ModuleType) -> None:
        module.__getattr__ = lambda name: absent(f"{module.__name__}.{name}", name)


sys.meta_path.append(Submodules())

# Torch operators that SGLang's CPU worker calls when it starts; it has nothing for them to do here.
_operators = torch.library.Library("sgl_kernel", "FRAGMENT")
for _schema, _function in (
    (
        "init_cpu_threads_env(str cpu_ids) -> str",
        lambda cpu_ids: f"threads stay where they are, not on {cpu_ids}",
    ),
    ("initialize(int size, int rank) -> ()", lambda size, rank: None),
):
    _operators.define(_schema)
    _operators.impl(_schema.partition("(")[0], _function, "CompositeExplicitAutograd")
