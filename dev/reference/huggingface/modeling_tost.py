"""The Token Statistics Transformer for Hugging Face transformers: AutoModelForCausalLM with trust_remote_code=True.

Wu et al., "Token Statistics Transformer: Linear-Time Attention via Variational Rate Reduction", ICLR 2025,
arXiv 2412.17810. A GPT-2 with TSSA, token statistics self-attention, instead of softmax attention. Generation
keeps running sums of fixed size instead of keys and values: the cache is a TostState.

Sizes in comments: B batch, T length, C channels (n_embd), nh heads, hs = C/nh.
"""

import math
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F
from transformers import GenerationMixin, PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import CausalLMOutputWithPast

from .configuration_tost import TostConfig

ENERGY_MIN = 1e-12  # lower bound of the cumulative energy, by which a token's energy is divided; memory: added to ‖z‖²
MASS_EPS = 1e-8     # added to the cumulative membership
GAMMA_INIT = 1e-5   # initial LayerScale
MEMORY_BLOCK = 64   # tokens whose updates of the memory are computed at once
# transformers 5.24 renamed past_key_values to cache; the model takes both.
CACHE = "cache" if "cache" in CausalLMOutputWithPast.__dataclass_fields__ else "past_key_values"


class TostState:
    """The recurrent state. Its size does not depend on the length. The tensors of a layer, in this order: S and N
    (B,nh,hs), D (B,nh,1); with convolutions, the last inputs (B,3,C) of the one on z; with memory, G (B,nh,hs,hs) and
    k (B,nh,hs); with convolutions, the last inputs (B,3,C) of the one before the MLP."""

    is_compileable = is_croppable = False
    is_linear = (True,)  # generate then passes all input_ids; prepare_inputs_for_generation drops those in the state

    def __init__(self, n_layer):
        self.layers = [None] * n_layer  # the tensors of each layer
        self.tokens = None              # (B) tokens without padding so far
        self.length = 0                 # tokens with padding so far
        self.dropped = 0                # the first of them, which the sums do not include

    def restart(self, length):
        """Forgets the first `length` tokens, all of them so far or more."""
        self.layers, self.tokens, self.length, self.dropped = [None] * len(self.layers), None, length, length

    def get_seq_length(self, layer_idx=0):
        return self.length

    def map(self, change):
        """Applies a function to every tensor; the first dimension is the batch."""
        self.layers = [layer and tuple(change(t) for t in layer) for layer in self.layers]
        self.tokens = change(self.tokens)

    def reorder_cache(self, beam_idx):
        self.map(lambda t: t.index_select(0, beam_idx.to(t.device)))

    def batch_select_indices(self, indices):
        self.map(lambda t: t[indices.to(t.device)])

    def batch_repeat_interleave(self, repeats):
        self.map(lambda t: t.repeat_interleave(repeats, dim=0))


def running_sum(x, before):
    """Cumulative sums over time, dimension 2 of x (B,nh,T,...), which continue from before (B,nh,1,...), if given."""
    return x.cumsum(2) if before is None else before + x.cumsum(2)


def predict(z, pi, mask, past):
    """The memory: o (B,nh,T,hs) from z (B,nh,T,hs) and Π (B,nh,T,1), which is 0 at padding. mask (B,1,T,1) or None,
    past (G, k) or None. A head's matrix G (hs,hs) predicts the z of the next token, as k G, from the direction k of
    this one. It starts at 0 and is updated at each token by the delta rule; t-1 is the last token before t that is not
    padding:

        k[t] = z[t] / √(‖z[t]‖² + 1e-12),   o[t] = k[t] G[t]
        e[t] = Π[t] (z[t] - o[t-1]),        G[t] = G[t-1] + k[t-1]ᵀ e[t]

    The e of a block are the solution of a triangular system: o[t-1] = k[t-1] G + Σ_{j<t} (k[t-1]·k[j-1]) e[j] with G
    before the block. Returns o and (G, k): G after these tokens, k of the last one that is not padding."""
    B, nh, T, hs = z.shape
    tokens = z.new_ones(B, T, dtype=torch.long) if mask is None else mask[:, 0, :, 0].long()
    last = F.pad((tokens * torch.arange(1, T + 1, device=z.device)).cummax(1).values, (1, 0))
    with torch.autocast(z.device.type, enabled=False):
        k = z * (z.square().sum(-1, keepdim=True) + ENERGY_MIN).rsqrt()
        G, k_past = (z.new_zeros(B, nh, hs, hs), z.new_zeros(B, nh, hs)) if past is None else past
        # Row i of keys: k of the last token before token i that is not padding; row T: of the last one of all
        keys = torch.cat((k_past.unsqueeze(2), k), 2).gather(2, last[:, None, :, None].expand(B, nh, T + 1, hs))
        blocks, o = zip(*(x.split(MEMORY_BLOCK, 2) for x in (z, pi, k, keys[:, :, :-1]))), []
        for z, pi, k, before in blocks:
            # Of the matrix, solve_triangular reads only what is below the diagonal.
            e = torch.linalg.solve_triangular(pi * (before @ before.mT), pi * (z - before @ G), upper=False,
                                              unitriangular=True)
            o.append(k @ G + (k @ before.mT).tril() @ e)
            G = G + before.mT @ e
    return torch.cat(o, 2), (G, keys[:, :, -1])


class TostConv(nn.Conv1d):
    """A causal convolution over time, with one filter per channel that starts as the identity."""

    def __init__(self, channels, width):
        super().__init__(channels, channels, width, groups=channels, bias=False)

    def forward(self, x, mask, past):
        """x (B,T,C), mask (B,1,T,1) or None, past (B,width-1,C): the inputs before x, or None for zeros. Returns the
        output and the inputs before the next token. Padding does not count as input: it is moved
        behind the tokens, and back afterwards."""
        B, T, C = x.shape
        before = self.kernel_size[0] - 1
        tokens = x.new_ones(B, T, dtype=torch.long) if mask is None else mask[:, 0, :, 0].long()
        order = (tokens == 0).to(torch.uint8).argsort(dim=1, stable=True).unsqueeze(-1).expand(B, T, C)
        x = torch.cat((x.new_zeros(B, before, C) if past is None else past, x.gather(1, order)), 1)
        y = super().forward(x.transpose(1, 2)).transpose(1, 2)
        last = tokens.sum(1)[:, None, None] + torch.arange(before, device=x.device)[:, None]
        return torch.zeros_like(y).scatter(1, order, y), x.gather(1, last.expand(B, before, C))


class TostTSSA(nn.Module):
    """Each head measures how much of a token's energy lies in its subspace (the membership Π), keeps the running
    second moment of the tokens that belong to it, and shrinks the token along directions in which they are small. With
    memory, it also predicts z of the next token and adds the prediction, scaled per channel."""

    def __init__(self, config):
        super().__init__()
        nh, C = config.n_head, config.n_embd
        self.n_head = nh
        self.uniform = config.membership == "uniform"  # then temp and denom_bias are unused
        self.temp = nn.Parameter(torch.ones(nh, 1))
        self.denom_bias = nn.Parameter(torch.zeros(nh, config.block_size, 1)) if config.positions == "learned" else None
        self.c_attn = nn.Linear(C, C, bias=config.bias)
        self.conv = TostConv(C, config.conv) if config.conv else None
        self.memory_scale = nn.Parameter(torch.zeros(C)) if config.memory else None
        self.c_proj = nn.Linear(C, C, bias=config.bias)

    def membership(self, s, S, positions):
        """Π (B,nh,T): a softmax over the heads, not over the tokens."""
        if self.uniform:
            return torch.full_like(s[..., 0], 1 / self.n_head)
        r = s / S.clamp_min(ENERGY_MIN)
        if self.denom_bias is not None:
            r = r + self.denom_bias[:, positions].transpose(0, 1)  # (B,nh,T,1)
        return F.softmax(self.temp * r.sum(-1), dim=1)

    def forward(self, x, positions, mask, past):
        """x (B,T,C), positions (B,T), mask (B,1,T,1) or None, past (S, N, D, …) or None. Returns the output and
        (S, N, D), with a convolution also its last inputs, with memory then also (G, k).
        Statistics are at least float32: cumsum of bf16 adds in float32, but a state in bf16, to which decode adds one
        token at a time, would stop growing after a few hundred tokens."""
        z = self.c_attn(x)
        inputs = memory = ()
        if self.conv is not None:
            z, *inputs = self.conv(z, mask, None if past is None else past[3])
        z = z.to(torch.promote_types(z.dtype, torch.float32)).unflatten(-1, (self.n_head, -1)).transpose(1, 2)
        s = z.square() if mask is None else z.square() * mask  # padding has no energy
        S_past, N_past, D_past = (None, None, None) if past is None else (sums.unsqueeze(2) for sums in past[:3])
        S = running_sum(s, S_past)
        pi = self.membership(s, S, positions).unsqueeze(-1)    # (B,nh,T,1)
        counted = pi if mask is None else pi * mask
        N, D = running_sum(s * counted, N_past), running_sum(counted, D_past)
        y = -z * pi / (1 + N / (D + MASS_EPS))
        if self.memory_scale is not None:
            first = 3 + len(inputs)  # of G and k in the state
            o, memory = predict(z, counted, mask, None if past is None else past[first : first + 2])
            y = y + self.memory_scale.view(self.n_head, 1, -1) * o
        state = S[:, :, -1], N[:, :, -1], D[:, :, -1], *inputs, *memory
        return self.c_proj(y.transpose(1, 2).flatten(2).to(x.dtype)), state


class TostMLP(nn.Module):
    def __init__(self, config):
        super().__init__()
        C = config.n_embd
        self.conv = TostConv(C, config.conv) if config.conv else None
        self.c_fc = nn.Linear(C, 4 * C, bias=config.bias)
        self.c_proj = nn.Linear(4 * C, C, bias=config.bias)

    def forward(self, a, mask, past):
        """Returns the output and a list: with a convolution, its last inputs, else empty. past: as for TostTSSA; its
        last entry has the inputs before `a`."""
        rows = ()
        if self.conv is not None:
            a, *rows = self.conv(a, mask, None if past is None else past[-1])
        return self.c_proj(F.gelu(self.c_fc(a))), rows  # the exact GELU, with erf


class TostBlock(GradientCheckpointingLayer):
    def __init__(self, config):
        super().__init__()
        C = config.n_embd
        self.gamma1 = nn.Parameter(torch.full((C,), GAMMA_INIT))
        self.gamma2 = nn.Parameter(torch.full((C,), GAMMA_INIT))
        self.ln_1 = nn.LayerNorm(C, bias=config.bias)
        self.attn = TostTSSA(config)
        self.ln_2 = nn.LayerNorm(C, bias=config.bias)
        self.mlp = TostMLP(config)

    def forward(self, x, positions, mask, past):
        update, state = self.attn(self.ln_1(x), positions, mask, past)
        x = x + self.gamma1 * update
        update, rows = self.mlp(self.ln_2(x), mask, past)
        return x + self.gamma2 * update, (*state, *rows)


class TostForCausalLM(PreTrainedModel, GenerationMixin):
    config_class = TostConfig
    base_model_prefix = "transformer"
    main_input_name = "input_ids"
    _no_split_modules = ["TostBlock"]
    _tied_weights_keys = {"lm_head.weight": "transformer.wte.weight"}
    supports_gradient_checkpointing = True
    _is_stateful = True  # the state cannot go back to an earlier token

    def __init__(self, config):
        super().__init__(config)
        if config.n_embd % config.n_head:
            raise ValueError(f"n_embd {config.n_embd} is not a multiple of n_head {config.n_head}")
        self.transformer = nn.ModuleDict({
            "wte": nn.Embedding(config.vocab_size, config.n_embd),
            **({"wpe": nn.Embedding(config.block_size, config.n_embd)} if config.positions == "learned" else {}),
            "h": nn.ModuleList(TostBlock(config) for _ in range(config.n_layer)),
            "ln_f": nn.LayerNorm(config.n_embd, bias=config.bias),
        })
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.post_init()

    def _init_weights(self, module):
        residual_std = 0.02 / math.sqrt(2 * self.config.n_layer)
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)
            if getattr(module, "bias", None) is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, TostConv):
            # transformers 5.0 and 5.1 initialize loaded tensors, too, unless they have this mark, which a slice loses.
            if not getattr(module.weight, "_is_hf_initialized", False):
                nn.init.zeros_(module.weight)
                nn.init.ones_(module.weight[..., -1:])
        elif isinstance(module, nn.LayerNorm):
            nn.init.ones_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, TostTSSA):
            nn.init.ones_(module.temp)
            if module.denom_bias is not None:
                nn.init.zeros_(module.denom_bias)
            if module.memory_scale is not None:
                nn.init.zeros_(module.memory_scale)
            nn.init.normal_(module.c_proj.weight, std=residual_std)
        elif isinstance(module, TostMLP):
            nn.init.normal_(module.c_proj.weight, std=residual_std)
        elif isinstance(module, TostBlock):
            nn.init.constant_(module.gamma1, GAMMA_INIT)
            nn.init.constant_(module.gamma2, GAMMA_INIT)

    def optimizer_groups(self, weight_decay):
        """Parameter groups for an optimizer, with the weight decay of train_gpt_tost: only embeddings and weights of
        Linear layers decay. transformers.Trainer chooses by name, and would also decay the other parameters whose name
        has no "bias" or "norm": gamma1, gamma2, temp, memory_scale and the convolutions."""
        decayed = {id(m.weight) for m in self.modules() if isinstance(m, (nn.Linear, nn.Embedding))}
        return [{"params": [p for p in self.parameters() if (id(p) in decayed) == decays],
                 "weight_decay": weight_decay if decays else 0.0} for decays in (True, False)]

    def get_input_embeddings(self):
        return self.transformer["wte"]

    def set_input_embeddings(self, embeddings):
        self.transformer["wte"] = embeddings

    def get_output_embeddings(self):
        return self.lm_head

    def set_output_embeddings(self, embeddings):
        self.lm_head = embeddings

    @classmethod
    def _supports_default_dynamic_cache(cls):
        return False  # generate must not make keys and values; forward makes a TostState

    def prepare_inputs_for_generation(self, input_ids, past_key_values=None, attention_mask=None, inputs_embeds=None,
                                      use_cache=True, cache=None, **kwargs):
        """input_ids are all tokens, with those in the state, which forward does not need. When all positions are used,
        the context is cut to its last half, as in `train_gpt_tost sample`."""
        longest, keep = self.max_seq(), max(1, self.config.block_size // 2)
        state = cache if past_key_values is None else past_key_values
        if state is None and use_cache:
            state = TostState(self.config.n_layer)
        seen, L = state.get_seq_length() if state is not None else 0, input_ids.shape[1]
        inputs = {CACHE: state, "attention_mask": attention_mask, "use_cache": use_cache}
        if inputs_embeds is not None and seen == 0:
            return inputs | {"inputs_embeds": inputs_embeds}
        if inputs_embeds is None and L <= seen:
            raise ValueError(f"input_ids has {L} tokens, but the state has seen {seen}: pass the whole sequence, with "
                             "the tokens that the state has seen, and at least one more")
        if state is None and L > longest:
            seen = L - keep - (L - longest - 1) % (longest - keep + 1)
        elif state is not None and L > seen and L - state.dropped > longest:
            state.restart(seen := L - keep)
        return inputs | {"input_ids": input_ids[:, seen:] if L > seen else input_ids[:, -1:]}

    def max_seq(self):
        """The longest sequence that the model can read."""
        return self.config.block_size if self.config.positions == "learned" else sys.maxsize

    def positions(self, mask, batch, T, state, device):
        """Position (B,T) of each token: the number of tokens before it, without padding; and tokens (B) so far."""
        ones = torch.ones(batch, T, dtype=torch.long, device=device) if mask is None else mask.long()
        counts = ones.cumsum(1) + (0 if state.tokens is None else state.tokens.unsqueeze(1))
        # The length with padding needs no tensor's value, which would break a compiled graph.
        if state.length - state.dropped + T > self.max_seq() and int(counts.max()) > self.max_seq():
            raise ValueError(f"{int(counts.max())} tokens exceed the block size of {self.config.block_size}: shorten "
                             "the input or max_new_tokens; the model has no position embeddings beyond it")
        return (counts - 1).clamp_min(0), counts[:, -1]

    def forward(self, input_ids=None, attention_mask=None, past_key_values=None, inputs_embeds=None, labels=None,
                use_cache=None, logits_to_keep=0, output_hidden_states=None, return_dict=None, cache=None, **kwargs):
        """attention_mask (B, tokens in the state + T): 0 marks padding, on either side. labels (B,T) are shifted here,
        and -100 is ignored."""
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give either input_ids or inputs_embeds")
        if use_cache is None:
            use_cache = self.config.use_cache and not self.training and labels is None
        x = self.transformer["wte"](input_ids) if inputs_embeds is None else inputs_embeds
        batch, T = x.shape[:2]
        state = cache if past_key_values is None else past_key_values
        if state is None:
            state = TostState(self.config.n_layer)
        mask = None if attention_mask is None else attention_mask[:, -T:].to(x.device)
        positions, tokens = self.positions(mask, batch, T, state, x.device)
        if mask is not None:
            mask = mask[:, None, :, None].to(torch.promote_types(x.dtype, torch.float32))
        if "wpe" in self.transformer:
            x = x + self.transformer["wpe"](positions)
        hidden, layers = [x] if output_hidden_states else None, []
        for block, past in zip(self.transformer["h"], state.layers):
            x, layer = block(x, positions, mask, past)
            layers.append(layer)
            if output_hidden_states:
                hidden.append(x)
        x = self.transformer["ln_f"](x)
        keep = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.lm_head(x[:, keep])
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size, **kwargs)
        if use_cache:
            state.layers, state.tokens, state.length = layers, tokens, state.length + T
        output = CausalLMOutputWithPast(loss=loss, logits=logits, hidden_states=hidden and tuple(hidden),
                                        **{CACHE: state if use_cache else None})
        return output if return_dict is not False else output.to_tuple()
