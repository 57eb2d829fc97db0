#!/bin/sh
# test_includes.sh BINARY: the rooms of tost/ may include each other in one direction only, so there are no circles:
# commands -> run -> data, ranks -> core (tost/*.h) -> base. Only the engines see cpu/ and cuda/.

. "$(dirname "$0")/../lib.sh"
cd "$repo" || exit 1
arrows='
base:
core: base
cpu: base
ranks: base core
cuda: base core ranks
data: base core
run: base core ranks data
commands: base core ranks data run
engine: base core ranks cpu cuda commands
'
# Files that still include what their room must not see.
known='run/generate.h:cpu/gemm.h'

grep -H '^ *#include "' tost/*.[ch] tost/*/*.[ch]* train_gpt_tost.c train_gpt_tost.cu | grep -v '"dev/test/' |
    sed 's/: *#include "/ /; s/".*//; s/tost\///g' | while read -r file header; do
    case $file in train_gpt*) from=engine ;; */*) from=${file%%/*} ;; *) from=core ;; esac
    case $header in */*) to=${header%%/*} ;; *) to=core ;; esac
    allowed=$(echo "$arrows" | sed -n "s/^$from://p")
    case " $from $allowed " in *" $to "*) ;; *) echo "$file:$header" ;; esac
done >"$dir/upward"
for exception in $known; do
    check "$exception is gone: remove it from the list of known exceptions" grep -qxF "$exception" "$dir/upward"
    echo "known exception: $exception"
done
while read -r include; do
    check "$include: its room must not see this file" [ "${known#*"$include"}" != "$known" ]
done <"$dir/upward"
finish
