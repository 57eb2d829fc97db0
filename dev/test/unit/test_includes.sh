#!/bin/sh
# test_includes.sh BINARY: the rooms of tost/ may include each other in one direction only, so there are no circles:
# commands -> run -> store -> options -> data, ranks -> core (tost/*.h) -> base. Only the engines see cpu/ and cuda/.

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
store: base core ranks data options
run: base core ranks data options store
commands: base core ranks data options store run
engine: base core ranks cpu cuda commands
'
grep -H '^ *#include "' tost/*.[ch] tost/*/*.[ch]* train_gpt_tost.c train_gpt_tost.cu | grep -v '"dev/test/' |
    sed 's/: *#include "/ /; s/".*//; s/tost\///g' | while read -r file header; do
    case $file in train_gpt*) from=engine ;; */*) from=${file%%/*} ;; *) from=core ;; esac
    case $header in */*) to=${header%%/*} ;; *) to=core ;; esac
    allowed=$(echo "$arrows" | sed -n "s/^$from://p")
    case " $from $allowed " in *" $to "*) ;; *) echo "$file:$header" ;; esac
done >"$dir/upward"
check "includes against the direction: $(cat "$dir/upward")" empty "$dir/upward"
finish
