#!/bin/sh
# test_limit.sh BINARY: dev/test/run.sh ends a program that never ends, with its children, and counts it as failed.
. "$(dirname "$0")/../lib.sh"

mkdir -p dev/test/cli
printf '#!/bin/sh\necho "test_tost: 2 passed, 0 failed, 0 skipped"\n' >test_tost
printf '#!/bin/sh\nsleep 90 >held &\necho "hangs: 1 passed, 0 failed, 0 skipped"\nwait\n' >dev/test/cli/test_hangs.sh
chmod +x test_tost dev/test/cli/test_hangs.sh
mkfifo held
{ cat held >/dev/null && : >ended; } &   # until the child has ended
LIMIT=1 SCRIPTS=hangs NO_EMULATION='' execute "$repo/dev/test/run.sh"
check "exit status $status, expected 1" [ $status -eq 1 ]
check "names the program: $(cat stdout stderr)" says 'dev/test/cli/test_hangs.sh: did not end in 1 s' stdout
check "counts it as failed: $(tail -n 1 stdout)" [ "$(tail -n 1 stdout)" = '2 passed, 1 failed, 0 skipped' ]
: <>held   # in case the child had not begun
if command -v setsid >/dev/null || sh -c 'set -m; case $- in *m*) ;; *) exit 1 ;; esac' 2>/dev/null; then
    check "ends its child" until_true [ -e ended ]
else
    skip 'process groups: no setsid (util-linux), and sh has no set -m without a terminal'
fi
finish
