// key_values.h: a list of keys and their values, all strings.
#pragma once

#include "base/memory.h"

typedef struct { char *key, *value; } KeyValue;
typedef struct { int count; KeyValue* entry; } KeyValues;

// Takes ownership of both strings.
static inline void key_values_add(KeyValues* list, char* key, char* value) {
    list->entry = (KeyValue*)xgrow(list->entry, (size_t)list->count, sizeof *list->entry);   // the cast is for C++
    list->entry[list->count++] = (KeyValue){key, value};
}

static inline void key_values_free(KeyValues* list) {
    for (int i = 0; i < list->count; i++) {
        free(list->entry[i].key);
        free(list->entry[i].value);
    }
    free(list->entry);
}

static inline const char* key_values_find(const KeyValues* list, const char* key) {   // its value, or NULL
    for (int i = 0; i < list->count; i++)
        if (strcmp(list->entry[i].key, key) == 0) return list->entry[i].value;
    return NULL;
}
