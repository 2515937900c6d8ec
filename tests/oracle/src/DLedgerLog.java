import io.openmessaging.storage.dledger.DLedgerConfig;
import io.openmessaging.storage.dledger.MemberState;
import io.openmessaging.storage.dledger.entry.DLedgerEntry;
import io.openmessaging.storage.dledger.store.file.DLedgerMmapFileStore;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Base64;

/**
 * DLedger's own file store: what its recovery finds in a member's directory, and what it writes for lines of a file.
 *
 *   DLedgerLog BASE DATA_FILE_BYTES INDEX_FILE_BYTES [WRITTEN]     the member is BASE/dledger-n0
 *
 * WRITTEN has a line for each entry, a term and the body in base64; a line with a term alone is a vote for n0 in it. Afterwards, and
 * without WRITTEN at once: a line for the log's ends, and one for each entry.
 */
public class DLedgerLog {
    static PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);

    public static void main(String[] args) throws Exception {
        DLedgerConfig config = new DLedgerConfig();
        config.group("group").selfId("n0").peers("n0-127.0.0.1:20911").storeBaseDir(args[0]);
        config.setMappedFileSizeForEntryData(Integer.parseInt(args[1]));
        config.setMappedFileSizeForEntryIndex(Integer.parseInt(args[2]));
        MemberState state = new MemberState(config);
        DLedgerMmapFileStore store = new DLedgerMmapFileStore(config, state);
        store.setEnableCleanSpaceService(false);
        store.startup();
        if (args.length > 3) {
            for (String line : Files.readAllLines(Path.of(args[3]))) {
                String[] parts = line.split(" ", -1);
                state.changeToCandidate(Long.parseLong(parts[0]));
                while (state.currTerm() < Long.parseLong(parts[0])) state.nextTerm();
                if (parts.length == 1) {
                    state.setCurrVoteFor("n0");
                    continue;
                }
                state.changeToLeader(state.currTerm());
                DLedgerEntry entry = new DLedgerEntry();
                entry.setBody(Base64.getDecoder().decode(parts[1]));
                store.appendAsLeader(entry);
            }
            store.updateCommittedIndex(state.currTerm(), store.getLedgerEndIndex());
        }
        out.println("log " + store.getLedgerBeginIndex() + " " + store.getLedgerEndIndex() + " " + store.getLedgerEndTerm() + " "
            + store.getCommittedIndex() + " " + state.currTerm() + " " + state.currVoteFor());
        for (long index = Math.max(store.getLedgerBeginIndex(), 0); index <= store.getLedgerEndIndex(); index++) {
            DLedgerEntry entry = store.get(index);
            out.println("entry " + entry.getIndex() + " " + entry.getTerm() + " " + entry.getPos() + " " + entry.getSize() + " "
                + Base64.getEncoder().encodeToString(entry.getBody()));
        }
        store.shutdown();
        System.exit(0);
    }
}
