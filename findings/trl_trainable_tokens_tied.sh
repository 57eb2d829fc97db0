#!/bin/sh
# trl_trainable_tokens_tied.sh: TRL's SFTTrainer stops with an AttributeError when PEFT trains the rows of new tokens
# (LoraConfig(trainable_token_indices=...)) of a model whose head is tied to its embeddings. An untied model trains.
#
# version    trl 1.16.0, peft 0.21.2, transformers 5.24.0, torch 2.15.0 (PyPI), on the CPU
# input      a Llama of one layer with random weights; texts with an added token, whose row is to be trained
# expected   both train, as they do in a loop with the model's own loss
# behaviour  PEFT wraps a tied head in a TrainableTokensWrapper, which passes on the attribute weight of the layer, but
#            not bias. SFTTrainer's loss, which avoids the logits, reads lm_head.bias.
# seen
#            untied: the model's own loss trains; SFTTrainer trains
#            tied: the model's own loss trains; SFTTrainer: 'TrainableTokensWrapper' object has no attribute 'bias'
#
# Needs Python 3.11 or newer with venv and pip. Exits with 1 if the output is another one.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
python3 -m venv venv
venv/bin/pip install -q --disable-pip-version-check torch==2.15.0 transformers==5.24.0 trl==1.16.0 peft==0.21.2 \
    datasets==5.2.0 accelerate==1.15.0 tokenizers==0.23.3
cat >tune.py <<'END'
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(["<eos>", "a", "b", "c"])}, unk_token="a"))
words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<eos>", pad_token="<eos>")
tokenizer.add_tokens(["<new>"], special_tokens=True)
new = tokenizer.convert_tokens_to_ids("<new>")
adapter = LoraConfig(target_modules=["q_proj"], trainable_token_indices=[new], task_type="CAUSAL_LM")
arguments = SFTConfig("out", max_steps=1, report_to=[], use_cpu=True, bf16=False, disable_tqdm=True, save_strategy="no")


def model(tied):
    return LlamaForCausalLM(LlamaConfig(vocab_size=8, hidden_size=16, intermediate_size=16, num_hidden_layers=1,
                                        num_attention_heads=2, tie_word_embeddings=tied))


for tied in False, True:
    own = get_peft_model(model(tied), adapter)
    ids = tokenizer("a b <new> c", return_tensors="pt").input_ids
    own(input_ids=ids, labels=ids).loss.backward()
    gradients = [p.grad for name, p in own.named_parameters() if "token_adapter" in name]
    trains = any(gradient is not None and gradient.abs().sum() > 0 for gradient in gradients)
    try:
        texts = Dataset.from_dict({"text": ["a b <new> c"] * 8})
        SFTTrainer(model(tied), arguments, train_dataset=texts, processing_class=tokenizer, peft_config=adapter).train()
        result = " trains"
    except AttributeError as error:
        result = f": {error}"
    print(f"{'tied' if tied else 'untied'}: the model's own loss {'trains' if trains else 'fails'};"
          f" SFTTrainer{result}")
END
HF_HUB_OFFLINE=1 HF_HOME="$dir/home" venv/bin/python tune.py >stdout 2>errors || { cat errors; exit 1; }
grep '^tied\|^untied' stdout | tee seen
cat >expected <<'END'
untied: the model's own loss trains; SFTTrainer trains
tied: the model's own loss trains; SFTTrainer: 'TrainableTokensWrapper' object has no attribute 'bias'
END
cmp seen expected
