import java.io.BufferedOutputStream;
import java.io.BufferedReader;
import java.io.DataOutputStream;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.List;
import java.util.Locale;
import java.util.concurrent.Callable;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;
import java.util.zip.CRC32;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * JavaPeer NAME_SERVER BODIES BODY_SIZE
 *
 * Java's clients, kept warm between rounds. The commands that it reads, line by line, and its answers stand in client_peer.py.
 * Message i has the (i % n)-th BODY_SIZE bytes of the file BODIES, which holds n of them.
 */
public class JavaPeer {
  static final String[] TAGS = {"placed", "paid", "shipped", "returned"};
  static final int TIMEOUT_MS = 30_000;
  static final long PATIENCE_S = 600;
  static String nameServer;
  static byte[] bodies;
  static int bodySize;
  static DefaultMQProducer producer;

  record Done(long nanos, long messages, long bytes, long crcs) {}

  interface Send { void messages(long first, long count) throws Exception; }

  static Message message(String topic, long i) {
    int start = (int) (i % (bodies.length / bodySize)) * bodySize;
    return new Message(topic, TAGS[(int) (i / 7 % TAGS.length)], "order-" + i, Arrays.copyOfRange(bodies, start, start + bodySize));
  }

  static void expectOk(SendResult result) {
    if (result.getSendStatus() != SendStatus.SEND_OK) throw new IllegalStateException("sent: " + result.getSendStatus());
  }

  static Done inThreads(int threads, long count, Send send) throws Exception {
    ExecutorService pool = Executors.newFixedThreadPool(threads);
    List<Future<Void>> senders = new ArrayList<>();
    long begun = System.nanoTime();
    for (int t = 0; t < threads; t++) {
      long first = count * t / threads, end = count * (t + 1) / threads;
      Callable<Void> sender = () -> { send.messages(first, end - first); return null; };
      senders.add(pool.submit(sender));
    }
    for (Future<Void> sender : senders) sender.get();
    long nanos = System.nanoTime() - begun;
    pool.shutdown();
    return new Done(nanos, count, 0, 0);
  }

  static Done sync(String topic, long count, int threads) throws Exception {
    return inThreads(threads, count, (first, n) -> {
      for (long i = first; i < first + n; i++) expectOk(producer.send(message(topic, i)));
    });
  }

  static Done batch(String topic, long count, int threads, int size) throws Exception {
    return inThreads(threads, count, (first, n) -> {
      for (long from = first; from < first + n; from += size) {
        List<Message> batch = new ArrayList<>(size);
        for (long i = from; i < Math.min(from + size, first + n); i++) batch.add(message(topic, i));
        expectOk(producer.send(batch));
      }
    });
  }

  /** Sends until the time is over; begin and duration of each, in ns of System.nanoTime, are appended to the file as two big-endian longs. */
  static Done timed(String topic, long seconds, int threads, String file) throws Exception {
    AtomicLong sent = new AtomicLong();
    long begun = System.nanoTime(), end = begun + seconds * 1_000_000_000L;
    try (DataOutputStream out = new DataOutputStream(new BufferedOutputStream(new FileOutputStream(file)))) {
      Done done = inThreads(threads, threads, (first, n) -> {
        for (long now = System.nanoTime(); now < end; ) {
          long from = System.nanoTime();
          expectOk(producer.send(message(topic, sent.getAndIncrement())));
          now = System.nanoTime();
          synchronized (out) { out.writeLong(from); out.writeLong(now - from); }
        }
      });
      return new Done(done.nanos(), sent.get(), 0, 0);
    }
  }

  static Done async(String topic, long count, int inFlight) throws Exception {
    Semaphore room = new Semaphore(inFlight);
    AtomicReference<Throwable> failure = new AtomicReference<>();
    SendCallback callback = new SendCallback() {
      public void onSuccess(SendResult result) {
        if (result.getSendStatus() != SendStatus.SEND_OK) failure.set(new IllegalStateException("sent: " + result.getSendStatus()));
        room.release();
      }
      public void onException(Throwable error) { failure.set(error); room.release(); }
    };
    long begun = System.nanoTime();
    for (long i = 0; i < count; i++) {
      room.acquire();
      producer.send(message(topic, i), callback);
    }
    if (!room.tryAcquire(inFlight, PATIENCE_S, TimeUnit.SECONDS)) throw new IllegalStateException("answers are missing");
    long nanos = System.nanoTime() - begun;
    if (failure.get() != null) throw new IllegalStateException(failure.get());
    return new Done(nanos, count, 0, 0);
  }

  /** As async, but a refusal (SYSTEM_BUSY) counts, in the place of the bytes, and is not sent again. */
  static Done burst(String topic, long count, int inFlight) throws Exception {
    Semaphore room = new Semaphore(inFlight);
    AtomicLong refused = new AtomicLong();
    AtomicReference<Throwable> failure = new AtomicReference<>();
    SendCallback callback = new SendCallback() {
      public void onSuccess(SendResult result) { room.release(); }
      public void onException(Throwable error) {
        if (error instanceof MQBrokerException && ((MQBrokerException) error).getResponseCode() == 2) refused.incrementAndGet();
        else failure.set(error);
        room.release();
      }
    };
    long begun = System.nanoTime();
    for (long i = 0; i < count; i++) {
      room.acquire();
      producer.send(message(topic, i), callback);
    }
    if (!room.tryAcquire(inFlight, PATIENCE_S, TimeUnit.SECONDS)) throw new IllegalStateException("answers are missing");
    long nanos = System.nanoTime() - begun;
    if (failure.get() != null) throw new IllegalStateException(failure.get());
    return new Done(nanos, count, refused.get(), 0);
  }

  /** What was consumed so far. */
  static class Consumed {
    final AtomicLong messages = new AtomicLong(), bytes = new AtomicLong(), crcs = new AtomicLong();
    final boolean checked;
    Consumed(boolean checked) { this.checked = checked; }

    long add(List<MessageExt> given) {
      long size = 0, sum = 0;
      for (MessageExt message : given) {
        size += message.getBody().length;
        if (checked) { CRC32 crc = new CRC32(); crc.update(message.getBody()); sum += crc.getValue(); }
      }
      bytes.addAndGet(size);
      crcs.addAndGet(sum);
      return messages.addAndGet(given.size());
    }

    Done done(long nanos) { return new Done(nanos, messages.get(), bytes.get(), crcs.get()); }
  }

  static Done pull(String topic, long count, boolean checked) throws Exception {
    DefaultLitePullConsumer consumer = new DefaultLitePullConsumer("bench_pull_" + System.nanoTime());
    consumer.setNamesrvAddr(nameServer);
    consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
    consumer.setPullBatchSize(32);
    consumer.start();
    try {
      Collection<MessageQueue> queues = consumer.fetchMessageQueues(topic);
      Consumed consumed = new Consumed(checked);
      long begun = System.nanoTime(), end = begun + PATIENCE_S * 1_000_000_000L, messages = 0;
      consumer.assign(queues);
      while (messages < count && System.nanoTime() < end) messages = consumed.add(consumer.poll(1000));
      return consumed.done(System.nanoTime() - begun);
    } finally {
      consumer.shutdown();
    }
  }

  static Done push(String topic, long count, boolean checked, int size) throws Exception {
    DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("bench_push_" + System.nanoTime());
    consumer.setNamesrvAddr(nameServer);
    consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
    consumer.setConsumeMessageBatchMaxSize(size);
    consumer.subscribe(topic, "*");
    Consumed consumed = new Consumed(checked);
    AtomicLong begun = new AtomicLong();
    CountDownLatch all = new CountDownLatch(1);
    consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
      begun.compareAndSet(0, System.nanoTime());
      if (consumed.add(messages) >= count) all.countDown();
      return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
    });
    consumer.start();
    try {
      all.await(PATIENCE_S, TimeUnit.SECONDS);
      return consumed.done(System.nanoTime() - begun.get());
    } finally {
      consumer.shutdown();
    }
  }

  static Done idle(String prefix, long topics, int seconds) throws Exception {
    DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("bench_idle_" + System.nanoTime());
    consumer.setNamesrvAddr(nameServer);
    for (int t = 0; t < topics; t++) consumer.subscribe(prefix + "_" + t, "*");
    consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> ConsumeConcurrentlyStatus.CONSUME_SUCCESS);
    consumer.start();
    try {
      Thread.sleep(seconds * 1000L);
      return new Done(seconds * 1_000_000_000L, 0, 0, 0);
    } finally {
      consumer.shutdown();
    }
  }

  static Done run(String[] words) throws Exception {
    String topic = words[1];
    long count = Long.parseLong(words[2]);
    int third = Integer.parseInt(words[3]);
    switch (words[0]) {
      case "sync": return sync(topic, count, third);
      case "async": return async(topic, count, third);
      case "burst": return burst(topic, count, third);
      case "timed": return timed(topic, count, third, words[4]);
      case "batch": return batch(topic, count, third, Integer.parseInt(words[4]));
      case "pull": return pull(topic, count, third == 1);
      case "idle": return idle(topic, count, third);
      case "push": return push(topic, count, third == 1, Integer.parseInt(words[4]));
      default: throw new IllegalArgumentException("unknown command: " + words[0]);
    }
  }

  public static void main(String[] args) throws Exception {
    nameServer = args[0];
    bodies = Files.readAllBytes(Path.of(args[1]));
    bodySize = Integer.parseInt(args[2]);
    producer = new DefaultMQProducer("bench_java");
    producer.setNamesrvAddr(nameServer);
    producer.setSendMsgTimeout(TIMEOUT_MS);
    producer.setRetryTimesWhenSendAsyncFailed(0);
    producer.start();
    BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
    for (String line; (line = commands.readLine()) != null; ) {
      try {
        Done done = run(line.split(" "));
        System.out.printf(Locale.ROOT, "DONE %.6f %d %d %d%n", done.nanos() / 1e9, done.messages(), done.bytes(), done.crcs());
      } catch (Exception error) {
        System.out.println("FAILED " + error.toString().replace('\n', ' '));
      }
      System.out.flush();
    }
    Runtime.getRuntime().halt(0); // the clients' own shutdown takes ten seconds
  }
}
