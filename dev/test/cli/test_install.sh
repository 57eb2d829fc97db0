#!/bin/sh
# test_install.sh BINARY: make install and uninstall; the installed program and its completion for bash.

. "$(dirname "$0")/../lib.sh"
export OMP_NUM_THREADS=1 MAKEFLAGS=''
if [ "$binary" != "$repo/train_gpt_tost" ]; then
    skip "make install: the program is not $repo/train_gpt_tost"
    finish
fi
make=$(command -v gmake || echo make)
# -o: installs the program as it is
make_it() { (umask 077 && "$make" -C "$repo" -o train_gpt_tost --no-print-directory "$@" >stdout 2>stderr); }

"$make" -C "$repo" -nB V=1 CPPFLAGS=-Dmarked LDFLAGS=-Lmarked AR=marked train_gpt_tost >commands 2>stderr
check "CPPFLAGS is used to compile" grep -q -e '-Dmarked .*-c train_gpt_tost.c' commands
check "LDFLAGS is used to link" grep -q -e '-o train_gpt_tost .*-Lmarked' commands
check "AR is used" grep -q -e 'marked rcs ' commands

mkdir "a root"
check "make install" make_it install DESTDIR="$dir/a root" PREFIX=/opt/tost
prefix="a root/opt/tost"
completion="$prefix/share/bash-completion/completions/train_gpt_tost"
check "the program is installed" cmp -s "$binary" "$prefix/bin/train_gpt_tost"
for file in "$repo"/data/starter/*; do
    check "${file##*/} is installed" cmp -s "$file" "$prefix/share/train_gpt_tost/starter/${file##*/}"
done
check "all users can read the files" [ -z "$(find "a root/opt" ! -perm -444)" ]
check "all users can run the program" [ -n "$(find "$prefix/bin/train_gpt_tost" -perm 755)" ]

# ---- The default run works in any folder, and can be resumed ---------------------------------------------------------

mkdir elsewhere links
ln -s "$dir/$prefix/bin/train_gpt_tost" links
few="--layers 1 --heads 2 --channels 8 --total-batch 1024 --sample-tokens 4"
for how in "$dir/$prefix/bin/train_gpt_tost" links/train_gpt_tost; do
    # shellcheck disable=SC2086
    (cd elsewhere && PATH="$dir/links:$PATH" && "${how#links/}" --steps 1 $few) >stdout 2>stderr
    check "the default run as $how: $(cat stderr)" [ -d elsewhere/out/starter-001/step_00000001 ]
    check "its data is the installed one" says "$prefix/share/train_gpt_tost/starter/starter_train_" stdout
    check "its samples use the installed vocabulary" says "sample after step 1" stdout
    mv elsewhere/out "elsewhere/$(basename "$(dirname "$how")")"
done
(cd elsewhere && "$dir/links/train_gpt_tost" --resume --out bin/starter-001 --steps 2 --quiet) 2>stderr
check "it is resumed: $(cat stderr)" [ -d elsewhere/bin/starter-001/step_00000002 ]

# ---- Completion ------------------------------------------------------------------------------------------------------

# completes WANTED WORD…: bash completes the last word to the words WANTED.
completes() {
    wanted=$1
    shift
    got=$(PATH="$prefix/bin:$PATH" bash -c '. "$1"; shift; COMP_WORDS=(train_gpt_tost "$@") COMP_CWORD=$#
                   _train_gpt_tost; echo "${COMPREPLY[*]}"' - "$completion" "$@" 2>&1)
    check "bash completes '$*' to '$got', expected '$wanted'" [ "$got" = "$wanted" ]
}
if command -v bash >/dev/null; then
    completes "sample" sa
    completes "--steps" --ste
    completes "starter small tost-base tost-medium tost-large" --preset ''
    completes "ema" eval --weights = e
    completes "" info out
else
    skip "no bash: completion"
fi

check "make uninstall" make_it uninstall DESTDIR="$dir/a root" PREFIX=/opt/tost
check "make uninstall removes all files: $(find "a root" -type f)" [ -z "$(find "a root" -type f)" ]
check "make uninstall removes its folder" [ ! -d "$prefix/share/train_gpt_tost" ]
check "make install changes nothing else" [ -x "$binary" ]
finish
