"""Configuration of the Token Statistics Transformer for Hugging Face transformers."""

from transformers import PretrainedConfig


class TostConfig(PretrainedConfig):
    model_type = "tost"
    attribute_map = {"hidden_size": "n_embd", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head"}
    keys_to_ignore_at_inference = ["past_key_values", "cache"]

    def __init__(self, n_layer=12, n_head=12, n_embd=768, block_size=1024, vocab_size=50304, bias=False,
                 membership="learned", conv=0, memory=0, positions="learned", bigrams=0, n_tokens=None,
                 use_cache=True, tie_word_embeddings=True, **kwargs):
        self.n_layer = n_layer
        self.n_head = n_head
        self.n_embd = n_embd
        self.block_size = block_size
        self.vocab_size = vocab_size
        self.bias = bias
        self.membership = membership  # learned, or uniform: 1/n_head for every head and token
        self.conv = conv  # 0, or 4: z and the input of the MLP pass through causal convolutions
        self.memory = memory  # 0, or 1: each head recalls what came after similar tokens
        self.positions = positions  # learned, or none: no position embeddings, inputs of any length
        self.bigrams = bigrams  # rows for pairs of tokens in the table bigram, which also has a row per token
        self.n_tokens = n_tokens  # generate chooses only ids below it: the other rows are padding. None: all are tokens
        self.use_cache = use_cache
        super().__init__(tie_word_embeddings=tie_word_embeddings, **kwargs)

    @property
    def max_position_embeddings(self):
        """By which generate and lm-evaluation-harness limit the length of inputs."""
        if self.positions == "none":
            raise AttributeError("max_position_embeddings: a model without positions has no limit")
        return self.block_size
