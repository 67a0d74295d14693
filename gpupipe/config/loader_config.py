"""LoaderConfig: the settings under `loader:`, for how samples become batches."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import pydantic
from pydantic import BeforeValidator, Field

from gpupipe.config.collate_call import Collate
from gpupipe.config.ray_config import RayConfig
from gpupipe.decoders.chain import list_names
from gpupipe.errors import nearest
from gpupipe.runtime.registry import AUTO, ENGINES, find_registration
from gpupipe.schema.field_types import WHOLE, Bytes, Probability, expand_home, is_number, should_be

_ROUNDING = 1e-9
_DEVICE = re.compile(r"auto|cpu|(gpu|cuda)(:\d+)?")


def _auto_or_one_of(list_names: Callable[[], list[str]]) -> BeforeValidator:
    """Return a validator that accepts the names from `list_names()`, which lists `auto` first."""

    def check(value: Any) -> str:
        if value == AUTO:
            return AUTO
        names = list_names()
        if not isinstance(value, str) or value not in names:
            *others, last = map(repr, names)
            near = nearest(str(value), names)
            hint = f"; did you mean '{near}'?" if near else ""
            raise should_be(f"{', '.join(others)} or {last}{hint}")
        return value

    return BeforeValidator(check)


def _check_device(value: Any) -> str:
    # By its name, because torch may not be imported.
    is_torch_device = type(value).__name__ == "device"
    text = str(value) if isinstance(value, str) or is_torch_device else ""
    if not _DEVICE.fullmatch(text):
        raise should_be("auto, cpu, gpu or gpu:N")
    return text.replace("cuda", "gpu")


_ADDRESS = re.compile(r"tcp://\S+:\d+|ipc://\S+")


def _wrap_address(value: Any) -> Any:
    """Wrap a single address in a list."""
    return [value] if isinstance(value, str) else value


def _check_address(value: Any) -> str:
    if not isinstance(value, str) or not _ADDRESS.fullmatch(value):
        raise should_be("tcp://HOST:PORT or ipc://FILE")
    return value


Address = Annotated[str, BeforeValidator(_check_address)]


def _read_subset(value: Any) -> Any:
    if isinstance(value, (str, Path)) and str(value):
        return expand_home(Path(value))
    if not is_number(value) or not 0 < value <= 1:
        raise should_be("a share above 0 and up to 1, or the path of a file of ids, one a line")
    return float(value)


_Share = Annotated[float, Field(gt=0, le=1)]


def _read_split(value: Any) -> Any:
    rule = "parts by name with a share of each, such as {train: 0.9, val: 0.1}, at most 1 in all"
    shares = list(value.values()) if isinstance(value, dict) else []
    if (
        not shares
        or not all(is_number(share) and 0 < share <= 1 for share in shares)
        or sum(shares) > 1 + _ROUNDING
    ):
        raise should_be(rule)
    return value


class _Frozen(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")


class Shard(_Frozen):
    """The part of every global batch that this process takes.

    Attributes:
        rank: Rank of this process, 0 to world_size - 1.
        world_size: Number of ranks that share the samples, at least 1.
    """

    rank: Annotated[int, Field(ge=0), WHOLE] = 0
    world_size: Annotated[int, Field(ge=1), WHOLE] = 1

    @pydantic.model_validator(mode="after")
    def _check_rank(self) -> "Shard":
        if self.rank >= self.world_size:
            raise ValueError(
                f"rank {self.rank} must be below world_size {self.world_size}: ranks count from 0"
            )
        return self


class AutoShard(Shard):
    """The value of `shard: auto`: the shard comes from torch.distributed, else from torchrun.

    When the loader starts, `resolve_shard` of gpupipe.loading.assembly replaces it by a Shard.
    """


def _read_auto(value: Any) -> Any:
    return AutoShard() if value == "auto" else value


class LoaderConfig(_Frozen):
    """The `loader` part of a config: how samples become batches.

    Attributes:
        batch_size: Samples per batch on each rank, 1 to 1,000,000.
        shuffle: If true, every epoch is a new permutation of the whole data set; if false, samples
            come in the order of the index.
        seed: Seed of the order and of every random step, 0 to 2**63 - 1.
        last_batch: What to do with the samples that do not fill a step: `partial`, `drop` or `pad`.
            `partial` delivers smaller batches, `drop` leaves the samples out, `pad` fills up with
            samples from the start of the epoch. All ranks have equally many steps in each case.
        repeats: How many times each sample comes in a row, 1 to 1000, with new draws each time.
            The repeats of a sample are dealt out to the ranks. This is repeated augmentation, as in
            torchvision's RASampler and timm's RepeatAugSampler. An epoch keeps its length, so it
            has only 1/repeats of the data set's samples: see `epoch_size`.
        weights: How likely each sample is drawn: a column of numbers from 0 on, or
            `class_balanced`. Samples are drawn with replacement, as torch's WeightedRandomSampler
            does it. The column is one of the values of the data set, (N,). `class_balanced` draws
            all classes equally often. An epoch has as many samples as the data set, or
            `epoch_size`. null: all samples come equally often.
        epoch_size: Samples of an epoch over all ranks, repeats included, 1 to 1,000,000,000.
            The next epoch goes on where this one ends in the permutation, so that all samples come
            equally often. null: as many as the data set or its subset has. `all`: every sample
            `repeats` times.
        subset: The samples to use: a share above 0 and up to 1, or the path of a file of ids. A
            share is drawn once, with `seed`: the same share of each class, at least one sample of
            each. The file has one id a line, the sample's row in the index, as in batch["id"]. A
            sample has the same id and the same draws as without `subset`. null: all samples. With
            `split`, the name of a part.
        split: Named parts of the data set, with the share of each: {train: 0.9, val: 0.1}. `subset`
            names the part that is used. The parts are drawn once, from each class alike, and do
            not depend on `seed`, so no sample is in two of them. All have the classes of the whole
            data set. null: no parts.
        engine: What makes the batches: an engine of gpupipe or of a plugin, or `auto`. `dali` is
            NVIDIA DALI; `cpu` is a pool of threads in this process; `dataloader` is torch's
            DataLoader with torchvision; `remote` is a data processing server; `ray` is workers of a
            Ray cluster. `auto` takes cpu where batches stay on the CPU, and dali on a GPU, or
            cpu if DALI is not installed. It never takes an engine that cannot run a step.
        device: Where batches are delivered: `cpu`, `gpu`, `gpu:N`, or `auto`, which is the GPU if
            there is one. `cuda` is a synonym of `gpu`, and a torch.device is accepted.
        threads: CPU threads of the engine, 1 to 1024. `auto` takes this rank's share of the cores
            that the ranks of this machine may use.
        set_affinity: Bind DALI's CPU threads to the cores near the GPU; or, one thread each, to the
            cores that the environment variable DALI_AFFINITY_MASK lists.
        prefetch: Batches that the engine prepares ahead, 1 to 64; with the dataloader engine, those
            that each worker prepares ahead. DALI also reads the files of as many further batches.
        workers: Processes of the DataLoader, 0 to 1024; 0 loads in the main process. `auto` starts
            as many as `threads`.
        decoder: The image decoder that the engines cpu and dataloader try first, or `auto`. It may
            be from a plugin; `pil` is Pillow. For a file that it does not support, they try the
            others in the order of `auto`: jpeg_window, libpng, simplejpeg, torchcodec, torchvision,
            pillow, imagecodecs. With `auto`, the dataloader engine tries torchvision first.
        pin_memory: Whether batches are pinned in memory if they go to a GPU, as in torch's
            DataLoader.
        multiprocessing_context: How the workers are started: `fork`, `forkserver` or `spawn`, as in
            torch's DataLoader. None: the default of this Python.
        persistent_workers: Whether the workers live on between epochs, as in torch's DataLoader.
        shard: The part of every global batch that this process takes: {rank, world_size}, or
            `auto`, which asks torch.distributed, else torchrun's environment.
        on_error: What to do with a sample that cannot be read or decoded: `raise` or `skip`.
        max_bad: Share of the data set that may be skipped, 0 to 1. If more samples fail, the
            loader raises TooManyBadError.
        quarantine: File that lists the skipped samples, as JSON lines. By default, a file in the
            cache folder.
        dtype: Dtype of the first field of a batch; None keeps the dtype that the pipeline makes.
        memory_format: Strides of fields that were image files: `contiguous` or `channels_last`.
            The shape is (B, C, H, W) in both cases.
        format: What a batch is: `dict`, `tuple`, `dali`, `huggingface`, `torchvision` or `detr`. A
            dict is such as {"image": ..., "label": ...}. With `dali` it is a list of one dict with
            "data" and "label", (B, 1), as from DALI's iterators. With `huggingface` it is a dict
            with "pixel_values", "labels" and, where images are padded, "pixel_mask", 1 on pixels;
            labels of data with boxes are a list of dicts with "class_labels" and "boxes", as those
            of detr. A tuple is the first field and the label, which the
            data must have. With `torchvision` it is a list of images and a list of targets, as
            torchvision's detectors take them: 1 is added to labels, since 0 is the background,
            unless no class has the number 0, as with `classes: original` of the source coco. With
            `detr` it is a dict of the images, a mask that is true on padding, and a list of
            targets, whose boxes are [centre x, centre y, width, height] from 0 to 1.
        collate: A function of the user's that makes the batch, as "module:function" or itself. It
            gets a list of dicts, one a sample, and returns what the loader delivers. The module
            lies beside the YAML file, or Python can import it. It runs in the process that uses the
            batches, after their transport. Not beside `format`, nor beside steps under `batch:`.
        targets: How boxes and what goes with them are delivered: `packed`, `padded` or `list`.
            `packed` is a gpupipe.Ragged. `padded` is one tensor (B, N, ...), with 0 after a
            sample's rows, or -1 for labels, and the number of rows, such as "num_boxes" (B,).
            `list` is a list of B tensors. The formats torchvision and detr always have lists, and
            so has huggingface.
        shapes: What images of unequal size become: `equal`, `list` or `padded`. `equal` refuses
            them. `list` delivers a list of B tensors (C, H, W). `padded` delivers one tensor, with
            0 below and to the right of smaller images, and beside it "image_mask", bool (B, H, W),
            true on the image's own pixels, and "image_sizes", int64 (B, 2), [height, width]. The
            format torchvision always has lists of images, and detr always padded ones.
        pad_to: With `padded`, the sides of the tensor are multiples of this number, 1 to 1024.
        ids: If true, batches also have "id", int64 (B,): the rows of the samples in the index.
            It has no effect if `format` is `tuple`.
        hw_decoder_load: Share of the JPEGs that the GPU's hardware decoder decodes, 0 to 1. Its
            pixels differ from those of the CUDA decoder by up to 1 of 255. With 0 or 1, a sample
            has the same bits in every batch; in between, its batch decides which decoder it gets.
        gpu_memory: Limit for the memory that DALI may need on the GPU, in bytes or such as 2GB.
            load() estimates the need from the headers of 64 samples, and raises EngineError if it
            is above the limit. None: no limit.
        server: Servers of the remote engine: tcp://HOST:PORT or ipc://FILE. A list names servers
            that serve one shard each.
        hwm: High-water mark: batches that a server sends ahead, 1 to 1000. With the ray engine, the
            batches that the workers of a trainer make ahead; by default so many that all workers
            are busy.
        transport: How batches come from a server: `shm`, `tcp` or `auto`. `shm` is memory shared
            with a server on this machine, `tcp` is a socket, and `auto` is shm if possible.
        key: File with the secret key of this client, made by `gpupipe keys new`.
        server_key: File with the public key of the server.
        ray: The workers of the ray engine, such as {workers: 4, cpus: 2}.
    """

    advice_for: ClassVar[dict[str, str]] = {
        "num_workers": "the engines cpu and dali have threads: write threads, or leave it out for "
        "all cores of this rank; beside 'engine: dataloader' write workers",
        "drop_last": "write last_batch: drop",
        "prefetch_factor": "write prefetch",
        "collate_fn": "write collate: 'module:function', format: tuple for batches (image, label), "
        "or mixup and cutmix under 'batch:'",
        "sampler": "write shuffle, weights, repeats or subset; ranks get their shard by themselves",
        "batch_sampler": "write batch_size and last_batch, and shuffle, weights or repeats",
        "generator": "write seed",
        "worker_init_fn": "write seed: each draw depends on it, the epoch and the sample alone",
        "timeout": "a worker that dies is an error at once: leave it out",
        "pin_memory_device": "write device: batches are pinned and copied there",
        "in_order": "batches always come in order: leave it out",
    }
    """What to write in place of a name of torch's DataLoader."""

    batch_size: Annotated[int, Field(ge=1, le=1_000_000), WHOLE] = 256
    shuffle: bool = True
    seed: Annotated[int, Field(ge=0, lt=2**63), WHOLE] = 0
    last_batch: Literal["partial", "drop", "pad"] = "partial"
    repeats: Annotated[int, Field(ge=1, le=1000), WHOLE] = 1
    weights: Annotated[str, Field(min_length=1)] | None = None
    epoch_size: Literal["all"] | Annotated[int, Field(ge=1, le=10**9), WHOLE] | None = None
    subset: Annotated[float | Path, BeforeValidator(_read_subset)] | None = None
    split: Annotated[dict[str, _Share], BeforeValidator(_read_split)] | None = None
    engine: Annotated[str, _auto_or_one_of(lambda: [AUTO, *ENGINES.names()])] = AUTO
    device: Annotated[str, BeforeValidator(_check_device)] = "auto"
    threads: Literal["auto"] | Annotated[int, Field(ge=1, le=1024), WHOLE] = "auto"
    set_affinity: bool = False
    prefetch: Annotated[int, Field(ge=1, le=64), WHOLE] = 2
    workers: Literal["auto"] | Annotated[int, Field(ge=0, le=1024), WHOLE] = "auto"
    decoder: Annotated[str, _auto_or_one_of(list_names)] = AUTO
    pin_memory: bool = True
    multiprocessing_context: Literal["fork", "forkserver", "spawn"] | None = None
    persistent_workers: bool = True
    shard: Annotated[Shard, BeforeValidator(_read_auto)] = AutoShard()
    on_error: Literal["raise", "skip"] = "raise"
    max_bad: Probability = 0.01
    quarantine: Path | None = None
    dtype: Literal["uint8", "float16", "bfloat16", "float32"] | None = None
    memory_format: Literal["contiguous", "channels_last"] = "contiguous"
    format: Literal["dict", "tuple", "dali", "huggingface", "torchvision", "detr"] = "dict"
    collate: Collate = None
    targets: Literal["packed", "padded", "list"] = "packed"
    shapes: Literal["equal", "list", "padded"] = "equal"
    pad_to: Annotated[int, Field(ge=1, le=1024), WHOLE] = 1
    ids: bool = False
    hw_decoder_load: Probability = 0.9
    gpu_memory: Bytes | None = None
    server: Annotated[tuple[Address, ...], BeforeValidator(_wrap_address)] | None = None
    hwm: Annotated[int, Field(ge=1, le=1000), WHOLE] = 10
    transport: Literal["auto", "shm", "tcp"] = "auto"
    key: Path | None = None
    server_key: Path | None = None
    ray: RayConfig = RayConfig()

    @pydantic.model_validator(mode="after")
    def _check_required_settings(self) -> "LoaderConfig":
        registration = find_registration(self.engine)
        for setting, message in (registration.required_settings if registration else {}).items():
            if not getattr(self, setting):
                raise ValueError(message)
        if self.collate is not None and self.format != "dict":
            raise ValueError("collate makes the batch, and so does format: leave one of them out")
        if self.weights is not None and not self.shuffle:
            raise ValueError(
                "weights draws samples at random, and shuffle is false: set shuffle: true, or "
                "leave weights out"
            )
        if self.split is not None and str(self.subset) not in self.split:
            part = nearest(str(self.subset), self.split)
            raise ValueError(
                f"split has the parts {' and '.join(self.split)}: set subset to the one to load, "
                f"such as subset: {part or next(iter(self.split))}"
            )
        if (self.key is None) != (self.server_key is None):
            raise ValueError(
                "key and server_key go together: this side's secret key, and the server's "
                "public one"
            )
        return self
