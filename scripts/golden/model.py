#!/usr/bin/env python3
"""Make test/golden/*.safetensors: losses, gradients, optimizer steps of tiny models, by PyTorch.

    model.py [--out FOLDER] [--report]

fp32 values come from transformers' LlamaForCausalLM and GPT2LMHeadModel, their float64 twins from
plain.py. --report prints fp32 against float64. test/golden/README.md says what each file holds.
"""
import argparse
import os

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.numpy import save_file
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

import fill
import plain

LLAMA = dict(family="llama", vocab=96, hidden=32, layers=2, heads=4, kv_heads=2, head_dim=8, ffn=48,
             positions=32, theta=10000.0, eps=1e-5, tied=False)
MODELS = {
    "llama": LLAMA,
    "llama-tied": dict(LLAMA, tied=True),
    "gpt2": dict(family="gpt2", vocab=96, hidden=32, layers=2, heads=4, kv_heads=4, head_dim=8,
                 ffn=128, positions=32, eps=1e-5, tied=True),
}
N_STEPS = 20
ADAMW = dict(lr=1e-2, betas=(0.9, 0.95), eps=1e-8)
WEIGHT_DECAY, CLIP = 0.1, 1.0
N_GREEDY = 12


def tensors_of(m):
    """Our global names and shapes; rows of a matrix are its output features."""
    d, f, h, g, e = (m[k] for k in ("hidden", "ffn", "heads", "kv_heads", "head_dim"))
    gpt2 = m["family"] == "gpt2"
    shapes = {"embedding.weight": (m["vocab"], d)}

    def linear(name, rows, columns):
        shapes[name + ".weight"] = (rows, columns)
        if gpt2:
            shapes[name + ".bias"] = (rows,)

    def norm(name):
        shapes[name + ".weight"] = (d,)
        if gpt2:
            shapes[name + ".bias"] = (d,)

    if gpt2:
        shapes["position.weight"] = (m["positions"], d)
    for n in range(m["layers"]):
        layer = f"layers.{n}."
        norm(layer + "attention_norm")
        linear(layer + "qkv", (h + 2 * g) * e, d)
        linear(layer + "attention_out", d, h * e)
        norm(layer + "ffn_norm")
        linear(layer + ("up" if gpt2 else "gate_up"), f if gpt2 else 2 * f, d)
        linear(layer + "down", d, f)
    norm("final_norm")
    if not m["tied"]:
        shapes["head.weight"] = (m["vocab"], d)
    return shapes


class Library:
    """A transformers model that is filled, and whose gradients are read, under our names."""

    def __init__(self, m):
        self.m = m
        self.model = (self._gpt2 if m["family"] == "gpt2" else self._llama)()
        self.model.eval()  # no dropout in either family, and none wanted
        self.theirs = self._gpt2_names() if m["family"] == "gpt2" else self._llama_names()
        own = {id(p) for parts in self.theirs.values() for p, _ in parts}
        assert own == {id(p) for p in self.model.parameters()}
        for name, shape in tensors_of(m).items():
            self._fill(name, torch.from_numpy(fill.weight(name, shape)))

    def _llama(self):
        m = self.m
        return LlamaForCausalLM(LlamaConfig(
            vocab_size=m["vocab"], hidden_size=m["hidden"], intermediate_size=m["ffn"],
            num_hidden_layers=m["layers"], num_attention_heads=m["heads"],
            num_key_value_heads=m["kv_heads"], head_dim=m["head_dim"], hidden_act="silu",
            max_position_embeddings=m["positions"], rms_norm_eps=m["eps"],
            rope_parameters={"rope_type": "default", "rope_theta": m["theta"]},
            tie_word_embeddings=m["tied"], attention_bias=False, mlp_bias=False,
            attention_dropout=0.0, bos_token_id=None, eos_token_id=None, pad_token_id=None,
            attn_implementation="eager", dtype=torch.float32))

    def _gpt2(self):
        m = self.m
        return GPT2LMHeadModel(GPT2Config(
            vocab_size=m["vocab"], n_positions=m["positions"], n_embd=m["hidden"],
            n_layer=m["layers"], n_head=m["heads"], n_inner=m["ffn"],
            activation_function="gelu_new", resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
            layer_norm_epsilon=m["eps"], tie_word_embeddings=True, bos_token_id=None,
            eos_token_id=None, pad_token_id=None, attn_implementation="eager",
            dtype=torch.float32))

    def _llama_names(self):
        """Our name: the parts that make it up, top to bottom, and whether each is transposed."""
        base = self.model.model
        names = {"embedding.weight": [base.embed_tokens], "final_norm.weight": [base.norm]}
        if not self.m["tied"]:
            names["head.weight"] = [self.model.lm_head]
        for n, block in enumerate(base.layers):
            a, f = block.self_attn, block.mlp
            names |= {f"layers.{n}.attention_norm.weight": [block.input_layernorm],
                      f"layers.{n}.qkv.weight": [a.q_proj, a.k_proj, a.v_proj],
                      f"layers.{n}.attention_out.weight": [a.o_proj],
                      f"layers.{n}.ffn_norm.weight": [block.post_attention_layernorm],
                      f"layers.{n}.gate_up.weight": [f.gate_proj, f.up_proj],
                      f"layers.{n}.down.weight": [f.down_proj]}
        return {name: [(part.weight, False) for part in parts] for name, parts in names.items()}

    def _gpt2_names(self):
        base = self.model.transformer
        names = {"embedding.weight": [(base.wte.weight, False)],
                 "position.weight": [(base.wpe.weight, False)]}
        modules = {"final_norm": base.ln_f}
        for n, block in enumerate(base.h):
            modules |= {f"layers.{n}.attention_norm": block.ln_1,
                        f"layers.{n}.qkv": block.attn.c_attn,
                        f"layers.{n}.attention_out": block.attn.c_proj,
                        f"layers.{n}.ffn_norm": block.ln_2,
                        f"layers.{n}.up": block.mlp.c_fc, f"layers.{n}.down": block.mlp.c_proj}
        for name, module in modules.items():
            conv1d = not isinstance(module, torch.nn.LayerNorm)  # keeps [inputs x outputs]
            names[name + ".weight"] = [(module.weight, conv1d)]
            names[name + ".bias"] = [(module.bias, False)]
        return names

    @torch.no_grad()
    def _fill(self, name, value):
        row = 0
        for parameter, transposed in self.theirs[name]:
            ours = parameter.T if transposed else parameter
            ours.copy_(value[row : row + ours.shape[0]])
            row += ours.shape[0]
        assert row == value.shape[0]

    def parameters(self):
        return list(self.model.parameters())

    def logits(self, tokens):
        return self.model(input_ids=tokens, use_cache=False).logits

    def gradients(self):
        return {name: torch.cat([p.grad.T if transposed else p.grad for p, transposed in parts])
                for name, parts in self.theirs.items()}


class Plain:
    """plain.py in float64 behind the same four functions."""

    def __init__(self, m):
        self.m = m
        self.w = {name: torch.from_numpy(fill.weight(name, shape)).double().requires_grad_()
                  for name, shape in tensors_of(m).items()}

    def parameters(self):
        return list(self.w.values())

    def logits(self, tokens):
        return plain.logits(self.w, tokens, self.m)

    def gradients(self):
        return {name: p.grad for name, p in self.w.items()}


def forward_backward(model, suffix=""):
    """Loss, nll sums and learned targets per micro-batch; gradients accumulate in micro-batch order."""
    tokens, targets = (torch.from_numpy(a) for a in fill.batch(model.m["vocab"], suffix))
    learned = (targets != fill.IGNORED).sum(dim=(1, 2))
    nll = []
    for x, y in zip(tokens, targets):
        logits = model.logits(x).flatten(0, 1)
        nll.append(F.cross_entropy(logits, y.flatten(), ignore_index=fill.IGNORED, reduction="sum"))
        (nll[-1] / learned.sum()).backward()
    nll = torch.stack(nll).detach()
    return nll.sum() / learned.sum(), nll, learned


def train(model):
    """Losses and, before clipping, gradient norms of N_STEPS optimizer steps, each on its own batch."""
    matrices = [p for p in model.parameters() if p.dim() == 2]
    others = [p for p in model.parameters() if p.dim() != 2]
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": WEIGHT_DECAY},
                                   {"params": others, "weight_decay": 0.0}], **ADAMW)
    losses, norms = [], []
    for step in range(N_STEPS):
        optimizer.zero_grad()
        losses.append(forward_backward(model, f".{step}")[0])
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP))
        optimizer.step()
    return torch.stack(losses), torch.stack(norms)


@torch.no_grad()
def greedy(library):
    """The continuation by transformers' generate (KV cache), and the logits each token was taken from."""
    prompt = torch.from_numpy(fill.prompt(library.m["vocab"]))[None]
    out = library.model.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=False,
                                 max_new_tokens=N_GREEDY, use_cache=True)
    logits = library.logits(out)[0, prompt.shape[1] - 1 : -1]  # the same without a cache
    continuation = out[0, prompt.shape[1] :]
    assert torch.equal(logits.argmax(-1), continuation)
    return continuation.int(), logits


def evaluate(model):
    loss, nll, learned = forward_backward(model)
    gradients = {name: g.clone() for name, g in model.gradients().items()}
    norm = torch.stack([g.double().pow(2).sum() for g in gradients.values()]).sum().sqrt()
    with torch.no_grad():
        tokens = torch.from_numpy(fill.batch(model.m["vocab"])[0])
        logits = model.logits(tokens[0])[:, -1]
    return dict(loss=loss, nll=nll, learned=learned, gradient_norm=norm, last_logits=logits), gradients


def make(m):
    """One model's results in fp32 and float64, and its gradients in both."""
    library, truth = Library(m), Plain(m)
    fp32, gradients = evaluate(library)
    fp64, gradients64 = evaluate(truth)
    fp32["greedy"], fp32["greedy_logits"] = greedy(library)
    fp32["step_loss"], fp32["step_gradient_norm"] = train(library)
    fp64["step_loss"], fp64["step_gradient_norm"] = train(truth)
    return fp32, fp64, gradients, gradients64


def write(folder, name, fp32, fp64, gradients):
    """NAME.safetensors, and NAME.layers.N.safetensors with the gradients of layer N."""
    files = {name: {}}
    for key, value in fp32.items():
        files[name][key] = value
    for key in ("loss", "nll", "gradient_norm", "step_loss", "step_gradient_norm"):
        files[name][key + ".fp64"] = fp64[key]
    for key, gradient in gradients.items():
        part = ".".join([name] + key.split(".")[:2]) if key.startswith("layers.") else name
        files.setdefault(part, {})[key] = gradient
    for part, tensors in files.items():
        save_file({key: np.ascontiguousarray(np.atleast_1d(value.detach().numpy()))
                   for key, value in tensors.items()}, os.path.join(folder, part + ".safetensors"))


def write_fill_table(folder):
    """fill_expected.h: hashes of what fill.h must produce."""
    rows = {}
    for m in MODELS.values():
        for name, shape in tensors_of(m).items():
            rows[name, int(np.prod(shape))] = fill.fnv1a(fill.weight(name, shape).tobytes())
    with open(os.path.join(folder, "fill_expected.h"), "w", encoding="ascii") as out:
        out.write("/* Made by scripts/golden/model.py: FNV-1a over the bytes of what fill.h makes. */\n"
                  "#ifndef GOLDEN_FILL_EXPECTED_H\n#define GOLDEN_FILL_EXPECTED_H\n\n")
        out.write("static const struct {\n    const char *name;\n    int64_t n;\n    uint64_t hash;\n"
                  "} expected_weights[] = {\n")
        for (name, n), digest in rows.items():
            out.write(f'    {{ "{name}", {n}, 0x{digest:016x}u }},\n')
        out.write("};\n\nstatic const struct {\n    int step;\n    uint64_t tokens, targets;\n"
                  "} expected_batches[] = {\n")
        for step in range(-1, N_STEPS):
            pair = fill.batch(96, f".{step}" if step >= 0 else "")
            tokens, targets = (fill.fnv1a(a.astype(np.int32).tobytes()) for a in pair)
            out.write(f"    {{ {step}, 0x{tokens:016x}u, 0x{targets:016x}u }},\n")
        prompt = fill.fnv1a(fill.prompt(96).astype(np.int32).tobytes())
        out.write(f"}};\n\nstatic const uint64_t expected_prompt = 0x{prompt:016x}u;\n\n#endif\n")


def distance(a, b):
    return float((a.detach().double() - b.detach()).abs().max() / b.detach().abs().max())


def report(name, fp32, fp64, gradients, gradients64):
    best = fp32["greedy_logits"].topk(2).values
    print(f"\n{name}: loss {fp32['loss']:.9g}, gradient norm {fp32['gradient_norm']:.9g}, learned "
          f"{fp32['learned'].tolist()}, greedy {fp32['greedy'].tolist()} "
          f"(least lead {(best[:, 0] - best[:, 1]).min():.3g})")
    print("losses of the steps:", " ".join(f"{x:.4f}" for x in fp32["step_loss"].tolist()))
    print("norms of the steps: ", " ".join(f"{x:.4f}" for x in fp32["step_gradient_norm"].tolist()))
    for key in fp64:
        if key != "learned":
            print(f"    {key:34} {distance(fp32[key], fp64[key]):.1e}")
    for key in gradients:
        print(f"    {key:34} {distance(gradients[key], gradients64[key]):.1e}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    parser.add_argument("--out", default=os.path.join(root, "test", "golden"))
    parser.add_argument("--report", action="store_true", help="print fp32 against float64")
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    for name, m in MODELS.items():
        results = make(m)
        write(arguments.out, name, *results[:3])
        if arguments.report:
            report(name, *results)
    write_fill_table(arguments.out)


if __name__ == "__main__":
    main()
