import com.alibaba.fastjson2.*;
import java.io.*;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.util.*;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.latency.*;
import org.apache.rocketmq.client.producer.selector.SelectMessageQueueByHash;
import org.apache.rocketmq.common.message.*;

/** ProducerVectors OUT.jsonl: what the Java producer's own pure classes answer, a line each, by `type`:
 *  `hash` (kind and value of an argument, number of queues, and the queue that SelectMessageQueueByHash takes),
 *  `ban` (latency of a try and for how long its broker is left out), `batch` (messages, and the body of their batch in hexadecimal),
 *  `uniqueId` (an id, and what MessageClientIDSetter reads out of it). */
public class ProducerVectors {
  static Writer out;
  static void write(Object... pairs) throws IOException { JSONObject line = new JSONObject(); for (int i = 0; i < pairs.length; i += 2) line.put((String) pairs[i], pairs[i + 1]); out.write(line.toJSONString()); out.write("\n"); }

  public static void main(String[] a) throws Exception {
    try (Writer file = new OutputStreamWriter(new FileOutputStream(a[0]), StandardCharsets.UTF_8)) { out = file; hashes(); bans(); batches(); uniqueIds(); }
    System.exit(0);
  }

  static void hashes() throws IOException {
    Object[] args = {"", "a", "order-1", "polygenelubricants", "Schlüssel", "键\uD83D\uDE00", 0, 1, -1, 7, Integer.MIN_VALUE, Integer.MAX_VALUE, 1L << 31, 1L << 40, -(1L << 40) - 3, Long.MIN_VALUE, Long.MAX_VALUE, true, false};
    for (Object arg : args) for (int count : new int[] {1, 3, 4, 8, 13}) {
      List<MessageQueue> queues = new ArrayList<>();
      for (int q = 0; q < count; q++) queues.add(new MessageQueue("T", "b", q));
      write("type", "hash", "kind", arg.getClass().getSimpleName(), "arg", arg, "queues", count, "queue", new SelectMessageQueueByHash().select(queues, null, arg).getQueueId());
    }
  }

  static void bans() throws Exception {
    MQFaultStrategy strategy = new MQFaultStrategy(new ClientConfig(), null, null);
    Method compute = MQFaultStrategy.class.getDeclaredMethod("computeNotAvailableDuration", long.class);
    compute.setAccessible(true);
    for (long latency : new long[] {0, 49, 50, 99, 100, 549, 550, 1799, 1800, 2999, 3000, 4999, 5000, 10000, 14999, 15000, 1000000}) write("type", "ban", "latency", latency, "duration", compute.invoke(strategy, latency));
  }

  static void batches() throws Exception {
    List<Message> messages = List.of(new Message("T", "TagA", "k1 k2", "hello".getBytes(StandardCharsets.UTF_8)), new Message("T", "", "", 7, new byte[] {0, 1, 2}, true));
    messages.get(1).putUserProperty("größe", "10 µm");
    JSONArray told = new JSONArray();
    for (Message m : messages) { MessageClientIDSetter.setUniqID(m); JSONObject o = new JSONObject(); o.put("body", Base64.getEncoder().encodeToString(m.getBody())); o.put("flag", m.getFlag()); o.put("properties", MessageDecoder.messageProperties2String(m.getProperties())); told.add(o); }
    write("type", "batch", "messages", told, "body", HexFormat.of().formatHex(MessageBatch.generateFromList(messages).encode()));
  }

  static void uniqueIds() throws Exception {
    long before = System.currentTimeMillis();
    String id = MessageClientIDSetter.createUniqID();
    Thread.sleep(10);  // an id of this millisecond is taken for one of the month before
    long read = MessageClientIDSetter.getNearlyTimeFromID(id).getTime();
    write("type", "uniqueId", "id", id, "ip", MessageClientIDSetter.getIPStrFromID(id), "pid", MessageClientIDSetter.getPidFromID(id), "own_pid", ProcessHandle.current().pid(), "isNow", Math.abs(read - before) < 60_000);
  }
}
