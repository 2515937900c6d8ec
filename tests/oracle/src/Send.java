import com.alibaba.fastjson2.*;
import java.io.*;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.util.*;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.*;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.*;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** Send OUT.jsonl topic=NAME [key=value ...]: a plain producer that writes one line for each acknowledged message.
 *  ns (127.0.0.1:9876), broker (127.0.0.1:10911), queues (4), count (100), minBody (1), maxBody (400), seed (1), interval (0 ms between sends),
 *  keys (distinct keys, 50; 0 = none), alwaysKeys (every message has a key), onlyQueues (comma list of queue ids to send to; default all in turn), delayLevels and delaysMs (comma lists: message n
 *  gets element n modulo their length; 0 = none; delaysMs go through the timer), batch (so many messages by one request, 1).
 *  The topic is created first when it has no route. Bodies, tags and keys follow from the seed. Exit 0 when all were acknowledged, 1 at the first failure. */
public class Send {
  public static void main(String[] a) throws Exception {
    Map<String, String> opt = new HashMap<>();
    for (int i = 1; i < a.length; i++) { int e = a[i].indexOf('='); opt.put(a[i].substring(0, e), a[i].substring(e + 1)); }
    String ns = opt.getOrDefault("ns", "127.0.0.1:9876"), broker = opt.getOrDefault("broker", "127.0.0.1:10911"), topic = opt.get("topic");
    int queues = number(opt, "queues", 4), count = number(opt, "count", 100), minBody = number(opt, "minBody", 1), maxBody = number(opt, "maxBody", 400), keys = number(opt, "keys", 50);
    Random random = new Random(number(opt, "seed", 1));
    DefaultMQAdminExt admin = new DefaultMQAdminExt(); admin.setNamesrvAddr(ns); admin.setInstanceName("admin" + System.nanoTime()); admin.start();
    awaitCluster(admin);
    if (!routed(admin, topic)) admin.createAndUpdateTopicConfig(broker, new TopicConfig(topic, queues, queues, 6));
    for (int i = 0; i < 120 && !routed(admin, topic); i++) Thread.sleep(250);
    DefaultMQProducer producer = new DefaultMQProducer("SendGroup"); producer.setNamesrvAddr(ns); producer.setInstanceName("send" + System.nanoTime());
    producer.setSendMsgTimeout(10000); producer.setRetryTimesWhenSendFailed(0); producer.start();
    List<MessageQueue> all = new ArrayList<>(producer.fetchPublishMessageQueues(topic)); all.sort(Comparator.comparingInt(MessageQueue::getQueueId));
    List<MessageQueue> to = new ArrayList<>();
    if (opt.containsKey("onlyQueues")) { for (String q : opt.get("onlyQueues").split(",")) to.add(all.get(Integer.parseInt(q))); } else to = all;
    int status = 0;
    try (Writer out = new OutputStreamWriter(new FileOutputStream(a[0]), StandardCharsets.UTF_8)) {
      List<Message> batch = new ArrayList<>(); List<JSONObject> lines = new ArrayList<>(); int size = number(opt, "batch", 1);
      for (int i = 0; i < count; i++) {
        byte[] body = new byte[minBody + random.nextInt(Math.max(1, maxBody - minBody + 1))]; random.nextBytes(body);
        Message m = new Message(topic, body);
        if (random.nextInt(4) > 0) m.setTags("Tag" + (char) ('A' + random.nextInt(3)));
        if (keys > 0 && (random.nextInt(3) > 0 || opt.containsKey("alwaysKeys"))) m.setKeys("key" + random.nextInt(keys));
        m.putUserProperty("n", String.valueOf(i));
        long level = turn(opt, "delayLevels", i), delayMs = turn(opt, "delaysMs", i);
        if (level > 0) m.setDelayTimeLevel((int) level);
        if (delayMs > 0) MessageAccessor.putProperty(m, "TIMER_DELAY_MS", String.valueOf(delayMs));
        JSONObject line = new JSONObject(); line.put("n", i); line.put("topic", topic); line.put("tags", m.getTags()); line.put("keys", m.getKeys());
        if (level > 0) line.put("delayLevel", level);
        if (delayMs > 0) line.put("delayMs", delayMs);
        line.put("bodyLen", body.length); line.put("bodySha256", sha256(body));
        batch.add(m); lines.add(line);
        if (batch.size() < size && i + 1 < count) continue;
        MessageQueue queue = to.get(i % to.size());
        SendResult r = size == 1 ? producer.send(m, queue) : producer.send(batch, queue);
        String[] msgIds = r.getMsgId().split(","), offsetMsgIds = r.getOffsetMsgId().split(",");
        for (int j = 0; j < lines.size(); j++) {
          JSONObject sent = lines.get(j); sent.put("queueId", r.getMessageQueue().getQueueId()); sent.put("queueOffset", r.getQueueOffset() + j);
          sent.put("status", r.getSendStatus().name()); sent.put("msgId", msgIds[Math.min(j, msgIds.length - 1)]); sent.put("offsetMsgId", offsetMsgIds[Math.min(j, offsetMsgIds.length - 1)]); // a batch record has one of each
          out.write(sent.toJSONString()); out.write("\n");
        }
        out.flush(); batch.clear(); lines.clear();
        if (number(opt, "interval", 0) > 0) Thread.sleep(number(opt, "interval", 0));
      }
    } catch (Exception e) { System.err.println("stopped: " + e); status = 1; }
    producer.shutdown(); admin.shutdown(); System.out.flush(); System.exit(status);
  }

  static int number(Map<String, String> opt, String key, int otherwise) { return opt.containsKey(key) ? Integer.parseInt(opt.get(key)) : otherwise; }

  static long turn(Map<String, String> opt, String key, int n) { String[] of = opt.getOrDefault(key, "0").split(","); return Long.parseLong(of[n % of.length]); }

  /** A name server refuses a topic of a broker that it does not know yet. */
  static void awaitCluster(DefaultMQAdminExt admin) throws Exception {
    for (int i = 0; i < 120; i++) { try { if (!admin.examineBrokerClusterInfo().getBrokerAddrTable().isEmpty()) return; } catch (Exception e) { /* not yet */ } Thread.sleep(250); }
    throw new IOException("no broker has registered with the name server");
  }

  static boolean routed(DefaultMQAdminExt admin, String topic) throws Exception {
    try { return !admin.examineTopicRouteInfo(topic).getQueueDatas().isEmpty(); } catch (MQClientException e) { return false; }
  }

  static String sha256(byte[] b) throws Exception { StringBuilder s = new StringBuilder(); for (byte x : MessageDigest.getInstance("SHA-256").digest(b)) s.append(String.format("%02x", x)); return s.toString(); }
}
