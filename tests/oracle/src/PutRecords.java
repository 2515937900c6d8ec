import java.io.*;
import java.net.*;
import java.nio.charset.StandardCharsets;
import java.nio.file.*;
import java.util.*;
import java.util.concurrent.*;
import org.apache.rocketmq.common.*;
import org.apache.rocketmq.common.message.*;
import org.apache.rocketmq.common.sysflag.MessageSysFlag;
import org.apache.rocketmq.store.*;
import org.apache.rocketmq.store.config.*;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/** PutRecords STOREDIR BROKER.CONF: appends, by Apache's own DefaultMessageStore.putMessage, records that no client can be made to send:
 *  every pair of IPv4 and IPv6 born and store hosts, with and without prepared and rolled back transaction bits (such records get no
 *  queue entry), and a retry topic longer than 127 characters (record magic V2) with an IPv6 host. Opens the store (an existing one is
 *  recovered first) and stops it cleanly. Exit 0 when every put was PUT_OK. */
public class PutRecords {
  public static void main(String[] a) throws Exception {
    Path dir = Paths.get(a[0]).toAbsolutePath();
    Properties p = new Properties(); try (Reader r = Files.newBufferedReader(Paths.get(a[1]), StandardCharsets.UTF_8)) { p.load(r); }
    p.setProperty("storePathRootDir", dir.toString()); p.setProperty("storePathCommitLog", dir + "/commitlog");
    BrokerConfig broker = new BrokerConfig(); MessageStoreConfig config = new MessageStoreConfig(); MixAll.properties2Object(p, broker); MixAll.properties2Object(p, config);
    try (ServerSocket free = new ServerSocket(0, 1, InetAddress.getLoopbackAddress())) { config.setHaListenPort(free.getLocalPort()); }
    config.setTimerWheelEnable(false); config.setFileReservedTime(24 * 3650);
    DefaultMessageStore store = new DefaultMessageStore(config, new BrokerStatsManager("put", true), (x1, x2, x3, x4, x5, x6, x7) -> { }, broker, new ConcurrentHashMap<>());
    if (!store.load()) { System.err.println("load() returned false"); System.exit(3); }
    store.start();
    InetAddress four = InetAddress.getByName("127.0.0.1"), six = InetAddress.getByName("::1"), other = InetAddress.getByName("2001:db8::1:2:abcd");
    String[] topics = {"TopicHosts", "%RETRY%GroupLong_" + "L".repeat(140)};
    int[] transactions = {0, MessageSysFlag.TRANSACTION_PREPARED_TYPE, MessageSysFlag.TRANSACTION_COMMIT_TYPE, MessageSysFlag.TRANSACTION_ROLLBACK_TYPE};
    int n = 0, failed = 0;
    for (int round = 0; round < 2; round++) for (String topic : topics) for (InetAddress born : new InetAddress[]{four, six, other}) for (InetAddress at : new InetAddress[]{four, six}) for (int transaction : transactions) {
      MessageExtBrokerInner m = new MessageExtBrokerInner();
      m.setTopic(topic); m.setQueueId(n % 2); m.setBody(("record " + n + " ").repeat(1 + n % 7).getBytes(StandardCharsets.UTF_8));
      m.setBornTimestamp(System.currentTimeMillis() - 5); m.setBornHost(new InetSocketAddress(born, 40000 + n)); m.setStoreHost(new InetSocketAddress(at, 10911));
      m.setSysFlag(transaction); m.setFlag(n * 7); m.setReconsumeTimes(n % 3); if (transaction == MessageSysFlag.TRANSACTION_COMMIT_TYPE) m.setPreparedTransactionOffset(n);
      m.setTags("Tag" + n % 3); m.setKeys("host" + n % 5 + " all"); MessageAccessor.putProperty(m, MessageConst.PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX, String.format("%032X", n + 1));
      m.setTagsCode(MessageExtBrokerInner.tagsString2tagsCode(m.getTags())); m.setPropertiesString(MessageDecoder.messageProperties2String(m.getProperties()));
      PutMessageResult r = store.putMessage(m);
      if (r.getPutMessageStatus() != PutMessageStatus.PUT_OK) { failed++; System.err.println(n + " " + topic + ": " + r.getPutMessageStatus()); }
      n++;
    }
    for (int i = 0; i < 300 && store.dispatchBehindBytes() > 0; i++) Thread.sleep(100);
    store.shutdown();
    System.out.println("PutRecords: " + n + " records, " + failed + " failed"); System.out.flush();
    Runtime.getRuntime().halt(failed == 0 ? 0 : 1);
  }
}
