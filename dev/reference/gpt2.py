"""GPT-2 in PyTorch with fused attention: the quadratic-time baseline of train.py --attention softmax and peers.py.

Pre-norm blocks, causal softmax attention with scaled_dot_product_attention (flash attention on a GPU),
learned positions, GELU, output head tied to the embedding, no biases.
B batch, T length, C channels, nh heads, V vocabulary.
"""

import math

import torch.nn as nn
import torch.nn.functional as F


class Attention(nn.Module):
    def __init__(self, C, nh):
        super().__init__()
        self.nh = nh
        self.qkv = nn.Linear(C, 3 * C, bias=False)
        self.qkv.weight.matrix_rows = C  # three matrices for Muon
        self.out = nn.Linear(C, C, bias=False)

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (self.nh, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, C, nh, hidden):
        super().__init__()
        self.ln_1 = nn.LayerNorm(C, bias=False)
        self.attention = Attention(C, nh)
        self.ln_2 = nn.LayerNorm(C, bias=False)
        self.mlp = nn.Sequential(nn.Linear(C, hidden, bias=False), nn.GELU(), nn.Linear(hidden, C, bias=False))

    def forward(self, x):
        x = x + self.attention(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Gpt2(nn.Module):
    """hidden: channels of the MLP, 4 C by default. With 3 C, a layer has as many weights as ToST's, 10 C²."""

    def __init__(self, n_layer, n_head, n_embd, block_size, vocab_size, hidden=None):
        super().__init__()
        self.wte = nn.Embedding(vocab_size, n_embd)
        self.wpe = nn.Embedding(block_size, n_embd)
        self.blocks = nn.Sequential(*(Block(n_embd, n_head, hidden or 4 * n_embd) for _ in range(n_layer)))
        self.ln_f = nn.LayerNorm(n_embd, bias=False)
        for name, module in self.named_modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                residual = name.endswith(("attention.out", "mlp.2"))
                nn.init.normal_(module.weight, std=0.02 / math.sqrt(2 * n_layer) if residual else 0.02)

    def forward(self, idx, targets):
        """Returns logits (B,T,V) and the mean loss for targets (B,T)."""
        x = self.wte(idx) + self.wpe.weight[: idx.size(1)]
        logits = F.linear(self.ln_f(self.blocks(x)), self.wte.weight)
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())

    def optimizer_groups(self, weight_decay):
        """Weight decay for all parameters except the LayerNorms."""
        decay = [p for p in self.parameters() if p.dim() > 1]
        no_decay = [p for p in self.parameters() if p.dim() == 1]
        return [{"params": decay, "weight_decay": weight_decay}, {"params": no_decay, "weight_decay": 0.0}]
