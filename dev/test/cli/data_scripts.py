"""data_scripts.py BINARY SHARED: the part of test_data_scripts.sh in Python. Runs in a folder with a copy of dev/data
in clone/. SHARED contains published data, or is empty."""

import importlib
import json
import math
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

SCRIPTS = Path("clone/dev/data").resolve()
sys.path[:0] = [str(SCRIPTS)]

from script_calls import BINARY, check, missing, refuses_all, succeeds, trainer, write

import evalset
import fetch
from vocabulary import Vocabulary

SHARED = Path(sys.argv[2]) if sys.argv[2] else None
BYTES = ["--tokenizer", "bytes.bpe", "--binary", BINARY]
SHARDS = [*BYTES, "--shard-documents", "20"]
MINE = ["--text-field", "body", *BYTES, "--out"]


def made(command, *more):
    """Stdout of a script, which must succeed. The command is split at spaces."""
    script, *arguments = command.split()
    return succeeds(importlib.import_module(script.removesuffix(".py")).main, *arguments, *more)


def process(command, *more, **environment):
    """Runs a script as another process: `datasets` reads its environment only once."""
    script, *arguments = command.split()
    return subprocess.run([sys.executable, SCRIPTS / script, *arguments, *more], env={**os.environ, **environment},
                          capture_output=True, text=True)


def tokens(path):
    return Path(path).read_bytes()[1024:]


def uint16(*ids):
    return b"".join(id.to_bytes(2, "little") for id in ids)


# ---- Vocabularies ----------------------------------------------------------------------------------------------------


def check_vocab():
    if SHARED:
        made(f"vocab.py --from {SHARED}/data/gpt2/vocab.bpe --out got.bpe")
        check("vocab.bpe is copied", Path("got.bpe").read_bytes() == (SHARED / "data/gpt2/vocab.bpe").read_bytes())

    def tokenizer(model={}, **changed):
        content = Vocabulary([("a", "b"), ("ab", "c")]).tokenizer_json() | changed
        content["model"] |= model
        return json.dumps(content)

    write("own.json", tokenizer())
    made("vocab.py --from own.json --out own.bpe")
    check("tokenizer.json is converted", Path("own.bpe").read_text() == "#version: 0.2\na b\nab c\n")
    refuses_all("vocab", tokenizer=tokenizer)


def check_published():
    """Bytes have the ids of vocab.bpe's alphabet; 256 is <|endoftext|>. Blank lines are empty."""
    if missing("published.py", "numpy"):
        return
    space, newline, end = 220, 198, 256
    a_line, b_line = (space, 28, space, 32, space, 28, space, newline), (space, 65, space, 66, space, newline)
    write("wiki.test.raw", " \n = A = \n \n b c \n")
    out = made("published.py wikitext2 --from wiki.test.raw --out published", *BYTES)
    check("another number of lines is noted", "4 lines, but 4,358 published" in out)
    check("published.py wikitext2: each line alone, with <|endoftext|>",
          tokens("published/wikitext2_test_000000.bin") == uint16(
              end, *a_line, end, end, *b_line, end))
    write("ptb.test.txt", " b c \n b\n")
    made("published.py ptb --from ptb.test.txt --out published", *BYTES)
    check("published.py ptb: lines without line breaks",
          tokens("published/ptb_test_000000.bin") == uint16(space, 65, space, 66, space, end, space, 65, end))
    refuses_all("published", bytes=BYTES)


# ---- Evaluation sets -------------------------------------------------------------------------------------------------


def check_texts():
    text = '{"text": " \\u201ca\\u201d \\u2019b\\n \\u201cC\\u201d "}'
    check("lambada", evalset.lambada(text) == (" “a” ’b\n", [" “C”"], 0))
    check("lambada_published", evalset.lambada_published(text) == ('\n"a" ’b\n', [' "C"'], 0))
    text = """{"ctx": "unused", "activity_label": "Run", "ctx_a": "[header] Go [title] Now. ", "ctx_b": "éa BC",
               "label": "0", "endings": [" a [step]", "b [title] c", "[x\\ny] d", "e    f"]}"""
    check("hellaswag", evalset.hellaswag(text) == ("Run: Go. Now. Éa bc", [" a ", " b. c", " [x\ny] d", " e  f"], 0))
    text = '{"sentence_good": "A cat is.", "sentence_bad": "A cat are.", "UID": "agreement"}'
    check("blimp", evalset.blimp(text) == ("", [" A cat is.", " A cat are."], 0))


def check_evalset():
    """An archive with two files of 2,500 questions, like CBTest.tgz."""
    def questions(n):
        return "".join("".join(f"{i} The cat sat on mat {e} .\n" for i in range(1, 21))
                       + "21 Then XXXXX slept .\tcat\t\ta|b|cat|d|e|f|g|h|i|j\n\n" for e in range(n))

    for kind in ("CN", "NE"):
        write(f"CBTest/data/cbtest_{kind}_test_2500ex.txt", questions(2500))
    with tarfile.open("CBTest.tgz", "w:gz") as archive:
        archive.add("CBTest")
    made("evalset.py cbt --from CBTest.tgz --out eval")
    first = json.loads(Path("eval/cbt_NE.jsonl").read_text().splitlines()[0])
    check(f"the archive's files are converted: {first}", first["context"].startswith("<|endoftext|>\nThe cat")
          and first["context"].endswith(" mat 0 . Then") and first["choices"][0] == " a slept ."
          and first["answer"] == 2)
    for name in ("b", "a"):
        write(f"blimp/data/{name}.jsonl", f'{{"sentence_bad": "bad", "sentence_good": "{name}"}}\n' * 2)
    write("blimp/data/._a.jsonl", b"\xb0")   # of macOS, as in the published archive
    shutil.make_archive("BLiMP", "zip", "blimp", "data")
    for source, wanted in (("BLiMP.zip", [" a", " a", " b", " b"]), ("blimp/data", [" a", " a", " b", " b"]),
                           ("blimp/data/b.jsonl", [" b", " b"])):
        made(f"evalset.py blimp --from {source} --out eval")
        rows = [json.loads(line) for line in Path("eval/blimp.jsonl").read_text().splitlines()]
        check(f"BLiMP from {source}: {rows}", rows == [{"context": "", "choices": [good, " bad"], "answer": 0}
                                                      for good in wanted])
    refuses_all("evalset", questions=questions)
    if SHARED:
        published = SHARED / "data/eval"
        out = made(f"evalset.py lambada --from {published} --out eval")
        check("LAMBADA is the published file", "SHA-256 as published" in out)
        out = made(f"evalset.py hellaswag --from {published} --out eval")
        check("HellaSwag has all its examples", "10,042 examples" in out)
        whole = Path("eval/lambada.jsonl").read_bytes()
        write("lambada_test.jsonl", b"".join((published / "lambada_test.jsonl").open("rb").readlines()[:-1]))
        refuses_all("cut set")
        check("a refused file does not replace an existing one", Path("eval/lambada.jsonl").read_bytes() == whole)


# ---- Downloads: without a network (a proxy whose name does not resolve), and of a local file ------------------------


def check_downloads():
    os.environ["https_proxy"] = "http://nowhere.invalid:9"
    refuses_all("downloads")
    del os.environ["https_proxy"]
    source, path = Path("other.bpe").resolve(), Path("served/file")
    try:
        fetch.download(source.as_uri(), path, "0" * 64)
    except ValueError as error:
        check(f"another SHA-256: an error and no file: {error}", "published 0000" in str(error)
              and not list(Path("served").iterdir()))
    fetch.download(source.as_uri(), path, fetch.sha256(source))
    check("the file is downloaded", path.read_bytes() == source.read_bytes())


# ---- Corpora: the same 97 documents as JSONL, Parquet and text must give the same shards, in the published order -----

WIKI = ["", " = One = \n", "", " Text = here . \n", " = = Section = = \n", "", " = Two = \n", "", " More . \n"]


def shards(prefix):
    prefix = Path(prefix)
    paths = prefix.parent.glob(f"{prefix.name}_*.bin")
    return {path.name.removeprefix(prefix.name): path.read_bytes() for path in paths}


def shard_of(documents):
    """A shard that `tokenize` writes of these documents."""
    write("documents.txt", "\n<|endoftext|>\n".join(documents))
    Path("documents_train_000000.bin").unlink(missing_ok=True)
    trainer("tokenize", "--tokenizer", "bytes.bpe", "--out", "documents", "--val-frac", 0, "--quiet", "documents.txt")
    return Path("documents_train_000000.bin").read_bytes()


def check_split():
    """Writes docs.jsonl, docs.txt and parquet/. The published split is a permutation of which the first
    ceil(fraction * n) documents are for validation."""
    import numpy
    import pyarrow
    import pyarrow.parquet

    texts = [f"Document {i}: caf\u00e9 \u732b \"quoted\\\" \t{'word ' * (i * 37 % 90)}\n\nend {i}" for i in range(97)]
    write("docs.jsonl", "".join(json.dumps({"n": i, "text": text}) + "\n" for i, text in enumerate(texts)))
    write("docs.txt", "\n<|endoftext|>\n".join(texts))
    table = pyarrow.table({"text": texts, "n": list(range(97))})
    os.makedirs("parquet")
    for i, part in enumerate((table.slice(0, 60), table.slice(60))):
        pyarrow.parquet.write_table(part, f"parquet/train-0000{i}-of-00002.parquet")
    pyarrow.parquet.write_table(table.select(["n"]), "other.parquet")
    pyarrow.parquet.write_table(pyarrow.table({"text": [["a"]]}), "list.parquet")
    os.makedirs("wiki")
    for part, first in (("train", 0), ("validation", 5)):   # one row per line of text, as on the Hugging Face Hub
        pyarrow.parquet.write_table(pyarrow.table({"text": WIKI[first:]}), f"wiki/{part}-0.parquet")

    order, cut = numpy.random.default_rng(2357).permutation(97), math.ceil(0.0005 * 97)
    out = made("corpus.py openwebtext --from docs.jsonl --out a/owt", *SHARDS)
    got = shards("a/owt")
    check("the validation documents are the published ones",
          got.pop("_val_000000.bin") == shard_of([texts[i] for i in order[:cut]]))
    check(f"five training shards have the published order: {sorted(got)}", sorted(got) ==
          [f"_train_{i:06}.bin" for i in range(5)] and b"".join(got[name][1024:] for name in sorted(got))
          == shard_of([texts[i] for i in order[cut:]])[1024:])
    check(f"the number of documents is compared: {out}", "97 " in out and "8,013,769" in out)
    made("corpus.py fineweb --from docs.txt --out c/fine", *SHARDS)
    check("text gives the same shards as JSONL", shards("c/fine") == shards("a/owt"))
    made("corpus.py wikitext103 --from wiki --out f/wiki", *SHARDS)
    second = " \n = Two = \n \n More . \n"
    check("WikiText: one training document per article, one validation document", shards("f/wiki") == {
        "_train_000000.bin": shard_of([" \n = One = \n \n Text = here . \n = = Section = = \n", second]),
        "_val_000000.bin": shard_of([second])})


def check_interrupted():
    """The tokenizer kills the script during the third shard; a second run makes the remaining shards."""
    write("killer", '#!/bin/sh\necho >>calls.txt\n[ "$(wc -l <calls.txt)" -ne 3 ] || kill -9 $PPID\n'
          f'exec {BINARY} "$@"\n')
    os.chmod("killer", 0o755)
    again = ["corpus.py openwebtext --from parquet --out d/owt", *SHARDS]
    done = process(*again, "--binary", os.path.abspath("killer"))
    check(f"SIGKILL in the third shard: {done.stderr}", done.returncode == -9 and len(shards("d/owt")) == 2)
    out = made(*again)
    check(f"the first two shards are reused: {out}", out.count("already exists") == 2)
    check("the shards are the same as from JSONL in one run", shards("d/owt") == shards("a/owt"))
    check("no other files remain", sorted(os.listdir("d")) == sorted(os.listdir("a")))
    done = process("corpus.py tinystories --out e/x", *BYTES, HF_ENDPOINT="https://nowhere.invalid")
    check(f"without a network: one line: {done.stderr}", done.stderr.count("\n") == 1 and all(text in done.stderr
          for text in ("https://nowhere.invalid/datasets", "tree/main", "--from clone/data/source/tiny")))
    check("a failed download writes nothing", not Path("e").exists())


def check_own():
    """The same texts in each of the forms that Hugging Face datasets have on disk."""
    import datasets

    texts = [f"text {i}" for i in range(40)]
    data = datasets.Dataset.from_dict({"n": list(range(40)), "body": texts})
    data.save_to_disk("own/saved")
    datasets.load_from_disk("own/saved").map(lambda row: {"m": row["n"]})
    check("the saved dataset has a cache beside it", len(list(Path("own/saved").glob("*.arrow"))) == 2)
    datasets.DatasetDict(train=data, test=data.select(range(3))).save_to_disk("own/splits")
    data.to_parquet("own/hub/data/train-00000-of-00001.parquet")
    data.select(range(3)).to_parquet("own/hub/data/test-00000-of-00001.parquet")
    data.to_json("own/train.ndjson")
    write("own/half.jsonl", '\n{"body": "text \\ud800"}\n')

    train, test = {"_train_000000.bin": shard_of(texts)}, {"_test_000000.bin": shard_of(texts[:3])}
    half = {"_train_000000.bin": shard_of(["text \ufffd"])}   # of a surrogate pair
    for options, want in (("own/splits", train | test), ("own/hub", train | test),
                          ("own/splits/train own/splits/test", train | test), ("own/train.ndjson", train),
                          ("own/half.jsonl --val-frac 0", half), ("own/saved --val-frac 0", train)):
        made(f"corpus.py own --overwrite --from {options}", *MINE, "own/all")
        check(f"own --from {options}: its splits and texts", shards("own/all") == want)
    made("corpus.py own --from own/saved --val-frac 0.1", *MINE, "own/random")
    got = {name: tokens(f"own/random{name}").count(b"\0\1") for name in shards("own/random")}
    check(f"without names, a tenth of the documents at random: {got}",
          got == {"_train_000000.bin": 36, "_val_000000.bin": 4})


def check_refusals():
    docs = ["--from", "parquet", "--out", "d/owt", *SHARDS]
    refuses_all("corpus", bytes=BYTES, shards=SHARDS, docs=docs, mine=MINE, binary=[BINARY])
    made("corpus.py openwebtext", *docs, "--shard-documents", "50", "--overwrite")
    check("--overwrite starts over",
          sorted(shards("d/owt")) == ["_train_000000.bin", "_train_000001.bin", "_val_000000.bin"])
    check("a failure of the tokenizer leaves only the recipe", [*Path().glob("d/y*")] == [Path("d/y.json")])


def check_published_counts():
    text, published = SHARED / "data/text", ["--tokenizer", "got.bpe", "--binary", BINARY]
    out = made(f"corpus.py shakespeare --from {text}/shakespeare.txt --out s/s", *published)
    check(f"Shakespeare's token counts are the published ones: {out}", out.count(", as published\n") == 2)
    write("other.txt", (text / "shakespeare.txt").read_text().replace("q", "zx"))
    refuses_all("other text", published=published)
    made(f"corpus.py wikitext2 --from {text}/wikitext-2/wiki.valid.tokens --out w/w", *published)
    ids = (SHARED / "data/tokens/wikitext2_valid.u16").read_bytes() + uint16(50256)
    check("WikiText-2's validation shard is tiktoken's, and <|endoftext|>", tokens("w/w_val_000000.bin") == ids)


def main():
    write("bytes.bpe", "")
    check_vocab()
    check_published()
    check_texts()
    check_evalset()
    check_downloads()
    if os.environ.get("QUICK"):
        print("skipped data_scripts: corpora: only in make test_all")
    elif not missing("corpora", "datasets", "numpy"):
        check_split()
        check_interrupted()
        check_own()
        check_refusals()
        if SHARED:
            check_published_counts()
    if not SHARED:
        print("skipped data_scripts: published data: no ../shared")


if __name__ == "__main__":
    main()
