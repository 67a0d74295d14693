"""The growing local cache of a remote data set.

Several processes, also on several machines, fill the cache folder, read it and evict from it.
Download workers fill it: worker_pool.py and worker_process.py start them, worker_main.py is what
one runs, downloader.py runs its tasks, publishing.py, fill.py and stored_fill.py do its work, and
waiting.py waits for what they fetch. The remote source and the command `gpupipe cache` import this
folder. Start reading in cache_folder.py.

Terms:

    download worker  a process that fetches samples
    shard            a WebDataset tar file of samples, which never changes once it is published
    stored shard     a shard that the store has, cached as it is: the modules stored_*.py;
                     of Parquet files, the needed columns of row groups (file_parts.py)
    table            which rows a shard holds, where their images lie in the tar, and their CRC-32
    commit log       manifest.jsonl: one line for each publication or eviction of a shard, and for
                     samples whose files changed in the store
    broken sample    a sample whose file changed since it was listed; it is in no shard
    generation n     the state of the cache after line n of the commit log
    pin              a claim on the shards of an epoch: they stay while it trains on them
    claim            a file that a process locks while it runs; a claim without lock is abandoned

The cache folder DIR:

    DIR/dataset.json         which data set the cache is for
    DIR/listing.idx          the rows of the data set; a row's number is its sample's id forever
    DIR/members.idx          the objects that each shard of a Zarr folder is made of
    DIR/parts.idx            the part of a Parquet file that each shard is
    DIR/manifest.jsonl       the commit log, to which lines are only appended
    DIR/shards/00000007.tar  a published shard
    DIR/tables/00000007.npy  its table, kept after eviction so that a resume can fetch the shard
    DIR/tmp/                 shards that are being written
    DIR/claims/              claims: shards that are being written, with their reserved bytes
    DIR/pins/                claims: the shards that epochs train on
    DIR/workers/             claims: running download workers, with their state
    DIR/runs/                claims: ranks of a training run; and the shards of each epoch
    DIR/epochs.jsonl         one line for each epoch that began
    DIR/rate                 the state of the common rate limit, see rate_limit.py
    DIR/listing.lock         the lock for listing the data set
    DIR/lock                 the lock for changing any other file
"""
