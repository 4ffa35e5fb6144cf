// Consumes a topic with ali-ons and tells on stdout, a JSON object a line, what happens to it.
//
// The only argument is JSON: {namesrv, group, topic}, and where wanted
//
//   expression          what to subscribe to, "TagA || TagB" or {expressionType: "SQL92", subString: "a > 5"}
//   broadcast           every consumer gets every message
//   failures            how often a message is failed before it is taken
//   maxReconsumeTimes   how often the broker lets a message come again
//   accessKey           with secretKey: the credentials
//
// Lines are {queues: [ids]} when its share has changed, {message: {...}} for every call of its listener, and {error}.
// It leaves its group and ends when stdin does.
'use strict';

const { Consumer } = require('ali-ons');

const {
  namesrv, group, topic, expression = '*', broadcast = false, failures = 0, maxReconsumeTimes = 16, accessKey, secretKey,
} = JSON.parse(process.argv[2]);

function print(line) {
  process.stdout.write(JSON.stringify(line) + '\n');
}

const consumer = new Consumer({
  nameSrv: namesrv,
  consumerGroup: group,
  accessKey,
  secretKey,
  isBroadcast: broadcast,
  maxReconsumeTimes,
  consumeFromWhere: 'CONSUME_FROM_FIRST_OFFSET',
  clientIP: '127.0.0.1',
  instanceName: String(process.pid),
  httpclient: {},
  rebalanceInterval: 200,
  pollNameServerInteval: 200,
  persistConsumerOffsetInterval: 200,
});
consumer.on('error', error => print({ error: error.message }));
consumer.on(`topic_${topic}_queue_changed`, () => {
  const own = [...consumer.processQueueTable.values()].map(({ messageQueue }) => messageQueue);
  print({ queues: own.filter(queue => queue.topic === topic).map(queue => queue.queueId).sort() });
});
consumer.subscribe(topic, expression, async message => {
  const { msgId, tags, keys, queueId, reconsumeTimes, originMessageId } = message;
  print({
    message: {
      msgId, tags, keys, queueId, reconsumeTimes, originMessageId,
      topic: message.topic,
      body: message.body.toString(),
      bornTimestamp: Number(message.bornTimestamp),
      storeTimestamp: Number(message.storeTimestamp),
      properties: message.properties,
    },
  });
  if (reconsumeTimes < failures) throw new Error(`${message.body} is failed on purpose`);
});

process.stdin.resume().on('end', async () => {
  await consumer.close();
  process.exit(0);
});
