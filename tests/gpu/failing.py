"""A connector whose restores inside a step lack a block: it is overwritten with zeros, and reported as not
loaded."""

from __future__ import annotations

from typing import Any

from zeroing import OrbitKVConnector as Zeroing

# Of a restore's blocks, in order.
LACKING = 2


class OrbitKVConnector(Zeroing):
    """As the real one otherwise."""

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        self._lacking: set[int] = set()
        super().register_kv_caches(kv_caches)

    def _zero(self, blocks: list[int]) -> None:
        lacking = blocks[LACKING : LACKING + 1]
        self._lacking.update(lacking)
        super()._zero(lacking)

    def get_block_ids_with_load_errors(self) -> set[int]:
        failed = super().get_block_ids_with_load_errors() | self._lacking
        self._lacking = set()
        return failed
