"""The same benchmark of SGLang: alone, with its own host cache (HiCache), and with OrbitKV."""

MODEL = "Qwen3-8B's shape, bfloat16, pages of 64 tokens, Triton attention, PyTorch sampling"
