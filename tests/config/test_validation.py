import pytest

from gpupipe import config
from gpupipe.dataset import source
from helpers.config_texts import DATA, LOADER, STEPS, mistakes

SOURCES = ", ".join(source.SOURCES.names())
KNOWN = "; known: " + ", ".join(sorted(config.LoaderConfig.model_fields))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        # unknown keys
        (DATA + STEPS + "loeder: {seed: 1}\n", "3:1: loeder: unknown key; did you mean 'loader'?"),
        (
            LOADER + "drop_last: true\n",
            "4:3: loader.drop_last: unknown key; write last_batch: drop",
        ),
        (
            DATA + STEPS + "drop_last: true\n",
            "3:1: drop_last: unknown key; under 'loader', write last_batch: drop",
        ),
        (
            LOADER + "prefetch_factor: 2\n",
            "4:3: loader.prefetch_factor: unknown key; write prefetch",
        ),
        (
            LOADER + "split: {train: 0.9, val: 0.1}\n  subset: valid\n",
            "4:3: loader: split has the parts train and val: set subset to the one to load, such "
            "as subset: val",
        ),
        (
            DATA + "pipeline:\n- decode\n- resize: {size:64}\n",
            "4:12: resize.size:64: unknown key; a blank is missing after the colon: write "
            "'size: 64'",
        ),
        (
            DATA + "pipeline:\n- decode\n- resize:{size: 64}\n",
            "4:3: 'resize:{size': a blank is missing after the colon: write 'resize: ...'",
        ),
        (
            "data:\n  source: folder\n    root: /x\n" + STEPS,
            "3:9: not YAML: this line is indented more than 'source: folder' above it, which has a "
            "value already: indent both alike",
        ),
        (
            DATA + "pipeline:\n- decode\n- HorizontalFlip\n",
            "4:3: there is no step 'HorizontalFlip': albumentations has it; the like here is "
            "'random_horizontal_flip', and gpupipe.from_albumentations() converts a whole Compose",
        ),
        (DATA + STEPS + "zzz: 1\n", "3:1: zzz: unknown key; known: batch, data, loader, pipeline"),
        (
            DATA + STEPS + "batch_size: 4\n",
            "3:1: batch_size: unknown key; it belongs under 'loader'",
        ),
        (
            LOADER + "bacth_size: 3\n",
            "4:3: loader.bacth_size: unknown key; did you mean 'batch_size'?",
        ),
        (LOADER + "zzz: 3\n", "4:3: loader.zzz: unknown key" + KNOWN),
        (LOADER + "on: 3\n", "4:3: loader.on: unknown key" + KNOWN),
        (
            LOADER + "world_size: 3\n",
            "4:3: loader.world_size: unknown key; it belongs under 'shard'",
        ),
        (LOADER + "shard: {rnk: 3}\n", "4:11: loader.shard.rnk: unknown key; did you mean 'rank'?"),
        (
            STEPS + "data: {source: folder, root: /x, fech: lfw}\n",
            "2:34: data.fech: unknown key; did you mean 'fetch'?",
        ),
        (
            STEPS + "data: {source: folder, rot: /x}\n",
            "2:24: data.rot: unknown key; did you mean 'root'?",
        ),
        (
            STEPS + "data: {sorce: folder, root: /x}\n",
            "2:8: data.sorce: unknown key; did you mean 'source'?",
        ),
        # unknown names
        (
            STEPS + "data: {source: foldr, root: /x}\n",
            "2:16: unknown source 'foldr'; did you mean 'folder'?",
        ),
        (
            STEPS + "data: {source: folder, root: /x, fetch: lwf}\n",
            "2:41: data.fetch: unknown data set 'lwf'; did you mean 'lfw'?",
        ),
        (
            DATA + "pipeline: imagenet_evl\n",
            "2:11: no pipeline 'imagenet_evl': it is neither a file nor a name; did you mean "
            "'imagenet_eval'?",
        ),
        # what is missing
        (
            STEPS,
            "1:1: data: missing; write 'data: ...' (where the samples are: {source: folder, "
            "root: PATH})",
        ),
        (
            DATA,
            "1:1: pipeline: missing; write 'pipeline: ...' (the name of a pipeline, or a list of "
            "steps)",
        ),
        (
            STEPS + "data: {root: /x}\n",
            "2:1: data.source: missing; write 'source: ...' (the name of what reads the data: "
            + SOURCES
            + ")",
        ),
        (
            STEPS + "data: {source: folder}\n",
            "2:1: data.root: missing; write 'root: ...' (the folder; ~ stands for the home "
            "directory)",
        ),
        # another kind of value
        (
            LOADER + "batch_size: many\n",
            "4:15: loader.batch_size is 'many', but should be a whole number",
        ),
        (
            LOADER + "batch_size: 1.5\n",
            "4:15: loader.batch_size is 1.5, but should be a whole number",
        ),
        (
            LOADER + "batch_size: yes\n",
            "4:15: loader.batch_size is true, but should be a whole number",
        ),
        (
            LOADER + "batch_size: 2024-01-02\n",
            "4:15: loader.batch_size is '2024-01-02', but should be a whole number",
        ),
        (
            LOADER + "batch_size: [1, 2]\n",
            "4:15: loader.batch_size is [1, 2], but should be a whole number",
        ),
        (
            LOADER + "batch_size: {a: 1}\n",
            "4:15: loader.batch_size is {a: 1}, but should be a whole number",
        ),
        (
            LOADER + "batch_size:\n",
            "4:14: loader.batch_size is empty, but should be a whole number",
        ),
        (
            LOADER + f"batch_size: {'x' * 99}\n",
            f"4:15: loader.batch_size is '{'x' * 56}..., but should be a whole number",
        ),
        (
            LOADER + "threads: yes\n",
            "4:12: loader.threads is true, but should be 'auto' or a whole number",
        ),
        (
            LOADER + "threads: many\n",
            "4:12: loader.threads is 'many', but should be 'auto' or a whole number",
        ),
        (
            LOADER + "threads: 1.5\n",
            "4:12: loader.threads is 1.5, but should be 'auto' or a whole number",
        ),
        (LOADER + "threads: 0\n", "4:12: loader.threads is 0, but should be 'auto' or at least 1"),
        (
            LOADER + "shuffle: maybe\n",
            "4:12: loader.shuffle is 'maybe', but should be true or false",
        ),
        (LOADER + "shuffle: 3\n", "4:12: loader.shuffle is 3, but should be true or false"),
        (
            LOADER + "last_batch: droop\n",
            "4:15: loader.last_batch is 'droop', but should be 'partial', 'drop' or 'pad'",
        ),
        (
            LOADER + "device: tpu\n",
            "4:11: loader.device is 'tpu', but should be auto, cpu, gpu or gpu:N",
        ),
        (LOADER + "device: 0\n", "4:11: loader.device is 0, but should be auto, cpu, gpu or gpu:N"),
        (
            LOADER + "on_error: off\n",
            "4:13: loader.on_error is false, but should be 'raise' or 'skip'; "
            "YAML reads yes, no, on and off as true and false: put a word in quotes",
        ),
        (LOADER + "quarantine: 3\n", "4:15: loader.quarantine is 3, but should be a path"),
        (LOADER + "max_bad: 2%\n", "4:12: loader.max_bad is '2%', but should be a number"),
        (LOADER + "max_bad: yes\n", "4:12: loader.max_bad is true, but should be a number"),
        (
            LOADER + "shard: 3\n",
            "4:10: loader.shard is 3, but should be a mapping, such as {rank: ...}",
        ),
        (
            DATA + STEPS + "loader:\n",
            "3:8: loader is empty, but should be a mapping, such as {batch_size: ...}",
        ),
        (
            DATA + STEPS + "loader: [1]\n",
            "3:9: loader is [1], but should be a mapping, such as {batch_size: ...}",
        ),
        (
            STEPS + "data: /x\n",
            "2:7: data is '/x', but should be a mapping (where the samples are: {source: "
            "folder, root: PATH})",
        ),
        (
            STEPS + "data: {source: 3, root: /x}\n",
            "2:16: data.source is 3, but should be the name of what reads the data: " + SOURCES,
        ),
        (STEPS + "data: {source: folder, root: 3}\n", "2:30: data.root is 3, but should be a path"),
        (
            STEPS + "data: {source: folder, root: }\n",
            "2:29: data.root is empty, but should be a path",
        ),
        (
            STEPS + "data: {source: folder, root: /x, extensions: jpg}\n",
            "2:46: data.extensions is 'jpg', but should be a list",
        ),
        (
            STEPS + "data: {source: folder, root: /x, extensions: []}\n",
            "2:46: data.extensions is [], but should be a list of at least 1",
        ),
        (
            STEPS + "data: {source: folder, root: /x, extensions: [jpg, 3]}\n",
            "2:52: data.extensions.1 is 3, but should be text",
        ),
        (
            DATA + "pipeline: 3\n",
            "2:11: pipeline is 3, but should be the name of a pipeline, or a list of steps",
        ),
        (
            DATA + "pipeline: {decode: }\n",
            "2:11: pipeline is {decode: empty}, but should be the name of a pipeline, or a list "
            "of steps",
        ),
        (
            DATA + "pipeline:\n",
            "2:10: pipeline is empty, but should be the name of a pipeline, or a list of steps",
        ),
        (
            DATA + "pipeline: []\n",
            "2:11: there is no step: a pipeline is a list of steps, each '- name: {parameter: "
            "value}' or '- name'",
        ),
        # out of range
        (LOADER + "batch_size: 0\n", "4:15: loader.batch_size is 0, but should be at least 1"),
        (
            LOADER + "batch_size: 10_000_000\n",
            "4:15: loader.batch_size is 10000000, but should be at most 1000000",
        ),
        (LOADER + "seed: -1\n", "4:9: loader.seed is -1, but should be at least 0"),
        (
            LOADER + "seed: 9223372036854775808\n",
            "4:9: loader.seed is 9223372036854775808, but should be below 9223372036854775808",
        ),
        (LOADER + "prefetch: 0\n", "4:13: loader.prefetch is 0, but should be at least 1"),
        (LOADER + "max_bad: 2\n", "4:12: loader.max_bad is 2, but should be at most 1"),
        (LOADER + "max_bad: .nan\n", "4:12: loader.max_bad is nan, but should be a finite number"),
        (
            LOADER + "hw_decoder_load: -0.1\n",
            "4:20: loader.hw_decoder_load is -0.1, but should be at least 0",
        ),
        (
            LOADER + "shard: {rank: 2, world_size: 2}\n",
            "4:10: loader.shard: rank 2 must be below world_size 2: ranks count from 0",
        ),
        (
            STEPS + "data: {source: folder, root: /x, stand_in: -3}\n",
            "2:44: data.stand_in is -3, but should be at least 1",
        ),
        # the file as a whole
        (
            "",
            "1:1: this is empty, but a config holds 'data:', 'pipeline:' and 'loader:', with "
            "values after or below them",
        ),
        (
            "# nothing\n",
            "1:1: this is empty, but a config holds 'data:', 'pipeline:' and 'loader:', with "
            "values after or below them",
        ),
        (
            "- data\n",
            "1:1: this is a list, but a config holds 'data:', 'pipeline:' and 'loader:', with "
            "values after or below them",
        ),
        (
            "data /x\n",
            "1:1: this is 'data /x', but a config holds 'data:', 'pipeline:' and 'loader:', with "
            "values after or below them",
        ),
        (
            DATA + STEPS + "loader: a: b\n",
            "3:10: not YAML: a second colon: put a value that holds one in quotes, and a new key "
            "on its own line",
        ),
        (DATA + "\tpipeline: x\n", "2:1: not YAML: a tab: indent with spaces"),
        (
            LOADER + "seed: 1\n  batch_size: 2\n  seed: 2\n",
            "6:3: 'seed' stands here twice (first at c.yaml:4:3): remove one",
        ),
        # interpolation
        (
            STEPS + "data:\n  source: folder\n  root: ${oc.env:NOT_SET}/x\n",
            "4:9: data.root: the environment variable NOT_SET is not set: set it, or write a "
            "default: ${oc.env:NOT_SET,default}",
        ),
        (
            STEPS + "data:\n  source: folder\n  root: ${data.rot}/x\n",
            "4:9: data.root: '${data.rot}/x': there is no key 'data.rot'; did you mean "
            "'data.root'?",
        ),
        (
            LOADER + "batch_size: ${oc.env:NOT_SET}\n",
            "4:15: loader.batch_size: the environment variable NOT_SET is not set: set it, or "
            "write a default: ${oc.env:NOT_SET,default}",
        ),
        (
            STEPS + "data:\n  source: folder\n  root: ???\n",
            "4:9: data.root: ??? stands for a value that must be given: write it here, or give "
            "it as an override",
        ),
        # anchors and merges point at where a value was written
        (
            DATA + STEPS + "loader:\n  <<: {seed: -1, prefetch: 3}\n  prefetch: 2\n",
            "4:14: loader.seed is -1, but should be at least 0",
        ),
    ],
    ids=lambda text: text.replace(DATA, "").replace(STEPS, "").replace("\n", " ").strip()[:50],
)
def test_a_mistake_is_one_message_with_its_place(text: str, message: str) -> None:
    assert mistakes(text) == [message]
