import com.alibaba.fastjson2.*;
import java.io.*;
import java.nio.charset.StandardCharsets;
import java.util.*;
import org.apache.rocketmq.client.producer.*;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.*;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** TransactionSide OUT.jsonl group=NAME [key=value ...]: a transaction producer that sends halves and answers the broker's checks, until it is killed.
 *  ns (127.0.0.1:9876), broker (127.0.0.1:10911), topic (made with `queues` (4) if it has no route) and plans (comma list: one half message for each).
 *  The plan stands in the message's property `plan`: commit and rollback are told at once; for all others the producer says that it does not know, and later
 *  answers a check of checkCommit and checkRollback so, of everything else with the same ignorance. A message with plan P-Ns is immune to checks for N seconds.
 *  Lines, by `type`: `sent` (a half, acknowledged), `ready` (all are sent and the broker knows the producer), `checked` (a check that was answered). */
public class TransactionSide {
  static Writer out;
  static synchronized void write(Object... pairs) {
    JSONObject line = new JSONObject();
    for (int i = 0; i < pairs.length; i += 2) line.put((String) pairs[i], pairs[i + 1]);
    try { out.write(line.toJSONString(JSONWriter.Feature.WriteNulls)); out.write("\n"); out.flush(); } catch (IOException e) { throw new UncheckedIOException(e); }
  }

  static LocalTransactionState answer(String plan, String commit, String rollback) {
    return plan == null ? LocalTransactionState.UNKNOW : plan.startsWith(commit) ? LocalTransactionState.COMMIT_MESSAGE : plan.startsWith(rollback) ? LocalTransactionState.ROLLBACK_MESSAGE : LocalTransactionState.UNKNOW;
  }

  public static void main(String[] a) throws Exception {
    Map<String, String> opt = new HashMap<>();
    for (int i = 1; i < a.length; i++) { int e = a[i].indexOf('='); opt.put(a[i].substring(0, e), a[i].substring(e + 1)); }
    String ns = opt.getOrDefault("ns", "127.0.0.1:9876"), broker = opt.getOrDefault("broker", "127.0.0.1:10911"), topic = opt.get("topic");
    out = new OutputStreamWriter(new FileOutputStream(a[0]), StandardCharsets.UTF_8);
    TransactionMQProducer producer = new TransactionMQProducer(opt.get("group")); producer.setNamesrvAddr(ns); producer.setInstanceName("transactions" + System.nanoTime());
    producer.setSendMsgTimeout(10000); producer.setHeartbeatBrokerInterval(500); producer.setPollNameServerInterval(500);
    producer.setTransactionListener(new TransactionListener() {
      public LocalTransactionState executeLocalTransaction(Message m, Object plan) { return answer((String) plan, "commit", "rollback"); }
      public LocalTransactionState checkLocalTransaction(MessageExt m) {
        String plan = m.getUserProperty("plan"); LocalTransactionState state = answer(plan, "checkCommit", "checkRollback");
        write("type", "checked", "topic", m.getTopic(), "queueId", m.getQueueId(), "plan", plan, "answer", state.name(), "transactionId", m.getTransactionId(), "uniqKey", m.getProperty("UNIQ_KEY"),
          "checkTimes", m.getProperty("TRANSACTION_CHECK_TIMES"), "halfQueueOffset", m.getQueueOffset(), "commitLogOffset", m.getCommitLogOffset(), "body", new String(m.getBody(), StandardCharsets.UTF_8));
        return state;
      } });
    DefaultMQAdminExt admin = new DefaultMQAdminExt(); admin.setNamesrvAddr(ns); admin.setInstanceName("admin" + System.nanoTime()); admin.start();
    Send.awaitCluster(admin);
    if (!Send.routed(admin, topic)) { int queues = Send.number(opt, "queues", 4); admin.createAndUpdateTopicConfig(broker, new TopicConfig(topic, queues, queues, 6)); }
    for (int i = 0; i < 120 && !Send.routed(admin, topic); i++) Thread.sleep(250);
    producer.start();
    producer.getDefaultMQProducerImpl().getMqClientFactory().updateTopicRouteInfoFromNameServer(topic); // it registers with the brokers of topics that it knows
    if (opt.containsKey("plans")) {
      int n = 0;
      for (String plan : opt.get("plans").split(",")) {
        Message m = new Message(topic, "Tag" + n % 3, "key" + n, ("transaction " + n).getBytes(StandardCharsets.UTF_8)); m.putUserProperty("plan", plan); m.setFlag(n * 7); n++;
        if (plan.matches(".*-\\d+s")) m.putUserProperty(MessageConst.PROPERTY_CHECK_IMMUNITY_TIME_IN_SECONDS, plan.replaceAll(".*-(\\d+)s", "$1"));
        TransactionSendResult r = producer.sendMessageInTransaction(m, plan);
        write("type", "sent", "plan", plan, "topic", topic, "queueId", r.getMessageQueue().getQueueId(), "halfQueueOffset", r.getQueueOffset(), "msgId", r.getMsgId(), "offsetMsgId", r.getOffsetMsgId(),
          "transactionId", r.getTransactionId(), "status", r.getSendStatus().name(), "state", r.getLocalTransactionState().name(), "properties", new TreeMap<>(m.getProperties()), "flag", m.getFlag(), "body", new String(m.getBody(), StandardCharsets.UTF_8));
      }
    }
    while (true) {
      try { if (!admin.examineProducerConnectionInfo(opt.get("group"), topic).getConnectionSet().isEmpty()) break; } catch (Exception e) { /* not yet */ }
      Thread.sleep(200);
    }
    write("type", "ready");
    Thread.sleep(Long.MAX_VALUE);
  }
}
