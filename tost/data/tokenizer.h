// tokenizer.h: GPT-2's byte-level BPE with identical token ids. A vocab.bpe (or merges.txt) defines the vocabulary:
// 256 byte tokens in GPT-2's order, one token per merge, <|endoftext|> last.
#pragma once

#include "base/files.h"

#define TOKENIZER_FILE "vocab.bpe"
#define END_OF_TEXT "<|endoftext|>"   // the last token, and the separator line between documents of plain text

enum { TOKENIZER_MAX_FILE = 1 << 24 };   // bytes of a vocab.bpe

typedef struct Tokenizer Tokenizer;
typedef struct TokenizerCache TokenizerCache;

Tokenizer*  tokenizer_open(const char* path, TostError* err);   // NULL on error; without merges: one token per byte
// Finds OUT_vocab.bpe for a shard OUT_train_000000.bin or, if that does not exist, vocab.bpe in the folder of the file.
bool        tokenizer_beside(Path* path, const char* file);
void        tokenizer_free(Tokenizer* t);
int         tokenizer_size(const Tokenizer* t);                 // number of tokens, <|endoftext|> included
int         tokenizer_eot(const Tokenizer* t);                  // id of <|endoftext|>, the last token
const char* tokenizer_path(const Tokenizer* t);
const Bytes* tokenizer_file(const Tokenizer* t);                // its contents
uint32_t    tokenizer_hash(const Tokenizer* t);                 // CRC-32 of the vocab.bpe
const char* tokenizer_piece(const Tokenizer* t, uint32_t id, size_t* len);   // its bytes; NULL, 0 if id >= size

// Encodes n bytes as one document and returns the number of tokens, at most n. Any bytes are valid; "<|endoftext|>" is
// ordinary text. The cache, NULL for none, stores the ids of recent words, which is several times faster for long
// texts. Each thread needs its own cache, and a cache is for one tokenizer.
size_t tokenizer_encode(const Tokenizer* t, TokenizerCache* cache, uint32_t* ids, const char* text, size_t n);
TokenizerCache* tokenizer_cache_new(void);   // free()

// A vocab.bpe has a character for each byte: printable Latin-1 is itself, the other 68 bytes are U+0100, U+0101 and so
// on. Byte tokens are ordered by these characters. The byte of a character, or -1.
int alphabet_byte(uint32_t character);

// The pieces that GPT-2's pattern splits a text into are encoded one by one. The end of the piece that begins at p < n.
// pattern_prepare must have been called; tokenizer_open does it.
size_t pattern_end(const char* text, size_t p, size_t n);
void   pattern_prepare(void);

// The last position c in (0, n) where the text can be split: encoding the two parts gives the same ids as encoding the
// whole, for any text after text[n - 1]. 0 if there is none, that is, if no space or line feed follows a character that
// is not white space.
size_t tokenizer_last_cut(const char* text, size_t n);
