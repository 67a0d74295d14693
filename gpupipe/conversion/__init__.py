"""What `gpupipe convert` does: writes the samples of any source to tar or Parquet shards.

plan.py says how each field is stored, and refuses what the format cannot hold. samples.py reads
samples, and encodes them again where that is asked for; reduction.py makes images smaller.
tar_shards.py and parquet_shards.py write a shard and read it back. job.py does so on all cores, and
manifest.py notes which shards are finished, so that a conversion that was killed goes on. Start
reading in convert.py. Only the
command line imports this folder.
"""
