"""The PyTorch reference as a package. From the root of the repository:

    from dev.reference import Tost, load_tokenizer
    model = Tost.from_checkpoint("out/starter-001")
    encoding = load_tokenizer("out/starter-001")            # a tiktoken.Encoding
    logits, _ = model(torch.tensor([encoding.encode_ordinary("Once upon a time")]))
"""

from .gpt2_encoding import gpt2_encoding, load_tokenizer
from .tost import Tost, TostConfig, find_model
from .vocabulary import Vocabulary

__all__ = ["Tost", "TostConfig", "Vocabulary", "find_model", "gpt2_encoding", "load_tokenizer"]
