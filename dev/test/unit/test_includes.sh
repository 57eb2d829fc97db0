#!/bin/sh
# test_includes.sh BINARY: the rooms of tost/ may include each other in one direction only, so there are no circles:
# commands -> run -> store, options -> data, ranks -> core (tost/*.h) -> base. Only the engines see cpu/ and cuda/.

. "$(dirname "$0")/../lib.sh"
cd "$repo" || exit 1
arrows='
base:
core: base
cpu: base core
ranks: base core
cuda: base core ranks
data: base core
options: base core ranks data
store: base core ranks data
run: base core ranks data options store
commands: base core ranks data options store run
engine: base core ranks cpu cuda commands
'
grep -H '^ *#include "' tost/*.[ch] tost/*/*.[ch]* train_gpt_tost.c train_gpt_tost.cu | grep -v '"dev/test/' |
    sed 's/: *#include "/ /; s/".*//; s/tost\///g' | awk -v arrows="$(echo "$arrows" | tr '\n' ';')" '
        function room(file) { return file ~ /^train_gpt/ ? "engine" : sub("/.*", "", file) ? file : "core" }
        BEGIN { for (n = split(arrows, line, ";"); n > 0; n--) { r = line[n]; sub(":.*", "", r); to[r] = line[n] " " } }
        index(to[room($1)], " " room($2) " ") == 0 && room($1) != room($2) { print $1 ":" $2 }' >"$dir/upward"
check "includes against the direction: $(cat "$dir/upward")" empty "$dir/upward"
finish
