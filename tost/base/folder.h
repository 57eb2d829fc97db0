// folder.h: lists and creates folders; writes and renames files so that they survive a power loss.
#pragma once

#include <stdio.h>

#include "base/files.h"

// The names in a folder, without "." and "..", in any order. free_strings
bool   folder_list(StringList* names, const char* path, TostError* err);
// Makes the names in a folder durable. Does nothing if it may not be read.
bool   sync_dir(const char* path, TostError* err);
// Renames a finished file or folder, over a file that has the name, and makes the new name durable.
bool   rename_synced(const char* from, const char* to, TostError* err);
// A new file, opened for writing, in place of a file, link or FIFO of this name. NULL on failure, see errno.
FILE*  create_file(const char* path);
// Writes the file PATH.tmp and renames it; removes it on failure. Writes to a device, pipe or link itself.
bool   replace_file(const char* path, const char* data, size_t n, TostError* err);
bool   check_writable(const char* path, TostError* err);            // by replace_file, before the data is computed
// PATH SUFFIX N, the first that is free; N is padded with zeros to `digits` digits
Path   free_name(const char* path, const char* suffix, int digits);
bool   make_dirs(const char* path, TostError* err);                 // like mkdir -p
