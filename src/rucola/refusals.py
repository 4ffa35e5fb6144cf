"""Refusals of requests: the reason of each, and its text, in which names in braces are fields of `Refused`.

Where Apache has a remark, the text begins with it, byte for byte: clients and operators' scripts compare remarks.
"""

from __future__ import annotations

from typing import Final

from rucola.access import Reason, Refusal

# Access control.

NOT_AUTHENTICATED: Final = Refusal(Reason.DENIED, "the request is not authenticated")
NO_ACCESS_KEY: Final = Refusal(
    Reason.DENIED, "the request has no access key: give the client an access key and a secret key"
)
NO_SIGNATURE: Final = Refusal(Reason.DENIED, "the request has no signature, accessKey={access_key}")
WRONG_KEYS: Final = Refusal(Reason.DENIED, "unknown access key or wrong secret key, accessKey={access_key}")
USER_DISABLED: Final = Refusal(Reason.DENIED, "user {user} is disabled")
NO_ACCOUNT_ANY_MORE: Final = Refusal(Reason.DENIED, "the account of this request does not exist any more")
NO_WHITE_ADDRESS_ANY_MORE: Final = Refusal(Reason.DENIED, "{host} is no white address of account {user} any more")
SLAVE_NOT_AUTHENTICATED: Final = Refusal(
    Reason.DENIED,
    "it did not authenticate: a slave of Rucola does with aclEnable=true and an admin's credentials; the address of "
    "a slave of Apache must be a global white address",
)
NO_PLAIN_ACCOUNTS: Final = "this broker has no accounts of plain_acl.yml: aclEnable=true enables them"
"""With the reason that Apache has for the request."""
NO_USERS: Final = Refusal(Reason.FAILED, "this broker has no users: authenticationEnabled=true enables them")
USER_EXISTS: Final = Refusal(Reason.INVALID, "user {user} exists already")
TOO_MANY_USERS: Final = Refusal(Reason.FAILED, "there are {limit} users already")
INCOMPLETE_USER: Final = Refusal(Reason.INVALID, "a user needs a name and a password")
NO_USER: Final = Refusal(Reason.INVALID, "there is no user {user}")
NO_USER_TYPE: Final = Refusal(Reason.INVALID, "user type {user_type!r}: expected Super or Normal")
NO_USER_STATUS: Final = Refusal(Reason.INVALID, "user status {user_status!r}: expected enable or disable")
NO_SUPER_USER: Final = Refusal(
    Reason.DENIED, "{user} is no super user, and only super users create or change super users"
)
LAST_SUPER_USER: Final = Refusal(
    Reason.INVALID, "this would leave no enabled super user; create or enable another one first"
)
USERS_NOT_WRITTEN: Final = Refusal(Reason.FAILED, "{path} cannot be written: {why}")
NO_SUBJECT: Final = Refusal(Reason.INVALID, "subject {subject!r}: expected User:NAME")
NO_POLICIES: Final = Refusal(Reason.INVALID, "{subject} has no policies")
NO_POLICIES_GIVEN: Final = Refusal(Reason.INVALID, "the policies are empty")
TOO_MANY_POLICIES: Final = Refusal(Reason.INVALID, "a user has at most {limit} entries of policies")

# Permissions, roles, limits and load.

FORBIDDEN: Final = Refusal(Reason.FORBIDDEN, "the {kind}[{name}] {doing} message is forbidden")
SEND_TOPIC_FORBIDDEN: Final = Refusal(Reason.FORBIDDEN, "Sending message to topic[{topic}] is forbidden.")
GROUP_FORBIDDEN: Final = Refusal(Reason.FORBIDDEN, "subscription group no permission, {group}")
TRANSACTIONS_FORBIDDEN: Final = Refusal(
    Reason.FORBIDDEN, "the broker[{broker}] sending transaction message is forbidden (rejectTransactionMessage)"
)
BROADCAST_FORBIDDEN: Final = Refusal(Reason.FORBIDDEN, "the consumer group[{group}] can not consume by broadcast way")
SLAVE_TAKES_NO_MESSAGES: Final = Refusal(
    Reason.UNAVAILABLE, "this broker is a slave and takes no messages; its master is {master}"
)
SLAVE_KNOWS_NO_POP: Final = Refusal(
    Reason.UNAVAILABLE, "this broker is a slave, and only masters deliver by POP; its master is {master}"
)
SLAVE_ENDS_NO_TRANSACTIONS: Final = Refusal(
    Reason.NOT_MASTER, "this broker is a slave and ends no transactions; its master is {master}"
)
HALF_NOT_FOUND: Final = Refusal(Reason.FAILED, "Find prepared transaction message failed: {why}")
HALF_OF_OTHER_GROUP: Final = Refusal(Reason.FAILED, "The producer group wrong: {group} did not send this message")
HALF_OFFSET_WRONG: Final = Refusal(Reason.FAILED, "The transaction state table offset wrong: it is {offset}")
SLAVE_CHANGES_NOTHING: Final = Refusal(
    Reason.FAILED,
    "Can't modify topic or subscription group from slave broker, please execute it from master broker.; its master "
    "is {master}",
)
LEASE_ENDED: Final = Refusal(
    Reason.UNAVAILABLE,
    "this master accepts no messages: etcd does not answer, and neither do all brokers that could be elected instead",
)
BEYOND_LIMIT: Final = Refusal(Reason.FAILED, "{found}; the limit is {limit} ({key})")
NAME_TOO_LONG: Final = Refusal(Reason.INVALID, "the name of {kind} has {size} characters; the limit is {limit}")
BUSY: Final = Refusal(
    Reason.BUSY,
    "[{kind}_CLEAN_QUEUE]broker busy, start flow control for a while, period in queue: {waited_ms}ms, limit "
    "{limit_ms} ms ({key} on the broker)",
)
PULLS_HELD: Final = Refusal(
    Reason.BUSY,
    "the connection holds {count} pulls already, which count as {weight} (maxHeldPullsPerConnection); pull again later",
)
PULL_TOO_LARGE: Final = Refusal(Reason.BUSY, "the broker holds too many pulls for one this large (maxHeldPulls)")
LAKE_NOT_READ: Final = Refusal(Reason.BUSY, "the lake cannot be read, try again: {why}")
TOO_MANY_CALLS: Final = Refusal(Reason.BUSY, "this client is working on {limit} requests of this server already")

# Messages.

SEND_TOPIC_NOT_FOUND: Final = Refusal(
    Reason.TOPIC_NOT_FOUND,
    "topic[{topic}] not exist, apply first please! Create it (`rucola admin updateTopic`), or set "
    "autoCreateTopicEnable=true on the broker",
)
NO_WRITE_QUEUE: Final = Refusal(Reason.INVALID, "the topic[{topic}] has no queue to write to")
SEND_QUEUE_ILLEGAL: Final = Refusal(
    Reason.INVALID, "request queueId[{queue_id}] is illegal, {topic} Producer: {producer}"
)
ILLEGAL_MESSAGE: Final = Refusal(Reason.ILLEGAL_MESSAGE, "the message is illegal: {why}")
STORE_TAKES_NO_MESSAGES: Final = Refusal(Reason.UNAVAILABLE, "the store takes no messages")
NO_DISK_SPACE: Final = Refusal(Reason.FAILED, "the disk has no room for the message")
RECORD_TOO_LARGE: Final = Refusal(
    Reason.ILLEGAL_MESSAGE,
    "the message is illegal: it does not fit a record, or the record does not fit a file of the CommitLog",
)
PROPERTIES_TOO_LARGE: Final = Refusal(
    Reason.ILLEGAL_MESSAGE, "the message is illegal: its properties take more than 32767 bytes"
)
TOO_MANY_LIGHT_QUEUES: Final = Refusal(
    Reason.FAILED,
    "there are as many light message queues as maxLmqConsumeQueueNum allows, and the message names another one",
)
RETRY_GROUP_NOT_FOUND: Final = Refusal(Reason.GROUP_NOT_FOUND, "subscription group not exist, {group}")
SEND_BACK_GROUP_NOT_FOUND: Final = Refusal(
    Reason.GROUP_NOT_FOUND,
    "subscription group not exist, {group}; create it, or set autoCreateSubscriptionGroup=true on the broker",
)
SEND_BACK_NOT_FOUND: Final = Refusal(Reason.NOT_FOUND, "look message by offset failed, {physical_offset}: {why}")
RECALL_HANDLE_ILLEGAL: Final = Refusal(
    Reason.ILLEGAL_OPERATION,
    "{handle!r} is no recall handle of a message that was sent to topic {topic} of broker {broker}",
)
RECALL_TOO_LATE: Final = Refusal(
    Reason.ILLEGAL_OPERATION, "the message was due at {due_ms} (ms since 1970); it is delivered, or about to be"
)
RECALL_NOT_FOUND: Final = Refusal(
    Reason.ILLEGAL_OPERATION, "no message of topic {topic} with the unique key {unique_key} waits for {due_ms}"
)
RECALL_NEEDS_INDEX: Final = Refusal(
    Reason.FAILED, "this broker finds no messages by their keys; set messageIndexEnable=true on the broker"
)
NO_OUTCOME: Final = Refusal(
    Reason.INVALID, "commitOrRollback is {outcome}; 8 (commit), 12 (rollback) or 0 (not known yet) is expected"
)
FETCH_GROUP_NOT_FOUND: Final = Refusal(
    Reason.GROUP_NOT_FOUND,
    "subscription group [{group}] does not exist; create it, or set autoCreateSubscriptionGroup=true on the broker",
)
FETCH_TOPIC_NOT_FOUND: Final = Refusal(Reason.TOPIC_NOT_FOUND, "topic[{topic}] not exist, apply first please!")
FETCH_QUEUE_ILLEGAL: Final = Refusal(
    Reason.INVALID,
    "queueId[{queue_id}] is illegal, topic:[{topic}] topicConfig.readQueueNums:[{read_queue_nums}] "
    "consumer:[{consumer}]",
)
SUBSCRIPTION_NOT_PARSED: Final = Refusal(Reason.INVALID_SUBSCRIPTION, "parse the consumer's subscription failed: {why}")
GROUP_WITHOUT_HEARTBEAT: Final = Refusal(
    Reason.SUBSCRIPTION_NOT_FOUND, "the consumer's group info not exist: no member of {group} has sent a heartbeat"
)
NOT_SUBSCRIBED: Final = Refusal(
    Reason.SUBSCRIPTION_NOT_FOUND,
    "the consumer's subscription not exist: {group} does not subscribe to {topic}; members of one group must "
    "subscribe alike",
)
SUBSCRIPTION_OUTDATED: Final = Refusal(Reason.SUBSCRIPTION_OUTDATED, "the consumer's subscription not latest")
FILTER_NOT_FOUND: Final = Refusal(
    Reason.FILTER_NOT_FOUND, "The broker's consumer filter data is not exist!Your expression may be wrong!"
)
FILTER_NOT_ENABLED: Final = Refusal(
    Reason.FAILED,
    "The broker does not support consumer to filter message by {expression_type}; set enablePropertyFilter=true on "
    "the broker",
)
POP_COUNT_ILLEGAL: Final = Refusal(Reason.INVALID, "maxMsgNums is {count}; 1 to {limit} are allowed")
POP_DURATION_ILLEGAL: Final = Refusal(
    Reason.INVALID, "invisibleTime is {duration_ms} ms; {least_ms} to {limit_ms} are allowed"
)
POP_LIGHT_QUEUE: Final = Refusal(Reason.INVALID, "{topic} is a light message queue, which POP does not read; pull it")
POP_RETRY_TOPIC: Final = Refusal(
    Reason.INVALID, "{topic} holds retries, which POP reads together with their own topic; receive that one"
)
POP_RETRY_TOPIC_TOO_LONG: Final = Refusal(
    Reason.INVALID,
    "the retry topic {topic} of this group and topic would have {size} characters; {limit} are allowed, so use "
    "shorter names",
)
RETRY_TOPIC_HAS_NO_MODE: Final = Refusal(
    Reason.FORBIDDEN, "retry topic is not allowed to set mode: {topic} follows its own topic"
)
NO_REQUEST_MODE: Final = Refusal(Reason.INVALID, "mode is {mode!r}; PULL or POP is expected")
POP_HELD: Final = Refusal(Reason.POLLING_FULL, "the broker holds {count} requests already ({key}); receive again later")
HANDLE_STALE: Final = Refusal(
    Reason.STALE_HANDLE,
    "{count} of {total} messages of group {group} are not held by this handle any more: they were delivered again, "
    "their invisible time was changed, or the offsets of the group were reset",
)
HANDLE_ILLEGAL: Final = Refusal(Reason.ILLEGAL_MESSAGE, "{handle!r} is no handle of a received message: {why}")
MESSAGE_NOT_FOUND: Final = Refusal(Reason.NOT_FOUND, "can not find message by the offset, {physical_offset}")

# Clients, groups and offsets.

NO_CONSUMER: Final = Refusal(Reason.NOT_FOUND, "no consumer for this group, {group}")
GROUP_OFFLINE: Final = Refusal(Reason.CLIENT_OFFLINE, "the consumer group[{group}] not online")
PRODUCER_GROUP_NOT_FOUND: Final = Refusal(Reason.NOT_FOUND, "the producer group[{group}] not exist")
CONSUMER_NOT_FOUND: Final = Refusal(Reason.NOT_FOUND, "The Consumer <{group}> <{client_id}> not online")
CONSUMER_BY_GRPC: Final = Refusal(
    Reason.FAILED,
    "the consumer <{group}> <{client_id}> receives by gRPC, where clients do not report their state; see popStatus",
)
NO_MEMBER: Final = Refusal(Reason.NOT_FOUND, "No Any Consumer online in the consumer group: [{group}]")
TOO_MANY_PRODUCERS: Final = Refusal(
    Reason.FAILED,
    "the producer groups have {count} members, and a response {limit} at most; ask for the connections of one group",
)
CLIENT_TIMEOUT: Final = Refusal(Reason.CLIENT_TIMEOUT, "consumer {consumer} Timeout: {why}")
CLIENT_CALL_FAILED: Final = Refusal(Reason.FAILED, "invoke consumer {consumer} Exception: {why}")
NO_TOPIC_NAME: Final = Refusal(Reason.INVALID, "an offset of group {group!r} on {topic!r}, which is no name of a topic")
NO_GROUP_NAME: Final = Refusal(Reason.INVALID, "an offset on topic {topic} of {group!r}, which is no name of a group")
NO_CONSUMER_OFFSET: Final = Refusal(
    Reason.NO_VALUE, "Not found: {group} has no offset on {topic}:{queue_id}, maybe this group consumer boot first"
)
RESET_TOPIC_NOT_FOUND: Final = Refusal(
    Reason.NOT_FOUND, "[reset-offset] reset offset failed, no topic in this broker. topic={topic}"
)
RESET_GROUP_NOT_FOUND: Final = Refusal(Reason.NOT_FOUND, "THe consumer group <{group}> not exist")
RESET_GROUP_OFFLINE: Final = Refusal(
    Reason.CLIENT_OFFLINE,
    "Consumer not online, so can not reset offset, Group: {group} Topic: {topic} Timestamp: {timestamp}",
)

# Operation of a broker.

TOPIC_NOT_FOUND: Final = Refusal(Reason.TOPIC_NOT_FOUND, "topic[{topic}] not exist")
QUEUE_NOT_FOUND: Final = Refusal(Reason.NOT_FOUND, "{queue_id}@{topic} is not exist!")
NO_STATISTIC: Final = Refusal(Reason.NOT_FOUND, "The stats <{name}> <{key}> not exist")
TOO_MANY_QUEUES: Final = Refusal(
    Reason.FAILED, "the statistics of more than {limit} queues do not fit into a response; ask for one group and topic"
)
SETTINGS_FIXED: Final = Refusal(
    Reason.FORBIDDEN, "{keys}: read at start-up only; write it into broker.conf and restart the broker"
)
CONFIGURATION_NOT_WRITTEN: Final = Refusal(Reason.FAILED, "{path} cannot be written, so nothing is changed: {why}")
NO_BROKER_ID: Final = Refusal(Reason.INVALID, "a slave needs a brokerId above 0: give one, unique among its name")
MASTER_ALREADY: Final = Refusal(Reason.FAILED, "this broker is master already, in epoch {epoch}")
MASTER_CONNECTED: Final = Refusal(
    Reason.FAILED, "its master is connected, and may go on to accept messages: end it first"
)
NO_MASTER: Final = Refusal(Reason.FAILED, "this broker is no master")
SLAVE_NOT_CONNECTED: Final = Refusal(Reason.FAILED, "slave {member} is not connected, or knows no epochs")
SLAVE_NOT_IN_SYNC: Final = Refusal(Reason.FAILED, "slave {member} is not in the in-sync set {in_sync}")
SWITCHOVER_FAILED: Final = Refusal(Reason.FAILED, "this broker stays master, and not {target}: {why}")
SWITCHOVER_WITHOUT_ELECTION: Final = Refusal(
    Reason.FAILED, "this broker stays master: etcd names no other one that could be elected"
)
SWITCHOVER_UNKNOWN: Final = Refusal(
    Reason.FAILED,
    "{target} was asked to become master, and does not answer. This broker accepts no messages: `rucola admin "
    "promote` on either ends that",
)

# Name servers.

NO_ROUTE: Final = Refusal(Reason.TOPIC_NOT_FOUND, "No topic route info in name server for the topic: {topic}")
NO_VALUE: Final = Refusal(Reason.NO_VALUE, "No config item, Namespace: {namespace} Key: {key}")
NO_NAMESPACE: Final = Refusal(Reason.NO_VALUE, "No config item, Namespace: {namespace}")
KV_BEYOND_LIMIT: Final = Refusal(
    Reason.FAILED, "the key-value table would have {found} {what}; the limit is {limit} ({key})"
)
SETTINGS_BLACKLISTED: Final = Refusal(Reason.FORBIDDEN, "Can not update config in black list.")
ADDRESS_TAKEN: Final = Refusal(
    Reason.FAILED, "broker {broker} with id {broker_id} is at {known}; {address} must wait until it is gone"
)
EPOCH_TAKEN: Final = Refusal(
    Reason.FAILED, "{address} was master of {broker} in epoch {epoch} at most; {master} is in epoch {newest}"
)
BROKER_BEYOND_LIMIT: Final = Refusal(
    Reason.FAILED, "broker {broker} at {address} is not registered: {found}; the limit is {limit} ({key})"
)
FIELD_TOO_LONG: Final = Refusal(Reason.FAILED, "{field} has {size} characters; the limit is {limit}")
