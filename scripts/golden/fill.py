"""Weights and batches of the golden models, by formula; the C twin is test/golden/fill.h.

Element i of the thing called NAME comes from word i % 4 of Philox4x32-10 at key
(seed 1234, purpose TEST) and counter (i / 4, FNV-1a of NAME), as lib/base/rng.h has it.
"""
import numpy as np

SEED = 1234
RNG_TEST = 6          # enum rng_purpose
IGNORED = -100        # LABEL_IGNORED
N_MICRO_BATCHES, N_SEQUENCES, SEQ_LEN = 2, 2, 16
IGNORED_EVERY = (5, 2)  # of micro-batch 0, 1: uneven, so that a mean of means is not the mean
PROMPT_LEN = 5


def fnv1a(data: bytes) -> int:
    h = 0xCBF29CE484222325
    for byte in data:
        h = (h ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return h


def words(name: str, n: int) -> np.ndarray:
    """The first n 32-bit words of NAME."""
    mask = np.uint64(0xFFFFFFFF)
    key = SEED ^ RNG_TEST << 56
    k0, k1 = key & 0xFFFFFFFF, key >> 32
    high = fnv1a(name.encode())
    block = np.arange((n + 3) // 4, dtype=np.uint64)
    c0, c1 = block & mask, block >> np.uint64(32)
    c2, c3 = np.full_like(block, high & 0xFFFFFFFF), np.full_like(block, high >> 32)
    for _ in range(10):
        p0, p1 = np.uint64(0xD2511F53) * c0, np.uint64(0xCD9E8D57) * c2
        c0, c1, c2, c3 = ((p1 >> np.uint64(32)) ^ c1 ^ np.uint64(k0), p1 & mask,
                          (p0 >> np.uint64(32)) ^ c3 ^ np.uint64(k1), p0 & mask)
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return np.stack([c0, c1, c2, c3], axis=1).reshape(-1)[:n].astype(np.uint32)


def weight(name: str, shape) -> np.ndarray:
    """Uniform in +-0.1, around 1 for the weights of norms; computed in double, rounded once."""
    u = (words(name, int(np.prod(shape))) >> np.uint32(8)).astype(np.float64) * 2.0**-24
    center = 1.0 if name.endswith("norm.weight") else 0.0
    return (center + (u - 0.5) * 0.2).astype(np.float32).reshape(shape)


def batch(vocab_size: int, suffix: str = ""):
    """Tokens and targets [micro-batch, sequence, position]; targets are the next tokens, or IGNORED.

    A sequence takes SEQ_LEN + 1 words of "tokens" + suffix, a target one word of "ignored" + suffix.
    """
    shape = (N_MICRO_BATCHES, N_SEQUENCES, SEQ_LEN)
    stream = words("tokens" + suffix, N_MICRO_BATCHES * N_SEQUENCES * (SEQ_LEN + 1)) % vocab_size
    stream = stream.astype(np.int64).reshape(N_MICRO_BATCHES, N_SEQUENCES, SEQ_LEN + 1)
    ignored = words("ignored" + suffix, int(np.prod(shape))).reshape(shape)
    every = np.array(IGNORED_EVERY, dtype=np.uint32)[:, None, None]
    return stream[..., :-1].copy(), np.where(ignored % every == 0, IGNORED, stream[..., 1:])


def prompt(vocab_size: int) -> np.ndarray:
    return (words("prompt", PROMPT_LEN) % vocab_size).astype(np.int64)
