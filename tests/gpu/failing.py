"""A connector whose every restore fails: restored blocks are overwritten, and the engine is told that they
did not land. What it generates is right only if it computes them again."""

from __future__ import annotations

from typing import Any

from zeroing import OrbitKVConnector as Spoiling


class OrbitKVConnector(Spoiling):
    """As the real one, except that no block of a restore is usable."""

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        self._failed: set[int] = set()
        super().register_kv_caches(kv_caches)

    def _zero(self, blocks: list[int]) -> None:
        super()._zero(blocks)
        self._failed.update(blocks)

    def get_block_ids_with_load_errors(self) -> set[int]:
        failed, self._failed = self._failed, set()
        return super().get_block_ids_with_load_errors() | failed
