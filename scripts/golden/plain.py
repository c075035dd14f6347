"""The two decoders written out in our names and layouts, in whatever dtype the weights have.

Independent of transformers, which rounds to fp32 inside its norms, softmax and rotary tables even in a
float64 model: in float64 this is the truth that both PyTorch's fp32 and ours are measured against,
and its agreement with transformers is what shows that the mapping of names is right.
"""
import torch
import torch.nn.functional as F


def norm(w, name, x, m):
    if m["family"] == "llama":
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + m["eps"]) * w[name + ".weight"]
    x = x - x.mean(-1, keepdim=True)
    x = x * torch.rsqrt((x * x).mean(-1, keepdim=True) + m["eps"])
    return x * w[name + ".weight"] + w[name + ".bias"]


def linear(w, name, x):
    y = x @ w[name + ".weight"].T
    return y + w[name + ".bias"] if name + ".bias" in w else y


def rope(x, theta):
    """x [sequence, head, position, head_dim]; element j turns with element j + head_dim / 2."""
    half = x.shape[-1] // 2
    frequency = theta ** (-torch.arange(half, dtype=x.dtype) / half)
    angle = torch.arange(x.shape[-2], dtype=x.dtype)[:, None] * frequency
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)


def attention(w, layer, x, m):
    h, g, e = m["heads"], m["kv_heads"], m["head_dim"]
    n, t, _ = x.shape
    qkv = linear(w, layer + "qkv", x).view(n, t, h + 2 * g, e).transpose(1, 2)
    q, k, v = qkv.split([h, g, g], dim=1)
    if m["family"] == "llama":
        q, k = rope(q, m["theta"]), rope(k, m["theta"])
    k, v = k.repeat_interleave(h // g, dim=1), v.repeat_interleave(h // g, dim=1)
    score = q @ k.transpose(-1, -2) / e**0.5
    score = score.masked_fill(torch.ones(t, t).triu(1).bool(), float("-inf"))
    out = (score.softmax(-1) @ v).transpose(1, 2).reshape(n, t, h * e)
    return linear(w, layer + "attention_out", out)


def feed_forward(w, layer, x, m):
    if m["family"] == "llama":
        gate, up = linear(w, layer + "gate_up", x).chunk(2, dim=-1)
        return linear(w, layer + "down", gate * torch.sigmoid(gate) * up)
    u = linear(w, layer + "up", x)
    gelu = 0.5 * u * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (u + 0.044715 * u**3)))
    return linear(w, layer + "down", gelu)


def logits(w, tokens, m):
    x = F.embedding(tokens, w["embedding.weight"])
    if m["family"] == "gpt2":
        x = x + w["position.weight"][: tokens.shape[-1]]
    for n in range(m["layers"]):
        layer = f"layers.{n}."
        x = x + attention(w, layer, norm(w, layer + "attention_norm", x, m), m)
        x = x + feed_forward(w, layer, norm(w, layer + "ffn_norm", x, m), m)
    return norm(w, "final_norm", x, m) @ w.get("head.weight", w["embedding.weight"]).T
