"""The growing local cache of a remote data set: a folder that several processes, also of several
machines, fill, read and evict from.

DIR/dataset.json        what the cache is of DIR/listing/            the rows of the data set: a
row's number is its sample's id for good DIR/manifest.jsonl      append-only: a line for all that
was published or evicted; a generation is a number of lines DIR/shards/00000007.tar a published
shard: a WebDataset tar that is never changed DIR/tables/00000007.npy which rows it holds, and
where: kept when the shard is evicted, so that a resume can fetch it again DIR/tmp/
shards that are being written DIR/claims/, pins/, samplers/, runs/
                        files whose owners are alive as long as they hold a lock on them: bytes that
                        were reserved, generations that epochs train on, samplers at work, ranks of
                        a run
DIR/epochs.jsonl        a line for each epoch that began
DIR/lock                whoever changes any of this holds it
"""
