import com.alibaba.fastjson2.*;
import java.io.*;
import java.nio.charset.StandardCharsets;
import java.util.*;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.AllocateMessageQueueStrategy;
import org.apache.rocketmq.client.consumer.rebalance.*;
import org.apache.rocketmq.client.consumer.store.OffsetSerializeWrapper;
import org.apache.rocketmq.client.impl.consumer.ProcessQueue;
import org.apache.rocketmq.common.filter.ExpressionType;
import org.apache.rocketmq.common.message.*;
import org.apache.rocketmq.remoting.protocol.body.*;
import org.apache.rocketmq.remoting.protocol.filter.FilterAPI;
import org.apache.rocketmq.remoting.protocol.heartbeat.SubscriptionData;

/** ConsumerVectors OUT.jsonl: what the Java consumer's own pure classes answer, a line each, by `type`:
 *  `allocation` (strategy, queues, clients, and what each client gets), `subscription` (topic, expression, expressionType and the SubscriptionData),
 *  `offsets` (a table and the text of its offsets.json), `processQueue` (steps with their answers), `runningInfo` (the body of request 307's answer). */
public class ConsumerVectors {
  static Writer out;
  static void write(Object... pairs) throws IOException { JSONObject line = new JSONObject(); for (int i = 0; i < pairs.length; i += 2) line.put((String) pairs[i], pairs[i + 1]); out.write(line.toJSONString()); out.write("\n"); }

  public static void main(String[] a) throws Exception {
    try (Writer file = new OutputStreamWriter(new FileOutputStream(a[0]), StandardCharsets.UTF_8)) {
      out = file; allocations(); subscriptions(); offsets(); for (int seed = 1; seed <= 6; seed++) processQueue(seed); runningInfo();
    }
    System.exit(0);
  }

  static void allocations() throws IOException {
    for (int brokers : new int[] {1, 3}) for (int queueCount : new int[] {1, 4, 7}) for (int clientCount : new int[] {1, 2, 5, 9}) {
      List<MessageQueue> queues = new ArrayList<>(); List<String> clients = new ArrayList<>();
      for (int b = 0; b < brokers; b++) for (int q = 0; q < queueCount; q++) queues.add(new MessageQueue("Topic" + queueCount, "room" + (b % 2) + "@broker-" + b, q));
      for (int c = 0; c < clientCount; c++) clients.add("room" + (c % 3) + "@192.168.0." + (c * 7 + 1) + "@" + (4000 + c) + "#" + (c * 1_000_000_007L));
      Collections.sort(queues); Collections.sort(clients);
      AllocateMessageQueueByConfig config = new AllocateMessageQueueByConfig(); config.setMessageQueueList(queues.subList(0, 1));
      AllocateMessageQueueByMachineRoom room = new AllocateMessageQueueByMachineRoom(); room.setConsumeridcs(Set.of("room0"));
      AllocateMachineRoomNearby.MachineRoomResolver resolver = new AllocateMachineRoomNearby.MachineRoomResolver() {
        public String brokerDeployIn(MessageQueue queue) { return queue.getBrokerName().split("@")[0]; }
        public String consumerDeployIn(String client) { return client.split("@")[0]; }
      };
      List<AllocateMessageQueueStrategy> strategies = List.of(new AllocateMessageQueueAveragely(), new AllocateMessageQueueAveragelyByCircle(), config, room,
        new AllocateMachineRoomNearby(new AllocateMessageQueueAveragely(), resolver), new AllocateMachineRoomNearby(new AllocateMessageQueueConsistentHash(), resolver),
        new AllocateMessageQueueConsistentHash());
      for (AllocateMessageQueueStrategy strategy : strategies) {
        JSONObject given = new JSONObject();
        for (String client : clients) given.put(client, indexes(queues, strategy.allocate("G", client, queues, clients)));
        given.put("nobody", indexes(queues, strategy == config ? List.of() : strategy.allocate("G", "nobody", queues, clients)));
        write("type", "allocation", "strategy", strategy.getName(), "queues", texts(queues), "clients", clients, "given", given);
      }
    }
  }

  static List<String> texts(List<MessageQueue> queues) { List<String> texts = new ArrayList<>(); for (MessageQueue q : queues) texts.add(q.getTopic() + " " + q.getBrokerName() + " " + q.getQueueId()); return texts; }
  static List<Integer> indexes(List<MessageQueue> queues, List<MessageQueue> chosen) { List<Integer> found = new ArrayList<>(); for (MessageQueue q : chosen) found.add(queues.indexOf(q)); return found; }

  static void subscriptions() throws Exception {
    String[][] of = {{"*", null}, {"", null}, {null, null}, {"TagA", null}, {"TagA||TagB", "TAG"}, {" TagA || TagB||TagA|| ", "TAG"}, {"Täg||标签||\uD83D\uDE00", "TAG"}, {"A|B", "TAG"}, {"||", "TAG"}, {"|| ||", "TAG"},
      {"a > 3 AND b = 'x'", ExpressionType.SQL92}, {"", ExpressionType.SQL92}, {"A||||B", null}};
    for (String[] e : of) {
      JSONObject line = new JSONObject();
      try { SubscriptionData d = FilterAPI.build("T", e[0], e[1]); d.setSubVersion(7); line.put("data", new String(d.toString())); line.put("tags", new TreeSet<>(d.getTagsSet())); line.put("codes", new TreeSet<>(d.getCodeSet())); line.put("subString", d.getSubString()); line.put("expressionType", d.getExpressionType()); }
      catch (Exception refused) { line.put("refused", String.valueOf(refused.getMessage())); }
      write("type", "subscription", "expression", e[0], "expressionType", e[1], "answer", line);
    }
    SubscriptionData d = FilterAPI.buildSubscriptionData("T", "TagA"); d.setSubVersion(7);
    write("type", "subscriptionText", "text", com.alibaba.fastjson.JSON.toJSONString(d));
  }

  static void offsets() throws IOException {
    for (int count : new int[] {0, 1, 3}) {
      OffsetSerializeWrapper w = new OffsetSerializeWrapper(); JSONObject table = new JSONObject();
      for (int q = 0; q < count; q++) { w.getOffsetTable().put(new MessageQueue("Topic", "broker-a", q), new AtomicLong(q * 10_000_000_000L + 5)); table.put("Topic broker-a " + q, q * 10_000_000_000L + 5); }
      write("type", "offsets", "table", table, "text", w.toJson(true));
    }
  }

  static MessageExt message(long offset) { MessageExt m = new MessageExt(); m.setQueueOffset(offset); m.setBody(new byte[(int) (offset * 7 % 50)]); return m; }
  static List<Long> offsetsOf(Collection<MessageExt> messages) { List<Long> offsets = new ArrayList<>(); for (MessageExt m : messages) offsets.add(m.getQueueOffset()); return offsets; }

  /** Random steps as the services take them: `put`, `remove` (concurrent), `take`, `commit`, `again`, `rollback` (orderly), `clear`. */
  static void processQueue(int seed) throws IOException {
    Random random = new Random(seed); ProcessQueue queue = new ProcessQueue(); JSONArray steps = new JSONArray(); long next = random.nextInt(100); boolean orderly = seed % 2 == 0;
    TreeMap<Long, MessageExt> waiting = new TreeMap<>(), taken = new TreeMap<>();
    for (int i = 0; i < 60; i++) {
      JSONObject step = new JSONObject(); int kind = random.nextInt(10);
      if (kind < 3) {
        List<MessageExt> messages = new ArrayList<>();
        for (int n = 1 + random.nextInt(5); n > 0; n--) { messages.add(message(next)); next += 1 + (random.nextInt(4) == 0 ? random.nextInt(5) : 0); }
        for (MessageExt m : messages) waiting.put(m.getQueueOffset(), m);
        step.put("do", "put"); step.put("offsets", offsetsOf(messages)); step.put("answer", queue.putMessage(messages));
      } else if (!orderly) {
        List<MessageExt> some = new ArrayList<>(); for (MessageExt m : waiting.values()) if (random.nextInt(3) == 0) some.add(m);
        if (random.nextInt(6) == 0) some.add(message(next + 1000));
        for (MessageExt m : some) waiting.remove(m.getQueueOffset());
        step.put("do", "remove"); step.put("offsets", offsetsOf(some)); step.put("answer", queue.removeMessage(some));
      } else if (kind < 7) {
        int count = 1 + random.nextInt(3); List<MessageExt> got = queue.takeMessages(count); for (MessageExt m : got) { taken.put(m.getQueueOffset(), m); waiting.remove(m.getQueueOffset()); }
        step.put("do", "take"); step.put("limit", count); step.put("answer", offsetsOf(got));
      } else if (kind == 7 && !taken.isEmpty()) { step.put("do", "commit"); step.put("answer", queue.commit()); taken.clear();
      } else if (kind == 8 && !taken.isEmpty()) { List<MessageExt> again = new ArrayList<>(taken.values()); waiting.putAll(taken); taken.clear(); step.put("do", "again"); step.put("offsets", offsetsOf(again)); queue.makeMessageToConsumeAgain(again);
      } else if (kind == 9) { step.put("do", "rollback"); queue.rollback(); waiting.putAll(taken); taken.clear();
      } else continue;
      ProcessQueueInfo info = new ProcessQueueInfo(); queue.fillProcessQueueInfo(info);
      step.put("count", queue.getMsgCount().get()); step.put("size", queue.getMsgSize().get()); step.put("span", queue.getMaxSpan()); step.put("hasTemp", queue.hasTempMessage());
      step.put("cached", List.of(info.getCachedMsgMinOffset(), info.getCachedMsgMaxOffset(), info.getCachedMsgCount())); step.put("taken", List.of(info.getTransactionMsgMinOffset(), info.getTransactionMsgMaxOffset(), info.getTransactionMsgCount()));
      steps.add(step);
    }
    write("type", "processQueue", "orderly", orderly, "steps", steps);
  }

  static void runningInfo() throws Exception {
    ConsumerRunningInfo info = new ConsumerRunningInfo(); info.getProperties().put("PROP_CONSUME_ORDERLY", "false");
    SubscriptionData d = FilterAPI.buildSubscriptionData("T", "TagA"); d.setSubVersion(7); info.getSubscriptionSet().add(d);
    ProcessQueueInfo queue = new ProcessQueueInfo(); queue.setCommitOffset(5); queue.setCachedMsgMinOffset(5); queue.setCachedMsgMaxOffset(9); queue.setCachedMsgCount(3); queue.setLastPullTimestamp(11); queue.setLastConsumeTimestamp(12); queue.setLastLockTimestamp(13); queue.setLocked(true);
    info.getMqTable().put(new MessageQueue("T", "broker-a", 1), queue);
    ConsumeStatus status = new ConsumeStatus(); status.setPullRT(1.5); status.setConsumeOKTPS(2); info.getStatusTable().put("T", status);
    info.getUserConsumerInfo().put("a", "b"); info.setJstack("stack");
    write("type", "runningInfo", "text", new String(info.encode(), StandardCharsets.UTF_8));
  }
}
