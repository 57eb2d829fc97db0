// folder.h: open folders, and folders by path.
#ifndef TOST_FOLDER_H
#define TOST_FOLDER_H

#include "base/error.h"
#include "base/files.h"

// An open folder. Functions use its descriptor, so they reach the same folder even after it is renamed. A
// `const Folder* in` may be NULL: then `name` is a path.
typedef struct { int fd; char* path; } Folder;                     // path: for messages; NULL: not open

typedef enum { FOLDER_SAME, FOLDER_MOVED, FOLDER_REMOVED } FolderState;

bool  folder_open(Folder* f, const Folder* in, const char* name, TostError* err);
void  folder_close(Folder* f);                                     // does nothing if it is not open or zeroed
int   folder_fd(const Folder* in);                                 // for openat and the like
char* folder_path(const Folder* in, const char* name);             // for messages; free()
bool  folder_sync(const Folder* f, TostError* err);
// The names in a folder, without "." and "..", in any order. The array and the names: free_paths
bool  folder_list(PathList* names, const Folder* f, TostError* err);
// Like rm -rf. Files that NFS or FUSE keep under a hidden name because a process has them open remain, with their
// folder.
bool  folder_remove(const Folder* in, const char* name, TostError* err);
// Checks whether path still leads to the folder. Updates path if the folder was moved and its new path is known.
FolderState folder_check(Folder* f);

// By path
bool  sync_dir(const char* path, TostError* err);                  // fsync of a folder: makes renames in it durable
bool  make_dirs(const char* path, TostError* err);                 // like mkdir -p; on failure removes what it made
size_t existing_dirs(const char* path);                            // length of the longest prefix that exists
void  remove_new_dirs(const char* path, size_t existing);          // removes the empty folders beyond that prefix

#endif
