import io.netty.bootstrap.ServerBootstrap;
import java.lang.reflect.Field;
import java.net.*;
import org.apache.rocketmq.broker.*;

/** LoopbackBroker -c BROKER.CONF: BrokerStartup of a release that has no setting bindAddress (4.9). Its three server sockets listen on 127.0.0.1 instead of everywhere. */
public class LoopbackBroker {
  static Field field(Object of, String name) throws NoSuchFieldException {
    for (Class<?> c = of.getClass(); c != null; c = c.getSuperclass()) try { Field f = c.getDeclaredField(name); f.setAccessible(true); return f; } catch (NoSuchFieldException e) { /* its parent's */ }
    throw new NoSuchFieldException(of.getClass() + "." + name);
  }
  static InetSocketAddress loopback(SocketAddress address) { return new InetSocketAddress(InetAddress.getLoopbackAddress(), ((InetSocketAddress) address).getPort()); }

  public static void main(String[] a) throws Exception {
    BrokerController controller = BrokerStartup.createBrokerController(a);
    for (String name : new String[]{"remotingServer", "fastRemotingServer"}) {
      Object server = field(controller, name).get(controller);
      field(server, "serverBootstrap").set(server, new ServerBootstrap() {
        @Override public ServerBootstrap localAddress(SocketAddress address) { return super.localAddress(loopback(address)); }
      });
    }
    Object store = field(controller, "messageStore").get(controller), ha = field(store, "haService").get(store), acceptor = field(ha, "acceptSocketService").get(ha);
    Field listen = field(acceptor, "socketAddressListen"); listen.set(acceptor, loopback((SocketAddress) listen.get(acceptor)));
    BrokerStartup.start(controller);
  }
}
