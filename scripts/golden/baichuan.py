"""Baichuan 13B and Baichuan2, which transformers lacks, as small torch modules: what the published models compute.

Names of parameters are those of the published folders. Baichuan's 13B adds ALiBi's biases to scaled scores (slopes as
Press et al. 2022 have them, for any number of heads) and has no rotary positions; the 7B turns halves as LLaMA does. The
second generation's head takes logits of its rows at length 1.
"""
import json
import math
import os

import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional as F


def slopes(heads):
    """Geometric for a power of two; else those of the power below, and every second of the power above."""
    below = 2 ** math.floor(math.log2(heads))
    found = [2.0 ** (-8.0 * (i + 1) / below) for i in range(below)]
    if below < heads:
        found += [2.0 ** (-8.0 * (i + 1) / (2 * below)) for i in range(2 * below)][0::2][:heads - below]
    return torch.tensor(found)


class Norm(nn.Module):
    def __init__(self, width, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x):
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)


class Attention(nn.Module):
    def __init__(self, config):
        super().__init__()
        width, self.heads = config["hidden_size"], config["num_attention_heads"]
        self.alibi = "max_position_embeddings" not in config
        self.W_pack = nn.Linear(width, 3 * width, bias=False)
        self.o_proj = nn.Linear(width, width, bias=False)

    def turn(self, x):
        half = x.shape[-1] // 2
        angles = torch.arange(x.shape[-2])[:, None] * 10000.0 ** (-torch.arange(half) / half)
        a, b = x[..., :half], x[..., half:]
        return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], -1)

    def forward(self, x):
        n, length, width = x.shape
        q, k, v = (part.view(n, length, self.heads, -1).transpose(1, 2) for part in self.W_pack(x).split(width, -1))
        if not self.alibi:
            q, k = self.turn(q), self.turn(k)
        scores = q @ k.transpose(-1, -2) / math.sqrt(width // self.heads)
        if self.alibi:
            scores = scores + slopes(self.heads)[:, None, None] * torch.arange(length)
        scores = scores + torch.full((length, length), float("-inf")).triu(1)
        return self.o_proj((scores.softmax(-1) @ v).transpose(1, 2).reshape(n, length, width))


class FeedForward(nn.Module):
    def __init__(self, config):
        super().__init__()
        width, inner = config["hidden_size"], config["intermediate_size"]
        self.gate_proj, self.up_proj = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
        self.down_proj = nn.Linear(inner, width, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, config):
        super().__init__()
        width, eps = config["hidden_size"], config["rms_norm_eps"]
        self.self_attn, self.mlp = Attention(config), FeedForward(config)
        self.input_layernorm, self.post_attention_layernorm = Norm(width, eps), Norm(width, eps)

    def forward(self, x):
        x = x + self.self_attn(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


class Base(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.embed_tokens = nn.Embedding(config["vocab_size"], config["hidden_size"])
        self.layers = nn.ModuleList(Layer(config) for _ in range(config["num_hidden_layers"]))
        self.norm = Norm(config["hidden_size"], config["rms_norm_eps"])

    def forward(self, ids):
        x = self.embed_tokens(ids)
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)


class Output:
    def __init__(self, logits):
        self.logits = logits


class Baichuan(nn.Module):
    """config as config.json has it: max_position_embeddings means rope, z_loss_weight a normalised head."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.model = Base(config)
        self.lm_head = nn.Linear(config["hidden_size"], config["vocab_size"], bias=False)

    def forward(self, ids):
        x, weight = self.model(ids), self.lm_head.weight
        return Output(F.linear(x, F.normalize(weight) if "z_loss_weight" in self.config else weight))

    def save_pretrained(self, folder, **_):
        os.makedirs(folder, exist_ok=True)
        save_file({name: tensor.contiguous() for name, tensor in self.state_dict().items()},
                  os.path.join(folder, "model.safetensors"), {"format": "pt"})
        with open(os.path.join(folder, "config.json"), "w", encoding="ascii") as file:
            json.dump(self.config, file, indent=2)


def config(**fields):
    return {"model_type": "baichuan", "architectures": ["BaichuanForCausalLM"], "hidden_act": "silu", "rms_norm_eps": 1e-6,
            "initializer_range": 0.02, "tie_word_embeddings": False, "torch_dtype": "float32"} | fields
