import com.aliyun.openservices.ons.api.*;
import com.aliyun.openservices.ons.api.order.OrderAction;
import com.aliyun.openservices.ons.api.order.OrderConsumer;
import com.aliyun.openservices.ons.api.order.OrderProducer;
import com.aliyun.openservices.ons.api.transaction.TransactionProducer;
import com.aliyun.openservices.ons.api.transaction.TransactionStatus;
import java.io.FileWriter;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.io.Writer;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;

/**
 * OnsRound OUT.jsonl ns=ADDRESS topic=NAME group=NAME: what an application does by Aliyun's ons-client. The lines are those that
 * tests/support/client_programs.py describes. The client has no batches; its delays are properties that only Aliyun's brokers know.
 */
public class OnsRound {
  static Writer out;
  static Map<String, String> given = new ConcurrentHashMap<>();
  static final Set<String> failed = ConcurrentHashMap.newKeySet();
  static final Map<String, Integer> seen = new ConcurrentHashMap<>();

  static synchronized void write(Object... pairs) {
    StringBuilder line = new StringBuilder("{");
    for (int i = 0; i < pairs.length; i += 2) {
      String value = pairs[i + 1] instanceof Number ? pairs[i + 1].toString() : "\"" + pairs[i + 1] + "\"";
      line.append(i == 0 ? "" : ",").append('"').append(pairs[i]).append("\":").append(pairs[i + 1] == null ? "null" : value);
    }
    try {
      out.write(line.append("}\n").toString());
      out.flush();
    } catch (IOException e) {
      throw new UncheckedIOException(e);
    }
  }

  static String name(byte[] body) {
    return new String(body, StandardCharsets.UTF_8).split(":")[0];
  }

  static Properties settings(String group) {
    Properties settings = new Properties();
    settings.put(PropertyKeyConst.GROUP_ID, given.get("group") + "-" + group);
    settings.put(PropertyKeyConst.NAMESRV_ADDR, given.get("ns"));
    settings.put(PropertyKeyConst.AccessKey, given.getOrDefault("accessKey", "nobody"));
    settings.put(PropertyKeyConst.SecretKey, given.getOrDefault("secretKey", "nothing"));
    return settings;
  }

  static Message message(String body, String tags) {
    return new Message(given.get("topic"), tags, body.getBytes(StandardCharsets.UTF_8));
  }

  static void sent(String how, Message m, SendResult r) {
    if (r == null) {
      write("type", "sent", "how", how, "name", name(m.getBody()), "bytes", m.getBody().length);
    } else {
      write("type", "sent", "how", how, "name", name(m.getBody()), "bytes", m.getBody().length, "msgId", r.getMessageId());
    }
  }

  static void got(String by, Message m) {
    String[] place = m.getTopicPartition().getPartition().split("#");
    write("type", "got", "by", by, "name", name(m.getBody()), "bytes", m.getBody().length, "tags", m.getTag(),
        "queueId", Integer.valueOf(place[place.length - 1]), "queueOffset", m.getOffset(), "times", m.getReconsumeTimes(),
        "msgId", m.getMsgID());
    seen.merge(by, 1, Integer::sum);
  }

  static void send() throws Exception {
    Producer producer = ONSFactory.createProducer(settings("producer"));
    producer.start();
    for (int i = 0; i < 12; i++) {
      Message m = message("sync-" + i, new String[] {"TagA", "TagB", "TagC"}[i % 3]);
      m.setKey("key" + i);
      sent("sync", m, producer.send(m));
    }
    CountDownLatch answers = new CountDownLatch(6);
    for (int i = 0; i < 6; i++) {
      Message m = message("async-" + i, "");
      producer.sendAsync(m, new SendCallback() {
        public void onSuccess(SendResult r) {
          sent("async", m, r);
          answers.countDown();
        }

        public void onException(OnExceptionContext e) {
          write("type", "failed", "how", "async", "why", e.getException().getClass().getName());
          answers.countDown();
        }
      });
    }
    answers.await(20, TimeUnit.SECONDS);
    for (int i = 0; i < 3; i++) {
      Message m = message("oneway-" + i, "");
      producer.sendOneway(m);
      sent("oneway", m, null);
    }
    Message large = message("large:" + "0123456789".repeat(9_000), "");
    sent("large", large, producer.send(large));
    Message later = message("delayed", "");
    later.setStartDeliverTime(System.currentTimeMillis() + 1_000);
    sent("delayed", later, producer.send(later));
    OrderProducer ordered = ONSFactory.createOrderProducer(settings("ordered"));
    ordered.start();
    for (int i = 0; i < 6; i++) {
      Message m = message("ordered-" + i, "");
      sent("ordered", m, ordered.send(m, "one"));
    }
  }

  static void transact() {
    TransactionProducer producer = ONSFactory.createTransactionProducer(settings("tx"), m -> {
      write("type", "asked", "name", name(m.getBody()));
      return TransactionStatus.CommitTransaction;
    });
    producer.start();
    for (String body : new String[] {"commit", "rollback", "unknown"}) {
      Message m = new Message(given.get("topic") + "Tx", "", body.getBytes(StandardCharsets.UTF_8));
      try {
        SendResult r = producer.send(m, (half, argument) -> switch (body) {
          case "commit" -> TransactionStatus.CommitTransaction;
          case "rollback" -> TransactionStatus.RollbackTransaction;
          default -> TransactionStatus.Unknow;
        }, null);
        sent("transaction", m, r);
      } catch (RuntimeException e) { // it says so of what is rolled back
        if (!body.equals("rollback")) throw e;
        sent("transaction", m, null);
      }
    }
  }

  static void consume(String by, String topic, MessageSelector selector) {
    Consumer consumer = ONSFactory.createConsumer(settings(by));
    consumer.subscribe(topic, selector, (m, context) -> {
      got(by, m);
      boolean isLater = by.equals("all") && name(m.getBody()).equals("sync-5") && failed.add("sync-5");
      return isLater ? Action.ReconsumeLater : Action.CommitMessage;
    });
    consumer.start();
  }

  static void round() throws Exception {
    send();
    transact();
    consume("all", given.get("topic"), MessageSelector.byTag("*"));
    consume("tags", given.get("topic"), MessageSelector.byTag("TagA || TagC"));
    consume("sql", given.get("topic"), MessageSelector.bySql("TAGS = 'TagB'"));
    consume("transactions", given.get("topic") + "Tx", MessageSelector.byTag("*"));
    OrderConsumer orderly = ONSFactory.createOrderedConsumer(settings("orderly"));
    orderly.subscribe(given.get("topic"), "*", (m, context) -> {
      got("orderly", m);
      return OrderAction.Success;
    });
    orderly.start();
    Map<String, Integer> wanted = Map.of("all", 30, "tags", 8, "orderly", 29, "transactions", 2);
    for (int i = 0; i < 600 && wanted.entrySet().stream().anyMatch(e -> seen.getOrDefault(e.getKey(), 0) < e.getValue()); i++) {
      Thread.sleep(100);
    }
    Thread.sleep(7_000); // offsets are sent each 5 s
    write("type", "done");
  }

  public static void main(String[] words) throws Exception {
    out = new FileWriter(words[0]);
    for (int i = 1; i < words.length; i++) {
      String[] pair = words[i].split("=", 2);
      given.put(pair[0], pair[1]);
    }
    try {
      round();
    } catch (Throwable e) {
      write("type", "failed", "how", "round", "why", e.toString().split("\n")[0].replace('"', '\''));
      e.printStackTrace();
      System.exit(1);
    }
    System.exit(0);
  }
}
