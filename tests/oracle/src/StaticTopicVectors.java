import com.alibaba.fastjson2.JSONObject;
import com.alibaba.fastjson2.JSONWriter;
import java.io.*;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.util.*;
import org.apache.rocketmq.broker.processor.PullMessageProcessor;
import org.apache.rocketmq.broker.topic.TopicQueueMappingManager;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.protocol.*;
import org.apache.rocketmq.remoting.protocol.header.*;
import org.apache.rocketmq.remoting.protocol.route.TopicRouteData;
import org.apache.rocketmq.remoting.protocol.statictopic.*;
import org.apache.rocketmq.remoting.rpc.ClientMetadata;

/** StaticTopicVectors OUT.jsonl: what Apache's classes decide about static topics, a line each, by `type`; the assertions of TopicQueueMappingUtils are on.
 *  `update` (a broker's mapping before, the one that it is told, force; the mapping after, or the error): what mqadmin's own computations make, and changed copies of it.
 *  `chain` (links; the link of an offset, the next one, and each link's offsets), `pull` (links, the one read, its answer; the answer to the client), `endpoints` (a route; the broker of each logical queue). */
public class StaticTopicVectors {
  static Writer out;
  static final Random random = new Random(7);
  static final String HERE = "broker-a", TOPIC = "Static";

  static void write(Object... pairs) throws IOException {
    JSONObject line = new JSONObject();
    for (int i = 0; i < pairs.length; i += 2) line.put((String) pairs[i], pairs[i + 1]);
    out.write(line.toJSONString(JSONWriter.Feature.WriteNulls)); out.write("\n");
  }

  public static void main(String[] a) throws Exception {
    ClassLoader.getSystemClassLoader().setPackageAssertionStatus("org.apache.rocketmq.remoting.protocol.statictopic", true);
    try (Writer file = new OutputStreamWriter(new FileOutputStream(a[0]), StandardCharsets.UTF_8)) {
      out = file;
      for (int round = 0; round < 3; round++) operator();
      for (int round = 0; round < 20; round++) chain(chainOf(1 + random.nextInt(4), random.nextBoolean()));
      for (int round = 0; round < 50; round++) pull(chainOf(1 + random.nextInt(4), random.nextInt(4) == 0));
      for (int round = 0; round < 25; round++) endpoints();
    }
    System.out.flush(); Runtime.getRuntime().halt(0);
  }

  // What operators tell brokers

  static final Map<String, String> known = new HashMap<>();
  static int kinds;

  static void operator() throws Exception {
    known.clear();
    Map<String, TopicConfigAndQueueMapping> map = new HashMap<>();
    TopicQueueMappingUtils.createTopicConfigMapping(TOPIC, 2 + random.nextInt(3), new HashSet<>(List.of("broker-a", "broker-b")), map);
    tell(map, map.keySet());
    List<Set<String>> targets = List.of(Set.of("broker-b"), Set.of("broker-a", "broker-c"), Set.of("broker-a"), Set.of("broker-a", "broker-b", "broker-c"));
    for (int step = 0; step < 3; step++) {
      if (random.nextInt(3) == 0) {
        int count = map.values().iterator().next().getMappingDetail().getTotalQueues();
        TopicQueueMappingUtils.createTopicConfigMapping(TOPIC, count + 1, new HashSet<>(map.keySet()), map);
        tell(map, map.keySet());
        continue;
      }
      TopicRemappingDetailWrapper moved = TopicQueueMappingUtils.remappingStaticTopic(TOPIC, map, targets.get(random.nextInt(targets.size())));
      Set<String> both = new TreeSet<>(moved.getBrokerToMapIn()); both.addAll(moved.getBrokerToMapOut());
      tell(map, both);
      for (String broker : moved.getBrokerToMapOut())
        for (List<LogicQueueMappingItem> items : map.get(broker).getMappingDetail().getHostedQueues().values()) {
          LogicQueueMappingItem leader = items.get(items.size() - 1);
          if (items.size() < 2 || leader.getLogicOffset() > 0) continue;
          leader.setLogicOffset(TopicQueueMappingUtils.blockSeqRoundUp(items.get(items.size() - 2).computeStaticQueueOffsetStrictly(random.nextInt(30_000)), 10_000));
        }
      tell(map, map.keySet());
    }
  }

  static void tell(Map<String, TopicConfigAndQueueMapping> map, Collection<String> brokers) throws Exception {
    for (String broker : new TreeSet<>(brokers)) {
      String text = map.get(broker).getMappingDetail().toJson();
      for (int copy = 0; copy < 3; copy++) update(known.get(broker), changed(text), random.nextInt(6) == 0);
      known.put(broker, update(known.get(broker), text, false));
    }
  }

  static TopicQueueMappingDetail detail(String text) { return RemotingSerializable.fromJson(text, TopicQueueMappingDetail.class); }

  static String update(String before, String told, boolean force) throws Exception {
    TopicQueueMappingManager manager = new TopicQueueMappingManager(null);
    if (before != null) manager.getTopicQueueMappingTable().put(TOPIC, detail(before));
    String error = null;
    try { manager.updateTopicQueueMapping(detail(told), force, false, false); } catch (Throwable e) { error = String.valueOf(e.getMessage()); }
    TopicQueueMappingDetail after = manager.getTopicQueueMapping(TOPIC);
    write("type", "update", "before", before, "told", told, "force", force, "error", error, "after", after == null ? null : after.toJson());
    return error != null ? before : after.toJson();
  }

  /** The mapping with one thing that is not as it was. */
  static String changed(String text) {
    TopicQueueMappingDetail changed = detail(text);
    List<Integer> ids = new ArrayList<>(changed.getHostedQueues().keySet());
    int kind = kinds++ % 12;
    if (kind == 0) changed.setEpoch(changed.getEpoch() - 1);
    if (kind == 1) changed.setEpoch(changed.getEpoch() + 1);
    if (kind == 2) changed.setScope("other");
    if (ids.isEmpty()) return changed.toJson();
    int id = ids.get(random.nextInt(ids.size()));
    List<LogicQueueMappingItem> items = changed.getHostedQueues().get(id);
    LogicQueueMappingItem first = items.get(0), leader = items.get(items.size() - 1), any = items.get(random.nextInt(items.size()));
    switch (kind) {
      case 3: changed.getHostedQueues().remove(id); break;
      case 4: changed.getHostedQueues().remove(id); changed.setEpoch(changed.getEpoch() + 1); break;
      case 5: leader.setQueueId(leader.getQueueId() + 1); break;
      case 6: leader.setBname("broker-z"); break;
      case 7: any.setLogicOffset(any.getLogicOffset() + 1); break;
      case 8: any.setEndOffset(random.nextInt(100) - 2); break;
      case 9: items.remove(first); break;
      case 10: any.setGen(any.getGen() + 1); break;
      case 11: any.setStartOffset(random.nextInt(3) - 1); break;
      default: break;
    }
    return changed.toJson();
  }

  // Offsets

  static List<LogicQueueMappingItem> chainOf(int length, boolean undecided) {
    List<LogicQueueMappingItem> items = new ArrayList<>();
    long logic = random.nextInt(3) == 0 ? 500 : 0;
    for (int i = 0; i < length; i++) {
      boolean last = i == length - 1;
      long start = random.nextInt(4) == 0 ? 20 : 0, size = 100 + random.nextInt(50);
      long end = !last && random.nextBoolean() ? start + (random.nextInt(5) == 0 ? 0 : size) : -1;
      items.add(new LogicQueueMappingItem(i + 2, random.nextInt(4), last || random.nextBoolean() ? HERE : "broker-b", last && undecided && i > 0 ? -1 : logic, start, end, -1, -1));
      logic += 1000;
    }
    return items;
  }

  static String text(List<LogicQueueMappingItem> items) { return com.alibaba.fastjson.JSON.toJSONString(items); }

  static void chain(List<LogicQueueMappingItem> items) throws IOException {
    List<Object> found = new ArrayList<>(), next = new ArrayList<>(), each = new ArrayList<>();
    for (long offset : new long[] {0, 1, 499, 500, 501, 999, 1000, 1050, 1999, 2000, 3500, 9_000_000}) {
      LogicQueueMappingItem item = TopicQueueMappingUtils.findLogicQueueMappingItem(items, offset, true);
      found.add(Arrays.asList(offset, item == null ? null : item.getGen()));
    }
    for (LogicQueueMappingItem item : items) {
      LogicQueueMappingItem behind = TopicQueueMappingUtils.findNext(items, item, true);
      next.add(Arrays.asList(item.getGen(), behind == null ? null : behind.getGen()));
      for (long offset : new long[] {0, 19, 20, 21, 100, 130, 5000})
        if (item.getLogicOffset() >= 0)
          each.add(List.of(item.getGen(), offset, item.computeStaticQueueOffsetLoosely(offset), item.computeStaticQueueOffsetStrictly(offset), item.computePhysicalQueueOffset(offset), item.computeMaxStaticQueueOffset()));
    }
    write("type", "chain", "items", text(items), "found", found, "next", next, "offsets", each);
  }

  static void pull(List<LogicQueueMappingItem> items) throws Exception {
    TopicQueueMappingDetail detail = new TopicQueueMappingDetail(TOPIC, 4, HERE, 7);
    TopicQueueMappingDetail.putMappingInfo(detail, 3, items);
    LogicQueueMappingItem leader = items.get(items.size() - 1);
    Method rewrite = PullMessageProcessor.class.getDeclaredMethod("rewriteResponseForStaticTopic", PullMessageRequestHeader.class, PullMessageResponseHeader.class, TopicQueueMappingContext.class, int.class);
    rewrite.setAccessible(true);
    for (int round = 0; round < 4; round++) {
      long logical = random.nextInt(4200);
      LogicQueueMappingItem item = TopicQueueMappingUtils.findLogicQueueMappingItem(items, logical, true);
      if (item == null) return;
      long min = random.nextInt(3) == 0 ? 40 : 0, max = min + random.nextInt(120);
      int code = new int[] {ResponseCode.SUCCESS, ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_OFFSET_MOVED}[random.nextInt(4)];
      PullMessageRequestHeader request = new PullMessageRequestHeader();
      request.setQueueOffset(item.computePhysicalQueueOffset(logical));
      PullMessageResponseHeader answer = new PullMessageResponseHeader();
      long nextBegin = random.nextInt(160);
      answer.setNextBeginOffset(nextBegin); answer.setMinOffset(min); answer.setMaxOffset(max);
      TopicQueueMappingContext context = new TopicQueueMappingContext(TOPIC, 3, detail, items, leader);
      context.setCurrentItem(item);
      RemotingCommand made = (RemotingCommand) rewrite.invoke(new PullMessageProcessor(null), request, answer, context, code);
      write("type", "pull", "items", text(items), "offset", logical, "found", List.of(code, nextBegin, min, max), "code", made == null ? code : made.getCode(),
        "answer", List.of(answer.getNextBeginOffset(), answer.getMinOffset(), answer.getMaxOffset(), answer.getOffsetDelta()));
    }
  }

  // Routes

  static void endpoints() throws IOException {
    TopicRouteData route = new TopicRouteData();
    Map<String, TopicQueueMappingInfo> infos = new HashMap<>();
    for (String broker : List.of("broker-a", "broker-b", "broker-c")) {
      if (random.nextInt(5) == 0) continue;
      TopicQueueMappingInfo info = new TopicQueueMappingInfo(TOPIC, 2 + random.nextInt(3), broker, 100 + random.nextInt(2) * 1000 + broker.charAt(7) - 'a');
      if (random.nextInt(6) == 0) info.setScope("other");
      for (int id = 0; id < info.getTotalQueues(); id++) if (random.nextBoolean()) info.getCurrIdMap().put(id, random.nextInt(5));
      infos.put(broker, info);
    }
    route.setTopicQueueMappingByBroker(infos); route.setQueueDatas(new ArrayList<>()); route.setBrokerDatas(new ArrayList<>());
    JSONObject found = new JSONObject();
    for (Map.Entry<MessageQueue, String> each : ClientMetadata.topicRouteData2EndpointsForStaticTopic(TOPIC, route).entrySet())
      found.put(each.getKey().getBrokerName() + " " + each.getKey().getQueueId(), each.getValue());
    write("type", "endpoints", "route", RemotingSerializable.toJson(route, false), "found", found);
  }
}
