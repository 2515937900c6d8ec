import org.apache.rocketmq.broker.*;

/** ProtectingBroker -c BROKER.CONF: BrokerStartup, whose broker looks for slow groups (protectBroker) each second, not after three minutes and each three. */
public class ProtectingBroker {
  public static void main(String[] a) throws Exception {
    BrokerController controller = BrokerStartup.createBrokerController(a);
    BrokerStartup.start(controller);
    while (true) { Thread.sleep(1000); controller.protectBroker(); }
  }
}
