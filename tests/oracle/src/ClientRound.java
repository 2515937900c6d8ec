import com.alibaba.fastjson2.JSONObject;
import java.io.*;
import java.nio.charset.StandardCharsets;
import java.util.*;
import java.util.concurrent.*;
import org.apache.rocketmq.client.consumer.*;
import org.apache.rocketmq.client.consumer.listener.*;
import org.apache.rocketmq.client.producer.*;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.*;

/** ClientRound OUT.jsonl ns=ADDRESS topic=NAME group=NAME: all that an application does, by API that every client since 4.3.0 has.
 *  The lines are those that tests/interop/test_other_clients.py describes; other languages' programs in tests/clients write the same. */
public class ClientRound {
  static Writer out;
  static final Set<String> failed = ConcurrentHashMap.newKeySet();
  static final Map<String, Integer> seen = new ConcurrentHashMap<>();
  static synchronized void write(Object... pairs) {
    JSONObject line = new JSONObject();
    for (int i = 0; i < pairs.length; i += 2) line.put((String) pairs[i], pairs[i + 1]);
    try { out.write(line.toJSONString()); out.write("\n"); out.flush(); } catch (IOException e) { throw new UncheckedIOException(e); }
  }

  static String name(byte[] body) { String text = new String(body, StandardCharsets.UTF_8); int end = text.indexOf(':'); return end < 0 ? text : text.substring(0, end); }

  static void sent(String how, Message m, SendResult r) {
    if (r == null) write("type", "sent", "how", how, "name", name(m.getBody()), "bytes", m.getBody().length);
    else write("type", "sent", "how", how, "name", name(m.getBody()), "bytes", m.getBody().length, "tags", m.getTags(), "status", r.getSendStatus().name(), "queueId", r.getMessageQueue().getQueueId(),
      "queueOffset", r.getQueueOffset(), "msgId", r.getMsgId(), "offsetMsgId", r.getOffsetMsgId());
  }

  static int count(String by) { return seen.getOrDefault(by, 0); }

  static void got(String by, MessageExt m) {
    seen.merge(by, 1, Integer::sum);
    write("type", "got", "by", by, "name", name(m.getBody()), "bytes", m.getBody().length, "tags", m.getTags(), "queueId", m.getQueueId(), "queueOffset", m.getQueueOffset(), "times", m.getReconsumeTimes(), "msgId", m.getMsgId());
  }

  static DefaultMQPushConsumer push(String ns, String group, String topic, String tags) throws Exception {
    DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group); consumer.setNamesrvAddr(ns); consumer.setInstanceName(group + System.nanoTime());
    consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET); consumer.subscribe(topic, tags);
    return consumer;
  }

  static ConsumeConcurrentlyStatus consume(String by, List<MessageExt> messages, ConsumeConcurrentlyContext context) {
    for (MessageExt m : messages) {
      got(by, m);
      if (by.equals("all") && name(m.getBody()).equals("sync-5") && failed.add("sync-5")) { context.setDelayLevelWhenNextConsume(1); return ConsumeConcurrentlyStatus.RECONSUME_LATER; }
    }
    return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
  }

  public static void main(String[] a) {
    try { round(a); } catch (Throwable e) { e.printStackTrace(); System.exit(1); }
    System.exit(0);
  }

  static void round(String[] a) throws Exception {
    Map<String, String> opt = new HashMap<>();
    for (int i = 1; i < a.length; i++) { int e = a[i].indexOf('='); opt.put(a[i].substring(0, e), a[i].substring(e + 1)); }
    out = new OutputStreamWriter(new FileOutputStream(a[0]), StandardCharsets.UTF_8);
    String ns = opt.get("ns"), topic = opt.get("topic"), group = opt.get("group");
    DefaultMQProducer producer = new DefaultMQProducer(group + "-producer"); producer.setNamesrvAddr(ns); producer.setInstanceName("p" + System.nanoTime());
    producer.setCreateTopicKey("TBW102"); producer.start(); // 4.3 has another name for it
    String[] tags = {"TagA", "TagB", "TagC"};
    for (int i = 0; i < 12; i++) { Message m = new Message(topic, tags[i % 3], "key" + i, ("sync-" + i).getBytes()); sent("sync", m, producer.send(m)); }
    CountDownLatch latch = new CountDownLatch(6);
    for (int i = 0; i < 6; i++) {
      Message m = new Message(topic, ("async-" + i).getBytes());
      producer.send(m, new SendCallback() {
        public void onSuccess(SendResult r) { sent("async", m, r); latch.countDown(); }
        public void onException(Throwable e) { write("type", "failed", "how", "async", "why", e.toString()); latch.countDown(); } });
    }
    latch.await(20, TimeUnit.SECONDS);
    for (int i = 0; i < 3; i++) { Message m = new Message(topic, ("oneway-" + i).getBytes()); producer.sendOneway(m); sent("oneway", m, null); }
    List<Message> batch = new ArrayList<>();
    for (int i = 0; i < 4; i++) batch.add(new Message(topic, ("batch-" + i).getBytes()));
    SendResult ofBatch = producer.send(batch);
    for (Message m : batch) sent("batch", m, null);
    write("type", "fact", "name", "batch", "status", ofBatch.getSendStatus().name(), "queueOffset", ofBatch.getQueueOffset(), "queueId", ofBatch.getMessageQueue().getQueueId());
    for (int i = 0; i < 6; i++) {
      Message m = new Message(topic, ("ordered-" + i).getBytes());
      sent("ordered", m, producer.send(m, (queues, message, arg) -> queues.get(1), "one"));
    }
    Message large = new Message(topic, ("large:" + String.join("", Collections.nCopies(9000, "0123456789"))).getBytes());
    sent("large", large, producer.send(large));
    Message later = new Message(topic, "delayed".getBytes()); later.setDelayTimeLevel(1);
    sent("delayed", later, producer.send(later));

    TransactionMQProducer transactions = new TransactionMQProducer(group + "-tx"); transactions.setNamesrvAddr(ns); transactions.setInstanceName("t" + System.nanoTime()); transactions.setCreateTopicKey("TBW102");
    transactions.setTransactionListener(new TransactionListener() {
      public LocalTransactionState executeLocalTransaction(Message m, Object plan) {
        return plan.equals("commit") ? LocalTransactionState.COMMIT_MESSAGE : plan.equals("rollback") ? LocalTransactionState.ROLLBACK_MESSAGE : LocalTransactionState.UNKNOW;
      }
      public LocalTransactionState checkLocalTransaction(MessageExt m) { write("type", "asked", "name", name(m.getBody())); return LocalTransactionState.COMMIT_MESSAGE; } });
    transactions.start();
    for (String plan : new String[] {"commit", "rollback", "unknown"}) {
      Message m = new Message(topic + "Tx", plan.getBytes());
      sent("transaction", m, transactions.sendMessageInTransaction(m, plan));
    }

    List<DefaultMQPushConsumer> consumers = new ArrayList<>();
    for (String[] one : new String[][] {{"all", topic, "*"}, {"tags", topic, "TagA || TagC"}, {"transactions", topic + "Tx", "*"}}) {
      DefaultMQPushConsumer consumer = push(ns, group + "-" + one[0], one[1], one[2]);
      consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> consume(one[0], messages, context));
      consumer.start(); consumers.add(consumer);
    }
    DefaultMQPushConsumer orderly = push(ns, group + "-orderly", topic, "*");
    orderly.registerMessageListener((MessageListenerOrderly) (messages, context) -> { for (MessageExt m : messages) got("orderly", m); return ConsumeOrderlyStatus.SUCCESS; });
    orderly.start(); consumers.add(orderly);

    DefaultMQPullConsumer pull = new DefaultMQPullConsumer(group + "-pull"); pull.setNamesrvAddr(ns); pull.setInstanceName("q" + System.nanoTime()); pull.start();
    for (MessageQueue queue : pull.fetchSubscribeMessageQueues(topic)) {
      long offset = pull.minOffset(queue), end = pull.maxOffset(queue);
      while (offset < end) {
        PullResult r = pull.pull(queue, "*", offset, 32);
        if (r.getPullStatus() == PullStatus.FOUND) for (MessageExt m : r.getMsgFoundList()) got("pull", m);
        offset = r.getNextBeginOffset();
      }
      pull.updateConsumeOffset(queue, offset);
      write("type", "fact", "name", "queue", "queueId", queue.getQueueId(), "max", end, "searched", pull.searchOffset(queue, 0L));
    }
    pull.shutdown();
    for (int i = 0; i < 600 && !(count("all") >= 34 && count("tags") >= 8 && count("orderly") >= 33 && count("transactions") >= 2); i++) Thread.sleep(100); // routes of retry topics are asked for each 30 s
    Thread.sleep(1500);
    for (DefaultMQPushConsumer consumer : consumers) consumer.shutdown();
    transactions.shutdown(); producer.shutdown();
    write("type", "done");
  }
}
