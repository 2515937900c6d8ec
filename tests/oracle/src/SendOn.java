import com.alibaba.fastjson2.*;
import java.io.*;
import java.nio.charset.StandardCharsets;
import java.util.*;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.producer.*;
import org.apache.rocketmq.common.message.*;

/** SendOn OUT.jsonl topic=NAME [key=value ...]: producers that go on through failures until the file `stop` is there; then exit 0.
 *  ns (127.0.0.1:9876), stop (OUT.jsonl.stop), threads (2), interval (2 ms between a thread's sends), timeout (3000 ms), body (200 bytes).
 *  A line for each message: n, and status, msgId, queueId, queueOffset of an answer, or error. A failed message is not sent again. */
public class SendOn {
  static Writer out;
  static synchronized void write(JSONObject line) throws IOException { out.write(line.toJSONString()); out.write("\n"); out.flush(); }

  public static void main(String[] a) throws Exception {
    Map<String, String> opt = new HashMap<>();
    for (int i = 1; i < a.length; i++) { int e = a[i].indexOf('='); opt.put(a[i].substring(0, e), a[i].substring(e + 1)); }
    out = new OutputStreamWriter(new FileOutputStream(a[0]), StandardCharsets.UTF_8);
    File stop = new File(opt.getOrDefault("stop", a[0] + ".stop"));
    String topic = opt.get("topic"), filler = "x".repeat(Send.number(opt, "body", 200));
    DefaultMQProducer producer = new DefaultMQProducer("SendOnGroup"); producer.setNamesrvAddr(opt.getOrDefault("ns", "127.0.0.1:9876"));
    producer.setInstanceName("sendOn" + System.nanoTime()); producer.setPollNameServerInterval(500); producer.setRetryTimesWhenSendFailed(0);
    producer.setSendMsgTimeout(Send.number(opt, "timeout", 3000)); producer.start();
    AtomicInteger next = new AtomicInteger();
    List<Thread> threads = new ArrayList<>();
    for (int t = 0; t < Send.number(opt, "threads", 2); t++) {
      Thread thread = new Thread(() -> {
        while (!stop.exists()) {
          int n = next.getAndIncrement(); JSONObject line = new JSONObject(); line.put("n", n);
          try {
            Message m = new Message(topic, "", String.valueOf(n), (n + " " + filler).getBytes(StandardCharsets.UTF_8));
            try {
              SendResult r = producer.send(m);
              line.put("status", r.getSendStatus().name()); line.put("msgId", r.getMsgId()); line.put("queueId", r.getMessageQueue().getQueueId()); line.put("queueOffset", r.getQueueOffset());
              Thread.sleep(Send.number(opt, "interval", 2));
            } catch (InterruptedException e) { return; } catch (Exception e) { line.put("error", e.toString()); Thread.sleep(50); }
            write(line);
          } catch (Exception e) { e.printStackTrace(); Runtime.getRuntime().halt(1); }
        }
      });
      threads.add(thread); thread.start();
    }
    for (Thread thread : threads) thread.join();
    System.out.flush(); Runtime.getRuntime().halt(0); // a client's own shutdown takes ten seconds
  }
}
