#!/usr/bin/env bash
# Makes stores with the real broker, packed as tests/vectors/stores/store-NAME.tgz. Every byte in them is Apache's, but for
# damage done on purpose (damage.json says where). A run gives stores of the same kind, not the same bytes: times and ids differ.
#   make_fixtures.sh OUT NAME...      NAME: damaged damaged-unclean recovered revived expired preblank ipv6 roll timer timer-killed
#                                   propcrc dledger dledger-killed batches batches-killed tiered compacted, rocksdbVERSION (packed as VERSION.tgz, VERSION-killed.tgz, VERSION-behind.tgz), and vRELEASE (v4.9.7), which makes vRELEASE-killed too, by that release's own broker and client
# Ports: NAMESRV_PORT (9876), BROKER_PORT (10911). Work directory: WORK (a temporary one, removed at the end).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
oracle=$here/oracle.sh
out=$(mkdir -p "$1" && cd "$1" && pwd); shift
export NAMESRV_PORT=${NAMESRV_PORT:-9876}
broker_port=${BROKER_PORT:-10911}
if [ -z "${WORK:-}" ]; then WORK=$(mktemp -d); made_work=1; fi
export TMPDIR=$WORK
address=127.0.0.1:$broker_port

stop_all() { local d; for d in "$WORK"/run-*; do [ ! -e "$d/pid" ] || "$oracle" stop "$d" -KILL || true; done; [ -z "${made_work:-}" ] || rm -rf "$WORK"; }
trap stop_all EXIT

conf() {  # DIR CL CQ [k=v ...]: DIR/broker.conf for DIR/store
  local dir=$1 log=$2 queue=$3; shift 3
  mkdir -p "$dir"
  "$oracle" conf "$dir/store" "$log" "$queue" listenPort="$broker_port" namesrvAddr="127.0.0.1:$NAMESRV_PORT" \
    transactionCheckMax=1000 flushDelayOffsetInterval=1000 flushConsumerOffsetInterval=1000 "$@" > "$dir/broker.conf"
}
start() { "$oracle" broker "$WORK/run-broker" "$1/broker.conf"; }           # DIR
stop() { "$oracle" stop "$WORK/run-broker" "${1:--TERM}"; }                 # [-SIGNAL]
name_server() { [ -e "$WORK/run-namesrv/pid" ] || "$oracle" namesrv "$WORK/run-namesrv"; }
send() { local to=$1; shift; "$oracle" java Send "$WORK/part.jsonl" ns="127.0.0.1:$NAMESRV_PORT" broker="${broker_address:-$address}" "$@"; cat "$WORK/part.jsonl" >> "$to/sent.jsonl"; }
produce() { local to=$1 seed=$2; shift 2; "$oracle" java Produce "$seed" "$to/sent.jsonl" ns="127.0.0.1:$NAMESRV_PORT" broker="$address" "$@" > "$WORK/produce.log"; }
send_timer() { local to=$1; shift; "$oracle" java SendTimer "$WORK/part.jsonl" ns="127.0.0.1:$NAMESRV_PORT" broker="$address" topic=TopicTimer "$@"; cat "$WORK/part.jsonl" >> "$to/sent.jsonl"; }
like() { mkdir -p "$2"; cp -a --sparse=always "$1/." "$2"; sed -i "s#$1/#$2/#" "$2/broker.conf"; }  # FROM TO: a copy with its own paths

pack() {  # NAME DIR: golden lines by the oracle, then the archive
  local name=$1 dir=$2
  sed -i "s#=$dir/store#=./store#" "$dir/broker.conf"
  "$oracle" dump "$dir/store" "$dir/golden.jsonl" conf="$dir/broker.conf" strict=1 > "$dir/dump.log" 2>&1 && echo "$name: strict dump exit 0" || echo "$name: strict dump exit $?"
  tar -C "$dir" --sparse -czf "$dir/store.tgz" store
  local parts=(); for f in store.tgz sent.jsonl served.jsonl golden.jsonl broker.conf damage.json; do [ ! -e "$dir/$f" ] || parts+=("./$f"); done
  tar -C "$dir" -czf "$out/store-$name.tgz" "${parts[@]}"
  ls -l "$out/store-$name.tgz"
}

base() {  # a cleanly stopped store with every kind of message; made once a run
  local dir=$WORK/base; [ ! -e "$dir/done" ] || return 0
  name_server; conf "$dir" 262144 6000; start "$dir"
  produce "$dir" 5 normal=300 roll=400
  stop; touch "$dir/done"
}

damaged() {  # the damage is in the middle: the checkpoint vouches for records behind it
  base; local dir=$WORK/damaged; like "$WORK/base" "$dir"
  python3 "$here/damage.py" flip "$dir/store" 60 > "$dir/damage.json"
  pack damaged "$dir"
}

damaged-unclean() {  # the same after a broker that was started and killed: an abort file beside an old checkpoint
  base; name_server; local dir=$WORK/damaged-unclean; like "$WORK/base" "$dir"
  start "$dir"; stop -KILL
  python3 "$here/damage.py" flip "$dir/store" 60 > "$dir/damage.json"
  pack damaged-unclean "$dir"
}

crash() {  # DIR SEED: killed while sending, then damaged 40 records before the end
  name_server; local dir=$1 producer
  rm -f "$WORK/tail-began"; conf "$dir" 262144 6000; start "$dir"
  produce "$dir" "$2" normal=120 roll=200 tail=1 marker="$WORK/tail-began" & producer=$!
  while [ ! -e "$WORK/tail-began" ]; do kill -0 $producer; sleep 0.2; done
  sleep 2; stop -KILL; wait $producer || true
  python3 "$here/damage.py" flip "$dir/store" 40 > "$dir/flip.json"
}

stale() {  # DIR: damage.json says what stands behind the log's end
  local dir=$1 end
  "$oracle" dump "$dir/store" "$dir/first.jsonl" conf="$dir/broker.conf" > /dev/null
  end=$(python3 -c 'import json,sys; print(next(l["maxPhyOffset"] for l in map(json.loads, open(sys.argv[1])) if l["type"] == "summary"))' "$dir/first.jsonl")
  python3 "$here/damage.py" stale "$dir/store" "$end" > "$dir/stale.json"
  python3 -c 'import json,sys; a,b=(json.load(open(f)) for f in sys.argv[1:3]); assert b["staleRecords"]; json.dump({**b, "flipped": a}, open(sys.argv[3], "w"))' \
    "$dir/flip.json" "$dir/stale.json" "$dir/damage.json"
}

recovered() {  # recovered by the broker, written to again, stopped cleanly: stale records and queue entries behind the new end
  local dir=$WORK/recovered; crash "$dir" 6
  echo transactionCheckInterval=3600000 >> "$dir/broker.conf"  # nothing but the messages below
  start "$dir"
  send "$dir" topic=TopicTail onlyQueues=0,1 count=6 seed=61 minBody=55 maxBody=60
  send "$dir" topic=TopicA onlyQueues=1 count=1 seed=62 minBody=77 maxBody=77
  stop; stale "$dir"; pack recovered "$dir"
}

revived() {  # the new end lies behind stale entries of queues that got nothing new: Java's next load takes these up again
  local dir=$WORK/revived; crash "$dir" 7; start "$dir"
  send "$dir" topic=TopicTail onlyQueues=0 count=2 seed=61 minBody=333 maxBody=333
  send "$dir" topic=TopicA onlyQueues=1,3 count=4 seed=62 minBody=555 maxBody=555
  stop; stale "$dir"; pack revived "$dir"
}

expired() {  # the two oldest log files are gone; the queues still begin with entries that point before the log
  base; local dir=$WORK/expired; like "$WORK/base" "$dir"
  ls "$dir/store/commitlog" | sort | head -2 | while read -r file; do rm "$dir/store/commitlog/$file"; done
  pack expired "$dir"
}

preblank() {  # the queues and the index are gone as well; the broker makes them again: they begin in the middle of a file
  base; name_server; local dir=$WORK/preblank; like "$WORK/base" "$dir"
  ls "$dir/store/commitlog" | sort | head -2 | while read -r file; do rm "$dir/store/commitlog/$file"; done
  rm -r "$dir/store/consumequeue" "$dir/store/index"
  sed -i "s/^mappedFileSizeConsumeQueue=.*/mappedFileSizeConsumeQueue=200/" "$dir/broker.conf"  # 10 entries a file
  start "$dir"
  send "$dir" topic=TopicRoll count=5 seed=71
  send "$dir" topic=TopicA count=6 seed=72
  stop
  pack preblank "$dir"
}

ipv6() {  # born and store hosts of both families; prepared and rolled back records, which get no queue entry
  name_server; local dir=$WORK/ipv6
  conf "$dir" 262144 6000 brokerIP1=::1 brokerIP2=::1 bindAddress=::1
  start "$dir"
  broker_address=::1:$broker_port send "$dir" topic=TopicSix queues=2 count=40 seed=81
  stop
  "$oracle" java PutRecords "$dir/store" "$dir/broker.conf" > "$dir/put.log"
  pack ipv6 "$dir"
}

roll() {  # many small files of every kind
  name_server; local dir=$WORK/roll topic
  conf "$dir" 65536 200 maxHashSlotNum=50 maxIndexNum=100; start "$dir"
  for topic in TopicOne TopicTwo TopicThree; do send "$dir" topic=$topic queues=3 count=250 seed=9${#topic} maxBody=600; done
  stop
  pack roll "$dir"
}

propcrc() {  # every record ends in the sum over itself: single sends, batches, delayed and delivered, both host families, V2, no queue entry
  name_server; local dir=$WORK/propcrc
  conf "$dir" 65536 2000 enabledAppendPropCRC=true forceVerifyPropCRC=true; start "$dir"
  send "$dir" topic=TopicSum queues=2 count=30 seed=91 minBody=0
  send "$dir" topic=TopicSum count=12 seed=92 batch=5
  send "$dir" topic=TopicDelay queues=1 count=6 seed=93 delayLevels=1,18
  sleep 3; stop
  "$oracle" java PutRecords "$dir/store" "$dir/broker.conf" > "$dir/put.log"
  pack propcrc "$dir"
}

timed() {  # DIR: timer messages delivered, cancelled, rolled (a window of 20 s), pending
  name_server; local dir=$1
  conf "$dir" 65536 2000 timerWheelEnable=true mappedFileSizeTimerLog=1024 timerRollWindowSlot=20; start "$dir"
  send_timer "$dir" sec:3:4 ms:2500:4 deliver:4000:6 deliver:7000:3 cancel:14 deliver:-1000:2 sec:3600:4 deliver:45000:3 wait:27000 \
    deliver:15000:4 cancel:28 ms:12000:3 sec:600:2
}

timer() { local dir=$WORK/timer; timed "$dir"; sleep 2; stop; pack timer "$dir"; }

timer-killed() { local dir=$WORK/timer-killed; timed "$dir"; stop -KILL; pack timer-killed "$dir"; }  # within a flush interval of the timer

served() {  # DIR TOPICS [key=value ...]: what the running broker of that release serves to its own client
  "$oracle" java ConsumeAll "$1/served.jsonl" ns="127.0.0.1:$NAMESRV_PORT" broker="$address" topics="$2" "${@:3}" > "$WORK/served.log" 2>&1
}

batched() {  # DIR: topics of batch queues, small files of 10 units: inner batches, single messages, and both; a topic that says that it is plain
  name_server; local dir=$1 mqadmin=org.apache.rocketmq.tools.command.MQAdminStartup topic
  conf "$dir" 65536 2000 mapperFileSizeBatchConsumeQueue=460 rocketmqVersion="${ROCKETMQ_VERSION:-5.3.3}"; start "$dir"
  for topic in Batches=BatchCQ BatchTail=BatchCQ Simples=SimpleCQ; do
    "$oracle" java $mqadmin updateTopic -n "127.0.0.1:$NAMESRV_PORT" -b "$address" -t "${topic%=*}" -r 2 -w 2 -a "+queue.type=${topic#*=}"
  done > "$WORK/topics.log" 2>&1
  send "$dir" topic=Batches count=63 seed=21 batch=5 maxBody=90
  send "$dir" topic=Batches count=6 seed=22
  send "$dir" topic=Batches count=70 seed=23 batch=7 maxBody=90
  send "$dir" topic=Simples count=20 seed=24 batch=5
}

batches() {
  local dir=$WORK/batches; batched "$dir"; served "$dir" Batches,Simples lookUps=0; stop; pack batches "$dir"
}

batches-killed() {  # killed while it took batches; what was served is what the recovered broker serves
  local dir=$WORK/batches-taken killed=$WORK/batches-killed side; batched "$dir"
  (send "$dir" topic=BatchTail count=4000 seed=25 batch=5 maxBody=60 interval=5 > "$WORK/tail.log" 2>&1 || cat "$WORK/part.jsonl" >> "$dir/sent.jsonl") & side=$!
  until [ -e "$dir/store/batchconsumequeue/BatchTail/0/00000000000000000460" ]; do kill -0 $side; sleep 0.1; done
  stop -KILL; wait $side || true
  like "$dir" "$killed"
  start "$dir"; served "$killed" Batches,Simples,BatchTail lookUps=0; stop; pack batches-killed "$killed"
}

transactions() {  # each outcome of a transaction; needs ADDRESS of the broker
  local side
  "$oracle" java TransactionSide "$WORK/transactions.jsonl" ns="127.0.0.1:$NAMESRV_PORT" broker="$address" group=Producers topic=TopicTransaction queues=2 \
    plans=commit,rollback,never,checkCommit,checkRollback,commit > "$WORK/transactions.log" 2>&1 & side=$!
  until grep -q '"ready"' "$WORK/transactions.jsonl" 2> /dev/null; do kill -0 $side; sleep 0.2; done
  sleep 9; kill -KILL $side; wait $side || true; rm "$WORK/transactions.jsonl"  # time for two checks
}

# DLedger: a group of three on brokers' ports BROKER_PORT, +10, +20 and on ports DLEDGER_PORT (40911), +1, +2 among themselves
dledger_port=${DLEDGER_PORT:-40911}
peer() { echo "$WORK/dledger-n$1"; }                                         # N: its directory
peer_up() { BROKER_HEAP=256m "$oracle" broker "$WORK/run-n$1" "$(peer "$1")/broker.conf"; }
peer_down() { "$oracle" stop "$WORK/run-n$1" "${2:--TERM}"; }                # N [-SIGNAL]
group_up() { local n p=(); for n in "$@"; do peer_up "$n" & p+=($!); done; for n in "${p[@]}"; do wait "$n"; done; }
group_down() { local n p=(); for n in 0 1 2; do [ ! -e "$WORK/run-n$n/pid" ] || { peer_down "$n" "${1:--TERM}" & p+=($!); }; done; for n in "${p[@]}"; do wait "$n"; done; }  # [-SIGNAL]
leader() {  # [NOT]: the number of the peer that the name server knows as master, once it does and is not NOT
  local found
  for _ in $(seq 240); do
    found=$("$oracle" java org.apache.rocketmq.tools.command.MQAdminStartup clusterList -n "127.0.0.1:$NAMESRV_PORT" 2> /dev/null | awk '$3 == 0 {sub(/.*:/, "", $4); print $4}')
    [ -z "$found" ] || { found=$(((found - broker_port) / 10)); [ "$found" = "${1:-}" ] || { echo "$found"; return 0; }; }
    sleep 0.5
  done
  return 1
}

dledger_topics=TopicA,TopicBatch,TopicDelay,TopicTransaction,TopicTail

dledger() {  # a leader's and a follower's store after one change of leader, closed
  local n first second
  name_server
  for n in 0 1 2; do
    conf "$(peer "$n")" 65536 2000 listenPort=$((broker_port + 10 * n)) enableDLegerCommitLog=true dLegerGroup=broker-lab dLegerSelfId="n$n" \
      dLegerPeers="n0-127.0.0.1:$dledger_port;n1-127.0.0.1:$((dledger_port + 1));n2-127.0.0.1:$((dledger_port + 2))" maxHashSlotNum=50 maxIndexNum=300 \
      waitTimeMillsInSendQueue=60000 osPageCacheBusyTimeOutMills=60000
    sed -i /^brokerRole/d "$(peer "$n")/broker.conf"
  done
  group_up 0 1 2; first=$(leader); address=127.0.0.1:$((broker_port + 10 * first))
  send "$(peer 0)" topic=TopicA queues=3 count=120 seed=11
  send "$(peer 0)" topic=TopicBatch queues=2 count=15 seed=12 batch=5
  send "$(peer 0)" topic=TopicDelay queues=1 count=6 seed=13 delayLevels=1,18
  transactions; sleep 11  # a peer takes its leader's topics every ten seconds
  peer_down "$first"; second=$(leader "$first"); address=127.0.0.1:$((broker_port + 10 * second))
  send "$(peer 0)" topic=TopicA queues=3 count=60 seed=16
  send "$(peer 0)" topic=TopicTail queues=2 count=10 seed=17 minBody=5 maxBody=60
  peer_up "$first"; sleep 5
  served "$(peer 0)" "$dledger_topics"; group_down
  packed_peers dledger "$first" "$second"; touch "$(peer 0)/done"
}

dledger-killed() {  # the same group, all three killed while it took messages; then it starts again, and says what it serves
  local n first second side
  [ -e "$(peer 0)/done" ] || dledger
  name_server; group_up 0 1 2; second=$(leader); first=$(((second + 1) % 3)); address=127.0.0.1:$((broker_port + 10 * second))
  : > "$WORK/part.jsonl"
  (send "$(peer 0)" topic=TopicTail queues=2 count=4000 seed=15 minBody=5 maxBody=60 interval=5 > "$WORK/tail.log" 2>&1 || cat "$WORK/part.jsonl" >> "$(peer 0)/sent.jsonl") & side=$!
  until [ "$(wc -l < "$WORK/part.jsonl")" -gt 60 ]; do kill -0 $side; sleep 0.1; done
  group_down -KILL; wait $side || true
  for n in 0 1 2; do rm -rf "$(peer "$n").killed"; cp -a --sparse=always "$(peer "$n")" "$(peer "$n").killed"; done
  group_up 0 1 2; n=$(leader); address=127.0.0.1:$((broker_port + 10 * n)); sleep 3
  served "$(peer 0)" "$dledger_topics"; group_down
  for n in 0 1 2; do rm -rf "$(peer "$n")/store"; mv "$(peer "$n").killed/store" "$(peer "$n")/store"; done
  packed_peers dledger-killed "$first" "$second"
}

packed_peers() {  # NAME FOLLOWER LEADER: both stores in one archive, with what the group had acknowledged and served
  local name=$1 dir=$WORK/pack-$1
  rm -rf "$dir"; mkdir -p "$dir/follower" "$dir/leader"
  for pair in "follower $2" "leader $3"; do set -- $pair
    cp -a --sparse=always "$(peer "$2")/store" "$(peer "$2")/broker.conf" "$dir/$1/"; sed -i "s#=$(peer "$2")/store#=./store#" "$dir/$1/broker.conf"
  done
  cp "$(peer 0)/sent.jsonl" "$(peer 0)/served.jsonl" "$dir/"
  tar -C "$dir" --sparse --sort=name --owner=0 --group=0 -cJf "$out/store-$name.tar.xz" .
  ls -l "$out/store-$name.tar.xz"
}

tiered() {  # old messages have moved into a directory (PosixFileSegment); their log files are gone, and the broker still serves them
  name_server; local dir=$WORK/tiered topic=TopicTiered
  conf "$dir" 16384 2000 messageStorePlugIn=org.apache.rocketmq.tieredstore.TieredMessageStore tieredStoreFilePath="$dir/tiered" \
    tieredBackendServiceProvider=org.apache.rocketmq.tieredstore.provider.PosixFileSegment tieredStoreGroupCommitTimeout=1000 \
    tieredStoreCommitLogMaxSize=20000 tieredStoreConsumeQueueMaxSize=800 tieredStoreIndexFileMaxHashSlotNum=100 tieredStoreIndexFileMaxIndexNum=400 \
    commitLogRollingMinimumSize=8192
  start "$dir"
  send "$dir" topic=$topic queues=2 count=200 seed=31
  send "$dir" topic=TopicA queues=1 count=5 seed=32
  until [ "$(ls "$dir"/tiered/*/*/$topic/[01]/CONSUME_QUEUE/*1600 2>/dev/null | wc -l)" = 2 ]; do sleep 0.5; done
  stop; ls "$dir/store/commitlog" | sort | head -3 | while read -r file; do rm "$dir/store/commitlog/$file"; done
  start "$dir"; served "$dir" $topic,TopicA lookUps=0; stop
  mv "$dir/tiered" "$dir/store/tiered"; sed -i "s#=$dir/tiered#=./store/tiered#" "$dir/broker.conf"  # in the archive it lies in the store
  pack tiered "$dir"
}

compacted() {  # of a topic that keeps the newest message of each key; the broker has compacted it
  name_server; local dir=$WORK/compacted mqadmin=org.apache.rocketmq.tools.command.MQAdminStartup
  conf "$dir" 65536 2000 compactionScheduleInternal=2000 compactionMappedFileSize=16384 compactionCqMappedFileSize=2000 compactionThreadNum=1; start "$dir"
  "$oracle" java $mqadmin updateTopic -n "127.0.0.1:$NAMESRV_PORT" -b "$address" -t Compacted -r 1 -w 1 -a "+cleanup.policy=COMPACTION" > "$WORK/topics.log" 2>&1
  send "$dir" topic=Compacted count=120 seed=41 keys=7 alwaysKeys=1
  sleep 8; send "$dir" topic=Compacted count=30 seed=42 keys=7 alwaysKeys=1; sleep 8
  served "$dir" Compacted lookUps=0; stop; pack compacted "$dir"
}

version() {  # VERSION: killed while it took messages; then its own broker recovers it, goes on and stops cleanly
  local dir=$WORK/v$1 killed=$WORK/v$1-killed topics=TopicA,TopicBatch,TopicDelay,TopicTransaction,TopicTail timer=() side settings
  export RELEASE=$1
  if [[ $1 != 4.* ]]; then timer=(timerWheelEnable=true mappedFileSizeTimerLog=1024); topics=$topics,TopicTimer; fi
  settings=(65536 2000 maxHashSlotNum=50 maxIndexNum=300 rocketmqVersion="$1" "${timer[@]}")
  name_server; conf "$dir" "${settings[@]}"; start "$dir"
  send "$dir" topic=TopicA queues=3 count=120 seed=11
  send "$dir" topic=TopicBatch queues=2 count=15 seed=12 batch=5
  send "$dir" topic=TopicDelay queues=1 count=6 seed=13 delayLevels=1,18
  [ ${#timer[@]} = 0 ] || send "$dir" topic=TopicTimer queues=1 count=6 seed=14 delaysMs=2000,3600000
  transactions
  (send "$dir" topic=TopicTail queues=2 count=4000 seed=15 minBody=5 maxBody=60 interval=5 > "$WORK/tail.log" 2>&1 || cat "$WORK/part.jsonl" >> "$dir/sent.jsonl") & side=$!
  until [ -d "$dir/store/consumequeue/TopicTail" ]; do kill -0 $side; sleep 0.1; done
  sleep 1; stop -KILL; wait $side || true
  like "$dir" "$killed"
  start "$dir"; served "$killed" "$topics"
  send "$dir" topic=TopicA queues=3 count=30 seed=16
  send "$dir" topic=TopicTail queues=2 count=10 seed=17 minBody=5 maxBody=60
  served "$dir" "$topics"; stop
  conf "$dir" "${settings[@]}"; conf "$killed" "${settings[@]}"  # a broker that is told to register writes its own
  pack "v$1" "$dir"; pack "v$1-killed" "$killed"
  unset RELEASE
}

rocksdb() {  # VERSION: queues in RocksDB: killed before RocksDB has entries, stopped, and killed with RocksDB behind the log
  local at=$WORK/rocksdb-$1 dir kind topics=TopicA,TopicBatch,TopicDelay,TopicTransaction,TopicTail side
  dir=$at/go; mkdir -p "$dir"
  export ROCKETMQ_VERSION=$1
  name_server
  conf "$dir" 65536 2000 maxHashSlotNum=50 maxIndexNum=300 storeType=defaultRocksDB useSeparateStorePathForRocksdbCQ=true
  start "$dir"
  send "$dir" topic=TopicA queues=3 count=120 seed=11
  send "$dir" topic=TopicBatch queues=2 count=15 seed=12 batch=5
  send "$dir" topic=TopicDelay queues=1 count=6 seed=13 delayLevels=1,18
  "$oracle" java TransactionSide "$WORK/transactions.jsonl" ns="127.0.0.1:$NAMESRV_PORT" broker="$address" group=Producers topic=TopicTransaction queues=2 \
    plans=commit,rollback,never,checkCommit,checkRollback,commit > "$WORK/transactions.log" 2>&1 & side=$!
  until grep -q '"ready"' "$WORK/transactions.jsonl" 2> /dev/null; do kill -0 $side; sleep 0.2; done
  sleep 9; kill -KILL $side; wait $side || true; rm "$WORK/transactions.jsonl"
  send "$dir" topic=TopicTail queues=2 count=200 seed=15 minBody=5 maxBody=60
  sleep 2; stop -KILL; like "$dir" "$at/killed"
  start "$dir"; sleep 1; served "$at/killed" "$topics"
  send "$dir" topic=TopicA queues=3 count=30 seed=16
  send "$dir" topic=TopicTail queues=2 count=10 seed=17 minBody=5 maxBody=60
  served "$dir" "$topics"; stop; like "$dir" "$at/stopped"
  start "$dir"; sleep 13  # until it is registered
  "$oracle" java org.apache.rocketmq.tools.command.MQAdminStartup deleteTopic -n "127.0.0.1:$NAMESRV_PORT" -c LabCluster -t TopicTail
  sleep 2
  send "$dir" topic=TopicA queues=3 count=30 seed=21
  send "$dir" topic=TopicNew queues=2 count=20 seed=22
  send "$dir" topic=TopicTail queues=2 count=12 seed=23 minBody=5 maxBody=60
  sleep 1; stop -KILL; like "$dir" "$at/behind"; rm "$at/behind/sent.jsonl"
  start "$dir"; sleep 1
  "$oracle" java ConsumeAll "$at/behind/served.jsonl" ns="127.0.0.1:$NAMESRV_PORT" broker="$address" topics="$topics,TopicNew" lookUps=0 > "$WORK/served.log" 2>&1
  stop; unset ROCKETMQ_VERSION
  for kind in stopped killed behind; do
    conf "$at/$kind" 65536 2000 maxHashSlotNum=50 maxIndexNum=300 storeType=defaultRocksDB rocketmqVersion="$1"
    sed -i "s#=$at/$kind/store#=./store#" "$at/$kind/broker.conf"
    local parts=(./store ./broker.conf ./served.jsonl); [ $kind = behind ] || parts+=(./sent.jsonl)
    [ $kind = stopped ] && side= || side=-$kind
    tar -C "$at/$kind" --sparse -cJf "$out/$1$side.tgz" "${parts[@]}"
  done
}

"$oracle" build
for name in "$@"; do case $name in v[0-9]*) version "${name#v}" ;; rocksdb*) rocksdb "${name#rocksdb}" ;; *) "$name" ;; esac; done
