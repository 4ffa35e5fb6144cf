"""Settings of Apache's broker without effect here, and their values in GET_BROKER_CONFIG responses.

Apache's tools read them: `mqadmin exportConfigs` fails without filterServerNums and useTLS. The values are Apache's
defaults (on two processors), even if broker.conf sets others.

Corresponds to `BrokerConfig` and `MessageStoreConfig` of Apache RocketMQ 4.9.8.
"""

from __future__ import annotations

from typing import Final

from rucola.remoting.netty_settings import NETTY_CLIENT_SETTINGS, NETTY_SERVER_SETTINGS

_BROKER_AND_STORE: Final = """
    adminBrokerThreadPoolNums=16 autoDeleteUnusedStats=false bitMapLengthConsumeQueueExt=112
    checkCRCOnRecover=true clientManagerThreadPoolQueueCapacity=1000000 clientManageThreadPoolNums=32
    commercialBaseCount=1 commercialBigCount=1 commercialEnable=true commercialTimerCount=1 commercialTransCount=1
    commitCommitLogLeastPages=4 commitCommitLogThoroughInterval=200 commitIntervalCommitLog=200
    configBlackList=configBlackList;brokerConfigPath
    consumerFallbehindThreshold=17179869184 consumerManagerThreadPoolQueueCapacity=1000000
    consumerManageThreadPoolNums=32 debugLockEnable=false deleteConsumeQueueFilesInterval=100
    disableConsumeIfConsumerReadSlowly=false diskFallRecorded=true duplicationEnable=false
    enableCalcFilterBitMap=false enableConsumeQueueExt=false enableDetailStat=true enableDLegerCommitLog=false
    enableScheduleAsyncDeliver=false enableScheduleMessageStats=true
    endTransactionPoolQueueCapacity=100000 endTransactionThreadPoolNums=12 expectConsumerNumUseFilter=32
    fastFailIfNoBufferInStorePool=false fetchNamesrvAddrByAddressServer=false filterServerNums=0
    flushCommitLogLeastPages=4 flushCommitLogThoroughInterval=10000 flushCommitLogTimed=true
    flushConsumeQueueLeastPages=2 flushConsumeQueueThoroughInterval=60000 flushConsumerOffsetHistoryInterval=60000
    flushDelayOffsetInterval=10000 flushIntervalConsumeQueue=1000 flushLeastPagesWhenWarmMapedFile=4096
    forceRegister=true heartbeatThreadPoolNums=2 heartbeatThreadPoolQueueCapacity=50000 highSpeedMode=false
    isEnableBatchPush=false isolateLogEnable=false mappedFileSizeConsumeQueueExt=50331648 maxDelayTime=40
    maxErrorRateOfBloomFilter=20 messageIndexSafe=false messageStorePlugIn=
    processReplyMessageThreadPoolNums=20 pullMessageThreadPoolNums=20 pullThreadPoolQueueCapacity=100000
    putMessageFutureThreadPoolNums=2 putMsgIndexHightWater=600000 putThreadPoolQueueCapacity=10000
    queryMessageThreadPoolNums=10 queryThreadPoolQueueCapacity=20000 redeleteHangedFileInterval=120000
    replyThreadPoolQueueCapacity=10000 scheduleAsyncDeliverMaxPendingLimit=2000
    scheduleAsyncDeliverMaxResendNum2Blocked=3 sendMessageThreadPoolNums=2 sendThreadPoolQueueCapacity=10000
    startAcceptSendRequestTimeStamp=0 transferMsgByHeap=true transientStorePoolEnable=false transientStorePoolSize=5
    useReentrantLockWhenPutMessage=true warmMapedFileEnable=false
"""
APACHE_SETTINGS: Final = (
    dict(pair.split("=") for pair in _BROKER_AND_STORE.split()) | NETTY_CLIENT_SETTINGS | NETTY_SERVER_SETTINGS
)
"""Settings that GET_BROKER_CONFIG returns in addition to Rucola's."""

_WITHOUT_DEFAULT: Final = """
    dLegerGroup dLegerPeers dLegerSelfId enableBatchPush preferredLeaderId readOnlyCommitLogStorePaths
    storePathDLedgerCommitLog
"""
WITHOUT_EFFECT: Final = APACHE_SETTINGS.keys() | frozenset(_WITHOUT_DEFAULT.split())
"""Keys of Apache's broker.conf without effect; those without a default are not returned."""
