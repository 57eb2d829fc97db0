"""The Token Statistics Transformer for Hugging Face transformers: AutoModelForCausalLM, or AutoModel without the output
head, with trust_remote_code=True.

Wu et al., "Token Statistics Transformer: Linear-Time Attention via Variational Rate Reduction", ICLR 2025,
arXiv 2412.17810. A GPT-2 with TSSA, token statistics self-attention, instead of softmax attention. Generation
keeps running sums of fixed size instead of keys and values: the cache is a TostState.

The layers read each sequence without padding before or among its tokens: TostModel moves it behind them, and moves the
hidden states back. Since nothing reads what comes after it, only the state must leave padding out.

Sizes in comments: B batch, T length, C channels (n_embd), nh heads, hs = C/nh.
"""

import math
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F
from transformers import GenerationMixin, PreTrainedModel, SuppressTokensLogitsProcessor
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast

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
        self.last = None                # (B) the last of them, -1 before the first; only with bigrams
        self.length = 0                 # tokens with padding so far
        self.dropped = 0                # the first of them, which the sums do not include

    def restart(self, length):
        """Forgets the first `length` tokens, all of them so far or more."""
        self.layers, self.tokens, self.last = [None] * len(self.layers), None, None
        self.length = self.dropped = length

    def get_seq_length(self, layer_idx=0):
        return self.length

    def map(self, change):
        """Applies a function to every tensor; the first dimension is the batch."""
        self.layers = [layer and tuple(change(t) for t in layer) for layer in self.layers]
        self.tokens = change(self.tokens)
        self.last = None if self.last is None else change(self.last)

    def reorder_cache(self, beam_idx):
        self.map(lambda t: t.index_select(0, beam_idx.to(t.device)))

    def batch_select_indices(self, indices):
        self.map(lambda t: t[indices.to(t.device)])

    def batch_repeat_interleave(self, repeats):
        self.map(lambda t: t.repeat_interleave(repeats, dim=0))


def is_exporting():
    """Whether torch.export or torch.onnx.export traces the model. PyTorch before 2.7 cannot tell."""
    return getattr(torch.compiler, "is_exporting", bool)()


def running_sum(x, before):
    """Cumulative sums over time, dimension 2 of x (B,nh,T,...), which continue from before (B,nh,1,...), if given."""
    return x.cumsum(2) if before is None else before + x.cumsum(2)


def plus(x, epsilon):
    """x + epsilon. torch.onnx.export removes the addition of a number below 1e-8, but not that of a vector."""
    return x + x.new_full((1,), epsilon)


def rows_after(x, count, n):
    """Rows (B,n,C) of x (B,T+n,C) from row count (B) on, or the last n if count is None."""
    if count is None:
        return x[:, -n:]
    at = count[:, None] + torch.arange(n, device=x.device)
    return x.gather(1, at.unsqueeze(-1).expand(-1, -1, x.shape[2]))


def predict(z, pi, count, past):
    """The memory: o (B,nh,T,hs) from z (B,nh,T,hs) and Π (B,nh,T,1), which is 0 at padding. count (B): number of
    tokens, or None if there is no padding; past (G, k) or None. A head's matrix G (hs,hs) predicts the z of the next
    token, as k G, from the direction k of this one. It starts at 0 and is updated at each token by the delta rule:

        k[t] = z[t] / √(‖z[t]‖² + 1e-12),   o[t] = k[t] G[t]
        e[t] = Π[t] (z[t] - o[t-1]),        G[t] = G[t-1] + k[t-1]ᵀ e[t]

    The e of a block are the solution of a triangular system: o[t-1] = k[t-1] G + Σ_{j<t} (k[t-1]·k[j-1]) e[j] with G
    before the block. Returns o and (G, k): G after these tokens, k of the last one."""
    B, nh, T, hs = z.shape
    with torch.autocast(z.device.type, enabled=False):
        k = z * plus(z.square().sum(-1, keepdim=True), ENERGY_MIN).rsqrt()
        G, k_past = (z.new_zeros(B, nh, hs, hs), z.new_zeros(B, nh, hs)) if past is None else past
        keys = torch.cat((k_past.unsqueeze(2), k), 2)
        k_last = rows_after(keys.transpose(1, 2).flatten(2), count, 1).unflatten(2, (nh, hs))[:, 0]
        if is_exporting():
            return predict_by_token(z, pi, k, keys[:, :, :-1], G), (G, k_last)
        blocks, o = zip(*(x.split(MEMORY_BLOCK, 2) for x in (z, pi, k, keys[:, :, :-1]))), []
        for z, pi, k, before in blocks:
            # Of the matrix, solve_triangular reads only what is below the diagonal.
            e = torch.linalg.solve_triangular(pi * (before @ before.mT), pi * (z - before @ G), upper=False,
                                              unitriangular=True)
            o.append(k @ G + (k @ before.mT).tril() @ e)
            G = G + before.mT @ e
    return torch.cat(o, 2), (G, k_last)


def predict_by_token(z, pi, k, before, G):
    """o by the definition, in a loop that ONNX has for any number of tokens; it lacks triangular systems."""
    from torch._higher_order_ops.scan import scan

    def step(G, token):
        z, pi, k, before = token
        G = G + torch.bmm(before.mT, pi * (z - torch.bmm(before, G)))
        return G, torch.bmm(k, G)

    tokens = tuple(x.flatten(0, 1).transpose(0, 1).unsqueeze(2) for x in (z, pi, k, before))   # (T,B nh,1,hs)
    o = scan(step, G.flatten(0, 1), tokens)[1]
    return o.squeeze(2).transpose(0, 1).unflatten(0, z.shape[:2])


class TostConv(nn.Conv1d):
    """A causal convolution over time, with one filter per channel that starts as the identity."""

    def __init__(self, channels, width):
        super().__init__(channels, channels, width, groups=channels, bias=False)

    def forward(self, x, count, past):
        """x (B,T,C), count (B): number of tokens, or None if there is no padding; past (B,width-1,C): the inputs before
        x, or None for zeros. Returns the output and the inputs before the next token."""
        before = self.kernel_size[0] - 1
        x = torch.cat((x.new_zeros(x.shape[0], before, x.shape[2]) if past is None else past, x), 1)
        return super().forward(x.transpose(1, 2)).transpose(1, 2), rows_after(x, count, before)


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

    def forward(self, x, positions, count, past):
        """x (B,T,C), positions (B or 1,T), count (B): number of tokens, which come before the padding, or None if there
        is no padding; past (S, N, D, …) or None. Returns the output and (S, N, D), with a convolution also its last
        inputs, with memory then also (G, k).
        Statistics are at least float32: cumsum of bf16 adds in float32, but a state in bf16, to which decode adds one
        token at a time, would stop growing after a few hundred tokens."""
        z = self.c_attn(x)
        inputs = memory = ()
        if self.conv is not None:
            z, *inputs = self.conv(z, count, None if past is None else past[3])
        z = z.to(torch.promote_types(z.dtype, torch.float32)).unflatten(-1, (self.n_head, -1)).transpose(1, 2)
        mask = None if count is None else (torch.arange(x.shape[1], device=x.device) < count[:, None])[:, None, :, None]
        s = z.square() if mask is None else z.square() * mask  # padding has no energy
        S_past, N_past, D_past = (None, None, None) if past is None else (sums.unsqueeze(2) for sums in past[:3])
        S = running_sum(s, S_past)
        pi = self.membership(s, S, positions).unsqueeze(-1)    # (B,nh,T,1)
        counted = pi if mask is None else pi * mask
        N, D = running_sum(s * counted, N_past), running_sum(counted, D_past)
        y = -z * pi / (1 + N / plus(D, MASS_EPS))
        if self.memory_scale is not None:
            first = 3 + len(inputs)  # of G and k in the state
            o, memory = predict(z, counted, count, None if past is None else past[first : first + 2])
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

    def forward(self, a, count, past):
        """Returns the output and a list: with a convolution, its last inputs, else empty. past: as for TostTSSA; its
        last entry has the inputs before `a`."""
        rows = ()
        if self.conv is not None:
            a, *rows = self.conv(a, count, None if past is None else past[-1])
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

    def forward(self, x, positions, count, past):
        update, state = self.attn(self.ln_1(x), positions, count, past)
        x = x + self.gamma1 * update
        update, rows = self.mlp(self.ln_2(x), count, past)
        return x + self.gamma2 * update, (*state, *rows)


class TostPreTrainedModel(PreTrainedModel):
    config_class = TostConfig
    base_model_prefix = "transformer"
    main_input_name = "input_ids"
    _no_split_modules = ["TostBlock"]
    supports_gradient_checkpointing = True
    _is_stateful = True  # the state cannot go back to an earlier token

    @classmethod
    def _supports_default_dynamic_cache(cls):
        return False  # generate must not make keys and values; forward makes a TostState

    def resize_token_embeddings(self, new_num_tokens=None, *args, **kwargs):
        embeddings = super().resize_token_embeddings(new_num_tokens, *args, **kwargs)
        if self.base_model.bigram is not None:
            self.base_model.bigram.resize(len(embeddings.weight))
        return embeddings

    def max_seq(self):
        """The longest sequence that the model can read."""
        return self.config.block_size if self.config.positions == "learned" else sys.maxsize

    def _init_weights(self, module):
        residual_std = 0.02 / math.sqrt(2 * self.config.n_layer)
        if isinstance(module, TostBigrams):
            nn.init.zeros_(module.weight)
        elif isinstance(module, (nn.Linear, nn.Embedding)):
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

def document_starts(x, mask, before, position_ids, seq_idx, cu_seq_lens):
    """Where documents start within the rows of x (B,T,C), as bool (B,T), or None if nowhere: where position_ids (B or
    1,T) return to 0, where seq_idx (B or 1,T) changes, and at cu_seq_lens, their ends in the B T tokens. before: number
    of tokens in the state, 0 or (B,1). Padding before the first and after the last token starts no document."""
    B, T = x.shape[:2]
    starts = torch.zeros(B, T, dtype=torch.bool, device=x.device)
    if position_ids is not None:
        ids = position_ids.to(x.device).expand(B, T)
        jumps = ids.diff(prepend=ids.new_zeros(B, 1) + before - 1) != 1
        if (jumps & (ids != 0) & (True if mask is None else mask)).any():
            raise ValueError("position_ids must count up by one and return to 0 where a document starts")
        starts |= jumps & (ids == 0)
    if seq_idx is not None:
        starts[:, 1:] |= seq_idx.to(x.device).expand(B, T).diff() != 0
    if cu_seq_lens is not None:
        starts.view(-1)[cu_seq_lens[cu_seq_lens % T != 0].long()] = True
    if mask is not None:
        n = mask.long().cumsum(1)
        starts &= (n > mask.long()) & (n - mask.long() < n[:, -1:])
    return starts if starts.any() else None


class TostBigrams(nn.Embedding):
    """The sum of two embeddings: of a token, and of the pair of the token before and this one, whose row is a hash."""

    def __init__(self, config):
        super().__init__(config.vocab_size + config.bigrams, config.n_embd)
        self.pairs = config.bigrams
        nn.init.zeros_(self.weight)

    def forward(self, seen):
        """(B,T,C), from the token before the first, or -1, and T tokens: seen (B,T+1)."""
        pairs = self.num_embeddings - self.pairs + ((seen[:, :-1] + 1) * 2654435761 + seen[:, 1:]) % self.pairs
        return super().forward(seen[:, 1:]) + super().forward(pairs)

    def resize(self, tokens):
        """Inserts rows of 0 after those of the tokens, or removes the last of them."""
        added = tokens + self.pairs - self.num_embeddings
        if added:
            old, pairs = self.weight.detach().split([tokens - added, self.pairs])
            weight = torch.cat([nn.functional.pad(old, (0, 0, 0, added)), pairs])
            self.weight = nn.Parameter(weight, requires_grad=self.weight.requires_grad)
            self.num_embeddings = len(weight)


class TostModel(TostPreTrainedModel):
    """The model without the output head. Its rows can have several documents, see forward."""

    def __init__(self, config):
        super().__init__(config)
        if config.n_embd % config.n_head:
            raise ValueError(f"n_embd {config.n_embd} is not a multiple of n_head {config.n_head}")
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        if config.positions == "learned":
            self.wpe = nn.Embedding(config.block_size, config.n_embd)
        self.h = nn.ModuleList(TostBlock(config) for _ in range(config.n_layer))
        self.bigram = TostBigrams(config) if config.bigrams else None
        self.ln_f = nn.LayerNorm(config.n_embd, bias=config.bias)
        self.post_init()

    def get_input_embeddings(self):
        return self.wte

    def set_input_embeddings(self, embeddings):
        self.wte = embeddings

    def positions(self, x, count, state):
        """Position (B or 1,T) of each token of x (B,T,C): the number of tokens before it. count: as for TostTSSA."""
        T, longest = x.shape[1], self.max_seq()
        positions = torch.arange(T, device=x.device)[None]
        if state.tokens is not None:
            positions = positions + state.tokens[:, None]
        # The length with padding needs no tensor's value, which would break a compiled graph. An exported graph has no
        # check; the table of embeddings refuses positions beyond it.
        if is_exporting() or state.length - state.dropped + T <= longest:
            return positions
        tokens = int(positions.max() + 1 if count is None else (positions[:, 0] + count).max())
        if tokens > longest:
            raise ValueError(f"{tokens} tokens exceed the block size of {self.config.block_size}: shorten "
                             "the input or max_new_tokens; the model has no position embeddings beyond it")
        return positions.clamp_max(longest - 1)  # of padding

    def read(self, x, ids, mask, state, keep, every):
        """Reads x (B,T,C), embeddings of one sequence in each row, after the state. ids (B,T): the tokens, which
        only bigrams need; mask (B,T): False at padding, or None; keep: whether to update the state. Returns a list of
        the last hidden state or, with `every`, of all."""
        B, T, C = x.shape
        count = place = None
        if mask is not None:
            n = mask.long().cumsum(1)
            count = n[:, -1]
            place = torch.where(mask, n - 1, count[:, None] + torch.arange(T, device=x.device) - n)
            ids = None if ids is None else torch.zeros_like(ids).scatter(1, place, ids)  # padding behind the tokens
            place = place.unsqueeze(-1).expand(B, T, C)
            x = torch.zeros_like(x).scatter(1, place, x)
        positions = self.positions(x, count, state)
        if self.config.positions == "learned":
            x = x + self.wpe(positions)
        hidden, layers = [], []
        for block, past in zip(self.h, state.layers):
            hidden.append(x)
            x, layer = block(x, positions, count if keep else None, past)
            layers.append(layer)
        if self.bigram is not None:
            ids = ids.long()
            last = ids.new_full((B,), -1) if state.last is None else state.last
            seen = torch.cat([last[:, None], ids], 1)
            x = x + self.bigram(seen)
            if keep:
                state.last = seen[:, -1] if count is None else seen.gather(1, count[:, None])[:, 0]
        hidden = [*(hidden if every else ()), self.ln_f(x)]
        if keep:
            state.layers, state.length = layers, state.length + T
            state.tokens = (positions[:, 0] + (T if count is None else count)).expand(B)
        return hidden if place is None else [h.gather(1, place) for h in hidden]

    def read_documents(self, x, ids, mask, starts, every):
        """As read, from an empty state at each of starts (B,T) and at the start of each row. Documents are read in
        batches in which the longest has less than twice the length of the shortest."""
        B, T, C = x.shape
        starts[:, 0] = True
        first = starts.flatten().nonzero()                                          # (documents,1)
        length = torch.diff(first, dim=0, append=first.new_full((1, 1), B * T))
        size, at, parts = length.double().log2().floor(), [], []
        for one in size.unique():
            some = (size == one).flatten()
            t = torch.arange(int(length[some].max()), device=x.device)
            inside = t < length[some]
            index = (first[some] + t).clamp_max(B * T - 1)
            batch = x.flatten(0, 1)[index]
            kept = None if mask is None else mask.flatten()[index] & inside
            tokens = None if ids is None else ids.flatten()[index]
            parts.append([h[inside] for h in self.read(batch, tokens, kept, TostState(len(self.h)), False, every)])
            at.append(index[inside])
        back = torch.cat(at).argsort()
        return [torch.cat(part)[back].view(B, T, C) for part in zip(*parts)]

    def forward(self, input_ids=None, attention_mask=None, past_key_values=None, inputs_embeds=None, use_cache=None,
                output_hidden_states=None, return_dict=None, cache=None, position_ids=None, seq_idx=None,
                cu_seq_lens_q=None, cu_seq_lens_k=None, **kwargs):
        """attention_mask (B, tokens in the state + T): 0 marks padding, anywhere. position_ids, seq_idx or
        cu_seq_lens_* can show that a row has several documents, see document_starts; each is read as if it were alone,
        and no state is returned. They do not choose positions, which are counted."""
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give either input_ids or inputs_embeds")
        x = self.wte(input_ids) if inputs_embeds is None else inputs_embeds
        if self.bigram is not None and input_ids is None:
            raise ValueError("a model with bigrams needs input_ids")
        state = cache if past_key_values is None else past_key_values
        if state is None:
            state = TostState(self.config.n_layer)
        if use_cache is None:
            use_cache = self.config.use_cache and not self.training and not is_exporting()
        every = self.config.output_hidden_states if output_hidden_states is None else output_hidden_states
        mask = None if attention_mask is None else attention_mask[:, -x.shape[1]:].to(x.device) != 0
        starts, cu_seq_lens = None, cu_seq_lens_k if cu_seq_lens_q is None else cu_seq_lens_q
        if any(given is not None for given in (position_ids, seq_idx, cu_seq_lens)):
            starts = document_starts(x, mask, 0 if state.tokens is None else state.tokens[:, None], position_ids,
                                     seq_idx, cu_seq_lens)
        if starts is None:
            hidden = self.read(x, input_ids, mask, state, use_cache, every)
        elif state.length:
            raise ValueError("rows with several documents cannot continue a state")
        else:
            hidden, use_cache = self.read_documents(x, input_ids, mask, starts, every), False
        output = BaseModelOutputWithPast(last_hidden_state=hidden[-1], hidden_states=tuple(hidden) if every else None,
                                         **{CACHE: state if use_cache else None})
        return_dict = self.config.return_dict if return_dict is None else return_dict
        return output if return_dict else output.to_tuple()


class TostForCausalLM(TostPreTrainedModel, GenerationMixin):
    _tied_weights_keys = {"lm_head.weight": "transformer.wte.weight"}

    def __init__(self, config):
        super().__init__(config)
        self.transformer = TostModel(config)
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.post_init()

    def get_output_embeddings(self):
        return self.lm_head

    def set_output_embeddings(self, embeddings):
        self.lm_head = embeddings

    def train(self, mode=True):
        """Ends the mask of padding rows: they may become tokens, and training makes those that do not unlikely."""
        if mode:
            self.config.n_tokens = None
        return super().train(mode)

    def resize_token_embeddings(self, new_num_tokens=None, *args, **kwargs):
        if new_num_tokens is not None:
            self.config.n_tokens = None
        return super().resize_token_embeddings(new_num_tokens, *args, **kwargs)

    def _get_logits_processor(self, *args, **kwargs):
        """Of a model as exported, generate must not choose a padding row. One with adapters has been trained."""
        processors = super()._get_logits_processor(*args, **kwargs)
        if self.config.n_tokens is not None and not hasattr(self, "peft_config"):
            padding = range(self.config.n_tokens, self.config.vocab_size)
            processors.insert(0, SuppressTokensLogitsProcessor(list(padding), device=self.device))
        return processors

    def init_continuous_batching(self, *args, **kwargs):
        """Called first by generate_batch, which would fail after its warm-up."""
        raise ValueError("continuous batching (generate_batch) needs a key/value cache, which this model does not "
                         "have: call generate with several prompts, padded on the left")

    def optimizer_groups(self, weight_decay):
        """Parameter groups for an optimizer, with the weight decay of train_gpt_tost: only embeddings and weights of
        Linear layers decay, those of bigrams four times as fast. transformers.Trainer chooses by name, and would also
        decay the other parameters whose name has no "bias" or "norm": gamma1, gamma2, temp, memory_scale and the
        convolutions."""
        factors = {id(m.weight): 4.0 if isinstance(m, TostBigrams) else 1.0 for m in self.modules()
                   if isinstance(m, (nn.Linear, nn.Embedding))}
        groups = [{"params": [p for p in self.parameters() if factors.get(id(p), 0.0) == factor],
                   "weight_decay": factor * weight_decay} for factor in (1.0, 4.0, 0.0)]
        return [group for group in groups if group["params"]]

    def prepare_inputs_for_generation(self, input_ids, past_key_values=None, attention_mask=None, inputs_embeds=None,
                                      use_cache=True, cache=None, **kwargs):
        """input_ids are all tokens, with those in the state, which forward does not need. When all positions are used,
        the context is cut to its last half, as in `train_gpt_tost sample`."""
        if any(name in kwargs for name in ("seq_idx", "cu_seq_lens_q", "cu_seq_lens_k")):
            raise ValueError("generate continues one document per row: give no seq_idx or cu_seq_lens")
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

    def forward(self, input_ids=None, attention_mask=None, past_key_values=None, inputs_embeds=None, labels=None,
                use_cache=None, logits_to_keep=0, output_hidden_states=None, return_dict=None, cache=None,
                position_ids=None, seq_idx=None, cu_seq_lens_q=None, cu_seq_lens_k=None, **kwargs):
        """As TostModel.forward. labels (B,T) are shifted here, and -100 is ignored."""
        if labels is not None:
            use_cache = bool(use_cache)
            if torch.is_grad_enabled():
                self.config.n_tokens = None
        read = self.transformer(input_ids, attention_mask, past_key_values, inputs_embeds, use_cache,
                                output_hidden_states, True, cache, position_ids, seq_idx, cu_seq_lens_q, cu_seq_lens_k)
        keep = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.lm_head(read.last_hidden_state[:, keep])
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size, **kwargs)
        output = CausalLMOutputWithPast(loss=loss, logits=logits, hidden_states=read.hidden_states,
                                        **{CACHE: getattr(read, CACHE)})
        return_dict = self.config.return_dict if return_dict is None else return_dict
        return output if return_dict else output.to_tuple()
