import java.io.*;
import java.nio.charset.StandardCharsets;
import java.util.*;
import java.util.concurrent.*;
import org.apache.rocketmq.client.consumer.*;
import org.apache.rocketmq.client.consumer.listener.*;
import org.apache.rocketmq.client.producer.*;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.*;

/** Leaving OUT.jsonl ns=ADDRESS topic=NAME [count=510] [rounds=0]: clients that leave as soon as they have said what they have to say.
 *  rounds=0: a producer sends `count` messages one-way and shuts down. Else so many rounds of: `count` messages are sent, an orderly consumer of group `group` gets them all and shuts down.
 *  Lines, by `type`: `left` (one-way messages handed over), `got` (round, queueId, queueOffset), `round` (how many of the round's messages came, and how many of earlier rounds came again). */
public class Leaving {
  public static void main(String[] a) throws Exception {
    System.setProperty("rocketmq.client.rebalance.waitInterval", "200"); System.setProperty("rocketmq.client.rebalance.minInterval", "200");
    Map<String, String> opt = new HashMap<>();
    for (int i = 1; i < a.length; i++) { int e = a[i].indexOf('='); opt.put(a[i].substring(0, e), a[i].substring(e + 1)); }
    TransactionSide.out = new OutputStreamWriter(new FileOutputStream(a[0]), StandardCharsets.UTF_8);
    String ns = opt.get("ns"), topic = opt.get("topic");
    int count = Send.number(opt, "count", 510), rounds = Send.number(opt, "rounds", 0);
    DefaultMQProducer producer = new DefaultMQProducer("leaving-producers"); producer.setNamesrvAddr(ns); producer.setInstanceName("p" + System.nanoTime()); producer.start();
    if (rounds == 0) {
      for (int i = 0; i < count; i++) producer.sendOneway(new Message(topic, ("oneway-" + i).getBytes()));
      producer.shutdown();
      TransactionSide.write("type", "left", "count", count);
      System.exit(0);
    }
    Map<Integer, Long> next = new ConcurrentHashMap<>();
    for (int round = 0; round < rounds; round++) {
      for (int i = 0; i < count; i++) producer.send(new Message(topic, (round + "-" + i).getBytes()));
      int number = round; CountDownLatch fresh = new CountDownLatch(count); Queue<Long> back = new ConcurrentLinkedQueue<>();
      DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(opt.get("group")); consumer.setNamesrvAddr(ns); consumer.setInstanceName("c" + System.nanoTime());
      consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET); consumer.subscribe(topic, "*"); consumer.setAwaitTerminationMillisWhenShutdown(5_000);
      consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
        for (MessageExt m : messages) {
          boolean isBack = m.getQueueOffset() < next.getOrDefault(m.getQueueId(), 0L);
          if (isBack) back.add(m.getQueueOffset()); else { next.put(m.getQueueId(), m.getQueueOffset() + 1); fresh.countDown(); }
        }
        return ConsumeOrderlyStatus.SUCCESS;
      });
      consumer.start(); long startedAt = System.nanoTime();
      boolean isWhole = fresh.await(60, TimeUnit.SECONDS);
      Thread.sleep(Math.max(0, 1_500 - (System.nanoTime() - startedAt) / 1_000_000)); // a second after its start the client's service for POP, which no shutdown stops, asks for all locks: behind the unlocking, they would be kept for a minute
      consumer.shutdown();
      TransactionSide.write("type", "round", "round", number, "whole", isWhole, "back", back.size());
    }
    producer.shutdown();
    System.exit(0);
  }
}
