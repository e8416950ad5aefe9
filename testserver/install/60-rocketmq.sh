#!/usr/bin/env bash
# RocketMQ: the name server, the broker and the admin tool of one version, as jars from Maven.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

version=5.3.3
into="$servers/rocketmq-$version"
[[ -e $into/complete ]] && exit 0

command -v java >/dev/null || packages openjdk-17-jdk-headless
command -v mvn >/dev/null || packages maven

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
cat >"$work/pom.xml" <<POM
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>convergo.testserver</groupId>
  <artifactId>rocketmq</artifactId>
  <version>1</version>
  <dependencies>
    <dependency><groupId>org.apache.rocketmq</groupId><artifactId>rocketmq-namesrv</artifactId><version>$version</version></dependency>
    <dependency><groupId>org.apache.rocketmq</groupId><artifactId>rocketmq-broker</artifactId><version>$version</version></dependency>
    <dependency><groupId>org.apache.rocketmq</groupId><artifactId>rocketmq-tools</artifactId><version>$version</version></dependency>
  </dependencies>
</project>
POM
# The copy is made beside its place and moved there whole, so that a broken download never looks like an installation.
rm -rf "$into" "$into.new"
mvn -q -B -f "$work/pom.xml" dependency:copy-dependencies -DoutputDirectory="$into.new/lib" -DincludeScope=runtime
touch "$into.new/complete"
mv "$into.new" "$into"
