"""Every name that a broker of RocketMQ 5.3.3 to 5.5.0 understands in broker.conf, with its type and, if it is a constant, its default;
also the settings that no request may change.
Java finds them by reflection (MixAll.properties2Object): each public setter with one plain parameter is a
setting. One line each:

    name type [default]

No default = none, or one that depends on the machine. `listenPort` and `haListenPort` have the values that
BrokerStartup sets. A name that several classes have stands with the first. "since" begins what a later release added, or a default that
it changed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from storage.settings.releases import BrokerVersion, parse_broker_version


class JavaSetting(NamedTuple):
    """One setting of a broker; `type` is Java's (int, long, double, boolean, String), `default` its text or
    None.
    """

    name: str
    type: str
    default: str | None
    since: BrokerVersion | None = None
    """The first release that has it; None = 5.3 or an earlier one."""
    former_default: str | None = None
    """The default of earlier releases, if it was another."""
    default_since: BrokerVersion | None = None
    """The first release that has `default`, where earlier ones had another."""

    def default_of(self, version: BrokerVersion) -> str | None:
        """The default that a broker of this release has."""
        return self.former_default if self.default_since is not None and version < self.default_since else self.default


_TABLE = """
# org.apache.rocketmq.common.BrokerIdentity
brokerClusterName String DefaultCluster
brokerId long 0
brokerName String
inBrokerContainer boolean false
# org.apache.rocketmq.common.BrokerConfig
accountStatsEnable boolean true
accountStatsPrintZeroValues boolean true
ackMessageThreadPoolNums int 16
ackThreadPoolQueueCapacity int 100000
aclEnable boolean false
adminBrokerThreadPoolNums int 16
adminBrokerThreadPoolQueueCapacity int 10000
allowRecallWhenBrokerNotWriteable boolean true
appendAckAsync boolean false
appendCkAsync boolean false
asyncSendEnable boolean true
autoCreateSubscriptionGroup boolean true
autoCreateTopicEnable boolean true
autoDeleteUnusedStats boolean true
broadcastOffsetExpireMaxSecond long 300
broadcastOffsetExpireSecond long 120
brokerConfigPath String
brokerElectionPriority int 2147483647
brokerFastFailureEnable boolean true
brokerHeartbeatInterval int 1000
brokerIP1 String
brokerIP2 String
brokerNotActiveTimeoutMillis long 10000
brokerPermission int 6
brokerTopicEnable boolean true
cgColdReadThreshold long 3145728
channelExpiredTimeout long 120000
checkSyncStateSetPeriod long 5000
cleanOfflineBrokerInterval int 30000
clearRetryTopicWhenDeleteTopic boolean true
clientManagerThreadPoolQueueCapacity int 1000000
clientManageThreadPoolNums int 32
clusterTopicEnable boolean true
coldCtrStrategyEnable boolean false
commercialBaseCount int 1
commercialSizePerMsg int 4096
compatibleWithOldNameSrv boolean true
compressedRegister boolean false
configBlackList String configBlackList;brokerConfigPath
configManagerVersion String v1
consumerFallbehindThreshold long 17179869184
consumerManagerThreadPoolQueueCapacity int 1000000
consumerManageThreadPoolNums int 32
consumerOffsetUpdateVersionStep long 500
controllerAddr String
controllerHeartBeatTimeoutMills long 10000
defaultMessageRequestMode String PULL
defaultPopShareQueueNum int -1
defaultTopicQueueNums int 8
delayOffsetUpdateVersionStep long 200
disableConsumeIfConsumerReadSlowly boolean false
enableBroadcastOffsetStore boolean true
enableCalcFilterBitMap boolean false
enableControllerMode boolean false
enableCreateSysGroup boolean true
enableDetailStat boolean true
enableFastChannelEventProcess boolean false
enableLmqStats boolean false
enableMixedMessageType boolean false
enableNetWorkFlowControl boolean false
enableNotifyAfterPopOrderLockRelease boolean true
enableNotifyBeforePopCalculateLag boolean true
enablePopBatchAck boolean false
enablePopBufferMerge boolean false
enablePopLog boolean false
enablePopMessageThreshold boolean false
enablePropertyFilter boolean false
enableRegisterProducer boolean true
enableRemoteEscape boolean false
enableRetryTopicV2 boolean false
enableSingleTopicRegister boolean false
enableSkipLongAwaitingAck boolean false
enableSlaveActingMaster boolean false
enableSplitRegistration boolean false
endTransactionPoolQueueCapacity int 100000
endTransactionThreadPoolNums int
estimateAccumulation boolean true
expectConsumerNumUseFilter int 32
fetchControllerAddrByDnsLookup boolean false
fetchNamesrvAddrByAddressServer boolean false
fetchNameSrvAddrByDnsLookup boolean false
fetchNamesrvAddrInterval long 10000
filterDataCleanTimeSpan long 86400000
filterSupportRetry boolean false
flushConsumerOffsetHistoryInterval int 60000
flushConsumerOffsetInterval int 5000
forceRegister boolean true
forwardTimeout long 3000
globalColdReadThreshold long 104857600
heartbeatThreadPoolNums int
heartbeatThreadPoolQueueCapacity int 50000
highSpeedMode boolean false
initPopOffsetByCheckMsgInMem boolean true
isolateLogEnable boolean false
listenPort int 10911
litePullMessageEnable boolean true
litePullMessageThreadPoolNums int
litePullThreadPoolQueueCapacity int 100000
loadBalancePollNameServerInterval long 30000
loadBalanceProcessorThreadPoolNums int 32
loadBalanceThreadPoolQueueCapacity int 100000
lockInStrictMode boolean false
longPollingEnable boolean true
maxErrorRateOfBloomFilter int 20
maxPopPollingSize long 100000
maxStatsIdleTimeInMinutes int -1
messageStorePlugIn String
metricGrpcExporterIntervalInMills long 60000
metricGrpcExporterTimeOutInMills long 3000
metricLoggingExporterIntervalInMills long 10000
metricsExporterType String DISABLE
metricsGrpcExporterHeader String
metricsGrpcExporterTarget String
metricsInDelta boolean false
metricsLabel String
metricsOtelCardinalityLimit int 50000
metricsPromExporterHost String
metricsPromExporterPort int 5557
msgTraceTopicName String RMQ_SYS_TRACE_TOPIC
namesrvAddr String
notifyConsumerIdsChangedEnable boolean true
popCkMaxBufferSize int 200000
popCkOffsetMaxQueueSize int 20000
popCkStayBufferTime int 10000
popCkStayBufferTimeOut int 3000
popConsumerFSServiceInit boolean true
popConsumerKVServiceEnable boolean false
popConsumerKVServiceInit boolean false
popConsumerKVServiceLog boolean false
popFromRetryProbability int 20
popInflightMessageThreshold long 10000
popLongPollingForceNotifyInterval long 800
popPollingMapSize int 100000
popPollingSize int 1024
popResponseReturnActualRetryTopic boolean false
popReviveMaxAttemptTimes int 16
popReviveMaxReturnSizePerRead int 16384
printChannelGroups boolean false
printChannelGroupsMinNum int 5
processReplyMessageThreadPoolNums int
pullMessageThreadPoolNums int
pullThreadPoolQueueCapacity int 100000
putMessageFutureThreadPoolNums int
putThreadPoolQueueCapacity int 10000
queryMessageThreadPoolNums int
queryThreadPoolQueueCapacity int 20000
realTimeNotifyConsumerChange boolean true
recallMessageEnable boolean false
recoverConcurrently boolean false
recoverThreadPoolNums int 32
regionId String DefaultRegion
registerBrokerTimeoutMills int 24000
registerNameServerPeriod int 30000
rejectPullConsumerEnable boolean false
rejectTransactionMessage boolean false
replyThreadPoolQueueCapacity int 10000
retrieveMessageFromPopRetryTopicV1 boolean true
reviveAckWaitMs long 180000
reviveInterval long 1000
reviveMaxSlow long 3
reviveQueueNum int 8
reviveScanTime long 10000
rocketmqHome String
sendHeartbeatTimeoutMillis int 1000
sendMessageThreadPoolNums int
sendThreadPoolQueueCapacity int 10000
serverLoadBalancerEnable boolean true
shortPollingTimeMills long 1000
skipPreOnline boolean false
skipWhenCKRePutReachMaxTimes boolean false
slaveReadEnable boolean false
splitRegistrationSize int 800
startAcceptSendRequestTimeStamp long 0
storeReplyMessageEnable boolean true
subscriptionExpiredTimeout long 600000
syncBrokerMemberGroupPeriod int 1000
syncBrokerMetadataPeriod long 5000
syncControllerMetadataPeriod long 10000
traceOn boolean true
traceTopicEnable boolean false
transactionCheckInterval long 30000
transactionCheckMax int 15
transactionMetricFlushInterval long 3000
transactionOpBatchInterval int 3000
transactionOpMsgMaxSize int 4096
transactionTimeOut long 6000
transferMsgByHeap boolean true
updateNameServerAddrPeriod int 120000
usePIDColdCtrStrategy boolean true
useServerSideResetOffset boolean true
useStaticSubscription boolean false
validateSystemTopicWhenUpdateTopic boolean true
waitTimeMillsInAckQueue long 3000
waitTimeMillsInAdminBrokerQueue long 5000
waitTimeMillsInHeartbeatQueue long 31000
waitTimeMillsInLitePullQueue long 5000
waitTimeMillsInPullQueue long 5000
waitTimeMillsInSendQueue long 200
waitTimeMillsInTransactionQueue long 3000
# org.apache.rocketmq.store.config.MessageStoreConfig
accessMessageInMemoryHotRatio int 26
accessMessageInMemoryMaxRatio int 40
allAckInSyncStateSet boolean false
asyncLearner boolean false
autoMessageVersionOnTopicLen boolean true
batchDispatchRequestThreadPoolNums int 16
bitMapLengthConsumeQueueExt int 64
bottomMostCompressionTypeForConsumeQueueStore String zstd
brokerRole String ASYNC_MASTER
checkCRCOnRecover boolean true
cleanFileForciblyEnable boolean true
cleanResourceInterval int 10000
cleanRocksDBDirtyCQIntervalMin long 60
cleanSwapedMapInterval long 300000
coldDataFlowControlEnable boolean false
coldDataScanEnable boolean false
commitCommitLogLeastPages int 4
commitCommitLogThoroughInterval int 200
commitIntervalCommitLog int 200
commitLogForceSwapMapInterval long 43200000
commitLogSwapMapInterval long 3600000
commitLogSwapMapReserveFileNum int 100
compactionCqMappedFileSize int 10485760
compactionMappedFileSize int 104857600
compactionScheduleInternal int 900000
compactionThreadNum int 6
correctLogicMinOffsetForceInterval int 300000
correctLogicMinOffsetSleepInterval int 1
dataReadAheadEnable boolean true
debugLockEnable boolean false
defaultQueryMaxNum int 32
deleteCommitLogFilesInterval int 100
deleteConsumeQueueFilesInterval int 100
deleteFileBatchMax int 10
deleteWhen String 04
destroyMapedFileIntervalForcibly int 120000
disappearTimeAfterStart int -1
diskFallRecorded boolean true
diskMaxUsedSpaceRatio int 75
diskSpaceCleanForciblyRatio int 85
diskSpaceWarningLevelRatio int 90
dispatchCqCacheNum int 4096
dispatchCqThreads int 10
dispatchFromSenderThread boolean false
dLegerGroup String
dLegerPeers String
dLegerSelfId String
duplicationEnable boolean false
enableAsyncReput boolean true
enableAutoInSyncReplicas boolean false
enableBatchPush boolean false
enableBuildConsumeQueueConcurrently boolean false
enableCleanExpiredOffset boolean false
enableCompaction boolean true
enableConsumeQueueExt boolean false
enabledAppendPropCRC boolean false
enableDLegerCommitLog boolean false
enableLmq boolean false
enableMultiDispatch boolean false
enableRocksDBLog boolean false
enableScheduleAsyncDeliver boolean false
enableScheduleMessageStats boolean true
fastFailIfNoBufferInStorePool boolean false
fileReservedTime int 72
flushCommitLogLeastPages int 4
flushCommitLogThoroughInterval int 10000
flushCommitLogTimed boolean true
flushConsumeQueueLeastPages int 2
flushConsumeQueueThoroughInterval int 60000
flushDelayOffsetInterval long 10000
flushDiskType String ASYNC_FLUSH
flushIntervalCommitLog int 500
flushIntervalConsumeQueue int 1000
flushLeastPagesWhenWarmMapedFile int 4096
forceVerifyPropCRC boolean false
haFlowControlEnable boolean false
haHousekeepingInterval int 20000
haListenPort int 0
haMasterAddress String
haMaxGapNotInSync int 268435456
haMaxTimeSlaveNotCatchup long 15000
haSendHeartbeatInterval int 5000
haTransferBatchSize int 32768
inSyncReplicas int 1
logicalDiskSpaceCleanForciblyThreshold double 0.8
logicQueueForceSwapMapInterval long 43200000
logicQueueSwapMapInterval long 3600000
logicQueueSwapMapReserveFileNum int 20
mappedFileSizeCommitLog int 1073741824
mappedFileSizeConsumeQueue int 6000000
mappedFileSizeConsumeQueueExt int 50331648
mappedFileSizeTimerLog int 104857600
mappedFileSwapEnable boolean true
mapperFileSizeBatchConsumeQueue int 13800000
maxAsyncPutMessageRequests int 5000
maxBatchDeleteFilesNum int 50
maxChecksumRange long 1073741824
maxConsumeQueueScan int 20000
maxFilterMessageSize int 16000
maxHashSlotNum int 5000000
maxHaTransferByteInSecond long 104857600
maxIndexNum int 20000000
maxLmqConsumeQueueNum int 20000
maxMessageSize int 4194304
maxMsgsNumBatch int 64
maxOffsetMapSize int 104857600
maxRecoveryCommitlogFiles int 30
maxSlaveResendLength long 268435456
maxTopicLength int 127
maxTransferBytesOnMessageInDisk int 65536
maxTransferBytesOnMessageInMemory int 262144
maxTransferCountOnMessageInDisk int 8
maxTransferCountOnMessageInMemory int 32
memTableFlushIntervalMs long 3600000
messageDelayLevel String 1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h
messageIndexEnable boolean true
messageIndexSafe boolean false
minInSyncReplicas int 1
offsetCheckInSlave boolean false
osPageCacheBusyTimeOutMills long 1000
preferredLeaderId String
pullBatchMaxMessageCount int 160
putConsumeQueueDataByFileChannel boolean true
putMessageTimeout int 8000
putMsgIndexHightWater int 600000
readOnlyCommitLogStorePaths String
readUnCommitted boolean false
realTimePersistRocksDBConfig boolean true
recheckReputOffsetFromCq boolean false
redeleteHangedFileInterval int 120000
replicasPerDiskPartition int 1
rocksdbCompressionType String lz4
rocksdbCQDoubleWriteEnable boolean false
rocksdbFlushWalFrequency int 1024
rocksdbWalFileRollingThreshold long 1073741824
sampleCountThreshold int 5000
sampleSteps int 32
scheduleAsyncDeliverMaxPendingLimit int 2000
scheduleAsyncDeliverMaxResendNum2Blocked int 3
searchBcqByCacheEnable boolean true
slaveTimeout int 3000
spinLockCollisionRetreatOptimalDegree int 1000
statRocksDBCQIntervalSec long 10
storePathBrokerIdentity String
storePathCommitLog String
storePathDLedgerCommitLog String
storePathEpochFile String
storePathRootDir String
storeType String default
syncFlushTimeout int 5000
syncFromLastFile boolean false
syncMasterFlushOffsetWhenStartup boolean false
timerColdDataCheckIntervalMs int 60000
timerCongestNumEachSlot int 2147483647
timerEnableCheckMetrics boolean true
timerEnableRetryUntilSuccess boolean false
timerFlushIntervalMs int 1000
timerGetMessageThreadNum int 3
timerInterceptDelayLevel boolean false
timerMaxDelaySec int 259200
timerMetricSmallThreshold int 1000000
timerPrecisionMs int 1000
timerProgressLogIntervalMs int 10000
timerPutMessageThreadNum int 3
timerRollWindowSlot int 172800
timerSkipUnknownError boolean false
timerStopEnqueue boolean false
timerWheelEnable boolean true
topicQueueLockNum int 32
totalReplicas int 1
transientStorePoolEnable boolean false
transientStorePoolSize int 5
travelCqFileNumWhenGetMessage int 1
useABSLock boolean false
useReentrantLockWhenPutMessage boolean true
wakeCommitWhenPutMessage boolean true
wakeFlushWhenPutMessage boolean false
warmMapedFileEnable boolean false
# org.apache.rocketmq.remoting.netty.NettyServerConfig
bindAddress String 0.0.0.0
enableShutdownGracefully boolean false
serverAsyncSemaphoreValue int 64
serverCallbackExecutorThreads int 0
serverChannelMaxIdleTimeSeconds int 120
serverNettyWorkerGroupEnable boolean true
serverOnewaySemaphoreValue int 256
serverPooledByteBufAllocatorEnable boolean true
serverSelectorThreads int 3
serverSocketBacklog int
serverSocketRcvBufSize int
serverSocketSndBufSize int
serverWorkerThreads int 8
shutdownWaitTimeSeconds int 30
useEpollNativeSelector boolean false
writeBufferHighWaterMark int
writeBufferLowWaterMark int
# org.apache.rocketmq.remoting.netty.NettyClientConfig
channelNotActiveInterval long 60000
clientAsyncSemaphoreValue int
clientCallbackExecutorThreads int
clientChannelMaxIdleTimeSeconds int
clientCloseSocketIfTimeout boolean
clientOnewaySemaphoreValue int
clientPooledByteBufAllocatorEnable boolean false
clientSocketRcvBufSize int
clientSocketSndBufSize int
clientWorkerThreads int
connectTimeoutMillis int
disableCallbackExecutor boolean false
disableNettyWorkerGroup boolean false
enableReconnectForGoAway boolean true
maxReconnectIntervalTimeSeconds long 60
scanAvailableNameSrv boolean true
socksProxyConfig String {}
useTLS boolean
# org.apache.rocketmq.auth.config.AuthConfig
aclCacheExpiredSecond int 600
aclCacheMaxNum int 1000
aclCacheRefreshSecond int 60
authConfigPath String
authenticationEnabled boolean false
authenticationMetadataProvider String
authenticationProvider String
authenticationStrategy String
authenticationWhitelist String
authorizationEnabled boolean false
authorizationMetadataProvider String
authorizationProvider String
authorizationStrategy String
authorizationWhitelist String
clusterName String
configName String
initAuthenticationUser String
innerClientAuthenticationCredentials String
migrateAuthFromV1Enabled boolean false
statefulAuthenticationCacheExpiredSecond int 60
statefulAuthenticationCacheMaxNum int 10000
statefulAuthorizationCacheExpiredSecond int 60
statefulAuthorizationCacheMaxNum int 10000
userCacheExpiredSecond int 600
userCacheMaxNum int 1000
userCacheRefreshSecond int 60
# org.apache.rocketmq.tieredstore.MessageStoreConfig
commitLogRollingInterval int 24
commitLogRollingMinimumSize int 16777216
objectStoreAccessKey String
objectStoreBucket String
objectStoreEndpoint String
objectStoreSecretKey String
readAheadCacheEnable boolean true
readAheadCacheExpireDuration long 15000
readAheadCacheSizeThresholdRate double 0.3
readAheadMessageCountThreshold int 4096
readAheadMessageSizeThreshold int 16777216
recordGetMessageResult boolean false
tieredBackendServiceProvider String org.apache.rocketmq.tieredstore.provider.MemoryFileSegment
tieredMetadataServiceProvider String org.apache.rocketmq.tieredstore.metadata.DefaultMetadataStore
tieredStorageLevel String NOT_IN_DISK
tieredStoreCommitLogMaxSize long 1073741824
tieredStoreConsumeQueueMaxSize long 104857600
tieredStoreCrcCheckEnable boolean false
tieredStoreDeleteFileEnable boolean true
tieredStoreDeleteFileInterval long 3600000
tieredStoreFilePath String
tieredStoreFileReservedTime int 72
tieredStoreGroupCommit boolean true
tieredStoreGroupCommitCount int 4096
tieredStoreGroupCommitSize int 4194304
tieredStoreGroupCommitTimeout int 30000
tieredStoreIndexFileMaxHashSlotNum int 5000000
tieredStoreIndexFileMaxIndexNum int 20000000
tieredStoreMaxGroupCommitCount int 10000
tieredStoreMaxPendingLimit int 10000
# Read by BrokerStartup itself, without a setter
rmqAddressServerDomain String
rmqAddressServerSubGroup String nsaddr
# org.apache.rocketmq.common.BrokerConfig, since 5.4.0
enableConnectionMetrics boolean true
enableLagAndDlqMetrics boolean true
enableMessageStoreMetrics boolean true
enablePopMetrics boolean true
enableRemotingMetrics boolean true
enableRequestMetrics boolean true
enableSplitMetadata boolean true
enableStatsMetrics boolean true
enableTransactionMetrics boolean true
popFromRetryProbabilityForPriority int 0
popPollingMapExpireTimeSeconds int 600
popReviveConcurrency int 32
priorityOrderAsc boolean true
splitMetadataSize int 2000
transactionMetricFlushInterval long 10000
useSeparateRetryQueue boolean false
useSingleRocksDBForAllConfigs boolean false
# org.apache.rocketmq.store.config.MessageStoreConfig, since 5.4.0
appendTopicForTimerDeleteKey boolean false
combineAssignOffsetCQType String default
combineCQEnableCheckSelf boolean false
combineCQLoadingCQTypes String default;defaultRocksDB
combineCQMaxExtraSearchCommitLogFiles int 3
combineCQPreferCQType String default
commitLogRecoverMaxNum int 10
enableAcceleratedRecovery boolean false
enableLogConsumeQueueRepeatedlyBuildWhenRecover boolean false
enableRunningFlagsInFlush boolean false
indexFileReadEnable boolean true
indexFileWriteEnable boolean true
indexRocksDBEnable boolean false
maxRocksDBIndexQueryDays int 7
sharedByteBufferNum int 16
timerRecallToTimelineEnable boolean true
timerRecallToTimeWheelEnable boolean true
timerRocksDBEnable boolean false
timerRocksDBPrecisionMs long 1000
timerRocksDBRollIntervalHours int 1
timerRocksDBRollMaxTps double 8000.0
timerRocksDBRollRangeHours int 2
timerRocksDBStopScan boolean false
timerRocksDBTimeExpiredMaxTps double 200000.0
timerWheelSnapshotFlush boolean false
timerWheelSnapshotIntervalMs int 10000
transRocksDBEnable boolean false
transWriteOriginTransHalfEnable boolean true
writeWithoutMmap boolean false
# org.apache.rocketmq.common.BrokerConfig, since 5.5.0
enableLiteEventMode boolean true
enableLitePopLog boolean false
liteEventCheckInterval long 10000
liteEventFullDispatchDelayTime long 10000
liteEventFullDispatchDelayTimeForWildcardGroup long 10000
liteLagCountMetricsEnable boolean false
liteLagLatencyCollectEnable boolean false
liteLagLatencyMetricsEnable boolean false
liteLagLatencyTopK int 50
liteSubscriptionCheckInterval long 120000
liteSubscriptionCheckTimeoutMills long 180000
liteTtlCheckInterval long 120000
maxClientEventCount int 100
maxLiteSubscriptionCount long 100000
maxMessageFilterNumForNotification int 64
metricsExportBatchMaxDataPoints int 1000
minLiteTTl long 900000
persistConsumerOffsetIncrementally boolean false
popReviveSkipIfGroupAbsent boolean true
transactionCheckRocksdbCoreThreads int 2
transactionCheckRocksdbMaxThreads int 5
transactionCheckRocksdbQueueCapacity int 2000
useMessageFilterForNotification boolean true
# org.apache.rocketmq.store.config.MessageStoreConfig, since 5.5.0
checkCommitLogOffsetOnRecover boolean false
combineCQUseRocksdbForLmq boolean false
enableLmqQuota boolean false
iteratorWhenUseRocksdbConsumeQueue boolean true
timerReputServiceCorePoolSize int 6
timerReputServiceMaxPoolSize int 6
timerReputServiceQueueCapacity int 10000
useSeparateStorePathForRocksdbCQ boolean false
"""


def _parse(table: str) -> dict[str, JavaSetting]:
    settings: dict[str, JavaSetting] = {}
    since = None
    for line in table.strip().split("\n"):
        if line[0] == "#":
            _, is_later, release = line.partition(", since ")
            since = parse_broker_version(release) if is_later else None
            continue
        name, kind, *default = line.split(" ", 2)
        text = default[0] if default else None
        former = settings.get(name)
        settings[name] = (
            JavaSetting(name, kind, text, since)
            if former is None
            else former._replace(default=text, former_default=former.default, default_since=since)
        )
    return settings


JAVA_SETTINGS: dict[str, JavaSetting] = _parse(_TABLE)


_PLACES = frozenset(
    {
        *("storePathRootDir", "storePathCommitLog", "readOnlyCommitLogStorePaths", "storePathDLedgerCommitLog"),
        *("storePathEpochFile", "storePathBrokerIdentity", "tieredStoreFilePath", "storeType", "configManagerVersion"),
        *("rocketmqHome", "brokerConfigPath", "authConfigPath", "configStorePath", "kvConfigPath", "configName"),
        *("controllerStorePath", "enableDLegerCommitLog", "controllerType"),
        *("transRocksDBEnable", "transWriteOriginTransHalfEnable", "timerRocksDBEnable", "timerRocksDBStopScan"),
        *("indexRocksDBEnable", "indexFileWriteEnable", "useSingleRocksDBForAllConfigs"),
        *("useSeparateStorePathForRocksdbCQ", "combineCQUseRocksdbForLmq", "combineCQLoadingCQTypes"),
        *("combineCQPreferCQType", "combineAssignOffsetCQType"),
        *("objectStoreBucket", "objectStoreEndpoint", "metricsGrpcExporterTarget"),
        *(
            "messageStorePlugIn",
            "tieredBackendServiceProvider",
            "tieredMetadataServiceProvider",
        ),  # names of classes to load
    }
)
_ADDRESSES = frozenset(
    {
        *("bindAddress", "listenPort", "haListenPort", "brokerIP1", "brokerIP2", "haMasterAddress", "namesrvAddr"),
        *("controllerAddr", "metricsPromExporterHost", "metricsPromExporterPort", "socksProxyConfig"),
        *("rmqAddressServerDomain", "rmqAddressServerSubGroup", "fetchNamesrvAddrByAddressServer"),
        *("fetchNameSrvAddrByDnsLookup", "fetchControllerAddrByDnsLookup", "jRaftControllerRPCAddr", "jRaftInitConf"),
    }
)
_IDENTITIES = frozenset(
    {
        *("brokerName", "brokerClusterName", "brokerId", "brokerRole", "inBrokerContainer", "enableControllerMode"),
        *("dLegerGroup", "dLegerPeers", "dLegerSelfId", "preferredLeaderId", "clusterName"),
        *("controllerDLegerGroup", "controllerDLegerPeers", "controllerDLegerSelfId", "jRaftGroupId", "jRaftServerId"),
    }
)
_RIGHTS = frozenset(
    {
        *("configBlackList", "initAuthenticationUser", "innerClientAuthenticationCredentials", "aclEnable"),
        *("authenticationEnabled", "authenticationWhitelist", "authorizationEnabled", "authorizationWhitelist"),
        *("authenticationProvider", "authenticationMetadataProvider", "authenticationStrategy"),
        *(
            "authorizationProvider",
            "authorizationMetadataProvider",
            "authorizationStrategy",
            "migrateAuthFromV1Enabled",
        ),
        *("objectStoreAccessKey", "objectStoreSecretKey", "metricsGrpcExporterHeader", "registrationNetworks"),
    }
)
FIXED_SETTINGS = _PLACES | _ADDRESSES | _IDENTITIES | _RIGHTS
"""Settings that no request may change, on any server: Java's names and this package's; also those of TLS (`tls.…`).

They are read only at start, and name a place, an address or an identity, or grant rights. A request that changes one would write it
into the configuration file, so the next start would use another directory, port, name or key. A user who may edit the file may change
them there.

Departure: since CVE-2023-33246 (of a broker) and CVE-2023-37582 (of a name server) Java refuses rocketmqHome, configBlackList,
brokerConfigPath, configStorePath and kvConfigPath. It accepts the rest from every client that reaches the port.
Java: AdminBrokerProcessor.initConfigBlackList, DefaultRequestProcessor.initConfigBlackList.
"""


def is_fixed(java_name: str) -> bool:
    """Whether no request may change the setting."""
    return java_name in FIXED_SETTINGS or java_name.startswith("tls.")


def refusal_of_change(names: Iterable[str], black_list: str) -> str | None:
    """Why a request may not change these settings; None if it may. `black_list` is the server's configBlackList."""
    listed = {name.strip() for name in black_list.split(";")}
    for name in names:
        if name in listed:
            return "Can not update config in black list."
        if is_fixed(name):
            rule = "only a start reads it, and it names a place, an address or an identity, or says who may do what"
            return f"Can not update config {name}: {rule}; change it in the configuration file"
    return None
