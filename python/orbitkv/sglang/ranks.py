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
        """What the leader says; on the others `word` is ignored."""
        if self.size == 1:
            return word
        words = [word]
        source = torch.distributed.get_global_rank(self._group, 0)
        torch.distributed.broadcast_object_list(words, src=source, group=self._group)
        return words[0]

    def exchange(self, word: Any, *, is_healthy: bool) -> tuple[Any, bool]:
        """What the leader says, None for nothing, and whether all ranks are healthy. Saying nothing costs one
        reduction of two numbers."""
        has_word = word is not None or not self.is_leader
        are_healthy, has_word = self.least([is_healthy, has_word])
        return self.from_leader(word) if has_word else None, bool(are_healthy)

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
