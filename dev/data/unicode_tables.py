#!/usr/bin/env python3
"""Writes tost/unicode_tables.h: the class of every code point under GPT-2's pattern.

    python3 dev/data/unicode_tables.py > tost/unicode_tables.h

The classes are \\p{L}, \\p{N} and \\s (White_Space) of Unicode 16.0, the version behind tiktoken 0.14 and
Python 3.14. Under another Python: pip install unicodedata2==16.0.0, which brings the same module.
"""
import sys

try:
    import unicodedata2 as unicodedata
except ImportError:
    import unicodedata

VERSION = "16.0.0"
OTHER, LETTER, NUMBER, SPACE = range(4)
BLOCK = 256  # code points a block, 32 to a word

# White_Space of PropList.txt, which Python's str.isspace() is not: that adds U+001C..U+001F.
WHITE_SPACE = {*range(0x09, 0x0E), 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F,
               0x205F, 0x3000}


def char_class(code):
    if code in WHITE_SPACE:
        return SPACE
    return {"L": LETTER, "N": NUMBER}.get(unicodedata.category(chr(code))[0], OTHER)


def block_words(first):
    words = range(first, first + BLOCK, 32)
    return tuple(sum(char_class(word + i) << 2 * i for i in range(32)) for word in words)


def print_rows(items, per_row):
    for i in range(0, len(items), per_row):
        print("    " + " ".join(item + "," for item in items[i:i + per_row]))


HEAD = f"""\
// unicode_tables.h: classes of code points, Unicode {VERSION}. Made by dev/data/unicode_tables.py.
#ifndef TOST_UNICODE_TABLES_H
#define TOST_UNICODE_TABLES_H

#include <stdint.h>

// [^\\s\\p{{L}}\\p{{N}}], \\p{{L}}, \\p{{N}}, \\s
typedef enum {{ CHAR_OTHER, CHAR_LETTER, CHAR_NUMBER, CHAR_SPACE }} CharClass;
"""

TAIL = f"""
static inline CharClass unicode_class(uint32_t c) {{
    if (c >= UNICODE_LIMIT) return CHAR_OTHER;
    return (CharClass)((unicode_blocks[unicode_index[c / {BLOCK}]][c % {BLOCK} / 32] >> (c % 32 * 2)) & 3);
}}

#endif"""


def main():
    have = unicodedata.unidata_version
    if have != VERSION:
        sys.exit(f"wants Unicode {VERSION}, not {have}: pip install unicodedata2=={VERSION}")
    blocks, index = {}, []
    for first in range(0, 0x110000, BLOCK):
        index.append(blocks.setdefault(block_words(first), len(blocks)))
    other = blocks[(OTHER,) * (BLOCK // 32)]
    while index[-1] == other:
        index.pop()

    print(HEAD)
    print(f"enum {{ UNICODE_LIMIT = 0x{len(index) * BLOCK:x} }};  // from here on all are CHAR_OTHER\n")
    print(f"// Code point c is described in block unicode_index[c / {BLOCK}].")
    print(f"static const uint8_t unicode_index[{len(index)}] = {{")
    print_rows([f"{i}" for i in index], 22)
    print("};\n\n// Two bits a code point, the lowest first.")
    print(f"static const uint64_t unicode_blocks[{len(blocks)}][{BLOCK // 32}] = {{")
    for block in blocks:
        print("    {")
        print_rows([f"0x{word:x}" for word in block], 4)
        print("    },")
    print("};")
    print(TAIL)


main()
