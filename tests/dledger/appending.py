"""A process that writes a member's files until it is killed, and says what is durable, a line for each.

python -m tests.dledger.appending DIRECTORY SEED
"""

from __future__ import annotations

import sys
from random import Random

from spark_mq.dledger.files import MemberFiles
from spark_mq.dledger.messages import entry_size, make_entry
from storage.format.dledger import Vote, place_of_next

FILE_BYTES = 65_536


def opened(directory: str) -> MemberFiles:
    return MemberFiles(directory, file_size_bytes=FILE_BYTES, index_file_size_bytes=3_200, most_sums=64)


def body_of(index: int, term: int) -> bytes:
    """Some are longer than a page, and one needs two writes."""
    random = Random(index * 1_000 + term)
    return random.randbytes(random.choice((0, 10, 500, 500, 9_000)))


def say(*words: object) -> None:
    print(*words, flush=True)


def write(directory: str, random: Random) -> None:
    files = opened(directory)
    found = files.restored()
    index, end, term = found.end_index, found.end_place, found.vote.term + 1
    files.save_vote(Vote(term, "n0"))
    say("vote", term)
    while True:
        entries = []
        for _ in range(random.choice((1, 3, 40))):
            index, body = index + 1, body_of(index + 1, term)
            place = place_of_next(end, entry_size(body), FILE_BYTES)
            entries.append(make_entry(index, term, place, body))
            end = place + len(body) + 48
        files.append(entries)
        if random.random() < 0.2:
            keep = random.randint(index - len(entries), index)
            if keep >= 0:
                say("cut", keep)
                files.cut(keep)
                last = files.entry(keep)
                index, end, term = keep, last.place + last.size_bytes, term + 1
                files.save_vote(Vote(term, "n0"))
                say("vote", term)
        elif random.random() < 0.7:
            files.sync()
            say("durable", index)


if __name__ == "__main__":
    write(sys.argv[1], Random(int(sys.argv[2])))
