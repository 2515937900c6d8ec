#!/usr/bin/env bash
# The real Apache RocketMQ on this machine, from Maven Central, loopback only: a judge for our own store and server.
# RELEASE (5.3.3) chooses the release of everything: broker, client, name server, tools, dump; with the libraries of its own poms.
# Of releases before 5.3 only broker and client run; name server and dump are then 5.3.3's.
#   oracle.sh build                          download jars (mvn), compile src/ (once for these sources; into $ORACLE_HOME)
#   oracle.sh namesrv DIR                    start a name server on 127.0.0.1:9876 (pid in DIR/pid)
#   oracle.sh conf STORE CL CQ [k=v ...]     print a broker.conf (file sizes in bytes)
#   oracle.sh broker DIR CONF                start a broker (pid in DIR/pid)
#   oracle.sh stop DIR [SIGNAL]              stop what runs in DIR and wait for it
#   oracle.sh dump STORE OUT.jsonl conf=CONF strict=1 [k=v ...]     open a COPY of a store offline and list everything
#   oracle.sh java CLASS ARGS...             a class of src/ (Produce, Send, PutRecords, Bench, Proxy, HaSend, SlaveMain, ...) or of the jars
# dump's exit code: 0 ok; 3 load or recovery failed; 4 start failed; 5 a queue entry is unreadable, 7 fewer messages in the queues than
# valid records in the log (both only with strict=1: always use it to judge a store); 6 dispatch stuck.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
default_release=5.3.3
release=${RELEASE:-$default_release}
base=${ORACLE_HOME:-$HOME/.cache/rocketmq-oracle}
sources=("$here"/src/*.java)
case $release in  # what compiles with the release
  4.[0-8].*) sources=("$here"/src/ClientRound.java) ;;
  4.* | 5.[0-2].*) sources=("$here"/src/{Send,ConsumeAll,TransactionSide,LoopbackBroker,ClientRound}.java) ;;
esac
case $release-${1:-} in 4.*-namesrv | 4.*-dump | 5.[0-2].*-namesrv | 5.[0-2].*-dump) RELEASE=$default_release exec "$0" "$@" ;; esac
home=$base
[ "$release" = $default_release ] || home=$base-$release
export ROCKETMQ_HOME=$home
main=org.apache.rocketmq.broker.BrokerStartup
[[ $release != 4.* ]] || main=LoopbackBroker
classes=$home/classes-$(cat "$here/pom.xml" "$here"/src/*.java | cksum | cut -d' ' -f1)
java_options=(
  -Drmq.logback.configurationFile="$home/conf/logback.xml" -XX:-UsePerfData -Dfile.encoding=UTF-8
  --add-exports=java.base/jdk.internal.ref=ALL-UNNAMED --add-opens=java.base/java.nio=ALL-UNNAMED
  --add-opens=java.base/sun.nio.ch=ALL-UNNAMED --add-opens=java.base/java.lang=ALL-UNNAMED
  -Drocketmq.broker.diskSpaceWarningLevelRatio=0.98 -Drocketmq.broker.diskSpaceCleanForciblyRatio=0.97
  -cp "$classes:$home/lib/*"
)

build() {
  if [ ! -e "$home/built" ]; then
    mkdir -p "$home/conf"
    mvn -q -B -f "$here/pom.xml" -Drocketmq.version="$release" dependency:copy-dependencies -DoutputDirectory="$home/lib"
    cat > "$home/conf/logback.xml" <<'X'
<configuration>
  <appender name="F" class="ch.qos.logback.core.FileAppender"><file>${user.home}/rmq.log</file><append>true</append>
    <encoder><pattern>%d{HH:mm:ss.SSS} %p %c{0} %t - %m%n</pattern></encoder></appender>
  <root level="WARN"><appender-ref ref="F"/></root>
</configuration>
X
    cp "$home/conf/logback.xml" "$home/conf/logback_broker.xml"  # where releases up to 5.0 look for it
    touch "$home/built"
  fi
  if ! compgen -G "$home/lib/fastjson2-*" > /dev/null; then  # our programs write with it; 5.3 is the first release that brings it
    RELEASE=$default_release "$0" build
    cp "$base"/lib/fastjson2-*.jar "$home/lib/"
  fi
  if [ ! -e "$classes" ]; then  # compiled aside and renamed: two builds at once do not disturb each other
    local aside; aside=$(mktemp -d "$home/compiling.XXXXXX")
    javac -nowarn -encoding UTF-8 -cp "$home/lib/*" -d "$aside" "${sources[@]}"
    mv -T "$aside" "$classes" 2>/dev/null || rm -rf "$aside"
  fi
}

start() {  # DIR heap class args...
  local dir=$1 heap=$2; shift 2
  mkdir -p "$dir"; : > "$dir/out.log"
  setsid java -Xmx"$heap" -XX:MaxDirectMemorySize=1g -Duser.home="$dir" "${java_options[@]}" "$@" > "$dir/out.log" 2>&1 < /dev/null &
  echo $! > "$dir/pid"
  for _ in $(seq 1500); do
    grep -q 'boot success' "$dir/out.log" && return 0
    kill -0 "$(cat "$dir/pid")" 2>/dev/null || break
    sleep 0.1
  done
  echo "did not start; see $dir/out.log" >&2; cat "$dir/out.log" >&2; return 1
}

case ${1:-} in
  build) build ;;
  namesrv) build; dir=$2; mkdir -p "$dir"
    printf 'listenPort=%s\nbindAddress=127.0.0.1\nkvConfigPath=%s/kv.json\nconfigStorePath=%s/namesrv.properties\n' "${NAMESRV_PORT:-9876}" "$dir" "$dir" > "$dir/namesrv.conf"
    start "$dir" 256m org.apache.rocketmq.namesrv.NamesrvStartup -c "$dir/namesrv.conf" ;;
  conf) store=$2 log=$3 queue=$4; shift 4
    cat <<X
brokerClusterName=LabCluster
brokerName=broker-lab
brokerId=0
brokerIP1=127.0.0.1
brokerIP2=127.0.0.1
bindAddress=127.0.0.1
listenPort=10911
namesrvAddr=127.0.0.1:9876
storePathRootDir=$store
storePathCommitLog=$store/commitlog
mappedFileSizeCommitLog=$log
mappedFileSizeConsumeQueue=$queue
maxHashSlotNum=1000
maxIndexNum=2000
autoCreateTopicEnable=true
autoCreateSubscriptionGroup=true
defaultTopicQueueNums=4
messageDelayLevel=1s 2s 3s 4s 5s 6s 7s 8s 9s 10s 20s 30s 1m 2m 5m 10m 1h 2h
transactionTimeOut=2000
transactionCheckInterval=2000
transactionOpBatchInterval=1000
timerWheelEnable=false
traceTopicEnable=false
deleteWhen=04
fileReservedTime=720
diskMaxUsedSpaceRatio=99
brokerRole=ASYNC_MASTER
flushDiskType=ASYNC_FLUSH
X
    printf '%s\n' "$@" ;;
  broker) build; start "$2" "${BROKER_HEAP:-1g}" "$main" -c "$3" ;;
  stop) pid=$(cat "$2/pid"); kill "${3:--TERM}" "$pid"
    for _ in $(seq 600); do kill -0 "$pid" 2>/dev/null || { rm -f "$2/pid"; exit 0; }; sleep 0.1; done
    echo "pid $pid is still alive" >&2; exit 1 ;;
  dump) build; shift; exec java -Xmx512m -Duser.home="${TMPDIR:-/tmp}" "${java_options[@]}" DumpStore "$@" ;;
  java) build; shift; exec java -Xmx512m -Duser.home="${TMPDIR:-/tmp}" -Drocketmq.client.logRoot="${TMPDIR:-/tmp}/rocketmq-client" "${java_options[@]}" "$@" ;;
  *) sed -n '2,15p' "$0"; exit 2 ;;
esac
