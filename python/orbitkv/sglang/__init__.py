"""Adapter of OrbitKV to SGLang: a radix cache backend.

    python -m sglang.launch_server --model-path MODEL \\
        --radix-cache-backend orbitkv --enable-unified-cache-external-linker

`orbitkv run -- python -m sglang.launch_server …` adds both flags. SGLang finds the backend through the entry
point `sglang.srt.plugins`, see `plugin`.
"""
