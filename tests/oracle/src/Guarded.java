import com.alibaba.fastjson2.JSONObject;
import java.io.*;
import java.nio.charset.StandardCharsets;
import java.util.*;
import org.apache.rocketmq.acl.common.*;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.*;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.producer.*;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.*;
import org.apache.rocketmq.remoting.RPCHook;

/** Guarded OUT.jsonl topic=NAME group=NAME accessKey=NAME secretKey=TEXT [ns=…] [wait=SECONDS]: a producer and a push consumer that sign what they send.
 *  Sends `plain`, `again`, a transaction `committed` at once and a transaction `checked` that is committed when the broker asks; consumes them, `again` at its
 *  second delivery. Lines: {"sent": status} or {"refused": code, "remark": text}, {"got": body, "times": n}. Ends when all four were got, or after `wait` (60) seconds. */
public class Guarded {
  static Writer out;

  static synchronized void say(Object... pairs) {
    JSONObject line = new JSONObject();
    for (int i = 0; i < pairs.length; i += 2) line.put((String) pairs[i], pairs[i + 1]);
    try { out.write(line.toJSONString() + "\n"); out.flush(); } catch (IOException e) { throw new UncheckedIOException(e); }
  }

  static void send(TransactionMQProducer producer, String topic, String body, boolean inTransaction) throws Exception {
    Message m = new Message(topic, body.getBytes(StandardCharsets.UTF_8));
    try { say("sent", (inTransaction ? producer.sendMessageInTransaction(m, null) : producer.send(m)).getSendStatus().name()); }
    catch (Exception e) {
      Throwable t = e;
      while (t.getCause() != null && !(t instanceof MQBrokerException)) t = t.getCause();
      if (!(t instanceof MQBrokerException)) throw e;
      say("refused", ((MQBrokerException) t).getResponseCode(), "remark", ((MQBrokerException) t).getErrorMessage());
    }
  }

  public static void main(String[] a) throws Exception {
    Map<String, String> opt = new HashMap<>();
    for (int i = 1; i < a.length; i++) { int e = a[i].indexOf('='); opt.put(a[i].substring(0, e), a[i].substring(e + 1)); }
    String ns = opt.getOrDefault("ns", "127.0.0.1:9876"), topic = opt.get("topic");
    out = new OutputStreamWriter(new FileOutputStream(a[0]), StandardCharsets.UTF_8);
    RPCHook hook = new AclClientRPCHook(new SessionCredentials(opt.get("accessKey"), opt.get("secretKey")));
    TransactionMQProducer producer = new TransactionMQProducer("GuardedProducers", hook); producer.setNamesrvAddr(ns); producer.setInstanceName("p" + System.nanoTime());
    producer.setRetryTimesWhenSendFailed(0); producer.setSendMsgTimeout(10000);
    producer.setTransactionListener(new TransactionListener() {
      public LocalTransactionState executeLocalTransaction(Message m, Object arg) { return new String(m.getBody(), StandardCharsets.UTF_8).equals("checked") ? LocalTransactionState.UNKNOW : LocalTransactionState.COMMIT_MESSAGE; }
      public LocalTransactionState checkLocalTransaction(MessageExt m) { return LocalTransactionState.COMMIT_MESSAGE; }
    });
    producer.start();
    for (String body : new String[] {"plain", "again"}) send(producer, topic, body, false);
    for (String body : new String[] {"committed", "checked"}) send(producer, topic, body, true);
    Set<String> got = Collections.synchronizedSet(new HashSet<>());
    DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(opt.get("group"), hook); consumer.setNamesrvAddr(ns); consumer.setInstanceName("c" + System.nanoTime());
    consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET); consumer.setPollNameServerInterval(500); consumer.subscribe(topic, "*");
    consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
      for (MessageExt m : messages) {
        String body = new String(m.getBody(), StandardCharsets.UTF_8);
        say("got", body, "times", m.getReconsumeTimes());
        if (body.equals("again") && m.getReconsumeTimes() == 0) { context.setDelayLevelWhenNextConsume(1); return ConsumeConcurrentlyStatus.RECONSUME_LATER; }
        got.add(body);
      }
      return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
    });
    consumer.start();
    long end = System.currentTimeMillis() + 1000L * Integer.parseInt(opt.getOrDefault("wait", "60"));
    while (got.size() < 4 && System.currentTimeMillis() < end) Thread.sleep(100);
    consumer.shutdown(); producer.shutdown(); out.close(); System.exit(got.size() == 4 ? 0 : 1);
  }
}
