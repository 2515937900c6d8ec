import java.io.*;
import java.nio.charset.StandardCharsets;
import java.util.*;
import java.util.concurrent.*;
import org.apache.rocketmq.client.consumer.*;
import org.apache.rocketmq.client.consumer.listener.*;
import org.apache.rocketmq.client.producer.*;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.*;
import org.apache.rocketmq.remoting.protocol.heartbeat.MessageModel;

/** Shared OUT.jsonl ns=ADDRESS topic=NAME group=NAME count=40: push consumers that leave it to the broker which queues they read (clientRebalance=false).
 *  `count` messages are sent, and one consumer gets them; a second one joins, and two share the queues; `count` more; the first one leaves; `count` more; a consumer of another group gets what is broadcast.
 *  Lines, by `type`: `round` (name, and how many of the round's messages each consumer got, in order of their joining). */
public class Shared {
  static final class Reader {
    final Queue<String> got = new ConcurrentLinkedQueue<>(); final DefaultMQPushConsumer consumer;
    Reader(String ns, String topic, String group, AllocateMessageQueueStrategy strategy, MessageModel model) throws Exception {
      consumer = new DefaultMQPushConsumer(group); consumer.setNamesrvAddr(ns); consumer.setInstanceName("c" + System.nanoTime());
      consumer.setClientRebalance(false); consumer.setAllocateMessageQueueStrategy(strategy); consumer.setMessageModel(model); consumer.setPersistConsumerOffsetInterval(200);
      consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET); consumer.subscribe(topic, "*");
      consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> { for (MessageExt m : messages) got.add(new String(m.getBody())); return ConsumeConcurrentlyStatus.CONSUME_SUCCESS; });
      consumer.start();
    }
    int of(String round) { return (int) got.stream().filter(body -> body.startsWith(round + "-")).distinct().count(); }
    int queues(String topic) { return (int) consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().keySet().stream().filter(q -> q.getTopic().equals(topic)).count(); }
  }

  static boolean until(BooleanSupplier met) throws InterruptedException { long end = System.nanoTime() + 60_000_000_000L; while (!met.get() && System.nanoTime() < end) Thread.sleep(50); return met.get(); }
  interface BooleanSupplier { boolean get(); }

  public static void main(String[] a) throws Exception {
    System.setProperty("rocketmq.client.rebalance.waitInterval", "1000"); System.setProperty("rocketmq.client.rebalance.minInterval", "200");
    Map<String, String> opt = new HashMap<>();
    for (int i = 1; i < a.length; i++) { int e = a[i].indexOf('='); opt.put(a[i].substring(0, e), a[i].substring(e + 1)); }
    TransactionSide.out = new OutputStreamWriter(new FileOutputStream(a[0]), StandardCharsets.UTF_8);
    String ns = opt.get("ns"), topic = opt.get("topic"), group = opt.get("group"); int count = Send.number(opt, "count", 40);
    DefaultMQProducer producer = new DefaultMQProducer("sharing-producers"); producer.setNamesrvAddr(ns); producer.setInstanceName("p" + System.nanoTime()); producer.start();
    AllocateMessageQueueStrategy strategy = opt.getOrDefault("strategy", "AVG").equals("AVG") ? new org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely() : new org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragelyByCircle();
    List<MessageQueue> queues = producer.fetchPublishMessageQueues(topic);
    Reader first = new Reader(ns, topic, group, strategy, MessageModel.CLUSTERING);
    List<Reader> readers = new ArrayList<>(List.of(first));
    round("alone", producer, queues, count, readers);
    readers.add(new Reader(ns, topic, group, strategy, MessageModel.CLUSTERING));
    until(() -> readers.stream().allMatch(r -> r.queues(topic) == queues.size() / 2));
    round("together", producer, queues, count, readers);
    first.consumer.shutdown(); readers.remove(first);
    until(() -> readers.get(0).queues(topic) == queues.size());
    round("left", producer, queues, count, readers);
    Reader all = new Reader(ns, topic, group + "-all", strategy, MessageModel.BROADCASTING), too = new Reader(ns, topic, group + "-all", strategy, MessageModel.BROADCASTING);
    until(() -> all.queues(topic) == queues.size() && too.queues(topic) == queues.size());
    readers.clear(); readers.add(all); readers.add(too);
    round("broadcast", producer, queues, count, readers);
    System.exit(0);
  }

  static void round(String name, DefaultMQProducer producer, List<MessageQueue> queues, int count, List<Reader> readers) throws Exception {
    for (int i = 0; i < count; i++) producer.send(new Message(queues.get(0).getTopic(), (name + "-" + i).getBytes()), queues.get(i % queues.size()));
    int wanted = name.equals("broadcast") ? count * readers.size() : count;
    until(() -> readers.stream().mapToInt(r -> r.of(name)).sum() >= wanted);
    Thread.sleep(500); // more would be double
    TransactionSide.write("type", "round", "name", name, "got", readers.stream().map(r -> r.of(name)).toArray(), "all", readers.stream().mapToInt(r -> (int) r.got.stream().filter(b -> b.startsWith(name + "-")).count()).toArray());
  }
}
