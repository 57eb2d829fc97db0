#!/bin/sh
# test_make.sh BINARY: make uses CPPFLAGS, LDFLAGS, AR, and ARCH after CFLAGS.

. "$(dirname "$0")/../lib.sh"
MAKEFLAGS='' "$(command -v gmake || echo make)" -C "$repo" -nB V=1 CC=echo CFLAGS=-march=first ARCH=-march=second \
    CPPFLAGS=-Dmarked LDFLAGS=-Lmarked AR=marked train_gpt_tost >commands 2>stderr
check "ARCH replaces the -march of CFLAGS" grep -q -e '-march=first .*-march=second .*-c train_gpt_tost.c' commands
check "CPPFLAGS is used to compile" grep -q -e '-Dmarked .*-c train_gpt_tost.c' commands
check "LDFLAGS is used to link" grep -q -e '-o train_gpt_tost .*-Lmarked' commands
check "AR is used" grep -q -e 'marked rcs ' commands
finish
