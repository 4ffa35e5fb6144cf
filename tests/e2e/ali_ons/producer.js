// Sends messages with ali-ons, in order, one at a time.
//
// The only argument is JSON: {namesrv, group, accessKey, secretKey}, the last two optional. Every line on stdin is a message: {topic, body, tags, keys, shardingKey,
// delayLevel, properties}, the last five optional. For each, a line on stdout: {msgId, queueId, queueOffset}, or {error}.
'use strict';

const readline = require('readline');
const { Message, Producer } = require('ali-ons');

const { namesrv, group, accessKey, secretKey } = JSON.parse(process.argv[2]);

function print(line) {
  process.stdout.write(JSON.stringify(line) + '\n');
}

function messageOf({ topic, body, tags = null, keys, shardingKey, delayLevel, properties = {} }) {
  const message = new Message(topic, tags, body);
  Object.assign(message.properties, properties);
  if (keys) message.keys = keys;
  if (shardingKey) message.shardingKey = shardingKey;
  if (delayLevel) message.delayTimeLevel = delayLevel;
  return message;
}

async function main() {
  const producer = new Producer({
    nameSrv: namesrv, producerGroup: group, clientIP: '127.0.0.1', httpclient: {}, accessKey, secretKey,
  });
  producer.on('error', error => console.error(error));
  await producer.ready();
  for await (const line of readline.createInterface({ input: process.stdin })) {
    try {
      const { msgId, messageQueue, queueOffset } = await producer.send(messageOf(JSON.parse(line)));
      print({ msgId, queueId: Number(messageQueue.queueId), queueOffset: Number(queueOffset) });
    } catch (error) {
      print({ error: error.message });
    }
  }
  await producer.close();
  process.exit(0);
}

main();
