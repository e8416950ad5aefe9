#!/usr/bin/env bash
# Installs every server that the tests start; see docs of package testserver. It needs Debian and root, and takes a few minutes the first time.
set -uo pipefail
cd "$(dirname "$0")"
failed=0
for script in *.sh; do
    [[ $script == all.sh || $script == lib.sh ]] && continue
    printf -- '-- %s  %s\n' "$(date -u +%H:%M:%S)" "${script%.sh}"
    bash "$script" || { echo "${script%.sh}: not installed" >&2; failed=1; }
done
exit $failed
