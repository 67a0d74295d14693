"""How the files in tests/data/records were made: by TensorFlow 2.19.1, by MXNet 1.9.1 (Python 3.9,
numpy < 1.24) and by Streaming 0.13.0, each in an environment of its own.

python make_records.py tensorflow OUT JPEG...
python make_records.py streaming OUT JPEG...
python make_records.py mxnet OUT JPEG...

Record n holds the n-th JPEG, and numbers that `told(n)` says; OUT/records.json tells both, with the
BLAKE2b digest of each JPEG.

The files had other JPEGs of the same lengths when they were made. Since then they have pieces of
docs/images/cat.jpg, 48 to 53 pixels wide and 40 high, and the checksums of these.
"""

import hashlib
import json
import sys
from pathlib import Path

MAGIC = (0xCED7230A).to_bytes(4, "little")


def told(n):
    """What record n holds beside its image."""
    return {
        "label": n % 3,
        "name": "abc"[n % 3],
        "floats": [n + 0.5, -n, 1e-3 * n],
        "ints": [n, -n, 2**62 - n],
        "weight": n / 4,
    }


def tensorflow(out, images):
    """Two features are in other records not there (`odd`), and one is a list of no length."""
    import tensorflow as tf

    def feature(value):
        if isinstance(value, bytes):
            return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))
        if isinstance(value[0], float):
            return tf.train.Feature(float_list=tf.train.FloatList(value=value))
        return tf.train.Feature(int64_list=tf.train.Int64List(value=value))

    with tf.io.TFRecordWriter(str(out / "tensorflow.tfrecord")) as writer:
        for n, image in enumerate(images):
            t = told(n)
            named = {
                "image/encoded": image,
                "image/class/label": [t["label"]],
                "image/class/text": t["name"].encode(),
                "floats": t["floats"],
            }
            named |= {
                "ints": t["ints"],
                "weight": [t["weight"]],
                "raw": bytes(range(n, n + 12)),
            } | ({"odd": [1]} if n % 2 else {})
            features = {key: feature(value) for key, value in named.items()}
            features["nothing"] = tf.train.Feature(int64_list=tf.train.Int64List(value=[]))
            writer.write(
                tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()
            )
    with tf.io.TFRecordWriter(str(out / "gzip.tfrecord"), "GZIP") as writer:
        writer.write(b"x" * 100)


def mxnet(out, images):
    """labels.rec: a label a record; numbers.rec: three; parts.rec: images with MXNet's magic number
    in them, which it stores in several parts.
    """
    from mxnet import recordio

    labels = recordio.MXIndexedRecordIO(str(out / "labels.idx"), str(out / "labels.rec"), "w")
    numbers = recordio.MXRecordIO(str(out / "numbers.rec"), "w")
    parts = recordio.MXIndexedRecordIO(str(out / "parts.idx"), str(out / "parts.rec"), "w")
    for n, image in enumerate(images):
        labels.write_idx(
            100 + n, recordio.pack(recordio.IRHeader(0, told(n)["label"], n, 0), image)
        )
        numbers.write(
            recordio.pack(recordio.IRHeader(0, [told(n)["label"], *told(n)["floats"]], n, 0), image)
        )
        parts.write_idx(
            n, recordio.pack(recordio.IRHeader(0, told(n)["label"], n, 0), with_magic(image, n))
        )
    for file in (labels, numbers, parts):
        file.close()


def streaming(out, images):
    """One shard, streaming.mds, without compression."""
    import numpy as np
    from streaming import MDSWriter

    columns = {
        "image": "bytes",
        "label": "int",
        "name": "str",
        "weight": "float64",
        "floats": "ndarray:float32:3",
        "small": "uint16",
    }
    with MDSWriter(out=str(out / "mds"), columns=columns) as writer:
        for n, image in enumerate(images):
            t = told(n)
            floats = np.array(t["floats"], np.float32)
            numbers = {key: t[key] for key in ("label", "name", "weight")}
            writer.write({"image": image, "floats": floats, "small": 256 + n, **numbers})
    (out / "mds" / "shard.00000.mds").rename(out / "streaming.mds")


def with_magic(image, n):
    """A JPEG with n comments behind its first marker that hold the magic number at every
    alignment.
    """
    comment = b"\xff\xfe" + (2 + 20).to_bytes(2, "big") + b"".join(MAGIC + b"x" for _ in range(4))
    return image[:2] + comment * n + image[2:]


def main():
    kind, out, images = sys.argv[1], Path(sys.argv[2]), [Path(p).read_bytes() for p in sys.argv[3:]]
    out.mkdir(parents=True, exist_ok=True)
    {"tensorflow": tensorflow, "mxnet": mxnet, "streaming": streaming}[kind](out, images)
    records = [
        {
            "image": hashlib.blake2b(i).hexdigest(),
            "parts": hashlib.blake2b(with_magic(i, n)).hexdigest(),
            **told(n),
        }
        for n, i in enumerate(images)
    ]
    (out / "records.json").write_text(json.dumps(records, indent=1) + "\n")


if __name__ == "__main__":
    main()
