import com.alibaba.fastjson2.*;
import java.io.*;
import java.nio.charset.StandardCharsets;
import java.util.*;
import org.apache.rocketmq.client.consumer.*;
import org.apache.rocketmq.client.consumer.listener.*;
import org.apache.rocketmq.client.impl.MQClientAPIImpl;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.*;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** FailingConsumer OUT.jsonl group=NAME topics=A,B [key=value ...]: a push consumer that fails each message so that the broker retries it, until it is killed.
 *  ns (127.0.0.1:9876), broker (127.0.0.1:10911), max (maxReconsumeTimes, 2), succeedAt (a message whose reconsume times are at least so many succeeds; never by default; 0 = a plain consumer).
 *  Lines, by `type`: `consumed` (a message as it was given to the listener, with the answer), `dead` (each time the group's dead letter queue has grown: its `count`). */
public class FailingConsumer {
  public static void main(String[] a) throws Exception {
    System.setProperty("rocketmq.client.rebalance.waitInterval", "500"); System.setProperty("rocketmq.client.rebalance.minInterval", "500");
    Map<String, String> opt = new HashMap<>();
    for (int i = 1; i < a.length; i++) { int e = a[i].indexOf('='); opt.put(a[i].substring(0, e), a[i].substring(e + 1)); }
    String ns = opt.getOrDefault("ns", "127.0.0.1:9876"), broker = opt.getOrDefault("broker", "127.0.0.1:10911"), group = opt.get("group");
    int succeedAt = Send.number(opt, "succeedAt", Integer.MAX_VALUE);
    TransactionSide.out = new OutputStreamWriter(new FileOutputStream(a[0]), StandardCharsets.UTF_8);
    DefaultMQAdminExt admin = new DefaultMQAdminExt(); admin.setNamesrvAddr(ns); admin.setInstanceName("admin" + System.nanoTime()); admin.start();
    Send.awaitCluster(admin);
    DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group); consumer.setNamesrvAddr(ns); consumer.setInstanceName("failing" + System.nanoTime());
    consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET); consumer.setMaxReconsumeTimes(Send.number(opt, "max", 2)); consumer.setConsumeMessageBatchMaxSize(1);
    consumer.setPollNameServerInterval(500); consumer.setHeartbeatBrokerInterval(500); consumer.setConsumeThreadMin(2); consumer.setConsumeThreadMax(2);
    for (String topic : opt.get("topics").split(",")) consumer.subscribe(topic, "*");
    consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
      MessageExt m = messages.get(0); boolean success = m.getReconsumeTimes() >= succeedAt;
      TransactionSide.write("type", "consumed", "success", success, "topic", m.getTopic(), "queueId", m.getQueueId(), "queueOffset", m.getQueueOffset(), "reconsumeTimes", m.getReconsumeTimes(), "uniqKey", m.getProperty("UNIQ_KEY"),
        "commitLogOffset", m.getCommitLogOffset(), "storeTimestamp", m.getStoreTimestamp(), "properties", new TreeMap<>(m.getProperties()), "bodySha256", sha256(m.getBody()));
      return success ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS : ConsumeConcurrentlyStatus.RECONSUME_LATER;
    });
    consumer.start();
    MQClientAPIImpl api = admin.getDefaultMQAdminExtImpl().getMqClientInstance().getMQClientAPIImpl(); // asks the broker itself: the dead letter topic has no route before its first message
    for (long dead = 0; ; Thread.sleep(100)) {
      consumer.getDefaultMQPushConsumerImpl().persistConsumerOffset(); // by itself it does so after ten seconds
      long now = api.getMaxOffset(broker, new MessageQueue("%DLQ%" + group, "", 0), 10_000);
      if (now != dead) TransactionSide.write("type", "dead", "count", dead = now);
    }
  }

  static String sha256(byte[] body) { try { return Send.sha256(body); } catch (Exception e) { throw new IllegalStateException(e); } }
}
