"""The decoder that PyTorch trains beside lmtrain, written by hand: cpu_torch.py and gpu_torch.py train it.

GPT-2-like or LLaMA-like, as the fields of a job's `model:` say; attention is SDPA, the loss is computed in fp32.
"""
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


def norm_of(m):
    if m["norm"] == "rmsnorm":
        return nn.RMSNorm(m["hidden_size"], eps=m["norm_eps"])
    return nn.LayerNorm(m["hidden_size"], eps=m["norm_eps"])


def rotate(x, cos, sin):
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


class Attention(nn.Module):
    def __init__(self, m):
        super().__init__()
        self.n_heads, self.n_kv_heads = m["n_heads"], m["n_kv_heads"]
        self.head_dim = m["hidden_size"] // m["n_heads"]
        width = (self.n_heads + 2 * self.n_kv_heads) * self.head_dim
        self.qkv = nn.Linear(m["hidden_size"], width, bias=m["bias"] or m["attention_bias"] == "qkv")
        self.out = nn.Linear(m["hidden_size"], m["hidden_size"], bias=m["bias"])

    def forward(self, x, rope):
        b, t, _ = x.shape
        h, g, e = self.n_heads, self.n_kv_heads, self.head_dim
        q, k, v = self.qkv(x).view(b, t, h + 2 * g, e).transpose(1, 2).split([h, g, g], dim=1)
        if rope is not None:
            cos, sin = (part.to(x.dtype) for part in rope)
            q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=g != h)
        return self.out(y.transpose(1, 2).reshape(b, t, h * e))


class Feedforward(nn.Module):
    def __init__(self, m):
        super().__init__()
        self.gated = m["activation"] == "swiglu"
        self.up = nn.Linear(m["hidden_size"], m["ffn_size"] * (2 if self.gated else 1), bias=m["bias"])
        self.down = nn.Linear(m["ffn_size"], m["hidden_size"], bias=m["bias"])

    def forward(self, x):
        if self.gated:
            gate, up = self.up(x).chunk(2, dim=-1)
            return self.down(F.silu(gate) * up)
        return self.down(F.gelu(self.up(x), approximate="tanh"))


class Layer(nn.Module):
    def __init__(self, m):
        super().__init__()
        self.attention_norm, self.attention = norm_of(m), Attention(m)
        self.ffn_norm, self.ffn = norm_of(m), Feedforward(m)

    def forward(self, x, rope):
        x = x + self.attention(self.attention_norm(x), rope)
        return x + self.ffn(self.ffn_norm(x))


def loss_of(x, head, targets):
    return F.cross_entropy(F.linear(x, head).flatten(0, 1).float(), targets.flatten())


class Decoder(nn.Module):
    def __init__(self, m, seq_len):
        super().__init__()
        self.embedding = nn.Embedding(m["vocab_size"], m["hidden_size"])
        self.positions = nn.Embedding(m["max_seq_len"], m["hidden_size"]) if m["position"] == "learned" else None
        self.layers = nn.ModuleList(Layer(m) for _ in range(m["n_layers"]))
        self.norm = norm_of(m)
        self.head = self.embedding if m["tied_embeddings"] else nn.Embedding(m["vocab_size"], m["hidden_size"])
        self.loss_of, self.checkpoint = loss_of, False
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)
        e = m["hidden_size"] // m["n_heads"]
        angle = torch.outer(torch.arange(seq_len), m["rope_theta"] ** (-torch.arange(0, e, 2) / e))
        self.rope = (angle.cos(), angle.sin())

    def forward(self, tokens, targets):
        x, rope = self.embedding(tokens), self.rope
        if self.positions is not None:
            x, rope = x + self.positions.weight[:tokens.shape[1]], None
        for layer in self.layers:
            x = checkpoint(layer, x, rope, use_reentrant=False) if self.checkpoint else layer(x, rope)
        return self.loss_of(self.norm(x), self.head.weight, targets)
