"""huggingface.py BINARY: the part of test_huggingface.sh in Python. Runs in an empty folder and writes
model.safetensors, a model with random parameters."""

import json
import random
import re
import shutil
import sys
from pathlib import Path

REPO = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(REPO / "dev/reference"), str(REPO / "dev/data")]

import numpy as np
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, PreTrainedTokenizerFast

import evalset
import export_hf
import import_hf
from golden import randomize
from gpt2_encoding import gpt2_encoding, load_tokenizer
from script_calls import call, check, check_same_weights, missing, refuses_all, succeeds, trainer, write
from tost import CONV_WIDTH, Tost, TostConfig, generate
import vocab
from vocabulary import Vocabulary

VOCAB = REPO / "data/starter/vocab.bpe"
STORIES = REPO / "data/starter/starter_val_000000.bin"
NO_STEPS = ["--data", STORIES, "--steps", 0, "--quiet", "--val-every", 0, "--sample-every", 0, "--out"]
BLOCK = 320
EXACT = 1e-10  # difference of logits in float64
EQUAL = 5e-5   # and in float32: logits are up to 20, and sums are in another order


def make_model(path, seed=1, padding=32, **sizes):
    """A model with random parameters that names the starter's tokenizer. It has `padding` rows after the last token."""
    torch.manual_seed(seed)
    vocabulary = Vocabulary.read(VOCAB)
    model = Tost(TostConfig(2, 4, 48, BLOCK, vocabulary.size + padding, **sizes))
    randomize(model, torch.Generator().manual_seed(seed))
    with torch.no_grad():
        model.transformer.wte.weight[vocabulary.size:] *= 3  # likely choices, if nothing excluded them
    shutil.copy(VOCAB, Path(path).parent)
    model.save(path, {"step": "7", "tokens": "7000", "tokenizer": "vocab.bpe",
                      "tokenizer_hash": f"{vocabulary.hash():08x}", "best_val_loss": "2.5", "option.data": "a_*.bin"})
    return model


def exported(path, out):
    check("export_hf.py prints the folder", succeeds(export_hf.main, path, out).strip() == out)
    return load(out)


def load(folder):
    return AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)


def hf_tokenizer(folder):
    return AutoTokenizer.from_pretrained(folder, trust_remote_code=True)


def text_of_stories():
    encoding = gpt2_encoding(VOCAB)
    return encoding.decode(np.fromfile(STORIES, "<u2")[512:20512].tolist())


def random_ids(shape, seed):
    return torch.randint(0, 2304, shape, generator=torch.Generator().manual_seed(seed))


def gradients(model, loss):
    model.zero_grad()
    loss.backward()
    return [p.grad.clone() for p in model.parameters()]


def check_raises(text, function, *arguments, **named):
    try:
        function(*arguments, **named)
        check(f"raises a ValueError: {text}", False)
    except ValueError as error:
        check(f"raises a ValueError: {error}", text in str(error))


@torch.no_grad()
def check_model(ours, folder):
    theirs, ids = load(folder), random_ids((2, BLOCK), 3)
    check("logits in float32", (theirs(ids).logits - ours(ids)[0]).abs().max() <= EQUAL)
    ours, theirs = ours.double(), theirs.double()
    want = ours(ids)[0]
    check("logits", (theirs(ids).logits - want).abs().max() <= EXACT)
    state = theirs(ids[:, :150]).past_key_values
    sizes = [t.numel() for layer in state.layers for t in layer]
    rows = [2 * 3 * 48] if ours.config.conv else []
    memory = [2 * 48 * 12, 2 * 48] if ours.config.memory else []
    check("the state has 2C + nh numbers per layer and sequence, convolutions add 6C, memory C hs + C",
          sizes == 2 * [2 * 48, 2 * 48, 2 * 4, *rows, *memory, *rows])
    card = Path(folder, "README.md").read_text(encoding="utf-8")
    check("and the model card says so", f"\n{sum(sizes) // 2:,} numbers" in card)
    parts = ids[:, 150:].split([1] * 70 + [BLOCK - 220], 1)
    rest = torch.cat([theirs(part, past_key_values=state).logits for part in parts], 1)
    check("logits of tokens after a state, 70 of them one by one", (rest - want[:, 150:]).abs().max() <= EXACT)
    loss = ours(ids[:, :-1], ids[:, 1:])[1]
    check("labels give the loss", abs(theirs(ids, labels=ids).loss - loss) <= EQUAL)
    among = torch.rand(2, 100, generator=torch.Generator().manual_seed(9)) < 0.7
    among[0, :60] = False
    padded = theirs(ids[:, :100], attention_mask=among.long()).logits
    check("padding on the left and among the tokens changes no logits", all(
        (row[kept] - ours(seen[kept][None])[0][0]).abs().max() <= EXACT
        for row, kept, seen in zip(padded, among, ids[:, :100])))
    mask = torch.ones_like(ids[:, :100])
    mask[0, 40:] = 0
    begun = theirs(ids[:, :100], attention_mask=mask).past_key_values
    rest = theirs(ids[:, 40:100], attention_mask=torch.ones(2, 160), past_key_values=begun).logits[0]
    check("nor does padding before the state's next tokens", (rest - want[0, 40:100]).abs().max() <= EXACT)
    half = load(folder).to(torch.bfloat16)
    check("bfloat16", (half(ids).logits.double() - want).norm() / want.norm() < 0.1)
    ids = torch.arange(303)[None]   # 303 is not a bfloat16
    with_mask, without = (half(ids, attention_mask=mask).past_key_values.layers
                          for mask in (torch.ones_like(ids), None))
    check("the same state of 303 tokens in bfloat16, with and without a mask",
          all(torch.equal(a, b) for one, other in zip(with_mask, without) for a, b in zip(one, other)))
    if ours.config.positions == "none":
        ids = random_ids((1, BLOCK + 70), 5)
        check("logits beyond the block size", (theirs(ids).logits - ours(ids)[0]).abs().max() <= EXACT)
        return check_long_prompt(load(folder))
    check_raises(f"{BLOCK + 1} tokens exceed the block size of {BLOCK}", theirs, random_ids((1, BLOCK + 1), 6))
    if hasattr(theirs, "generate_batch"):
        check_raises("continuous batching (generate_batch) needs a key/value cache", theirs.generate_batch, [[1, 2]])


def check_long_prompt(model):
    """Without positions: a prompt of more than 4,096 tokens, which sample reads in several passes."""
    encoding, text = load_tokenizer("model.safetensors"), text_of_stories()[:20000]
    Path("long.txt").write_text(text, encoding="utf-8")
    ids = encoding.encode_ordinary(text)
    out = model.generate(torch.tensor([ids]), do_sample=False, eos_token_id=-1)[0].tolist()
    sample = trainer("sample", "--model", "no_positions.safetensors", "--prompt", "@long.txt", "--tokens",
                     len(out) - len(ids), "--temperature", 0)
    check(f"{len(out) - len(ids)} tokens after a prompt of {len(ids)} equal sample --temperature 0",
          4096 < len(ids) and len(out) > len(ids) and sample.endswith(encoding.decode_bytes(out[len(ids):]) + b"\n"))


def check_training(model):
    """One graph, and gradient checkpointing, which give the same gradients."""
    ids = random_ids((2, 64), 4)
    model.train()
    want = gradients(model, model(ids, labels=ids).loss)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    check("a compiled graph gives the same gradients",
          all(torch.allclose(a, b, atol=1e-7) for a, b in zip(want, gradients(model, compiled(ids, labels=ids).loss))))
    model.gradient_checkpointing_enable()
    check("the blocks are checkpointed", all(block.gradient_checkpointing for block in model.transformer.h))
    check("gradient checkpointing gives the same gradients",
          all(torch.allclose(a, b, atol=1e-7) for a, b in zip(want, gradients(model, model(ids, labels=ids).loss))))
    model.gradient_checkpointing_disable()
    model.eval()


def check_trainer():
    """The model's groups are those of the table of parameters. With them, a step of transformers.Trainer is a step of
    train. Trainer alone also decays the parameters that the model card names."""
    if missing("transformers.Trainer", "accelerate"):
        return
    from transformers import Trainer, TrainingArguments

    def in_layer(names):
        return {re.sub(r"^transformer\.h\.\d+\.", "", name) for name in names}

    rows = re.findall(r'X\(\w+, +\w+, +"([a-z_0-9.]+)",.*?\b(DECAY|DECAY_4|NO_DECAY),',
                      (REPO / "tost/model.h").read_text())
    T, decay, factors = 64, 0.5, {"DECAY": 1, "DECAY_4": 4, "NO_DECAY": 0}
    for model in load("uniform_out"), load("memory_out").train():
        names = {id(p): name for name, p in model.named_parameters()}
        groups = [in_layer(names[id(p)] for p in group["params"]) for group in model.optimizer_groups(decay)]
        decays = {name: group["weight_decay"] for names, group in zip(groups, model.optimizer_groups(decay))
                  for name in names}
        want = {name: decay * factors[kind] for name, kind in rows if name in decays}
        check(f"optimizer_groups: the column decay of tost/model.h: {decays}", decays == want)
    ids = np.fromfile(STORIES, "<u2")[512:].astype(np.int64)
    windows = [torch.from_numpy(ids[i * T:(i + 1) * T + 1]) for i in range(2)]
    arguments = TrainingArguments("trained", max_steps=1, per_device_train_batch_size=2, learning_rate=1e-3,
                                  lr_scheduler_type="constant", max_grad_norm=1, report_to=[], use_cpu=True,
                                  save_strategy="no", disable_tqdm=True)
    optimizer = torch.optim.AdamW(model.optimizer_groups(decay), lr=1e-3, betas=(0.9, 0.95), eps=1e-4)
    hf_trainer = Trainer(model, arguments, train_dataset=[{"input_ids": w, "labels": w} for w in windows],
                         optimizers=(optimizer, None))
    hf_trainer.train()
    trainer("--init", "memory.safetensors", "--data", STORIES, "--order", "sequential", "--steps", 1, "--batch", 2,
            "--seq", T, "--total-batch", 2 * T, "--optimizer", "adamw", "--lr", 1e-3, "--weight-decay", decay,
            "--beta1", 0.9, "--beta2", 0.95, "--eps", 1e-4, "--warmup", 0, "--schedule", "constant", "--grad-clip", 1,
            "--val-every", 0, "--sample-every", 0, "--dtype", "fp32", "--quiet", "--out", "one_step")
    want, state = load_file("one_step/step_00000001/model.safetensors"), model.state_dict()
    start = load_file("memory.safetensors")
    worst = max((state[name] - tensor).abs().max().item() for name, tensor in want.items())
    least = min((start[name] - tensor).abs().max().item() for name, tensor in want.items())
    check(f"a step of Trainer with these groups is a step of train: {worst:.1e} of {least:.1e}",
          worst < 1e-6 < least / 10)
    more = in_layer(hf_trainer.get_decay_parameter_names(model)) - groups[0] - {"lm_head.weight"}   # tied to wte
    card = Path("memory_out/README.md").read_text(encoding="utf-8")
    check(f"Trainer alone also decays {sorted(more)}", more == {"gamma1", "gamma2", "attn.temp", "attn.memory_scale",
                                                             "attn.conv.weight", "mlp.conv.weight"})
    check("and the card says so", all(f"`{name}`" in card for name in ("gamma1", "gamma2", "temp", "memory_scale")))


def tune(folder, packing):
    """20 steps of TRL's SFTTrainer with its defaults, on two texts. Saves the model in FOLDER_tuned."""
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    texts, out = ["Once upon a time.", "The dog ran home, and the cat slept."], f"{folder}_tuned"
    arguments = SFTConfig(out, max_steps=20, max_length=BLOCK, packing=packing, per_device_train_batch_size=4,
                          learning_rate=2e-2, lr_scheduler_type="constant", report_to=[], use_cpu=True, bf16=False,
                          disable_tqdm=True, save_strategy="no", logging_steps=1)
    tuner = SFTTrainer(load(folder), arguments, train_dataset=Dataset.from_dict({"text": texts * 4}),
                       processing_class=hf_tokenizer(folder))
    batch = next(iter(tuner.get_train_dataloader()))
    check(f"{folder}: packing gives position_ids: {packing}", ("position_ids" in batch) == packing)
    tuner.train()
    tuner.save_model(out)
    return out, texts, [entry["loss"] for entry in tuner.state.log_history if "loss" in entry]


def check_tuning(name, packing):
    """From the trainer to TRL and back: the tuned model ends its texts, also after import_hf.py."""
    folder = f"{name}_to_tune"
    vocabulary = Vocabulary.read(VOCAB)
    torch.manual_seed(11)
    Path(name).mkdir()
    shutil.copy(VOCAB, name)
    Tost(TostConfig(2, 4, 48, BLOCK, vocabulary.size + 32, conv=CONV_WIDTH, memory=1)).save(
        f"{name}/model.safetensors", {"tokenizer": "vocab.bpe", "tokenizer_hash": f"{vocabulary.hash():08x}"})
    succeeds(export_hf.main, name, folder)
    tuned, texts, losses = tune(folder, packing)
    check(f"{name}: the loss of TRL falls from {losses[0]} to {losses[-1]}", losses[-1] < 0.2 < 5 < losses[0])
    model, tokenizer = load(tuned), hf_tokenizer(tuned)
    succeeds(import_hf.main, tuned, f"{name}_back")
    for text in texts:
        prompt = " ".join(text.split()[:2])
        ids = model.generate(**tokenizer(prompt, return_tensors="pt"), max_new_tokens=60, do_sample=False)[0].tolist()
        check(f"{name}: the tuned model ends its text: {tokenizer.decode(ids)}",
              tokenizer.decode(ids) == text + "<|endoftext|>")
        sample = trainer("sample", "--model", f"{name}_back", "--prompt", prompt, "--tokens", 60, "--temperature", 0)
        check(f"{name}: and sample, too", sample.decode() == text + "\n")


def check_generation(name, tokenizer):
    model, file = load(f"{name}_out"), f"{name}.safetensors"

    def greedy(inputs, tokens, **options):
        """Only the new tokens."""
        return model.generate(**inputs, max_new_tokens=tokens, do_sample=False, eos_token_id=-1, **options)[:, -tokens:]

    prompt = "Once upon a time"
    tokens = BLOCK + BLOCK // 2 + 20   # the context is cut twice
    long = greedy(tokenizer(prompt, return_tensors="pt"), tokens)[0].tolist()
    sample = trainer("sample", "--model", file, "--prompt", prompt, "--tokens", tokens, "--temperature", 0)
    check("greedy tokens, also beyond the block size, equal sample --temperature 0", len(set(long)) > 20
          and sample == prompt.encode() + load_tokenizer(file).decode_bytes(long) + b"\n")
    for at in BLOCK - 20, tokens - 40:   # the context is cut in the next 40 tokens
        begun = torch.cat([tokenizer(prompt, return_tensors="pt").input_ids[0], torch.tensor(long[:at])])[None]
        again = greedy({"input_ids": begun, "attention_mask": torch.ones_like(begun)}, 40, use_cache=False)[0].tolist()
        check(f"and without a state, from token {at} on", long[at:at + 40] == again)
    ids = tokenizer(prompt, return_tensors="pt").input_ids
    for name in "past_key_values", "cache":
        state = model(ids[:, :-1], use_cache=True).past_key_values
        again = greedy({"input_ids": ids, "attention_mask": torch.ones_like(ids)}, 20, **{name: state})[0].tolist()
        check(f"and from a state, given as {name}", long[:20] == again)
    check_raises("pass the whole sequence", greedy,   # the state has seen more tokens
                 {"input_ids": ids[:, :2], "attention_mask": torch.ones_like(ids[:, :2])}, 3, past_key_values=state)
    texts = ["The cat", "Once upon a time there was a little", "A"]
    batch = tokenizer(texts, return_tensors="pt", padding=True)
    together = greedy(batch, 40)
    alone = torch.cat([greedy(tokenizer(text, return_tensors="pt"), 40) for text in texts])
    check("a padded batch gives the tokens of each text alone", torch.equal(together, alone))
    check("without a state the tokens are the same", torch.equal(together, greedy(batch, 40, use_cache=False)))
    beams = greedy(batch, 10, num_beams=3)
    check("beam search with a state gives the same tokens as without",
          torch.equal(beams, greedy(batch, 10, num_beams=3, use_cache=False)))


def packings(lengths, batch=1):
    """The ways to say where documents are in a row."""
    T, ends = sum(lengths), torch.tensor([0, *lengths]).cumsum(0)
    ids = torch.cat([torch.arange(n) for n in lengths])[None]
    number = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))[None].int()
    ends = torch.cat([ends + T * row for row in range(batch)]).unique().int()
    return {"position_ids": {"position_ids": ids}, "seq_idx": {"seq_idx": number},
            "cu_seq_lens_q": {"cu_seq_lens_q": ends}, "cu_seq_lens_k": {"cu_seq_lens_k": ends},
            "all of them": {"position_ids": ids.repeat(batch, 1), "seq_idx": number, "cu_seq_lens_q": ends,
                            "cu_seq_lens_k": ends, "max_length_q": max(lengths)}}


def check_packing(name):
    """Several documents in a row: the logits, hidden states and gradients of each alone."""
    model, lengths = load(name).double(), [5, 80, 1, 3, 200, 33, 30]   # 352, more than the block size
    ids = random_ids((2, sum(lengths)), 10)
    alone = [model(part, output_hidden_states=True) for part in ids.split(lengths, 1)]
    for way, given in packings(lengths, 2).items():
        out = model(ids, output_hidden_states=True, **given)
        error = max((a - b).abs().max() for a, b in zip(
            (out.logits, *out.hidden_states),
            (torch.cat(x, 1) for x in zip(*((one.logits, *one.hidden_states) for one in alone)))))
        check(f"{name}: documents in a row with {way} are as alone: {error:.1e}",
              error <= EXACT and out.past_key_values is None)
    both = [gradients(model, logits.sin().sum())
            for logits in (out.logits, torch.cat([one.logits for one in alone], 1))]
    check(f"{name}: and their gradients", all(torch.allclose(a, b, rtol=1e-9, atol=1e-9) for a, b in zip(*both)))
    mask = torch.ones_like(ids)
    mask[0, :3], mask[1, -20:], mask[0, 200:210] = 0, 0, 0
    parts = zip(ids.split(lengths, 1), mask.split(lengths, 1))
    want = torch.cat([model(part, attention_mask=on).logits for part, on in parts], 1)
    error = ((model(ids, attention_mask=mask, seq_idx=given["seq_idx"]).logits - want).abs().amax(-1) * mask).max()
    check(f"{name}: and with padding: {error:.1e}", error <= EXACT)


def check_positions(model):
    """position_ids of padded rows start no document; those that the model cannot follow are refused."""
    ids, mask = torch.arange(80).view(2, 40), torch.ones(2, 40, dtype=torch.long)
    mask[0, :7], mask[1, 30:] = 0, 0
    count = mask.cumsum(1) - 1
    want = model(ids, attention_mask=mask)
    for at_padding in 0, 1:
        out = model(ids, attention_mask=mask, position_ids=count.masked_fill(mask == 0, at_padding))
        check("position_ids of padded rows keep the state", torch.equal(out.logits, want.logits)
              and out.past_key_values.get_seq_length() == 40)
    given = {"input_ids": ids[:, :1], "attention_mask": torch.ones(2, 41)}
    out = model(**given, past_key_values=out.past_key_values, position_ids=count[:, -1:] + 1)
    again = model(**given, past_key_values=want.past_key_values)
    check("position_ids after a state", torch.equal(out.logits, again.logits))
    state = model(ids).past_key_values
    row = torch.arange(40)[None]
    check_raises("count up by one", model, ids, position_ids=row + 1)
    check_raises("count up by one", model, ids, position_ids=2 * row)
    check_raises("cannot continue a state", model, ids, past_key_values=state, seq_idx=row // 20)
    check_raises("cannot continue a state", model, ids, past_key_values=state, position_ids=row)
    check_raises("one document per row", model.generate, ids, seq_idx=row // 20)


def check_outputs(name):
    """hidden_states, return_dict and the config as in GPT-2; AutoModel and feature extraction."""
    from transformers import AutoModel, pipeline
    model, ids = load(name), torch.arange(20)[None]
    out = model(ids, output_hidden_states=True)
    check("the head reads hidden_states[-1]; there is one more for each layer",
          torch.equal(model.lm_head(out.hidden_states[-1]), out.logits) and len(out.hidden_states) == 3)
    base = AutoModel.from_pretrained(name, trust_remote_code=True)
    check("AutoModel gives last_hidden_state, and hidden states only on request",
          torch.equal(base(ids).last_hidden_state, out.hidden_states[-1]) and base(ids).hidden_states is None
          and all(map(torch.equal, base(ids, output_hidden_states=True).hidden_states, out.hidden_states)))
    first = pipeline("feature-extraction", model=name, trust_remote_code=True)("Once upon a time")
    read = base(hf_tokenizer(name)("Once upon a time", return_tensors="pt").input_ids)
    check("feature extraction", torch.allclose(torch.tensor(first), read.last_hidden_state, atol=1e-5))
    model.config.output_hidden_states, model.config.return_dict = True, False
    logits, state, hidden = model(ids)
    check("the config's output_hidden_states and return_dict count",
          torch.equal(logits, out.logits) and len(hidden) == 3)
    check("arguments precede it", model(ids, return_dict=True, output_hidden_states=False).hidden_states is None)


def check_added_token():
    """generate of a model as exported chooses no row of padding; of one that was trained or resized, any."""
    start = hf_tokenizer("model_out")("Once upon a time", return_tensors="pt")
    model, tokenizer = load("model_out"), hf_tokenizer("model_out")
    check("the pad token is the first row of padding", tokenizer.pad_token == "<|pad|>"
          and tokenizer.pad_token_id == 2304 == model.config.pad_token_id == model.generation_config.pad_token_id)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|end|>"]})
    end = tokenizer.convert_tokens_to_ids("<|end|>")
    check("an added token is a row of padding", end == 2305 and tokenizer("<|end|>").input_ids == [end])

    def chosen(model, **options):
        return model.generate(**start, max_new_tokens=1, do_sample=False, **options)[0, -1].item()

    with torch.no_grad():
        model.transformer.wte.weight[end] = 9 * model(**start, output_hidden_states=True).hidden_states[-1][0, -1]
    check("which is not chosen", chosen(model) != end and 0 <= chosen(model) < 2304)
    check("nor with suppressed tokens of the caller", chosen(model, suppress_tokens=[5]) != end)
    resized = load("model_out")
    resized.load_state_dict(model.state_dict())
    resized.resize_token_embeddings(2306)
    check("in a model with other rows, it is", chosen(resized) == end and resized.config.vocab_size == 2306)
    model(**start, labels=start["input_ids"]).loss.backward()
    check("in a model that was trained, it is", chosen(model) == end)
    model.save_pretrained("trained_token")
    check("also when saved", chosen(load("trained_token")) == end)
    tokenizer.save_pretrained("trained_token")
    status, _, note = call(import_hf.main, "trained_token", "trained_token_back")
    check(f"import_hf.py names the tokens that vocab.bpe lacks: {note}", status == 0 and "<|end|>: " in note
          and note.count("\n") == 1 and Path("trained_token_back/vocab.bpe").read_bytes() == VOCAB.read_bytes())
    model = load("model_out")
    check("and in training mode", chosen(model.train().eval()) >= 2304)
    from transformers import DataCollatorForLanguageModeling
    batch = DataCollatorForLanguageModeling(tokenizer, mlm=False)([{"input_ids": [5, 6, 2303]}, {"input_ids": [7]}])
    check("collators keep the end token as a label", batch["labels"].tolist() == [[5, 6, 2303], [-100, -100, 7]])


@torch.no_grad()
def check_onnx(name, with_mask):
    """onnxruntime's logits of an ONNX file, also where only the small epsilons avoid a division by 0: a head of which
    no token is a member, and one whose z is 0."""
    import onnxruntime
    model, ids = load(name), random_ids((2, 64), 12)
    if model.config.positions == "learned":
        model.transformer.h[0].attn.denom_bias[0] = -300
    model.transformer.h[1].attn.c_attn.weight[:12] = 0
    mask = torch.ones_like(ids)
    mask[0, :20] = 0
    inputs = {"input_ids": ids, "attention_mask": mask} if with_mask else {"input_ids": ids}
    torch.onnx.export(model, (), f"{name}.onnx", kwargs=inputs, input_names=list(inputs), verbose=False,
                      dynamic_shapes={key: {0: "batch", 1: "length"} for key in inputs})
    session = onnxruntime.InferenceSession(f"{name}.onnx", providers=["CPUExecutionProvider"])
    for T in 1, 5, 64, 150:
        for padding in (0, T // 3) if with_mask else (0,):
            ids = random_ids((3, T), T)
            mask = torch.ones_like(ids)
            mask[0, :padding] = 0
            inputs = {"input_ids": ids, "attention_mask": mask} if with_mask else {"input_ids": ids}
            got = torch.from_numpy(session.run(None, {key: value.numpy() for key, value in inputs.items()})[0])
            error = (got - model(**inputs).logits)[mask == 1].abs().max()
            check(f"{name}: onnxruntime, {T} tokens, {padding} of padding: {error:.1e}", error <= 1e-4)


def check_export(name):
    """torch.export gives the logits and gradients of the model, for any batch and length."""
    model, ids = load(name), random_ids((2, 20), 13)
    check(f"{name}: torch.export without options",
          (torch.export.export(model, (ids,)).module()(ids).logits - model(ids).logits).abs().max() <= EQUAL)
    shapes = {"input_ids": {0: torch.export.Dim("batch"), 1: torch.export.Dim("length")}}
    module = torch.export.export(model, (), {"input_ids": ids}, dynamic_shapes=shapes).module()
    ids = random_ids((3, 90), 14)
    ours, theirs = (one(input_ids=ids).logits for one in (model, module))
    check(f"{name}: torch.export with other sizes", (ours - theirs).abs().max() <= EQUAL)
    error = max((a - b).norm() / a.norm() for a, b in zip(gradients(model, ours.sin().sum()),
                                                          gradients(module, theirs.sin().sum())))
    check(f"{name}: its gradients: {error:.1e}", error <= 1e-4)


def check_loaded_is_kept():
    """Some versions of transformers initialize modules after loading; what was loaded has a mark."""
    model = load("memory_out")
    conv = model.transformer.h[0].attn.conv
    before = conv.weight.detach().clone()
    conv.weight._is_hf_initialized = True
    model._init_weights(conv)
    check("a convolution that was loaded is not initialized", torch.equal(conv.weight, before))
    conv.weight._is_hf_initialized = False
    model._init_weights(conv)
    check("another one becomes the identity", torch.equal(conv.weight[:, 0], torch.eye(4)[3].expand(48, 4)))


def check_bigrams(model):
    """Resizing inserts rows of 0 after those of the tokens; the table needs ids."""
    ids, table, V = random_ids((1, 20), 15), model.transformer.bigram.weight, model.config.vocab_size
    model.resize_token_embeddings(V + 5)
    tokens, new, pairs = model.transformer.bigram.weight.split([V, 5, 100])
    check("the table of bigrams is resized", torch.equal(torch.cat([tokens, pairs]), table) and not new.any())
    check_raises("needs input_ids", model, inputs_embeds=model.transformer.wte(ids))


def check_round_trip(name):
    source, folder = f"{name}.safetensors", f"{name}_saved"
    exported(source, f"{name}_out").save_pretrained(folder)
    succeeds(import_hf.main, folder, f"{name}_back")
    check_same_weights(source, f"{name}_back/model.safetensors")
    ours, back = Tost.from_checkpoint(source), Tost.from_checkpoint(f"{name}_back")
    check(f"{name}: and the same config", ours.config == back.config)
    if ours.config.membership == ours.config.positions == "learned":   # the others are only in config.json
        trainer("--init", f"{folder}/model.safetensors", *NO_STEPS, f"{name}_run")
        check_same_weights(source, f"{name}_run/step_00000000/model.safetensors")


def check_import():
    succeeds(import_hf.main, "model_out", "imported")
    check("import_hf.py writes the vocab.bpe of tokenizer.json",
          Path("imported/vocab.bpe").read_bytes() == VOCAB.read_bytes())
    trainer("sample", "--model", "imported", "--prompt", "The", "--tokens", 1)


# ---- Tokenizer -------------------------------------------------------------------------------------------------------


def hostile_texts():
    rng = random.Random(5)
    pieces = ["a", "b", " ", "  ", "\n", "\r\n", "\t", "'s", "'LL", "it's", "12", "½", "é", "日本", "\U0001f44d",
              "\u00a0", "\u3000", "\u2009", "\x85", "\x1c", "<|endoftext|>", "<|endoftext", "ſ", "İ", "!", "...",
              "\u200b", "\0", "x" * 30]
    return ["".join(rng.choices(pieces, k=rng.randrange(1, 60))) for _ in range(400)]


def trainer_ids(tokenizer, texts):
    """Ids of the texts, each followed by <|endoftext|>."""
    Path("texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    for path in Path().glob("ids_*"):
        path.unlink()
    trainer("tokenize", "--tokenizer", tokenizer, "--val-frac", 0, "--out", "ids", "--quiet", "texts.jsonl")
    return np.fromfile("ids_train_000000.bin", "<u2")[512:].tolist()


def check_tokenizer(tokenizer):
    check("AutoTokenizer gives a fast tokenizer", isinstance(tokenizer, PreTrainedTokenizerFast))
    texts = hostile_texts()
    end, plain = tokenizer.eos_token_id, [tokenizer.encode(text, split_special_tokens=True) for text in texts]
    theirs = [i for ids in plain for i in ids + [end]]
    check("hostile texts have the trainer's ids", theirs == trainer_ids(VOCAB, texts))
    a, b = tokenizer("ab").input_ids
    check("as in GPT-2's tokenizer, <|endoftext|> in a text is the end token",
          tokenizer("a<|endoftext|>b").input_ids == [a, end, b])
    alone = Tokenizer.from_file("model_out/tokenizer.json")
    check("and for tokenizers alone", all(alone.encode(text).ids == tokenizer.encode(text) for text in texts))
    alone.encode_special_tokens = True
    check("unless told otherwise: then it gives the trainer's ids", [alone.encode(text).ids for text in texts] == plain)
    check("decoding gives the text", all(tokenizer.decode(tokenizer.encode(text)) == text for text in texts))


def check_own_tokenizer():
    """A tokenizer.json of the tokenizers library, with special tokens first."""
    from tokenizers import ByteLevelBPETokenizer
    learner = ByteLevelBPETokenizer()
    learner.train_from_iterator([text_of_stories()], vocab_size=600, special_tokens=["<pad>", "<|endoftext|>"],
                                show_progress=False)
    learner.save("own.json")
    learner = Tokenizer.from_file("own.json")
    learner.encode_special_tokens = True
    texts = hostile_texts()
    theirs = [i for text in texts for i in learner.encode(text).ids + [1]]
    encoding = gpt2_encoding("own.json")
    check("tiktoken's ids of a tokenizer with special tokens first",
          theirs == [i for text in texts for i in encoding.encode_ordinary(text) + [encoding.eot_token]])
    vocab.convert(Path("own.json"), Path("own.bpe"))
    order = [learner.token_to_id(piece) for piece in Vocabulary.read("own.bpe").ids] + [1]
    check("the trainer's ids with the converted vocab.bpe", theirs == [order[i] for i in trainer_ids("own.bpe", texts)])
    model = Tost(TostConfig(1, 2, 8, 32, 600))
    checksum = f"{Vocabulary.read('own.json').hash():08x}"
    model.save("own.safetensors", {"tokenizer": "own.json", "tokenizer_hash": checksum})
    succeeds(export_hf.main, "own.safetensors", "own_out", "--tokenizer", "own.json")


def check_ids():
    """A model that was trained on the ids of a tokenizer with another pattern."""
    from tokenizers import Regex, decoders, models, pre_tokenizers, trainers
    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(r" ?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+|\s+"), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    learner.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    learner.train_from_iterator([text_of_stories()], trainers.BpeTrainer(vocab_size=600, initial_alphabet=alphabet,
                                                                         show_progress=False))
    learner.add_special_tokens(["<|end_of_text|>"])
    Path("ids").mkdir()
    learner.save("ids/tokenizer.json")
    Path("ids/tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast", '
                                                 '"eos_token": "<|end_of_text|>"}')
    torch.manual_seed(8)
    model = Tost(TostConfig(2, 2, 16, 64, 640))
    randomize(model, torch.Generator().manual_seed(8))
    Path("bare").mkdir()
    model.save("bare/model.safetensors")
    succeeds(export_hf.main, "bare", "ids_out", "--tokenizer", "ids/tokenizer.json")
    check("a tokenizer.json with another pattern is copied unread", all(
        Path("ids_out", name).read_bytes() == Path("ids", name).read_bytes()
        for name in ("tokenizer.json", "tokenizer_config.json")))
    tokenizer = hf_tokenizer("ids_out")
    text = text_of_stories()[:40]
    ids = tokenizer(text).input_ids
    check("with its ids", ids == learner.encode(text).ids and tokenizer.decode(ids) == text)
    succeeds(export_hf.main, "bare", "bare_out")
    check("without --tokenizer there is none", not list(Path("bare_out").glob("tokenizer*")))
    succeeds(import_hf.main, "bare_out", "bare_back")
    check_same_weights("bare/model.safetensors", "bare_back/model.safetensors")
    want = load("bare_out").generate(torch.tensor([ids]), max_new_tokens=30, do_sample=False)[0].tolist()
    out = trainer("sample", "--model", "bare", "--prompt", " ".join(map(str, ids)), "--tokens", 30, "--temperature", 0)
    check(f"sample prints the ids of generate: {out}", list(map(int, out.split())) == want)


# ---- lm-evaluation-harness -------------------------------------------------------------------------------------------


def task_examples(model, encoding):
    """Of each task. LAMBADA: the last word is, in every other example, the one that the model writes."""
    words = text_of_stories().replace("<|endoftext|>", " ").split()
    rng, lambada, hellaswag, blimp = random.Random(6), [], [], []
    for i in range(0, 1200, 20):
        context = " ".join(words[i:i + 20])
        word = encoding.decode(list(generate(model, encoding.encode_ordinary(context), 1, encoding.n_vocab,
                                             encoding.eot_token)))
        known = i % 40 == 0 and word.startswith(" ") and word[1:].isalpha()
        lambada.append({"text": context + (word if known else " " + words[i + 20])})
    for i in range(0, 1200, 30):
        part = words[i:i + 30]
        endings = [" ".join(rng.sample(part, rng.randrange(2, 8))) + rng.choice(["", " [step]", " [title] And"])
                   for _ in range(4)]
        hellaswag.append({"activity_label": part[0], "ctx_a": " ".join(part[1:15]) + rng.choice([".", ". [header]"]),
                          "ctx_b": rng.choice(["", "the " + part[20].upper()]), "endings": endings,
                          "label": rng.randrange(4)})
    for i in range(0, 800, 8):
        good = words[i:i + 8]
        bad = good[:5] + rng.sample(good[5:], 3)
        blimp.append({"sentence_good": " ".join(good), "sentence_bad": " ".join(bad)})
    return {"lambada": lambada, "hellaswag": hellaswag, "blimp": blimp}


def write_tasks():
    """The harness' tasks with local data."""
    import lm_eval
    folder = Path(lm_eval.__file__).parent / "tasks"
    for name, file in (("lambada", "lambada/lambada_openai.yaml"), ("hellaswag", "hellaswag/hellaswag.yaml"),
                       ("blimp", "blimp/_template_yaml")):
        write(f"tasks/{name}.yaml", f"""include: {folder / file}
task: local_{name}
dataset_path: json
dataset_name: null
dataset_kwargs: {{data_files: {{test: {Path(f"local_{name}.jsonl").resolve()}}}}}
training_split: null
validation_split: null
test_split: test
""")


def check_harness():
    """With a model without padding rows, which the harness would choose."""
    if missing("lm-evaluation-harness", "lm_eval"):
        return
    ours = make_model("harness.safetensors", seed=2, padding=0)
    model = exported("harness.safetensors", "harness")
    check("without rows of padding there is no pad token, and the card says so",
          hf_tokenizer("harness").pad_token is None and model.config.pad_token_id is None
          and "There is no pad token" in Path("harness/README.md").read_text(encoding="utf-8"))
    import lm_eval.models  # noqa: F401, registers hf
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    examples = task_examples(ours, load_tokenizer("harness.safetensors"))
    want = {}
    for task, rows in examples.items():
        write(f"local_{task}.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
        write(f"{task}.jsonl", "".join(evalset.convert(f"local_{task}.jsonl", evalset.read_jsonl,
                                                       getattr(evalset, task))))
        trainer("eval", "--model", "harness.safetensors", "--task", f"{task}.jsonl", "--json", f"{task}.json")
        want[task] = json.loads(Path(f"{task}.json").read_text())
    check("some examples are solved", 0.2 < want["lambada"]["accuracy"] < 0.9 and 0 < want["hellaswag"]["acc"] < 1
          and 0 < want["blimp"]["acc"] < 1)
    write_tasks()
    tasks = TaskManager(include_path="tasks", include_defaults=False)
    done = simple_evaluate("hf", "pretrained=harness,trust_remote_code=True", [f"local_{task}" for task in examples],
                           batch_size=8, device="cpu", task_manager=tasks, bootstrap_iters=0, verbosity="ERROR")
    lambada, hellaswag, blimp = (done["results"][f"local_{task}"] for task in examples)
    check("lm_eval: acc of LAMBADA", lambada["acc,none"] == want["lambada"]["accuracy"])
    error = abs(lambada["perplexity,none"] / want["lambada"]["perplexity_word"] - 1)
    check(f"lm_eval: perplexity of LAMBADA is that per word: {error:.1e}", error <= 1e-5)
    for name in ("acc", "acc_norm"):
        check(f"lm_eval: {name} of HellaSwag", hellaswag[f"{name},none"] == want["hellaswag"][name])
    check("lm_eval: acc of BLiMP", blimp["acc,none"] == want["blimp"]["acc"])
    theirs = sorted((s["doc_id"], s["filtered_resps"]) for s in done["samples"]["local_blimp"])
    worst = max(abs(-nats / logprob - 1) for (_, pair), ours in zip(theirs, want["blimp"]["example"])
                for (logprob, _), nats in zip(pair, ours["nats"]))
    check(f"lm_eval: log-likelihoods of BLiMP, after <|endoftext|>: {worst:.1e}", worst <= 1e-5)


def check_refusals():
    for name, metadata in ("plain", {}), ("lost", {"tokenizer_hash": "12345678"}):
        Path(name).mkdir()
        Tost(TostConfig(1, 2, 8, 16, 300)).save(f"{name}/model.safetensors", metadata)
    GPT2Config().save_pretrained("gpt2")
    refuses_all("export_hf", vocab=[VOCAB])


def check_card():
    card = Path("model_out/README.md").read_text(encoding="utf-8")
    check("the model card has steps, tokens, data and losses",
          all(text in card for text in ("7, 7,000", "`a_*.bin`", "2.5000", f"{BLOCK} tokens",
                                        "`<|pad|>` is the first row")))
    check("model.safetensors is copied",
          Path("model_out/model.safetensors").read_bytes() == Path("model.safetensors").read_bytes())


def main():
    models = {name: make_model(f"{name}.safetensors", seed, **sizes) for name, seed, sizes in (
        ("model", 1, {}),
        ("biased", 2, {"bias": True}),
        ("uniform", 3, {"membership": "uniform", "memory": 1, "bigrams": 100}),
        ("conv", 4, {"conv": CONV_WIDTH}),
        ("memory", 5, {"conv": CONV_WIDTH, "memory": 1}),
        ("no_positions", 6, {"conv": CONV_WIDTH, "memory": 1, "positions": "none", "bigrams": 100}))}
    for name, model in models.items():
        check_round_trip(name)
        check_model(model, f"{name}_out")
    tokenizer = hf_tokenizer("model_out")
    check_card()
    check_tokenizer(tokenizer)
    check_own_tokenizer()
    check_ids()
    for name in ("memory", "no_positions"):   # both have convolutions
        check_generation(name, tokenizer)
    check_training(load("memory_out"))
    check_trainer()
    if not missing("tuning with TRL", "trl", "datasets", "accelerate"):
        check_tuning("separate", packing=False)
        check_tuning("packed", packing=True)
    for name in ("model_out", "memory_out", "no_positions_out"):
        check_packing(name)
    check_positions(load("memory_out"))
    check_outputs("memory_out")
    check_added_token()
    check_export("memory_out")
    if not missing("ONNX", "onnx", "onnxruntime", "onnxscript"):
        for name, with_mask in (("model_out", True), ("conv_out", False), ("no_positions_out", True)):
            check_onnx(name, with_mask)
    check_loaded_is_kept()
    check_bigrams(load("uniform_out"))
    check_import()
    check_harness()
    check_refusals()


if __name__ == "__main__":
    main()
