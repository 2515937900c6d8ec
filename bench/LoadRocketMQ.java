import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.protocol.ResponseCode;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * LoadRocketMQ NAME_SERVER BROKER BROKER_NAME TOPIC QUEUES MESSAGES BATCH BODIES BODY_SIZE
 *
 * Creates TOPIC and sends MESSAGES messages in batches of BATCH, batch b to queue b % QUEUES, one thread a queue. The body of
 * message i is the (i % n)-th BODY_SIZE bytes of the file BODIES, which holds n of them. Ends with code 0 only if the broker
 * stored each message exactly once and its queues show all of them.
 */
public class LoadRocketMQ {
  static final String[] TAGS = {"placed", "paid", "shipped", "returned"};

  static Message message(String topic, long i, byte[] bodies, int bodySize) {
    int start = (int) (i % (bodies.length / bodySize)) * bodySize;
    Message message = new Message(topic, TAGS[(int) (i / 7 % TAGS.length)], "order-" + i, Arrays.copyOfRange(bodies, start, start + bodySize));
    message.putUserProperty("region", "eu-" + i / 11 % 5);
    message.putUserProperty("trace", String.format("%016x", i * 0x9E3779B97F4A7C15L));
    return message;
  }

  /** Sends one batch. A busy broker refuses before it stores, so that only then the batch may be sent again. */
  static void send(DefaultMQProducer producer, List<Message> batch, MessageQueue queue) throws Exception {
    for (int attempt = 0; ; attempt++) {
      try {
        SendStatus status = producer.send(batch, queue).getSendStatus();
        if (status != SendStatus.SEND_OK) throw new IllegalStateException("sent to " + queue + ": " + status);
        return;
      } catch (MQBrokerException refused) {
        if (refused.getResponseCode() != ResponseCode.SYSTEM_BUSY || attempt == 100) throw refused;
        Thread.sleep(100);
      }
    }
  }

  static void createTopic(DefaultMQAdminExt admin, String broker, String topic, int queues) throws Exception {
    for (int i = 0; i < 120 && admin.examineBrokerClusterInfo().getBrokerAddrTable().isEmpty(); i++) Thread.sleep(500);
    admin.createAndUpdateTopicConfig(broker, new TopicConfig(topic, queues, queues));
    Thread.sleep(2000); // the broker tells the name server
  }

  static void awaitQueued(DefaultMQAdminExt admin, String topic, long messages) throws Exception {
    long queued = -1;
    for (int i = 0; i < 240 && queued != messages; i++, Thread.sleep(500))
      queued = admin.examineTopicStats(topic).getOffsetTable().values().stream().mapToLong(o -> o.getMaxOffset()).sum();
    if (queued != messages) throw new IllegalStateException("sent " + messages + " messages, the queues show " + queued);
  }

  public static void main(String[] args) throws Exception {
    String nameServer = args[0], broker = args[1], brokerName = args[2], topic = args[3];
    int queues = Integer.parseInt(args[4]), batchSize = Integer.parseInt(args[6]), bodySize = Integer.parseInt(args[8]);
    long messages = Long.parseLong(args[5]);
    byte[] bodies = Files.readAllBytes(Path.of(args[7]));

    DefaultMQAdminExt admin = new DefaultMQAdminExt();
    admin.setNamesrvAddr(nameServer);
    admin.start();
    createTopic(admin, broker, topic, queues);

    DefaultMQProducer producer = new DefaultMQProducer("bench_load");
    producer.setNamesrvAddr(nameServer);
    producer.setSendMsgTimeout(30_000);
    producer.setRetryTimesWhenSendFailed(0);
    producer.start();

    ExecutorService threads = Executors.newFixedThreadPool(queues);
    List<Future<Void>> senders = new ArrayList<>();
    for (int q = 0; q < queues; q++) {
      int queueId = q;
      Callable<Void> sender = () -> {
        MessageQueue queue = new MessageQueue(topic, brokerName, queueId);
        for (long first = (long) queueId * batchSize; first < messages; first += (long) queues * batchSize) {
          List<Message> batch = new ArrayList<>(batchSize);
          for (long i = first; i < Math.min(first + batchSize, messages); i++) batch.add(message(topic, i, bodies, bodySize));
          send(producer, batch, queue);
        }
        return null;
      };
      senders.add(threads.submit(sender));
    }
    for (Future<Void> sender : senders) sender.get();
    awaitQueued(admin, topic, messages);
    System.exit(0); // the clients' own threads would go on
  }
}
