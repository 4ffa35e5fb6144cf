// Consumes with the client of RocketMQ 5 for Node until stdin ends.
//
// Arguments, and lines on stdin and stdout, are those of ../rocketmq_v5/consumer.py.
'use strict';

const readline = require('readline');
const { setTimeout: sleep } = require('timers/promises');
const { ConsumeResult, FilterExpression, PushConsumer, SimpleConsumer } = require('rocketmq-client-nodejs');
const { FilterType } = require('rocketmq-client-nodejs/proto/apache/rocketmq/v2/definition_pb');

const {
  endpoint, group, topic, kind, tag = '*', sql, failing = [], held = [], changed = [],
} = JSON.parse(process.argv[2]);

const INVISIBLE_MS = 15_000;
const kept = new Map();

function print(line) {
  process.stdout.write(JSON.stringify(line) + '\n');
}

function printMessage(message) {
  const body = message.body.toString();
  print({
    message: {
      body,
      messageId: message.messageId,
      attempt: message.deliveryAttempt,
      tag: message.tag || null,
      keys: [...message.keys].sort(),
      group: message.messageGroup || null,
      properties: Object.fromEntries(message.properties),
    },
  });
  return body;
}

async function take(consumer, message) {
  const body = printMessage(message);
  if (held.includes(body)) {
    kept.set(body, message);
  } else if (changed.includes(body) && message.deliveryAttempt === 1) {
    await consumer.changeInvisibleDuration(message, 0);
  } else {
    await consumer.ack(message);
  }
}

async function receive(consumer) {
  for (;;) {
    try {
      for (const message of await consumer.receive(16, INVISIBLE_MS)) await take(consumer, message);
    } catch (error) { // as while the server is away
      print({ error: `${error}` });
      await sleep(200);
    }
  }
}

async function acknowledge(consumer, body) {
  for (;;) {
    try {
      await consumer.ack(kept.get(body));
      return print({ acknowledged: body });
    } catch (error) {
      print({ error: `${error}` });
      await sleep(200);
    }
  }
}

const messageListener = {
  async consume(message) {
    const index = failing.indexOf(printMessage(message));
    if (index < 0) return ConsumeResult.SUCCESS;
    failing.splice(index, 1);
    return ConsumeResult.FAILURE;
  },
};

async function main() {
  const options = {
    endpoints: endpoint,
    namespace: '',
    consumerGroup: group,
    subscriptions: new Map([[ topic, sql ? new FilterExpression(sql, FilterType.SQL) : new FilterExpression(tag) ]]),
  };
  const consumer = kind === 'push' ? new PushConsumer({ ...options, messageListener })
    : new SimpleConsumer({ ...options, awaitDuration: 2000 });
  await consumer.startup();
  if (kind !== 'push') receive(consumer);
  for await (const line of readline.createInterface({ input: process.stdin })) {
    await acknowledge(consumer, JSON.parse(line).acknowledge);
  }
  await consumer.shutdown();
  process.exit(0);
}

main();
