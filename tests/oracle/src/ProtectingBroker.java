import java.io.File;
import org.apache.rocketmq.broker.*;

/** ProtectingBroker ORDER -c BROKER.CONF: BrokerStartup, whose broker looks for slow groups (protectBroker) when the file ORDER is made, and removes it then; not each three minutes. */
public class ProtectingBroker {
  public static void main(String[] a) throws Exception {
    File order = new File(a[0]);
    BrokerController controller = BrokerStartup.createBrokerController(java.util.Arrays.copyOfRange(a, 1, a.length));
    BrokerStartup.start(controller);
    while (true) {
      Thread.sleep(100);
      if (order.exists()) { controller.protectBroker(); order.delete(); }
    }
  }
}
