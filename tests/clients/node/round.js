// node round.js OUT.jsonl ns=ADDRESS topic=NAME group=NAME: what an application does by ali-ons, the remoting client of Node.
// The lines are those that tests/support/client_programs.py describes. The client has no one-way sends, batches, pulls or transactions.
// What it calls an error before the routes of retry topics are there is `trouble`.
'use strict';

const fs = require('fs');
const { Consumer, Producer, Message } = require('ali-ons');

const out = fs.openSync(process.argv[2], 'w');
const given = Object.fromEntries(process.argv.slice(3).map(word => word.split(/=(.*)/s).slice(0, 2)));
const seen = { all: 0, tags: 0, orderly: 0, sql: 0 };
const failed = new Set();
const logger = { info() {}, debug() {}, warn: console.error, error: console.error };
const common = {
  httpclient: {}, // asked for the addresses of name servers where none are given
  nameSrv: given.ns,
  logger,
  accessKeyId: given.accessKey,
  accessKeySecret: given.secretKey,
  pollNameServerInteval: 3000,
  heartbeatBrokerInterval: 3000,
};

function write(line) {
  fs.writeSync(out, JSON.stringify(line) + '\n');
}

function nameOf(body) {
  return body.toString().split(':')[0];
}

function pause(ms) {
  return new Promise(resolve => setTimeout(resolve, ms));
}

async function send(producer, how, body, change = () => {}) {
  const message = new Message(given.topic, body);
  message.tags = '';
  change(message);
  const result = await producer.send(message);
  write({
    type: 'sent',
    how,
    name: nameOf(body),
    bytes: body.length,
    tags: message.tags,
    status: result.sendStatus,
    queueId: Number(result.messageQueue.queueId),
    queueOffset: result.queueOffset,
    msgId: result.msgId,
  });
}

async function sendAll() {
  const producer = new Producer({ ...common, producerGroup: `${given.group}-producer` });
  producer.on('error', error => write({ type: 'trouble', how: 'producer', why: String(error) }));
  await producer.ready();
  for (let number = 0; number < 12; number++) {
    await send(producer, 'sync', `sync-${number}`, message => {
      message.tags = ['TagA', 'TagB', 'TagC'][number % 3];
      message.keys = [`key${number}`];
    });
  }
  await Promise.all(Array.from({ length: 6 }, (_, number) => send(producer, 'async', `async-${number}`)));
  for (let number = 0; number < 6; number++) {
    await send(producer, 'ordered', `ordered-${number}`, message => {
      message.shardingKey = 'order'; // a key that it puts on queue 0 goes to any queue
    });
  }
  await send(producer, 'large', 'large:' + '0123456789'.repeat(9000));
  await send(producer, 'delayed', 'delayed', message => {
    message.delayTimeLevel = 1;
  });
  return producer;
}

function consume(by, expression) {
  const consumer = new Consumer({
    ...common,
    consumerGroup: `${given.group}-${by}`,
    consumeFromWhere: 'CONSUME_FROM_FIRST_OFFSET',
    rebalanceInterval: 2000,
  });
  consumer.on('error', error => write({ type: 'trouble', how: by, why: String(error) }));
  consumer.subscribe(given.topic, expression, async message => {
    const name = nameOf(message.body);
    write({
      type: 'got',
      by,
      name,
      bytes: message.body.length,
      tags: message.tags,
      queueId: message.queueId,
      queueOffset: Number(message.queueOffset),
      times: message.reconsumeTimes,
      msgId: message.msgId,
    });
    seen[by]++;
    if (by === 'all' && name === 'sync-5' && !failed.has(name)) {
      failed.add(name);
      return Consumer.ACTION_RETRY;
    }
    return undefined;
  });
  return consumer;
}

async function main() {
  const producer = await sendAll();
  const consumers = [consume('all', '*'), consume('tags', 'TagA || TagC'), consume('orderly', '*')];
  consumers.push(consume('sql', { expressionType: 'SQL92', subString: "TAGS = 'TagB'" }));
  const wanted = { all: 27, tags: 8, orderly: 26, sql: 4 };
  const isShort = () => Object.keys(wanted).some(by => seen[by] < wanted[by]);
  for (const end = Date.now() + 60_000; isShort() && Date.now() < end; ) {
    await pause(100);
  }
  await pause(1500);
  for (const consumer of consumers) {
    await consumer.close();
  }
  await producer.close();
  write({ type: 'done' });
}

main().then(
  () => process.exit(0),
  error => {
    write({ type: 'failed', how: 'round', why: error.stack });
    console.error(error);
    process.exit(1);
  }
);
