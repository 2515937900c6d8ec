import com.alibaba.fastjson2.*;
import java.io.*;
import java.nio.charset.StandardCharsets;
import java.util.*;
import org.apache.rocketmq.client.producer.*;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.*;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** SendTimer OUT.jsonl topic=NAME [ns=…] [broker=…] [queues=2] STEP...: timer messages, one line for each acknowledged one.
 *  STEP: sec:N[:COUNT] (TIMER_DELAY_SEC) | ms:N[:COUNT] (TIMER_DELAY_MS) | deliver:N[:COUNT] (TIMER_DELIVER_MS = now + N ms, one time for all COUNT)
 *        | cancel:I (TIMER_DEL_UNIQKEY of message number I of this run, which was a deliver step, at its own time) | wait:N (ms).
 *  Bodies are "KIND-NUMBER". Exit 0 when all were acknowledged. */
public class SendTimer {
  public static void main(String[] a) throws Exception {
    Map<String, String> opt = new HashMap<>(); List<String> steps = new ArrayList<>();
    for (int i = 1; i < a.length; i++) { int e = a[i].indexOf('='); if (e < 0) steps.add(a[i]); else opt.put(a[i].substring(0, e), a[i].substring(e + 1)); }
    String ns = opt.getOrDefault("ns", "127.0.0.1:9876"), broker = opt.getOrDefault("broker", "127.0.0.1:10911"), topic = opt.get("topic");
    int queues = Send.number(opt, "queues", 2);
    DefaultMQAdminExt admin = new DefaultMQAdminExt(); admin.setNamesrvAddr(ns); admin.setInstanceName("admin" + System.nanoTime()); admin.start();
    Send.awaitCluster(admin);
    if (!Send.routed(admin, topic)) admin.createAndUpdateTopicConfig(broker, new TopicConfig(topic, queues, queues));
    for (int i = 0; i < 120 && !Send.routed(admin, topic); i++) Thread.sleep(250);
    DefaultMQProducer producer = new DefaultMQProducer("SendTimerGroup"); producer.setNamesrvAddr(ns); producer.setInstanceName("timer" + System.nanoTime());
    producer.setSendMsgTimeout(10000); producer.setRetryTimesWhenSendFailed(0); producer.start();
    List<MessageQueue> all = new ArrayList<>(producer.fetchPublishMessageQueues(topic)); all.sort(Comparator.comparingInt(MessageQueue::getQueueId));
    List<JSONObject> sent = new ArrayList<>();
    int status = 0;
    try (Writer out = new OutputStreamWriter(new FileOutputStream(a[0]), StandardCharsets.UTF_8)) {
      for (String step : steps) {
        String[] part = step.split(":"); String kind = part[0]; long value = Long.parseLong(part[1]); int count = part.length > 2 ? Integer.parseInt(part[2]) : 1;
        if (kind.equals("wait")) { Thread.sleep(value); continue; }
        long deliver = System.currentTimeMillis() + value;
        for (int i = 0; i < count; i++) {
          Message m = new Message(topic, kind.equals("cancel") ? "" : "Timed", (kind + "-" + sent.size()).getBytes(StandardCharsets.UTF_8));
          JSONObject line = new JSONObject(); line.put("n", sent.size()); line.put("topic", topic); line.put("kind", kind); line.put("body", new String(m.getBody(), StandardCharsets.UTF_8));
          switch (kind) {
            case "sec": m.setDelayTimeSec(value); line.put("value", value); break;
            case "ms": m.setDelayTimeMs(value); line.put("value", value); break;
            case "deliver": m.setDeliverTimeMs(deliver); line.put("value", deliver); break;
            case "cancel":
              JSONObject target = sent.get((int) value);
              m.setDeliverTimeMs(target.getLongValue("value")); line.put("value", target.getLongValue("value")); line.put("cancels", target.getString("msgId"));
              MessageAccessor.putProperty(m, MessageConst.PROPERTY_TIMER_DEL_UNIQKEY, deletionKey(topic, target.getString("msgId"))); break;
            default: throw new IllegalArgumentException(step);
          }
          line.put("sentAt", System.currentTimeMillis());
          SendResult r = producer.send(m, all.get(sent.size() % all.size()));
          line.put("queueId", r.getMessageQueue().getQueueId()); line.put("status", r.getSendStatus().name()); line.put("msgId", r.getMsgId());
          line.put("queueOffset", r.getQueueOffset()); line.put("offsetMsgId", r.getOffsetMsgId());
          sent.add(line); out.write(line.toJSONString()); out.write("\n"); out.flush();
        }
      }
    } catch (Exception e) { System.err.println("stopped: " + e); status = 1; }
    producer.shutdown(); admin.shutdown(); System.out.flush(); System.exit(status);
  }

  /** From 5.4 on the broker names a message by its id alone, unless a setting says otherwise. */
  static String deletionKey(String topic, String msgId) {
    for (java.lang.reflect.Method m : org.apache.rocketmq.store.config.MessageStoreConfig.class.getMethods()) if (m.getName().equals("setAppendTopicForTimerDeleteKey")) return msgId;
    return topic + "+" + msgId;
  }
}
