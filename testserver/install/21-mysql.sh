#!/usr/bin/env bash
# Real MySQL. Debian packages it in unstable only, so a small tree of that is made below $servers and mysqld is run out of it with
# the tree's own loader and libraries; nothing of it is installed into the machine. The tree is made by debootstrap, which needs
# root (it changes into the tree, to configure packages); running what was made does not. About 600 MB and three minutes.
. "$(dirname "$0")/lib.sh"

tree="$servers/mysql"
[[ ! -x $tree/usr/sbin/mysqld ]] || exit 0
if [[ $EUID -ne 0 ]]; then
    echo "not root, so MySQL is not installed: debootstrap needs chroot" >&2
    exit 1
fi
packages debootstrap

# mirrors lists the repositories of Debian that apt uses, security updates aside, the likeliest first.
mirrors() {
    apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Origin: Debian' 'Label: Debian'
    # Before apt has fetched its lists it does not know whose they are.
    apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Component: main' | grep -i debian | grep -v -e security
}
mirror="$(mirrors | grep -E '^(https?|file|copy):' | head -n 1 || true)"
if [[ -z $mirror ]]; then
    echo "apt knows no Debian repository by http, https or file, from which MySQL could be fetched" >&2
    exit 1
fi
# What apt fetches through, debootstrap does too.
for scheme in http https; do
    proxy=""
    eval "$(apt-config shell proxy "Acquire::$scheme::Proxy")"
    [[ -z $proxy || $proxy == DIRECT ]] || export "${scheme}_proxy=$proxy"
done

# Only a whole tree gets the name that counts: one that was left half made has another, and goes.
flock 9
trap 'rm -rf "$servers"/mysql.new-*' EXIT
rm -rf "$servers"/mysql.new-* "$tree"
new="$servers/mysql.new-$$"
if ! debootstrap --variant=minbase --include=mysql-server-core sid "$new" "$mirror" >"$servers/mysql.log" 2>&1; then
    tail -n 20 "$servers/mysql.log" "$new/debootstrap/debootstrap.log" >&2 || true
    exit 1
fi
rm -rf "$new"/var/cache/apt/archives/*.deb "$new"/var/lib/apt/lists/* "$new"/usr/share/{doc,man,locale}/*
[[ -x $new/usr/sbin/mysqld ]]
mv "$new" "$tree"
