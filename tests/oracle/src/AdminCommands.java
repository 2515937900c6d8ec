import com.alibaba.fastjson2.*;
import java.io.*;
import java.nio.charset.StandardCharsets;
import java.nio.file.*;
import java.util.*;
import org.apache.rocketmq.client.consumer.*;
import org.apache.rocketmq.client.consumer.listener.*;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.*;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/** AdminCommands SCRIPT.jsonl OUT.jsonl: mqadmin's commands in one process, one after the other, at any number of clusters.
 *  SCRIPT has a line for each, a JSON list of its words; OUT gets a line for each: `words`, what it printed (`said`, errors among it), and how long it took (`ms`, a minute at most).
 *  Besides mqadmin's there are, each for a client 127.0.0.1@INSTANCE that stays until the end:
 *    +consumer NAMESRV GROUP TOPIC INSTANCE   a push consumer; it has read all messages, and told so, when the next command begins
 *    +producer NAMESRV GROUP TOPIC INSTANCE   a producer that has sent one message to the first broker's queue 0
 *    +read NAMESRV GROUP TOPIC                wait until the group has read all messages, and told so */
public class AdminCommands {
  static final long MOST_MS = 60_000;
  static final List<Object> clients = new ArrayList<>();

  static void consumer(String nameServer, String group, String topic, String instance) throws Exception {
    DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
    consumer.setNamesrvAddr(nameServer); consumer.setClientIP("127.0.0.1"); consumer.setInstanceName(instance);
    consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET); consumer.subscribe(topic, "*");
    consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> ConsumeConcurrentlyStatus.CONSUME_SUCCESS);
    consumer.start(); clients.add(consumer);
    read(nameServer, group, topic);
  }

  static void read(String nameServer, String group, String topic) throws Exception {
    DefaultMQAdminExt admin = new DefaultMQAdminExt();
    admin.setNamesrvAddr(nameServer); admin.setInstanceName("reader" + System.nanoTime()); admin.start();
    for (;;) {
      for (Object client : clients) if (client instanceof DefaultMQPushConsumer) ((DefaultMQPushConsumer) client).getDefaultMQPushConsumerImpl().persistConsumerOffset();
      try { if (admin.examineConsumeStats(group, topic).computeTotalDiff() == 0) break; } catch (Exception e) { /* it is not known yet */ }
      Thread.sleep(100);
    }
    admin.shutdown();
  }

  static void producer(String nameServer, String group, String topic, String instance) throws Exception {
    DefaultMQProducer producer = new DefaultMQProducer(group);
    producer.setNamesrvAddr(nameServer); producer.setClientIP("127.0.0.1"); producer.setInstanceName(instance);
    producer.start(); clients.add(producer);
    producer.send(new Message(topic, "TagA", "from a producer that stays".getBytes(StandardCharsets.UTF_8)), (queues, message, ignored) -> queues.get(0), null);
    producer.getDefaultMQProducerImpl().getMqClientFactory().sendHeartbeatToAllBrokerWithLock();
  }

  static class Fresh extends MQAdminStartup {
    /** Some keep a client of the cluster that they were asked for before. */
    static void commands() { SUB_COMMANDS.clear(); }
  }

  /** A client that shuts down waits for its event thread, which polls every three seconds. */
  static boolean ends(Thread command, long most) throws InterruptedException {
    for (long end = System.nanoTime() + most * 1_000_000; command.isAlive() && System.nanoTime() < end; command.join(10)) {
      if (Arrays.stream(command.getStackTrace()).noneMatch(at -> at.getClassName().endsWith("NettyRemotingClient") && at.getMethodName().equals("shutdown"))) continue;
      Thread[] threads = new Thread[Thread.activeCount() + 64];
      for (int i = Thread.enumerate(threads) - 1; i >= 0; i--) if (threads[i].getName().startsWith("NettyEventExecutor")) threads[i].interrupt();
    }
    return !command.isAlive();
  }

  static void run(String[] words) throws Exception {
    Fresh.commands();
    switch (words.length == 0 ? "" : words[0]) {
      case "+read": read(words[1], words[2], words[3]); break;
      case "+consumer": consumer(words[1], words[2], words[3], words[4]); break;
      case "+producer": producer(words[1], words[2], words[3], words[4]); break;
      default: MQAdminStartup.main0(words, null);
    }
  }

  public static void main(String[] a) throws Exception {
    PrintStream out = System.out, err = System.err;
    try (Writer file = new OutputStreamWriter(new FileOutputStream(a[1]), StandardCharsets.UTF_8)) {
      for (String line : Files.readAllLines(Path.of(a[0]))) {
        String[] words = JSON.parseArray(line).toArray(new String[0]);
        ByteArrayOutputStream said = new ByteArrayOutputStream();
        PrintStream both = new PrintStream(said, true, StandardCharsets.UTF_8);
        System.setOut(both); System.setErr(both);
        long begun = System.nanoTime();
        Thread command = new Thread(() -> { try { run(words); } catch (Throwable e) { e.printStackTrace(both); } });
        command.setDaemon(true); command.start();
        if (!ends(command, MOST_MS)) both.println("it has not ended");
        System.setOut(out); System.setErr(err);
        JSONObject found = new JSONObject();
        found.put("words", words); found.put("said", said.toString(StandardCharsets.UTF_8)); found.put("ms", (System.nanoTime() - begun) / 1_000_000);
        file.write(found.toJSONString() + "\n"); file.flush();
      }
    }
    out.flush(); Runtime.getRuntime().halt(0);
  }
}
