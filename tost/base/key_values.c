#include "base/key_values.h"

#include <stdlib.h>

#include "base/memory.h"

void key_values_add(KeyValues* list, char* key, char* value) {
    list->entry = xrealloc(list->entry, ((size_t)list->count + 1) * sizeof *list->entry);
    list->entry[list->count++] = (KeyValue){key, value};
}

void key_values_free(KeyValues* list) {
    for (int i = 0; i < list->count; i++) {
        free(list->entry[i].key);
        free(list->entry[i].value);
    }
    free(list->entry);
}
