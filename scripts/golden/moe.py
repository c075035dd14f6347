#!/usr/bin/env python3
"""Write test/convert/golden's folders of mixtures of experts, as convert.py does those of other families.

The first one's config asks for the balance loss, which its gradients have and its loss has not (test/oracle/moe.py).
"""
import importlib.util
import os
import sys

sys.path[:0] = [os.path.dirname(os.path.abspath(__file__))]
import convert as golden  # noqa: E402

sys.modules["convert"] = golden.ORACLE
SPEC = importlib.util.spec_from_file_location("oracle_moe", os.path.join(golden.ROOT, "test", "oracle", "moe.py"))
oracle = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(oracle)


def main():
    oracle.take_over()
    golden.MODELS = {
        "mixtral": ("Mixtral", golden.SHAPE | {"num_local_experts": 4, "num_experts_per_tok": 2} | oracle.BALANCE),
        "qwen3moe": ("Qwen3Moe", golden.SHAPE | {
            "num_experts": 5, "num_experts_per_tok": 3, "moe_intermediate_size": 12, "norm_topk_prob": False, "head_dim": 6,
            "decoder_sparse_step": 2}),
        "qwen2moe": ("Qwen2Moe", golden.SHAPE | {
            "num_experts": 5, "num_experts_per_tok": 3, "moe_intermediate_size": 12, "shared_expert_intermediate_size": 20,
            "mlp_only_layers": [0]}),
        "dots1": ("Dots1", golden.SHAPE | oracle.DOTS | {"moe_intermediate_size": 12, "n_shared_experts": 1}),
        "deepseek": ("Deepseek", golden.SHAPE | oracle.DEEPSEEK | {
            "moe_intermediate_size": 8, "n_routed_experts": 6, "aux_loss_alpha": 0.2}),
    }
    golden.main()


if __name__ == "__main__":
    main()
