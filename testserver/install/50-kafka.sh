#!/usr/bin/env bash
# Kafka, from its Maven jars, with the Java that runs it. Below $servers/kafka-VERSION there is lib/ with all jars, or nothing.
. "$(dirname "$0")/lib.sh"

version=4.1.1
slf4j=1.7.36
target="$servers/kafka-$version"
[[ -d $target/lib && -e $target/classes.jsa ]] && exit 0

command -v java >/dev/null || packages openjdk-17-jre-headless
command -v mvn >/dev/null || packages maven

# archive writes down the classes that a server loads, so that the servers of the tests start in a third of the time. Without it
# they start all the same. The options must be those of testserver/kafka.go.
archive() {
    local work port=$((20000 + RANDOM % 10000)) pid
    work="$(mktemp -d)"
    printf '%s\n' process.roles=broker,controller node.id=1 "controller.quorum.voters=1@127.0.0.1:$((port + 1))" \
        "listeners=PLAINTEXT://127.0.0.1:$port,CONTROLLER://127.0.0.1:$((port + 1))" controller.listener.names=CONTROLLER \
        "log.dirs=$work/data" offsets.topic.replication.factor=1 >"$work/server.properties"
    java -Xmx128m -XX:+UseSerialGC -cp "$target/lib/*" kafka.tools.StorageTool \
        format -t convergoarchive000000A -c "$work/server.properties" --ignore-formatted >/dev/null 2>&1
    java -Xms192m -Xmx512m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:ArchiveClassesAtExit="$work/classes.jsa" \
        -cp "$target/lib/*" kafka.Kafka "$work/server.properties" >"$work/log" 2>&1 &
    pid=$!
    for _ in $(seq 600); do
        grep -q 'Kafka Server started' "$work/log" && break
        sleep 0.1
    done
    kill "$pid" 2>/dev/null
    wait "$pid" || true
    mv "$work/classes.jsa" "$target/.classes-$$" && mv "$target/.classes-$$" "$target/classes.jsa"
    rm -rf "$work"
}

if [[ -d $target/lib ]]; then
    (archive) || true
    exit 0
fi

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
(archive) || true
