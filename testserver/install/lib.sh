# Sourced by the scripts beside it. Each of those installs one server and does nothing when it is there.
set -euo pipefail

servers="${CONVERGO_SERVERS:-${XDG_CACHE_HOME:-$HOME/.cache}/convergo/servers}"
mkdir -p "$servers"
exec 9>"$servers/.lock"

# packages installs Debian packages that are missing. Services that come with them are not started: tests start their own.
packages() {
    local missing=() p
    for p in "$@"; do
        [[ "$(dpkg-query -W -f='${Status}' "$p" 2>/dev/null)" == "install ok installed" ]] || missing+=("$p")
    done
    ((${#missing[@]})) || return 0
    if [[ $EUID -ne 0 ]]; then
        echo "not root, so these Debian packages are not installed: ${missing[*]}" >&2
        return 1
    fi
    flock 9
    local policy=/usr/sbin/policy-rc.d ours=""
    if [[ ! -e $policy ]]; then
        printf '#!/bin/sh\nexit 101\n' >"$policy"
        chmod 755 "$policy"
        ours=yes
    fi
    local failed=0
    find /var/lib/apt/lists -maxdepth 1 -name '*Packages*' -mmin -600 2>/dev/null | grep -q . ||
        apt-get -o DPkg::Lock::Timeout=300 update -qq || failed=1
    ((failed)) || DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 install -y -qq --no-install-recommends "${missing[@]}" >/dev/null || failed=1
    [[ -z $ours ]] || rm -f "$policy"
    flock -u 9
    return $failed
}
