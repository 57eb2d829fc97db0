// key_values.h: a list of keys and their values, all strings.
#ifndef TOST_KEY_VALUES_H
#define TOST_KEY_VALUES_H

typedef struct { char *key, *value; } KeyValue;
typedef struct { int count; KeyValue* entry; } KeyValues;

void key_values_add(KeyValues* list, char* key, char* value);   // takes ownership of both strings
void key_values_free(KeyValues* list);

#endif
