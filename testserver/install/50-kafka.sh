#!/usr/bin/env bash
# Kafka, from its Maven jars, with the Java that runs it. Below $servers/kafka-VERSION there is lib/ with all jars, or nothing.
. "$(dirname "$0")/lib.sh"

version=4.1.1
slf4j=1.7.36
target="$servers/kafka-$version"
[[ -d $target/lib ]] && exit 0

command -v java >/dev/null || packages openjdk-17-jre-headless
command -v mvn >/dev/null || packages maven

# Built beside its place and moved there in one step, so that a run that was cut off leaves nothing that looks whole.
work="$(mktemp -d "$servers/.kafka-XXXXXX")"
trap 'rm -rf "$work"' EXIT
cat >"$work/pom.xml" <<POM
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>convergo.test</groupId>
  <artifactId>kafka</artifactId>
  <version>1</version>
  <dependencies>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>$version</version></dependency>
    <dependency><groupId>org.slf4j</groupId><artifactId>slf4j-simple</artifactId><version>$slf4j</version></dependency>
  </dependencies>
</project>
POM
mvn -q -B -f "$work/pom.xml" dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory="$work/lib"
ls "$work"/lib/kafka_2.13-"$version".jar >/dev/null
rm -f "$work/pom.xml"
chmod 755 "$work"
mv -T "$work" "$target" 2>/dev/null || [[ -d $target/lib ]] # somebody else was faster
