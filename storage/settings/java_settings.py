"""Every name that a broker of RocketMQ 5.3.3 to 5.5.0 understands in broker.conf, with its type and, if it is a constant, its default;
also the settings that no request may change.
Java finds them by reflection (MixAll.properties2Object): each public setter with one plain parameter is a
setting. One line each, `!` for what Java prints as important; the classes and their names are in the order in which `-p` prints them:

    name type[!] [default]

No default = none, or one that depends on the machine. `listenPort` and `haListenPort` have the values that
BrokerStartup sets. A name that several classes have stands with the first. "since" begins what a later release added, or a default that
it changed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from storage.settings.nouns import BrokerVersion, parse_broker_version


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
    is_printed: bool = True
    """Whether `mqbroker -p` prints it, if the release has it. Java: BrokerStartup, MixAll.printObjectProperties."""
    is_important: bool = False
    """Whether `mqbroker -m` prints it. Java: ImportantField."""

    def default_of(self, version: BrokerVersion) -> str | None:
        """The default that a broker of this release has."""
        return self.former_default if self.default_since is not None and version < self.default_since else self.default


_TABLE = """
# org.apache.rocketmq.common.BrokerIdentity
brokerClusterName String! DefaultCluster
brokerId long! 0
brokerName String!
inBrokerContainer boolean false
# org.apache.rocketmq.common.BrokerConfig
brokerConfigPath String
rocketmqHome String
namesrvAddr String!
listenPort int! 10911
brokerIP1 String!
brokerIP2 String
recoverConcurrently boolean! false
brokerPermission int 6
defaultTopicQueueNums int 8
autoCreateTopicEnable boolean! true
clusterTopicEnable boolean true
brokerTopicEnable boolean true
autoCreateSubscriptionGroup boolean! true
messageStorePlugIn String
msgTraceTopicName String! RMQ_SYS_TRACE_TOPIC
traceTopicEnable boolean! false
sendMessageThreadPoolNums int
putMessageFutureThreadPoolNums int
pullMessageThreadPoolNums int
litePullMessageThreadPoolNums int
ackMessageThreadPoolNums int 16
processReplyMessageThreadPoolNums int
queryMessageThreadPoolNums int
adminBrokerThreadPoolNums int 16
clientManageThreadPoolNums int 32
consumerManageThreadPoolNums int 32
loadBalanceProcessorThreadPoolNums int 32
heartbeatThreadPoolNums int
recoverThreadPoolNums int 32
endTransactionThreadPoolNums int
flushConsumerOffsetInterval int 5000
flushConsumerOffsetHistoryInterval int 60000
rejectTransactionMessage boolean! false
fetchNameSrvAddrByDnsLookup boolean! false
fetchNamesrvAddrByAddressServer boolean! false
sendThreadPoolQueueCapacity int 10000
putThreadPoolQueueCapacity int 10000
pullThreadPoolQueueCapacity int 100000
litePullThreadPoolQueueCapacity int 100000
ackThreadPoolQueueCapacity int 100000
replyThreadPoolQueueCapacity int 10000
queryThreadPoolQueueCapacity int 20000
clientManagerThreadPoolQueueCapacity int 1000000
consumerManagerThreadPoolQueueCapacity int 1000000
heartbeatThreadPoolQueueCapacity int 50000
endTransactionPoolQueueCapacity int 100000
adminBrokerThreadPoolQueueCapacity int 10000
loadBalanceThreadPoolQueueCapacity int 100000
longPollingEnable boolean true
shortPollingTimeMills long 1000
notifyConsumerIdsChangedEnable boolean true
highSpeedMode boolean false
commercialBaseCount int 1
commercialSizePerMsg int 4096
accountStatsEnable boolean true
accountStatsPrintZeroValues boolean true
maxStatsIdleTimeInMinutes int -1
transferMsgByHeap boolean true
regionId String DefaultRegion
registerBrokerTimeoutMills int 24000
sendHeartbeatTimeoutMillis int 1000
slaveReadEnable boolean false
disableConsumeIfConsumerReadSlowly boolean false
consumerFallbehindThreshold long 17179869184
brokerFastFailureEnable boolean true
waitTimeMillsInSendQueue long 200
waitTimeMillsInPullQueue long 5000
waitTimeMillsInLitePullQueue long 5000
waitTimeMillsInHeartbeatQueue long 31000
waitTimeMillsInTransactionQueue long 3000
waitTimeMillsInAckQueue long 3000
waitTimeMillsInAdminBrokerQueue long 5000
startAcceptSendRequestTimeStamp long 0
traceOn boolean true
enableCalcFilterBitMap boolean false
rejectPullConsumerEnable boolean false
expectConsumerNumUseFilter int 32
maxErrorRateOfBloomFilter int 20
filterDataCleanTimeSpan long 86400000
filterSupportRetry boolean false
enablePropertyFilter boolean false
compressedRegister boolean false
forceRegister boolean true
registerNameServerPeriod int 30000
updateNameServerAddrPeriod int 120000
brokerHeartbeatInterval int 1000
brokerNotActiveTimeoutMillis long 10000
enableNetWorkFlowControl boolean false
enableBroadcastOffsetStore boolean true
broadcastOffsetExpireSecond long 120
broadcastOffsetExpireMaxSecond long 300
popPollingSize int 1024
popPollingMapSize int 100000
maxPopPollingSize long 100000
reviveQueueNum int 8
reviveInterval long 1000
reviveMaxSlow long 3
reviveScanTime long 10000
enableSkipLongAwaitingAck boolean false
reviveAckWaitMs long 180000
enablePopLog boolean false
enablePopBufferMerge boolean false
popCkStayBufferTime int 10000
popCkStayBufferTimeOut int 3000
popCkMaxBufferSize int 200000
popCkOffsetMaxQueueSize int 20000
enablePopBatchAck boolean false
popLongPollingForceNotifyInterval long 800
enableNotifyBeforePopCalculateLag boolean true
enableNotifyAfterPopOrderLockRelease boolean true
initPopOffsetByCheckMsgInMem boolean true
retrieveMessageFromPopRetryTopicV1 boolean true
enableRetryTopicV2 boolean false
popFromRetryProbability int 20
popConsumerFSServiceInit boolean true
popConsumerKVServiceLog boolean false
popConsumerKVServiceInit boolean false
popConsumerKVServiceEnable boolean false
popReviveMaxReturnSizePerRead int 16384
popReviveMaxAttemptTimes int 16
realTimeNotifyConsumerChange boolean true
litePullMessageEnable boolean true
syncBrokerMemberGroupPeriod int 1000
loadBalancePollNameServerInterval long 30000
cleanOfflineBrokerInterval int 30000
serverLoadBalancerEnable boolean true
defaultMessageRequestMode String PULL
defaultPopShareQueueNum int -1
transactionTimeOut long! 6000
transactionCheckMax int! 15
transactionCheckInterval long! 30000
transactionMetricFlushInterval long 3000
transactionOpMsgMaxSize int 4096
transactionOpBatchInterval int 3000
aclEnable boolean! false
storeReplyMessageEnable boolean true
enableDetailStat boolean true
autoDeleteUnusedStats boolean true
isolateLogEnable boolean false
forwardTimeout long 3000
enableSlaveActingMaster boolean false
enableRemoteEscape boolean false
skipPreOnline boolean false
asyncSendEnable boolean true
useServerSideResetOffset boolean true
consumerOffsetUpdateVersionStep long 500
delayOffsetUpdateVersionStep long 200
lockInStrictMode boolean false
compatibleWithOldNameSrv boolean true
enableControllerMode boolean false
controllerAddr String
fetchControllerAddrByDnsLookup boolean false
syncBrokerMetadataPeriod long 5000
checkSyncStateSetPeriod long 5000
syncControllerMetadataPeriod long 10000
controllerHeartBeatTimeoutMills long 10000
validateSystemTopicWhenUpdateTopic boolean true
brokerElectionPriority int 2147483647
useStaticSubscription boolean false
metricsExporterType String DISABLE
metricsOtelCardinalityLimit int 50000
metricsGrpcExporterTarget String
metricsGrpcExporterHeader String
metricGrpcExporterTimeOutInMills long 3000
metricGrpcExporterIntervalInMills long 60000
metricLoggingExporterIntervalInMills long 10000
metricsPromExporterPort int 5557
metricsPromExporterHost String
metricsLabel String
metricsInDelta boolean false
channelExpiredTimeout long 120000
subscriptionExpiredTimeout long 600000
estimateAccumulation boolean true
coldCtrStrategyEnable boolean false
usePIDColdCtrStrategy boolean true
cgColdReadThreshold long 3145728
globalColdReadThreshold long 104857600
fetchNamesrvAddrInterval long 10000
popResponseReturnActualRetryTopic boolean false
enableSingleTopicRegister boolean false
enableMixedMessageType boolean false
enableSplitRegistration boolean false
popInflightMessageThreshold long 10000
enablePopMessageThreshold boolean false
enableFastChannelEventProcess boolean false
printChannelGroups boolean false
printChannelGroupsMinNum int 5
splitRegistrationSize int 800
configBlackList String configBlackList;brokerConfigPath
skipWhenCKRePutReachMaxTimes boolean false
appendAckAsync boolean false
appendCkAsync boolean false
clearRetryTopicWhenDeleteTopic boolean true
enableLmqStats boolean false
configManagerVersion String v1
allowRecallWhenBrokerNotWriteable boolean true
recallMessageEnable boolean false
enableRegisterProducer boolean true
enableCreateSysGroup boolean true
# org.apache.rocketmq.remoting.netty.NettyServerConfig
bindAddress String 0.0.0.0
serverWorkerThreads int 8
serverCallbackExecutorThreads int 0
serverSelectorThreads int 3
serverOnewaySemaphoreValue int 256
serverAsyncSemaphoreValue int 64
serverChannelMaxIdleTimeSeconds int 120
serverSocketSndBufSize int
serverSocketRcvBufSize int
writeBufferHighWaterMark int
writeBufferLowWaterMark int
serverSocketBacklog int
serverNettyWorkerGroupEnable boolean true
serverPooledByteBufAllocatorEnable boolean true
enableShutdownGracefully boolean false
shutdownWaitTimeSeconds int 30
useEpollNativeSelector boolean false
# org.apache.rocketmq.remoting.netty.NettyClientConfig
clientWorkerThreads int 4
clientCallbackExecutorThreads int
clientOnewaySemaphoreValue int 65535
clientAsyncSemaphoreValue int 65535
connectTimeoutMillis int 3000
channelNotActiveInterval long 60000
scanAvailableNameSrv boolean true
clientChannelMaxIdleTimeSeconds int 120
clientSocketSndBufSize int 0
clientSocketRcvBufSize int 0
clientPooledByteBufAllocatorEnable boolean false
clientCloseSocketIfTimeout boolean true
useTLS boolean false
socksProxyConfig String {}
disableCallbackExecutor boolean false
disableNettyWorkerGroup boolean false
maxReconnectIntervalTimeSeconds long 60
enableReconnectForGoAway boolean true
# org.apache.rocketmq.store.config.MessageStoreConfig
storePathRootDir String!
storePathCommitLog String!
storePathDLedgerCommitLog String!
storePathEpochFile String!
storePathBrokerIdentity String!
readOnlyCommitLogStorePaths String
mappedFileSizeCommitLog int 1073741824
compactionMappedFileSize int 104857600
compactionCqMappedFileSize int 10485760
compactionScheduleInternal int 900000
maxOffsetMapSize int 104857600
compactionThreadNum int 6
enableCompaction boolean true
mappedFileSizeTimerLog int 104857600
timerPrecisionMs int 1000
timerRollWindowSlot int 172800
timerFlushIntervalMs int 1000
timerGetMessageThreadNum int 3
timerPutMessageThreadNum int 3
timerEnableCheckMetrics boolean true
timerInterceptDelayLevel boolean false
timerMaxDelaySec int 259200
timerWheelEnable boolean true
disappearTimeAfterStart int! -1
timerStopEnqueue boolean false
timerSkipUnknownError boolean false
timerEnableRetryUntilSuccess boolean false
timerCongestNumEachSlot int 2147483647
timerMetricSmallThreshold int 1000000
timerProgressLogIntervalMs int 10000
storeType String! default
mappedFileSizeConsumeQueue int 6000000
enableConsumeQueueExt boolean false
mappedFileSizeConsumeQueueExt int 50331648
mapperFileSizeBatchConsumeQueue int 13800000
bitMapLengthConsumeQueueExt int 64
flushIntervalCommitLog int! 500
commitIntervalCommitLog int! 200
maxRecoveryCommitlogFiles int 30
diskSpaceWarningLevelRatio int 90
diskSpaceCleanForciblyRatio int 85
useReentrantLockWhenPutMessage boolean true
flushCommitLogTimed boolean! true
flushIntervalConsumeQueue int 1000
cleanResourceInterval int 10000
deleteCommitLogFilesInterval int 100
deleteConsumeQueueFilesInterval int 100
destroyMapedFileIntervalForcibly int 120000
redeleteHangedFileInterval int 120000
deleteWhen String! 04
diskMaxUsedSpaceRatio int 75
fileReservedTime int! 72
deleteFileBatchMax int! 10
putMsgIndexHightWater int 600000
maxMessageSize int 4194304
maxFilterMessageSize int 16000
checkCRCOnRecover boolean true
flushCommitLogLeastPages int 4
commitCommitLogLeastPages int 4
flushLeastPagesWhenWarmMapedFile int 4096
flushConsumeQueueLeastPages int 2
flushCommitLogThoroughInterval int 10000
commitCommitLogThoroughInterval int 200
flushConsumeQueueThoroughInterval int 60000
maxTransferBytesOnMessageInMemory int! 262144
maxTransferCountOnMessageInMemory int! 32
maxTransferBytesOnMessageInDisk int! 65536
maxTransferCountOnMessageInDisk int! 8
accessMessageInMemoryMaxRatio int! 40
messageIndexEnable boolean! true
maxHashSlotNum int 5000000
maxIndexNum int 20000000
maxMsgsNumBatch int 64
messageIndexSafe boolean! false
haListenPort int 0
haSendHeartbeatInterval int 5000
haHousekeepingInterval int 20000
haTransferBatchSize int 32768
haMasterAddress String!
haMaxGapNotInSync int 268435456
brokerRole String! ASYNC_MASTER
flushDiskType String! ASYNC_FLUSH
syncFlushTimeout int 5000
putMessageTimeout int 8000
slaveTimeout int 3000
messageDelayLevel String 1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h
flushDelayOffsetInterval long 10000
cleanFileForciblyEnable boolean! true
warmMapedFileEnable boolean false
offsetCheckInSlave boolean false
debugLockEnable boolean false
duplicationEnable boolean false
diskFallRecorded boolean true
osPageCacheBusyTimeOutMills long 1000
defaultQueryMaxNum int 32
transientStorePoolEnable boolean! false
transientStorePoolSize int 5
fastFailIfNoBufferInStorePool boolean false
enableDLegerCommitLog boolean false
dLegerGroup String
dLegerPeers String
dLegerSelfId String
preferredLeaderId String
enableBatchPush boolean false
enableScheduleMessageStats boolean true
enableLmq boolean false
enableMultiDispatch boolean false
maxLmqConsumeQueueNum int 20000
enableScheduleAsyncDeliver boolean false
scheduleAsyncDeliverMaxPendingLimit int 2000
scheduleAsyncDeliverMaxResendNum2Blocked int 3
maxBatchDeleteFilesNum int 50
dispatchCqThreads int 10
dispatchCqCacheNum int 4096
enableAsyncReput boolean true
recheckReputOffsetFromCq boolean false
maxTopicLength int 127
autoMessageVersionOnTopicLen boolean true
enabledAppendPropCRC boolean false
forceVerifyPropCRC boolean false
travelCqFileNumWhenGetMessage int 1
correctLogicMinOffsetSleepInterval int 1
correctLogicMinOffsetForceInterval int 300000
mappedFileSwapEnable boolean true
commitLogForceSwapMapInterval long 43200000
commitLogSwapMapInterval long 3600000
commitLogSwapMapReserveFileNum int 100
logicQueueForceSwapMapInterval long 43200000
logicQueueSwapMapInterval long 3600000
cleanSwapedMapInterval long 300000
logicQueueSwapMapReserveFileNum int 20
searchBcqByCacheEnable boolean true
dispatchFromSenderThread boolean! false
wakeCommitWhenPutMessage boolean! true
wakeFlushWhenPutMessage boolean! false
enableCleanExpiredOffset boolean! false
maxAsyncPutMessageRequests int 5000
pullBatchMaxMessageCount int 160
totalReplicas int! 1
inSyncReplicas int! 1
minInSyncReplicas int! 1
allAckInSyncStateSet boolean! false
enableAutoInSyncReplicas boolean! false
haFlowControlEnable boolean! false
maxHaTransferByteInSecond long 104857600
haMaxTimeSlaveNotCatchup long 15000
syncMasterFlushOffsetWhenStartup boolean false
maxChecksumRange long 1073741824
replicasPerDiskPartition int 1
logicalDiskSpaceCleanForciblyThreshold double 0.8
maxSlaveResendLength long 268435456
syncFromLastFile boolean false
asyncLearner boolean false
maxConsumeQueueScan int 20000
sampleCountThreshold int 5000
coldDataFlowControlEnable boolean false
coldDataScanEnable boolean false
dataReadAheadEnable boolean true
timerColdDataCheckIntervalMs int 60000
sampleSteps int 32
accessMessageInMemoryHotRatio int 26
enableBuildConsumeQueueConcurrently boolean false
batchDispatchRequestThreadPoolNums int 16
cleanRocksDBDirtyCQIntervalMin long 60
statRocksDBCQIntervalSec long 10
memTableFlushIntervalMs long 3600000
realTimePersistRocksDBConfig boolean true
enableRocksDBLog boolean false
topicQueueLockNum int 32
readUnCommitted boolean false
putConsumeQueueDataByFileChannel boolean true
rocksdbCQDoubleWriteEnable boolean false
bottomMostCompressionTypeForConsumeQueueStore String zstd
rocksdbCompressionType String lz4
rocksdbFlushWalFrequency int 1024
rocksdbWalFileRollingThreshold long 1073741824
spinLockCollisionRetreatOptimalDegree int 1000
useABSLock boolean false
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


_PRINTED = (
    *(".BrokerIdentity", ".BrokerConfig", ".NettyServerConfig", ".NettyClientConfig"),
    ".rocketmq.store.config.MessageStoreConfig",
)


def _parse(table: str) -> dict[str, JavaSetting]:
    settings: dict[str, JavaSetting] = {}
    since, is_printed = None, True
    for line in table.strip().split("\n"):
        if line[0] == "#":
            owner, is_later, release = line.partition(", since ")
            is_printed = owner.endswith(_PRINTED)
            since = parse_broker_version(release) if is_later else None
            continue
        name, kind, *default = line.split(" ", 2)
        text = default[0] if default else None
        former = settings.get(name)
        settings[name] = (
            JavaSetting(name, kind.rstrip("!"), text, since, is_printed=is_printed, is_important=kind.endswith("!"))
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
