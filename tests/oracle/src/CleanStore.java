import java.io.FileInputStream;
import java.util.Properties;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/** CleanStore STORE CONF: one round of a broker's cleaning, asked for by hand, in the store itself; prints the log's minimum after it. */
public class CleanStore {
  public static void main(String[] a) {
    try {
      clean(a);
    } catch (Throwable e) { // some releases have threads that keep the process
      e.printStackTrace();
      Runtime.getRuntime().halt(1);
    }
  }

  private static void periodically(Object of, String name) throws Exception {
    java.lang.reflect.Method round = of.getClass().getDeclaredMethod(name);
    round.setAccessible(true);
    round.invoke(of);
  }

  private static void clean(String[] a) throws Exception {
    Properties p = new Properties();
    try (FileInputStream in = new FileInputStream(a[1])) { p.load(in); }
    p.setProperty("storePathRootDir", a[0]);
    p.setProperty("storePathCommitLog", a[0] + "/commitlog");
    BrokerConfig broker = new BrokerConfig();
    MessageStoreConfig store = new MessageStoreConfig();
    MixAll.properties2Object(p, broker);
    MixAll.properties2Object(p, store);
    store.setTimerWheelEnable(false);
    try (java.net.ServerSocket free = new java.net.ServerSocket(0, 1, java.net.InetAddress.getLoopbackAddress())) {
      store.setHaListenPort(free.getLocalPort());
    }
    DefaultMessageStore opened = new DefaultMessageStore(
        store, new BrokerStatsManager("clean", true), (x1, x2, x3, x4, x5, x6, x7) -> { }, broker, new ConcurrentHashMap<>());
    if (!opened.load()) Runtime.getRuntime().halt(3);
    opened.executeDeleteFilesManually();
    periodically(opened, "cleanFilesPeriodically");
    try {
      periodically(opened, "cleanQueueFilesPeriodically");
    } catch (NoSuchMethodException e) { // from 5.4 on it is the queues' own
      periodically(opened.getQueueStore(), "cleanQueueFilesPeriodically");
    }
    System.out.println(opened.getMinPhyOffset());
    Runtime.getRuntime().halt(0);
  }
}
