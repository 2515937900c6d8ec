import com.alibaba.fastjson.JSON;
import io.openmessaging.storage.dledger.entry.DLedgerEntry;
import io.openmessaging.storage.dledger.protocol.*;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.Map;

/**
 * DLedger's requests and answers as its own classes write them: NAME, a tab, the body, one a line. With a file of such lines as
 * argument: what its classes read from them, written again.
 */
public class DLedgerBodies {
    static PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);

    static void line(String name, Object body) {
        out.println(name + "\t" + new String(JSON.toJSONBytes(body), StandardCharsets.UTF_8));
    }

    static <T extends RequestOrResponse> T base(T body) {
        body.setGroup("group");
        body.setIds("n0", "n1", "n0");
        body.setTerm(7);
        return body;
    }

    static DLedgerEntry entry(long index, byte[] body) {
        DLedgerEntry entry = new DLedgerEntry();
        entry.setMagic(1);
        entry.setIndex(index);
        entry.setTerm(6);
        entry.setPos(4096 + index);
        entry.setBody(body);
        entry.computeSizeInBytes();
        return entry;
    }

    static PushEntryRequest push(PushEntryRequest.Type type) {
        PushEntryRequest push = base(new PushEntryRequest());
        push.setType(type);
        push.setCommitIndex(11);
        return push;
    }

    public static void main(String[] args) throws Exception {
        if (args.length > 0) {
            for (String row : java.nio.file.Files.readAllLines(java.nio.file.Path.of(args[0]))) {
                String[] parts = row.split("\t", 2);
                String name = parts[0].split(" ")[0];
                line(parts[0], JSON.parseObject(parts[1].getBytes(StandardCharsets.UTF_8),
                    Class.forName("io.openmessaging.storage.dledger.protocol." + name)));
            }
            return;
        }
        byte[] body = new byte[256];
        for (int at = 0; at < body.length; at++) body[at] = (byte) at;
        line("MetadataRequest", base(new MetadataRequest()));
        MetadataResponse metadata = base(new MetadataResponse());
        Map<String, String> peers = new LinkedHashMap<>();
        peers.put("n0", "127.0.0.1:20911");
        peers.put("n1", "127.0.0.1:20912");
        metadata.setPeers(peers);
        line("MetadataResponse", metadata);
        line("AppendEntryRequest empty", base(new AppendEntryRequest()));
        AppendEntryRequest append = base(new AppendEntryRequest());
        append.setBody(body);
        line("AppendEntryRequest", append);
        AppendEntryResponse appended = base(new AppendEntryResponse());
        line("AppendEntryResponse none", appended);
        appended.setIndex(5);
        appended.setPos(4096);
        line("AppendEntryResponse", appended);
        GetEntriesRequest get = base(new GetEntriesRequest());
        get.setBeginIndex(3L);
        line("GetEntriesRequest", get);
        GetEntriesResponse got = base(new GetEntriesResponse());
        line("GetEntriesResponse none", got);
        got.setEntries(java.util.List.of(entry(5, "hello".getBytes())));
        line("GetEntriesResponse", got);
        VoteRequest vote = base(new VoteRequest());
        line("VoteRequest none", vote);
        vote.setLedgerEndIndex(9);
        vote.setLedgerEndTerm(6);
        line("VoteRequest", vote);
        line("VoteResponse none", new VoteResponse());
        for (VoteResponse.RESULT result : VoteResponse.RESULT.values())
            line("VoteResponse " + result, new VoteResponse(vote).term(8).voteResult(result));
        line("HeartBeatRequest", base(new HeartBeatRequest()));
        line("HeartBeatResponse", new HeartBeatResponse());
        line("HeartBeatResponse expired", new HeartBeatResponse().term(8).code(DLedgerResponseCode.EXPIRED_TERM.getCode()));
        PullEntriesRequest pull = base(new PullEntriesRequest());
        pull.setNodeId("n0");
        pull.setBeginIndex(1L);
        line("PullEntriesRequest", pull);
        line("PullEntriesResponse", base(new PullEntriesResponse()));
        line("PushEntryRequest commit", push(PushEntryRequest.Type.COMMIT));
        for (PushEntryRequest.Type type : PushEntryRequest.Type.values()) {
            if (type == PushEntryRequest.Type.COMMIT) continue;
            PushEntryRequest push = push(type);
            push.setEntry(entry(5, body));
            line("PushEntryRequest " + type, push);
        }
        PushEntryRequest empty = push(PushEntryRequest.Type.APPEND);
        empty.setEntry(entry(5, new byte[0]));
        line("PushEntryRequest empty", empty);
        PushEntryRequest batch = push(PushEntryRequest.Type.APPEND);
        batch.addEntry(entry(5, "hello".getBytes()));
        batch.addEntry(entry(6, "world".getBytes()));
        line("PushEntryRequest batch", batch);
        PushEntryResponse pushed = base(new PushEntryResponse());
        line("PushEntryResponse none", pushed);
        pushed.setIndex(5L);
        pushed.setBeginIndex(1);
        pushed.setEndIndex(6);
        pushed.setCount(2);
        line("PushEntryResponse", pushed);
        LeadershipTransferRequest transfer = base(new LeadershipTransferRequest());
        transfer.setTransferId("n0");
        transfer.setTransfereeId("n1");
        transfer.setTakeLeadershipLedgerIndex(9);
        line("LeadershipTransferRequest", transfer);
        line("LeadershipTransferResponse", new LeadershipTransferResponse().term(8).code(200));
    }
}
