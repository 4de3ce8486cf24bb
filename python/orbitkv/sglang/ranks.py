"""How the ranks of one engine stay in step: the leader's word travels to all of them, and what all of them
know comes back as the least of it. One rank alone exchanges nothing."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

import torch


class Ranks:
    """Tensor-parallel ranks, by SGLang's CPU group. Every call is made by all ranks, in the same order."""

    def __init__(self, group: Any, rank: int, size: int) -> None:
        self._group = group
        self.rank = rank
        self.size = size

    @property
    def is_leader(self) -> bool:
        """Whether this rank asks the manager."""
        return self.rank == 0

    def from_leader(self, word: Any) -> Any:
        """What the leader says; on the others `word` is ignored. Of nothing, as None, only that is sent."""
        if self.size == 1:
            return word
        source = torch.distributed.get_global_rank(self._group, 0)
        says = torch.tensor([word is not None], dtype=torch.int)
        torch.distributed.broadcast(says, src=source, group=self._group)
        if not says.item():
            return None
        words = [word]
        torch.distributed.broadcast_object_list(words, src=source, group=self._group)
        return words[0]

    def least(self, numbers: Sequence[int]) -> list[int]:
        """Of each number the smallest on any rank. All ranks give as many."""
        if self.size == 1 or not numbers:
            return list(numbers)
        tensor = torch.tensor(numbers, dtype=torch.int)
        torch.distributed.all_reduce(tensor, op=torch.distributed.ReduceOp.MIN, group=self._group)
        return tensor.tolist()

    def new_instance(self) -> str:
        """32 hex digits, the same on all ranks of this engine and of no other."""
        return self.from_leader(uuid.uuid4().hex)
