import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.nio.ByteBuffer;
import java.util.Base64;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;

/**
 * What ACL 1.0 (releases up to 5.3.2) says. One answer for each line of stdin, whose parts are apart by tabs:
 *
 *     home PATH                   the accounts below PATH/conf are read                OK, or the exception
 *     ask ADDRESS:PORT BASE64     a request: a frame without its length                OK, or the exception's message
 *     address RULE ADDRESS        does a white address mean this one?                  true, false, or the exception's message
 *
 * The classes are found by reflection, so that this compiles beside releases without them.
 */
public class PlainAcl {
    private static final String PACKAGE = "org.apache.rocketmq.acl.plain.";
    private static Object validator;

    public static void main(String[] args) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String said;
            try {
                said = answer(line.split("\t", -1));
            } catch (InvocationTargetException e) {
                said = String.valueOf(e.getCause().getMessage());
            }
            System.out.println(said.replace("\n", "\\n"));
        }
        System.exit(0);
    }

    private static String answer(String[] parts) throws Exception {
        Class<?> type = Class.forName(PACKAGE + "PlainAccessValidator");
        if (parts[0].equals("home")) {
            System.setProperty("rocketmq.home.dir", parts[1]);
            validator = type.getConstructor().newInstance();
            return "OK";
        }
        if (parts[0].equals("ask")) {
            Method parse = type.getMethod("parse", RemotingCommand.class, String.class);
            Method validate = type.getMethod("validate", Class.forName("org.apache.rocketmq.acl.AccessResource"));
            RemotingCommand command = RemotingCommand.decode(ByteBuffer.wrap(Base64.getDecoder().decode(parts[2])));
            validate.invoke(validator, parse.invoke(validator, command, parts[1]));
            return "OK";
        }
        Class<?> factory = Class.forName(PACKAGE + "RemoteAddressStrategyFactory");
        Class<?> resource = Class.forName(PACKAGE + "PlainAccessResource");
        Object rule = factory.getMethod("getRemoteAddressStrategy", String.class)
            .invoke(factory.getConstructor().newInstance(), parts[1]);
        Object asking = resource.getConstructor().newInstance();
        resource.getMethod("setWhiteRemoteAddress", String.class).invoke(asking, parts[2]);
        Method match = Class.forName(PACKAGE + "RemoteAddressStrategy").getMethod("match", resource);
        match.setAccessible(true);
        return String.valueOf(match.invoke(rule, asking));
    }
}
