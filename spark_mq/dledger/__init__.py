"""DLedger, the Raft of RocketMQ: a group of members that elects a leader, and whose entries stand when a majority has them.

    messages.py     codes, and the JSON bodies of requests and answers, as Java's members write them
    state.py        term, vote, role, the ends of the log; effects; what is said waits for the disk
    election.py     votes, heartbeats, leadership that is handed over
    following.py    a follower's side of pushes
    pushing.py      a leader's side; when an entry is committed
    member.py       one member of all that: events go in, effects come out
    files.py        its disk: DLedger's own files, recovery
    runner.py       its threads: effects are carried out, syncs are shared

Begin with `member.py`. Java: io.openmessaging.storage.dledger 0.3.1.2, as RocketMQ 5.3.3 brings it.

The state machine has no sockets, clock and disk. Its owner does this; `files.py` and `runner.py` do all but the lines to the peers:

- **Start.** Read `currterm` (`storage/format/dledger.py`, `decode_vote`), the log's ends and its checkpoint into `Restored`; make a
  `Member`. Everything in `Restored` is durable: sync what recovery found before it is passed. Entries that recovery cannot read are
  cut off durably. A `currterm` that exists and has no term is damage, and no reason to begin with term 0.
- **Loop.** One thread calls the member, with one clock that never goes back. Each call returns effects; carry them out in order. Call
  `tick` at `deadline_ms`; the deadline changes with each call.
- **Disk.** `SaveVote`: replace `currterm` (file, rename, directory, each synced). `Append`: write entries and index. `Cut` and
  `Restart`: change the files and sync them before anything else is written. Every order has a number; call `synced` with the last one
  that is durable, and all before it must be. Several appends may share a sync. The checkpoint has `durable_committed_index` of the
  state. After a failed write or sync call the member no more: close it, and begin with `Start`.
- **Requests.** The code chooses the class (`CONVERSATIONS`), `read_body` reads it, `handle` gets it with a token; `Answer` names the
  token, maybe much later. The command that answers has the code 200. A token whose line is gone is no error.
- **Peers.** `Ask` sends a request with `write_body`. Answers may come in any order, late, or never: then `answered(call, None)` after
  `timeout_ms`. Pushes to one peer keep their order on one connection, which saves waiting.
- **A log that is applied.** At `Committed` apply the entries up to its index in order; an empty body is none. What is committed may
  not be durable here yet. Answers to proposals stand behind the `Committed` that they follow from. `RoleChanged` to LEADER: propose an
  entry (a controller: an empty body; a broker: a record, since Java's brokers read each body as one), and serve when its answer has
  come: only then all that was acknowledged before is applied here. `RoleChanged` to another role: stop serving; proposals that wait
  are answered TERM_CHANGED.
- **Members of Java's** in the group weaken it to their promises: they vote and acknowledge before a sync.
"""
