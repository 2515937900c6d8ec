import com.alibaba.fastjson2.*;
import java.io.*;
import java.lang.reflect.*;
import java.nio.charset.StandardCharsets;
import java.util.*;
import org.apache.rocketmq.client.QueryResult;
import org.apache.rocketmq.client.consumer.*;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.common.message.*;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** ConsumeAll OUT.jsonl topics=A,B [key=value ...]: everything that a broker serves of these topics, to a consumer and to the tools.
 *  ns (127.0.0.1:9876), broker (127.0.0.1:10911), tags (*: a filter, as a consumer subscribes), lookUps (20: so many of each topic's KEYS, and of its unique keys, are looked up, spread over its messages).
 *  Lines, by `type`: `listed` (a topic that the name server lists, as in mqadmin topicList; with its queue numbers if it was asked for), `queue` (ends, as the broker
 *  says them), `message` (pulled, from each queue's least offset to its greatest, in order), `lookUp` (as mqadmin queryMsgByKey and queryMsgByUniqueKey).
 *  Exit 0 when each queue was pulled to its end, 1 when not. */
public class ConsumeAll {
  static final List<Integer> NO_MESSAGE = List.of(22, 208); // ResponseCode, whose package depends on the release; a broker that was killed may have lost items of its index
  static Writer out;
  static void write(Object... pairs) throws IOException {
    JSONObject line = new JSONObject();
    for (int i = 0; i < pairs.length; i += 2) line.put((String) pairs[i], pairs[i + 1]);
    out.write(line.toJSONString(JSONWriter.Feature.WriteNulls)); out.write("\n");
  }

  public static void main(String[] a) throws Exception {
    Map<String, String> opt = new HashMap<>();
    for (int i = 1; i < a.length; i++) { int e = a[i].indexOf('='); opt.put(a[i].substring(0, e), a[i].substring(e + 1)); }
    String ns = opt.getOrDefault("ns", "127.0.0.1:9876");
    List<String> topics = List.of(opt.get("topics").split(","));
    DefaultMQAdminExt admin = new DefaultMQAdminExt(); admin.setNamesrvAddr(ns); admin.setInstanceName("admin" + System.nanoTime()); admin.start();
    for (String topic : topics) if (!Send.routed(admin, topic)) { register(admin, opt.getOrDefault("broker", "127.0.0.1:10911")); break; }
    for (String topic : topics) for (int i = 0; i < 120 && !Send.routed(admin, topic); i++) Thread.sleep(250);
    DefaultMQPullConsumer consumer = new DefaultMQPullConsumer("ConsumeAllGroup"); consumer.setNamesrvAddr(ns); consumer.setInstanceName("pull" + System.nanoTime()); consumer.start();
    int status = 0;
    try (Writer file = new BufferedWriter(new OutputStreamWriter(new FileOutputStream(a[0]), StandardCharsets.UTF_8))) {
      out = file;
      for (String topic : new TreeSet<>(admin.fetchAllTopicList().getTopicList())) {
        if (!topics.contains(topic)) { write("type", "listed", "topic", topic); continue; }
        for (var q : admin.examineTopicRouteInfo(topic).getQueueDatas())
          write("type", "listed", "topic", topic, "brokerName", q.getBrokerName(), "readQueueNums", q.getReadQueueNums(), "writeQueueNums", q.getWriteQueueNums(), "perm", q.getPerm());
      }
      for (String topic : topics) {
        List<String> keys = new ArrayList<>(), uniqueKeys = new ArrayList<>();
        for (MessageQueue queue : new TreeSet<>(consumer.fetchSubscribeMessageQueues(topic))) if (!pull(consumer, queue, opt.getOrDefault("tags", "*"), keys, uniqueKeys)) status = 1;
        for (String key : spread(keys, Send.number(opt, "lookUps", 20))) lookUp(admin, topic, key, false);
        for (String key : spread(uniqueKeys, Send.number(opt, "lookUps", 20))) lookUp(admin, topic, key, true);
      }
    } catch (Exception e) { e.printStackTrace(); status = 1; }
    System.out.flush(); Runtime.getRuntime().halt(status); // a client's own shutdown takes ten seconds
  }

  /** A broker that has started before it was connected to the name server tries again after ten seconds; one whose permission is set registers at once. */
  static void register(DefaultMQAdminExt admin, String broker) throws Exception {
    Properties permission = new Properties(); permission.setProperty("brokerPermission", "6");
    admin.updateBrokerConfig(broker, permission);
  }

  /** Adds the messages' KEYS; whether the end was reached. */
  static boolean pull(DefaultMQPullConsumer consumer, MessageQueue queue, String tags, List<String> keys, List<String> uniqueKeys) throws Exception {
    long next = consumer.minOffset(queue), end = consumer.maxOffset(queue);
    write("type", "queue", "topic", queue.getTopic(), "queueId", queue.getQueueId(), "minOffset", next, "maxOffset", end);
    for (int found = 0; next < end; ) {
      PullResult r = consumer.pull(queue, tags, next, 256);
      if (r.getPullStatus() != PullStatus.FOUND && r.getPullStatus() != PullStatus.NO_MATCHED_MSG) { System.err.println(queue + " at " + next + ": " + r); return false; }
      List<MessageExt> got = r.getPullStatus() == PullStatus.FOUND ? r.getMsgFoundList() : List.of();
      for (MessageExt m : got) {
        byte[] body = m.getBody() == null ? new byte[0] : m.getBody();
        write("type", "message", "topic", m.getTopic(), "queueId", m.getQueueId(), "queueOffset", m.getQueueOffset(), "offsetMsgId", m instanceof MessageClientExt ? ((MessageClientExt) m).getOffsetMsgId() : m.getMsgId(),
          "uniqKey", m.getProperty("UNIQ_KEY"), "tags", m.getTags(), "keys", m.getKeys(), "bodyLen", body.length, "bodySha256", Send.sha256(body), "commitLogOffset", m.getCommitLogOffset());
        if (m.getKeys() != null && !m.getKeys().isBlank()) keys.addAll(List.of(m.getKeys().trim().split(" +")));
        uniqueKeys.add(m.getProperty("UNIQ_KEY"));
      }
      if (r.getNextBeginOffset() <= next) { System.err.println(queue + " does not go on at " + next); return false; }
      next = r.getNextBeginOffset();
    }
    return true;
  }

  static void lookUp(DefaultMQAdminExt admin, String topic, String key, boolean unique) throws Exception {
    JSONArray places = new JSONArray();
    try {
      QueryResult r = unique ? byUniqueKey(admin, topic, key) : admin.queryMessage(topic, key, 64, 0, Long.MAX_VALUE);
      for (MessageExt m : r.getMessageList()) places.add(m.getCommitLogOffset());
    } catch (MQClientException e) { if (!NO_MESSAGE.contains(e.getResponseCode())) throw e; }
    write("type", "lookUp", "topic", topic, "key", key, "unique", unique, "commitLogOffsets", places);
  }

  /** Releases differ in whether it takes the cluster's name first. */
  static QueryResult byUniqueKey(DefaultMQAdminExt admin, String topic, String key) throws Exception {
    for (Method m : DefaultMQAdminExt.class.getMethods()) {
      if (!m.getName().equals("queryMessageByUniqKey") || m.getParameterCount() < 5) continue;
      List<Object> of = new ArrayList<>(List.of(topic, key, 64, 0L, Long.MAX_VALUE)); if (m.getParameterCount() > 5) of.add(0, null);
      try { return (QueryResult) m.invoke(admin, of.toArray()); } catch (InvocationTargetException e) { throw (Exception) e.getCause(); }
    }
    throw new IllegalStateException("no queryMessageByUniqKey");
  }

  static Collection<String> spread(List<String> keys, int count) {
    Set<String> chosen = new LinkedHashSet<>();
    for (int i = 0; i < count && !keys.isEmpty(); i++) chosen.add(keys.get((int) ((long) i * keys.size() / count)));
    return chosen;
  }
}
