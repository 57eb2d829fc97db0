"""Writes small evaluation sets in the formats of LAMBADA, HellaSwag and CBT, made of the starter stories of another
seed, and small streams of the starter's validation shard.

    small_sets.py FOLDER     for dev/reproduce.sh --smoke
"""

import json
import random
import re
import struct
import sys
from pathlib import Path

REPO = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(REPO / "dev" / "data"))

import evalset
import starter

EXAMPLES, STREAM = 24, 3000  # examples of a task, tokens of a stream


def cbt_example(text, rng):
    """20 numbered sentences and a question about the last word of the 21st; None if the text is too short."""
    sentences = re.findall(r"[^.?!\n]+[.?!]", text)[:21]
    words = sorted(set(re.findall(r"[a-z]{4,}", text)))
    if len(sentences) < 21 or len(words) < 10:
        return None
    question = sentences.pop().strip()
    answer = re.findall(r"\w+", question)[-1]
    others = rng.sample([word for word in words if word != answer], 9)
    gap = re.sub(rf"\b{answer}\b", "XXXXX", question)
    lines = [f"{i} {sentence.strip()}" for i, sentence in enumerate(sentences, 1)]
    return evalset.cbt([*lines, f"21 {gap}\t{answer}\t\t{'|'.join(sorted([answer, *others]))}"])


def main():
    out, rng = Path(sys.argv[1]), random.Random(7)
    marked = list(starter.stories(17, 200))
    texts = [starter.plain(text) for text in marked]
    recall = [item for text in marked for item in starter.recall(text, rng)]
    cbt = [example for example in (cbt_example("\n".join(texts[i:i + 4]), rng) for i in range(0, 200, 4)) if example]
    words = [evalset.last_word(text.rstrip(" .?!\n")) for text in texts[:EXAMPLES]]
    recall = [(item["context"], item["choices"], item["answer"]) for item in recall[:EXAMPLES]]
    for folder in ("eval", "published"):
        (out / folder).mkdir(parents=True, exist_ok=True)
    for name, examples in (("last_word_1", words[::2]), ("last_word_2", words[1::2]), ("recall", recall),
                           ("cloze_1", cbt[:8]), ("cloze_2", cbt[8:16])):
        lines = [json.dumps(dict(zip(("context", "choices", "answer"), example))) + "\n" for example in examples]
        (out / f"eval/{name}.jsonl").write_text("".join(lines), encoding="utf-8")
    tokens = (REPO / "data/starter/starter_val_000000.bin").read_bytes()[1024:]
    for part, name in enumerate(("stories_1", "stories_2", "stories_3")):
        shard = struct.pack("<256i", 20240520, 1, STREAM, *[0] * 253)
        shard += tokens[2 * STREAM * part: 2 * STREAM * (part + 1)]
        (out / f"published/{name}_test_000000.bin").write_bytes(shard)


if __name__ == "__main__":
    main()
