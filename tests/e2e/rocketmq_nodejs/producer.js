// Sends with the client of RocketMQ 5 for Node, in order, one at a time.
//
// Arguments, and lines on stdin and stdout, are those of ../rocketmq_v5/producer.py.
'use strict';

const readline = require('readline');
const { Message, Producer } = require('rocketmq-client-nodejs');
const { TransactionResolution } = require('rocketmq-client-nodejs/proto/apache/rocketmq/v2/definition_pb');

const { endpoint, topics, accessKey, secretKey } = JSON.parse(process.argv[2]);

function print(line) {
  process.stdout.write(JSON.stringify(line) + '\n');
}

function messageOf({ topic, body, tag, keys, group, due, properties = {} }) {
  return new Message({
    topic, tag, keys,
    body: Buffer.from(body),
    messageGroup: group,
    deliveryTimestamp: due && new Date(due * 1000),
    properties: new Map(Object.entries(properties)),
  });
}

const checker = {
  async check(message) {
    print({ checked: message.body.toString() });
    return message.body.toString() === 'none' ? TransactionResolution.COMMIT : null;
  },
};

async function main() {
  const producer = new Producer({
    topics, checker,
    endpoints: endpoint,
    namespace: '',
    sessionCredentials: accessKey && { accessKey, accessSecret: secretKey },
  });
  await producer.startup();
  for await (const text of readline.createInterface({ input: process.stdin })) {
    const line = JSON.parse(text);
    try {
      if (line.recall !== undefined) {
        print({ recalled: (await producer.recallMessage(line.topic, line.recall)).messageId });
        continue;
      }
      const transaction = line.transaction && producer.beginTransaction();
      const { messageId, offset, recallHandle } = await producer.send(messageOf(line), transaction);
      if (line.transaction === 'commit') await transaction.commit();
      if (line.transaction === 'rollback') await transaction.rollback();
      print({ sent: { messageId, offset, recallHandle } });
    } catch (error) {
      print({ error: `${error}` });
    }
  }
  await producer.shutdown();
  process.exit(0);
}

main();
