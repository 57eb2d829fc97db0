// command_inspect.h: what a model makes of one text, token by token and layer by layer, as a safetensors file for pictures.
//   tokens   I32 (T)        ids of the text
//   offsets  I32 (T+1)      token t is text[offsets[t] .. offsets[t+1])
//   loss     F32 (T)        -log p(token t | tokens before it), nats; NaN for the first
//   pi       F32 (L,NH,T)   membership of each token in each head
//   w        F32 (L,T,C)    tokens in the heads' subspaces: head h has channels [h·C/NH, (h+1)·C/NH)
//   text     U8  (bytes)
// __metadata__ has the config as a checkpoint has it, content "inspect", model, step, tokenizer and text_tokens (those
// of the whole text, of which the first block_size are here).
#ifndef TOST_COMMAND_INSPECT_H
#define TOST_COMMAND_INSPECT_H

#include "tokenizer.h"

// Ids of a text in which a line <|endoftext|> ends a document, as in the input of tokenize. ids has room for n.
size_t encode_documents(uint32_t* ids, const Tokenizer* tokenizer, const char* text, size_t n);

#endif
