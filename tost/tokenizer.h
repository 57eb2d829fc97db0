// tokenizer.h: GPT-2's byte-level BPE, exact to the token. A published vocab.bpe (or merges.txt) is the whole
// definition: 256 byte tokens in GPT-2's order, one token a merge, <|endoftext|> last.
#ifndef TOST_TOKENIZER_H
#define TOST_TOKENIZER_H

#include "util.h"

#define END_OF_TEXT "<|endoftext|>"   // the last token, and the line that ends a document of plain text

typedef struct Tokenizer Tokenizer;
typedef struct TokenizerCache TokenizerCache;

Tokenizer*  tokenizer_open(const char* path, TostError* err);   // NULL on error; a file without merges: bytes
void        tokenizer_free(Tokenizer* t);
int         tokenizer_size(const Tokenizer* t);                 // tokens, <|endoftext|> included
int         tokenizer_eot(const Tokenizer* t);                  // id of <|endoftext|>: size - 1
const char* tokenizer_path(const Tokenizer* t);
uint32_t    tokenizer_hash(const Tokenizer* t);                 // CRC-32 of the file
const char* tokenizer_piece(const Tokenizer* t, uint32_t id, size_t* len);  // its bytes; NULL: no such id

// Encodes n bytes of any content as one document. ids has room for n. Returns the number of tokens.
// "<|endoftext|>" in the text is ordinary text. Thread-safe: several threads may encode with one tokenizer.
size_t tokenizer_encode(const Tokenizer* t, uint32_t* ids, const char* text, size_t n);

// The same ids, several times as fast on much text: the cache remembers how words were split. It serves one
// thread at a time, and one tokenizer for its life.
TokenizerCache* tokenizer_cache_new(void);
void            tokenizer_cache_free(TokenizerCache* cache);
size_t          tokenizer_encode_cached(const Tokenizer* t, TokenizerCache* cache, uint32_t* ids,
                                        const char* text, size_t n);

// The last c in (0, n) at which the text may be cut: the ids of both parts, joined, are those of the whole,
// whatever follows text[n - 1]. 0 if there is none: no white space follows anything else.
size_t tokenizer_last_cut(const char* text, size_t n);

// Documents of plain text are separated by lines that are exactly <|endoftext|>, ended by LF or CRLF; neither that line
// nor the line end before it belongs to one. Where such a line stands in s[from .. n), true: the document is
// s[from .. *end), the next begins at *next. s begins a line; one that may go on beyond n counts only if nothing
// comes: last.
bool document_ends(size_t* end, size_t* next, const char* s, size_t from, size_t n, bool last);

#endif
