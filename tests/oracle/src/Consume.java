import com.alibaba.fastjson2.*;
import java.io.*;
import java.nio.charset.StandardCharsets;
import java.util.*;
import org.apache.rocketmq.client.consumer.*;
import org.apache.rocketmq.client.consumer.listener.*;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.*;

/** Consume OUT.jsonl group=NAME topics=A,B [key=value ...]: a push consumer that writes down all that it is handed, until it is killed.
 *  ns (127.0.0.1:9876), namespace (none), tags (*), sql (an expression in place of tags), orderly (false). It begins with the first message of each queue.
 *  Lines, by `type`: `ready`, `message` (in the order in which the listener got them: of an orderly consumer that of each queue). */
public class Consume {
  static Writer out;
  static synchronized void write(Object... pairs) {
    JSONObject line = new JSONObject();
    for (int i = 0; i < pairs.length; i += 2) line.put((String) pairs[i], pairs[i + 1]);
    try { out.write(line.toJSONString(JSONWriter.Feature.WriteNulls)); out.write("\n"); out.flush(); } catch (IOException e) { throw new UncheckedIOException(e); }
  }

  static void note(List<MessageExt> messages) {
    long now = System.currentTimeMillis();
    for (MessageExt m : messages) write("type", "message", "topic", m.getTopic(), "queueId", m.getQueueId(), "queueOffset", m.getQueueOffset(), "msgId", m.getMsgId(), "offsetMsgId", ((MessageClientExt) m).getOffsetMsgId(),
      "body", Base64.getEncoder().encodeToString(m.getBody()), "tags", m.getTags(), "keys", m.getKeys(), "flag", m.getFlag(), "sysFlag", m.getSysFlag(), "bornTimestamp", m.getBornTimestamp(), "receivedAt", now,
      "reconsumeTimes", m.getReconsumeTimes(), "transactionId", m.getTransactionId(), "properties", new TreeMap<>(m.getProperties()));
  }

  public static void main(String[] a) throws Exception {
    Map<String, String> opt = new HashMap<>();
    for (int i = 1; i < a.length; i++) { int e = a[i].indexOf('='); opt.put(a[i].substring(0, e), a[i].substring(e + 1)); }
    out = new OutputStreamWriter(new FileOutputStream(a[0]), StandardCharsets.UTF_8);
    DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(opt.get("group"));
    if (opt.containsKey("namespace")) consumer.setNamespace(opt.get("namespace"));
    consumer.setNamesrvAddr(opt.getOrDefault("ns", "127.0.0.1:9876")); consumer.setInstanceName("consume" + System.nanoTime()); consumer.setPollNameServerInterval(500);
    consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
    for (String topic : opt.get("topics").split(",")) consumer.subscribe(topic, opt.containsKey("sql") ? MessageSelector.bySql(opt.get("sql")) : MessageSelector.byTag(opt.getOrDefault("tags", "*")));
    if (Boolean.parseBoolean(opt.get("orderly"))) consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> { note(messages); return ConsumeOrderlyStatus.SUCCESS; });
    else consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> { note(messages); return ConsumeConcurrentlyStatus.CONSUME_SUCCESS; });
    consumer.start();
    write("type", "ready");
    Thread.sleep(Long.MAX_VALUE);
  }
}
