#!/usr/bin/env bash
# What the programs of examples/python and examples/java need: below $servers/languages a virtual environment of Python, and
# the jars of the JDBC drivers; the versions are those that the examples name.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

examples="$(cd "$(dirname "${BASH_SOURCE[0]}")/../../examples" && pwd)"
into="$servers/languages"
# Other versions are another installation.
wanted="$(cat "$examples/python/requirements.txt" "$examples/java/pom.xml" | sha256sum | cut -d' ' -f1)"
[[ -e $into/complete && $(<"$into/complete") == "$wanted" ]] && exit 0

python=/usr/bin/python3 # Debian's own, which stays where it is
[[ -x $python ]] && $python -c 'import ensurepip' 2>/dev/null || packages python3 python3-venv
command -v javac >/dev/null || packages openjdk-17-jdk-headless
command -v mvn >/dev/null || packages maven

# An environment knows its own path, so it is made in its place; the mark that says it is whole comes last.
flock 9
rm -rf "$into"
mkdir -p "$into"
trap '[[ -e $into/complete ]] || rm -rf "$into"' EXIT
$python -m venv "$into/python"
"$into/python/bin/pip" install --quiet --disable-pip-version-check -r "$examples/python/requirements.txt"
mvn -q -B -f "$examples/java/pom.xml" dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory="$into/java"
ls "$into"/java/postgresql-*.jar "$into"/java/mysql-connector-j-*.jar >/dev/null
echo "$wanted" >"$into/complete"
