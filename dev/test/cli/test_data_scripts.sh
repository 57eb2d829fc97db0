#!/bin/sh
# test_data_scripts.sh BINARY: tests the scripts in dev/data with local files and without a network, and --help of all
# scripts without packages.
# Most corpora are generated here, with bytes as tokens; published ones are tested if ../shared contains them.
#   PYTHON    tests that need datasets or numpy are skipped if this Python lacks them
#   QUICK=1   skips the tests of corpora, which need datasets

. "$(dirname "$0")/../lib.sh"

# A copy of the scripts, because they write to data/ in their repository.
mkdir -p clone/dev
for folder in data plot reference; do cp -r "$repo/dev/$folder" clone/dev; done
export HF_HOME="$dir/hf" HF_HUB_DISABLE_TELEMETRY=1
unset http_proxy https_proxy all_proxy HTTP_PROXY HTTPS_PROXY ALL_PROXY HF_ENDPOINT HF_HUB_OFFLINE

if "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    checks_of "$repo/dev/test/cli/data_scripts.py" "$binary" "$shared"
    # -S: without installed packages
    for script in $(grep -l '^if __name__ == "__main__"' "$repo"/dev/[!t]*/*.py); do
        succeeds "$python" -S -E -s "$script" --help
        check "${script##*/} --help: text, and nothing on stderr" [ -s stdout -a ! -s stderr ]
    done
else
    skip "all: $python is not Python 3.11 or later"
fi
finish
