#!/usr/bin/env python3
"""Are the committed goldens still what PyTorch and transformers compute?

Runs scripts/golden/model.py into a temporary folder and compares each tensor with test/golden. Prints what
differs and, last, `N passed, N failed`; exits 1 if anything failed.
"""
import os
import subprocess
import sys
import tempfile

import numpy as np
from safetensors.numpy import load_file

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
GOLDEN = os.path.join(ROOT, "test", "golden")

# max|a-b| / max|b|. Twenty AdamW steps amplify fp32 rounding: test/golden/README.md has the numbers.
TOLERANCE = 1e-6
TOLERANCE_OF = {"step_loss": 1e-5, "step_gradient_norm": 1e-4}


def goldens(folder):
    return {name for name in os.listdir(folder)
            if name.endswith(".safetensors") or name == "fill_expected.h"}


def difference(key, now, committed):
    """What is wrong with one tensor, or None."""
    if (now.dtype, now.shape) != (committed.dtype, committed.shape):
        return f"is {now.dtype}{now.shape}, was {committed.dtype}{committed.shape}"
    if now.dtype.kind == "i":
        return None if np.array_equal(now, committed) else f"is {now}, was {committed}"
    a, b = now.astype(np.float64), committed.astype(np.float64)
    scale, tolerance = np.abs(b).max(), TOLERANCE_OF.get(key, TOLERANCE)
    error = np.abs(a - b).max() / scale if scale > 0 else np.inf
    return None if error <= tolerance else f"differs by {error:.2e}, allowed {tolerance:.0e}"


def compare_file(name, fresh):
    """(what was compared, what is wrong or None) for each tensor of one file."""
    paths = [os.path.join(folder, name) for folder in (fresh, GOLDEN)]
    if not name.endswith(".safetensors"):
        now, committed = (open(path, "rb").read() for path in paths)
        return [(name, None if now == committed else "differs")]
    now, committed = (load_file(path) for path in paths)
    return [(f"{name}: {key}",
             difference(key, now[key], committed[key]) if key in now and key in committed
             else "only made now" if key in now else "only committed")
            for key in sorted(now.keys() | committed.keys())]


def main():
    results = []
    with tempfile.TemporaryDirectory() as fresh:
        script = os.path.join(ROOT, "scripts", "golden", "model.py")
        if subprocess.run([sys.executable, script, "--out", fresh], check=False).returncode != 0:
            results.append((script, "failed"))
        else:
            both = goldens(fresh) & goldens(GOLDEN)
            results += [(name, "only made now or only committed")
                        for name in sorted(goldens(fresh) ^ goldens(GOLDEN))]
            for name in sorted(both):
                results += compare_file(name, fresh)
    failures = [(what, why) for what, why in results if why]
    for what, why in failures:
        print(f"FAIL {what} {why}")
    print(f"{len(results) - len(failures)} passed, {len(failures)} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
