import com.alibaba.fastjson2.*;
import java.io.*;
import java.nio.charset.StandardCharsets;
import java.util.*;
import org.apache.rocketmq.client.AccessChannel;
import org.apache.rocketmq.client.consumer.*;
import org.apache.rocketmq.client.consumer.listener.*;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.hook.*;
import org.apache.rocketmq.client.producer.*;
import org.apache.rocketmq.client.trace.*;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.*;

/** Conversation OUT.jsonl ns=A,B: a Java client at each of these name servers that does what messages of topic `Commands` say, and answers requests, until it is killed.
 *  Commands by tag, with properties: `request` (to, count), `timed` (to, at: ms; the body is sent), `recall` (from; the body is the handle), `send` (to, mode, level; the body is sent),
 *  `transact` (to, plan; the body is sent). Producer `GHooked` of `send` and `transact`, and consumer `GJava` of topic `Hooked`, have all hooks, and traces on.
 *  A listener of `Hooked` answers as the body says: later, null, throw, else success; FilterMessageHook takes out bodies `filtered`; a send of `forbidden` is forbidden.
 *  Requests to `JavaAnswers` are answered with "Java: " and the body. Lines, by `type`: ready, reply, replied, timed, recalled, sent, hook, trace; `cluster` is the number of the name server. */
public class Conversation {
  static Writer out;
  static synchronized void write(Object... pairs) {
    JSONObject line = new JSONObject();
    for (int i = 0; i < pairs.length; i += 2) line.put((String) pairs[i], pairs[i + 1]);
    try { out.write(line.toJSONString(JSONWriter.Feature.WriteNulls)); out.write("\n"); out.flush(); } catch (IOException e) { throw new UncheckedIOException(e); }
  }

  public static void main(String[] a) throws Exception {
    Map<String, String> opt = new HashMap<>();
    for (int i = 1; i < a.length; i++) { int e = a[i].indexOf('='); opt.put(a[i].substring(0, e), a[i].substring(e + 1)); }
    out = new OutputStreamWriter(new FileOutputStream(a[0]), StandardCharsets.UTF_8);
    String[] ns = opt.get("ns").split(",");
    for (int i = 0; i < ns.length; i++) new Conversation(i, ns[i]).start();
    Thread.sleep(Long.MAX_VALUE);
  }

  final int cluster; final String ns; final DefaultMQProducer plain = new DefaultMQProducer("GPlain"); final TransactionMQProducer hooked = new TransactionMQProducer("GHooked");
  Conversation(int cluster, String ns) { this.cluster = cluster; this.ns = ns; }

  static String text(Message m) { return new String(m.getBody(), StandardCharsets.UTF_8); }

  DefaultMQPushConsumer consumer(String group, String topic, MessageListenerConcurrently listener) throws Exception {
    DefaultMQPushConsumer c = new DefaultMQPushConsumer(group); c.setNamesrvAddr(ns); c.setInstanceName("conversation" + cluster); c.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
    c.subscribe(topic, "*"); c.registerMessageListener(listener); c.setPollNameServerInterval(1000);
    return c;
  }

  void start() throws Exception {
    for (DefaultMQProducer p : List.of(plain, hooked)) { p.setNamesrvAddr(ns); p.setInstanceName("conversation" + cluster); p.setSendMsgTimeout(10000); p.setRetryTimesWhenSendFailed(0); p.setPollNameServerInterval(1000); }
    hooked.setEnableTrace(true); hooked.setTraceMsgBatchNum(1);
    hooked.setTransactionListener(new TransactionListener() {
      public LocalTransactionState executeLocalTransaction(Message m, Object plan) { return LocalTransactionState.valueOf((String) plan); }
      public LocalTransactionState checkLocalTransaction(MessageExt m) { return LocalTransactionState.UNKNOW; } });
    hooked.getDefaultMQProducerImpl().registerSendMessageHook(new SendMessageHook() {
      public String hookName() { return "send"; }
      void note(String hook, SendMessageContext c) { if (c.getSendResult() == null && c.getException() == null && hook.equals("after") && !c.getCommunicationMode().name().equals("ONEWAY")) return; // of an asynchronous send, before there is a result
        write("type", "hook", "cluster", cluster, "hook", hook, "group", c.getProducerGroup(), "topic", c.getMessage().getTopic(), "body", text(c.getMessage()), "mode", c.getCommunicationMode().name(), "kind", c.getMsgType().ordinal(),
          "queue", c.getMq().getQueueId(), "status", c.getSendResult() == null ? null : c.getSendResult().getSendStatus().name(), "failed", c.getException() != null); }
      public void sendMessageBefore(SendMessageContext c) { note("before", c); }
      public void sendMessageAfter(SendMessageContext c) { note("after", c); } });
    hooked.getDefaultMQProducerImpl().registerCheckForbiddenHook(new CheckForbiddenHook() {
      public String hookName() { return "forbid"; }
      public void checkForbidden(CheckForbiddenContext c) throws org.apache.rocketmq.client.exception.MQClientException { if (text(c.getMessage()).equals("forbidden")) throw new org.apache.rocketmq.client.exception.MQClientException("it is forbidden", null); } });
    hooked.getDefaultMQProducerImpl().registerEndTransactionHook(new EndTransactionHook() {
      public String hookName() { return "end"; }
      public void endTransaction(EndTransactionContext c) { write("type", "hook", "cluster", cluster, "hook", "end", "group", c.getProducerGroup(), "topic", c.getMessage().getTopic(), "body", text(c.getMessage()), "state", c.getTransactionState().name(), "check", c.isFromTransactionCheck(), "same", Objects.equals(c.getMsgId(), c.getTransactionId())); } });
    plain.start(); hooked.start();

    DefaultMQPushConsumer answers = consumer("GAnswers", "JavaAnswers", (messages, context) -> {
      for (MessageExt m : messages) try {
        Message reply = MessageUtil.createReplyMessage(m, ("Java: " + text(m)).getBytes(StandardCharsets.UTF_8));
        write("type", "replied", "cluster", cluster, "body", text(m), "status", plain.send(reply, 10000).getSendStatus().name(), "properties", new TreeMap<>(m.getProperties()));
      } catch (Exception e) { write("type", "replied", "cluster", cluster, "body", text(m), "error", e.toString()); }
      return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
    });
    DefaultMQPushConsumer hookedConsumer = consumer("GJava", "Hooked", (messages, context) -> {
      String body = text(messages.get(0));
      if (messages.get(0).getReconsumeTimes() > 0) return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
      if (body.equals("throw")) throw new IllegalStateException("as the body says");
      return body.equals("null") ? null : body.equals("later") ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
    });
    hookedConsumer.setEnableTrace(true); hookedConsumer.setTraceMsgBatchNum(1);
    hookedConsumer.getDefaultMQPushConsumerImpl().registerConsumeMessageHook(new ConsumeMessageHook() {
      public String hookName() { return "consume"; }
      void note(String hook, ConsumeMessageContext c) { for (MessageExt m : c.getMsgList()) if (m.getReconsumeTimes() == 0) write("type", "hook", "cluster", cluster, "hook", hook, "group", c.getConsumerGroup(), "topic", m.getTopic(), "body", text(m), "success", c.isSuccess(), "ended", c.getProps().get("ConsumeContextType")); }
      public void consumeMessageBefore(ConsumeMessageContext c) { note("consume before", c); }
      public void consumeMessageAfter(ConsumeMessageContext c) { note("consume after", c); } });
    hookedConsumer.getDefaultMQPushConsumerImpl().registerFilterMessageHook(new FilterMessageHook() {
      public String hookName() { return "filter"; }
      public void filterMessage(FilterMessageContext c) { c.getMsgList().removeIf(m -> text(m).equals("filtered")); } });
    DefaultMQPushConsumer traces = consumer("GTraces", "RMQ_SYS_TRACE_TOPIC", (messages, context) -> {
      for (MessageExt m : messages) {
        String whole = text(m); StringBuilder again = new StringBuilder(); Set<String> keys = new TreeSet<>();
        for (TraceContext t : TraceDataEncoder.decoderFromTraceDataString(whole)) {
          if (t.getTraceType() == TraceType.SubAfter) t.setAccessChannel(AccessChannel.LOCAL);
          TraceTransferBean bean = TraceDataEncoder.encoderFromContextBean(t); again.append(bean.getTransData()); keys.addAll(bean.getTransKey());
          TraceBean b = t.getTraceBeans().get(0);
          write("type", "trace", "cluster", cluster, "kind", t.getTraceType().name(), "time", t.getTimeStamp(), "region", t.getRegionId(), "group", t.getGroupName(), "success", t.isSuccess(), "cost", t.getCostTime(), "request", t.getRequestId(), "code", t.getContextCode(),
            "topic", b.getTopic(), "msgId", b.getMsgId(), "offsetMsgId", b.getOffsetMsgId(), "tags", b.getTags(), "keys", b.getKeys(), "host", b.getStoreHost(), "size", b.getBodyLength(), "msgType", b.getMsgType() == null ? null : b.getMsgType().name(), "retries", b.getRetryTimes(),
            "transactionId", b.getTransactionId(), "state", b.getTransactionState() == null ? null : b.getTransactionState().name(), "check", b.isFromTransactionCheck());
        }
        keys.remove("null"); // an encoder's own word for a key that is not there
        write("type", "traceMessage", "cluster", cluster, "same", again.toString().equals(whole), "keys", keys.equals(new TreeSet<>(Arrays.asList(m.getKeys().split(" ")))), "whole", whole, "again", again.toString());
      }
      return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
    });
    DefaultMQPushConsumer commands = consumer("GCommands", "Commands", (messages, context) -> {
      for (MessageExt m : messages) try { obey(m); } catch (Throwable e) { write("type", "sent", "cluster", cluster, "body", text(m), "error", e.toString()); }
      return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
    });
    for (DefaultMQPushConsumer c : List.of(answers, hookedConsumer, traces, commands)) c.start();
    write("type", "ready", "cluster", cluster);
  }

  void obey(MessageExt m) throws Exception {
    String to = m.getProperty("to");
    switch (m.getTags()) {
      case "request":
        for (int i = 0; i < Integer.parseInt(m.getProperty("count")); i++) { // with a selector: in 5.3.1 to 5.3.3 the others end before the reply is there
          Message asked = new Message(to, ("question " + i).getBytes(StandardCharsets.UTF_8));
          plain.request(asked, (queues, message, arg) -> queues.get((int) arg % queues.size()), i, new RequestCallback() {
            public void onSuccess(Message r) { write("type", "reply", "cluster", cluster, "body", text(r), "topic", r.getTopic(), "properties", new TreeMap<>(r.getProperties()), "asked", text(asked)); }
            public void onException(Throwable e) { write("type", "reply", "cluster", cluster, "error", e.toString(), "asked", text(asked)); } }, 20000);
        }
        break;
      case "timed":
        Message timed = new Message(to, m.getBody()); timed.setDeliverTimeMs(Long.parseLong(m.getProperty("at")));
        write("type", "timed", "cluster", cluster, "body", text(m), "handle", plain.send(timed).getRecallHandle()); break;
      case "recall":
        try { write("type", "recalled", "cluster", cluster, "handle", text(m), "msgId", plain.recallMessage(m.getProperty("from"), text(m))); }
        catch (MQBrokerException e) { write("type", "recalled", "cluster", cluster, "handle", text(m), "code", e.getResponseCode(), "remark", e.getErrorMessage()); }
        break;
      case "send":
        Message sent = new Message(to, "TagJ", "key1 key2", m.getBody()); if (m.getProperty("level") != null) sent.setDelayTimeLevel(Integer.parseInt(m.getProperty("level")));
        switch (m.getProperty("mode")) {
          case "ASYNC": hooked.send(sent, new SendCallback() { public void onSuccess(SendResult r) { write("type", "sent", "cluster", cluster, "body", text(m), "msgId", r.getMsgId()); } public void onException(Throwable e) { write("type", "sent", "cluster", cluster, "body", text(m), "error", e.toString()); } }); break;
          case "ONEWAY": hooked.sendOneway(sent); write("type", "sent", "cluster", cluster, "body", text(m)); break;
          default: write("type", "sent", "cluster", cluster, "body", text(m), "msgId", hooked.send(sent).getMsgId());
        }
        break;
      case "transact":
        write("type", "sent", "cluster", cluster, "body", text(m), "msgId", hooked.sendMessageInTransaction(new Message(to, "TagJ", "key1 key2", m.getBody()), m.getProperty("plan")).getMsgId()); break;
    }
  }
}
