import com.alibaba.fastjson2.*;
import java.io.*;
import java.nio.charset.StandardCharsets;
import java.nio.file.*;
import java.util.*;
import org.apache.rocketmq.remoting.netty.*;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;

/** Requests IN.jsonl OUT.jsonl BROKER: sends requests to a broker one after the other, as they are, and writes down its answers.
 *  A line of IN: `name`, `code` (RequestCode), `version` (MQVersion's ordinal), `fields` (the header), `body` (base64 or null). A field whose value is `@NAME` is the
 *  commit log offset of the message that request NAME stored, `#NAME` its queue offset.
 *  A line of OUT: `name`, `code` (ResponseCode), `remark`, `fields`. Exit 0 when each was answered. */
public class Requests {
  public static void main(String[] a) throws Exception {
    NettyRemotingClient client = new NettyRemotingClient(new NettyClientConfig()); client.start();
    Map<String, JSONObject> answers = new HashMap<>(); int status = 0;
    try (Writer out = new OutputStreamWriter(new FileOutputStream(a[1]), StandardCharsets.UTF_8)) {
      for (String text : Files.readAllLines(Paths.get(a[0]), StandardCharsets.UTF_8)) {
        JSONObject line = JSON.parseObject(text);
        HashMap<String, String> fields = new HashMap<>();
        for (var field : line.getJSONObject("fields").entrySet()) fields.put(field.getKey(), resolve(String.valueOf(field.getValue()), answers));
        RemotingCommand request = RemotingCommand.createRequestCommand(line.getIntValue("code"), null);
        request.setExtFields(fields); request.setVersion(line.getIntValue("version"));
        if (line.getString("body") != null) request.setBody(Base64.getDecoder().decode(line.getString("body")));
        RemotingCommand response = client.invokeSync(a[2], request, 20_000);
        JSONObject answer = new JSONObject(); answer.put("name", line.getString("name")); answer.put("code", response.getCode()); answer.put("remark", response.getRemark()); answer.put("fields", response.getExtFields());
        answers.put(line.getString("name"), answer); out.write(answer.toJSONString(JSONWriter.Feature.WriteNulls)); out.write("\n"); out.flush();
      }
    } catch (Exception e) { e.printStackTrace(); status = 1; }
    System.out.flush(); Runtime.getRuntime().halt(status);
  }

  static String resolve(String value, Map<String, JSONObject> answers) {
    if (!value.startsWith("@") && !value.startsWith("#")) return value;
    JSONObject fields = answers.get(value.substring(1)).getJSONObject("fields");
    if (value.startsWith("#")) return fields.getString("queueOffset");
    String id = fields.getString("msgId").split(",")[0];
    return String.valueOf(Long.parseUnsignedLong(id.substring(id.length() - 16), 16));
  }
}
