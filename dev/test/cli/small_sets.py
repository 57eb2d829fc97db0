"""Writes small evaluation sets with one choice, as of LAMBADA, and with several, as of HellaSwag, made of the starter
stories of another seed, and small streams of the starter's validation shard.

    small_sets.py FOLDER     for dev/reproduce.sh --smoke
"""

import json
import random
import struct
import sys
from pathlib import Path

REPO = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(REPO / "dev" / "data"))

import evalset
import starter

EXAMPLES, STREAM = 24, 3000  # examples of a task, tokens of a stream
KEYS = ("context", "choices", "answer")


def main():
    out, rng = Path(sys.argv[1]), random.Random(7)
    marked = list(starter.stories(17, 200))
    recall = [[item[key] for key in KEYS] for text in marked for item in starter.recall(text, rng)]
    words = [evalset.last_word(starter.plain(text).rstrip(" .?!\n")) for text in marked[:EXAMPLES]]
    for folder in ("eval", "published"):
        (out / folder).mkdir(parents=True, exist_ok=True)
    for name, examples in (("last_word_1", words[::2]), ("last_word_2", words[1::2]), ("recall", recall[:EXAMPLES]),
                           ("cloze_1", recall[-16:-8]), ("cloze_2", recall[-8:])):
        lines = [json.dumps(dict(zip(KEYS, example))) + "\n" for example in examples]
        (out / f"eval/{name}.jsonl").write_text("".join(lines), encoding="utf-8")
    tokens = (REPO / "data/starter/starter_val_000000.bin").read_bytes()[1024:]
    for part, name in enumerate(("stories_1", "stories_2", "stories_3")):
        shard = struct.pack("<256i", 20240520, 1, STREAM, *[0] * 253)
        shard += tokens[2 * STREAM * part: 2 * STREAM * (part + 1)]
        (out / f"published/{name}_test_000000.bin").write_bytes(shard)


if __name__ == "__main__":
    main()
