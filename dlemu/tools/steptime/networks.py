"""The three networks of MLPerf's training benchmarks, as far as their time on a GPU goes.

UNet3D   mlcommons/training, image_segmentation/pytorch: base 32, 5 levels, instance norm.
ResNet50 version 1.5: the 3 x 3 convolution of a block has the stride.
CosmoFlow mlcommons/hpc: five convolutions with kernel 2, three dense layers.

Weights are random and data is too; the arithmetic is that of training. This module needs torch and
is imported on demand.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F


def _conv3d(before: int, after: int, stride: int = 1) -> list[Any]:
    return [
        nn.Conv3d(before, after, 3, stride=stride, padding=1, bias=False),
        nn.InstanceNorm3d(after, affine=True),
        nn.ReLU(inplace=True),
    ]


class UNet3D(nn.Module):  # type: ignore[misc, unused-ignore]
    """3D U-Net: (batch, 1, side, side, side) to three classes; `side` is a multiple of 32 from 64.

    `filters` are the channels of each level, the last one the bottleneck's.
    """

    def __init__(self, filters: tuple[int, ...] = (32, 64, 128, 256, 320, 320)) -> None:
        super().__init__()
        first, pairs = filters[0], list(itertools.pairwise(filters))
        self.first = nn.Sequential(*_conv3d(1, first), *_conv3d(first, first))
        self.down = nn.ModuleList(
            nn.Sequential(*_conv3d(a, b, stride=2), *_conv3d(b, b)) for a, b in pairs
        )
        self.up = nn.ModuleList(
            nn.ConvTranspose3d(b, a, 2, stride=2, bias=False) for a, b in reversed(pairs)
        )
        self.join = nn.ModuleList(
            nn.Sequential(*_conv3d(2 * a, a), *_conv3d(a, a)) for a, _ in reversed(pairs)
        )
        self.last = nn.Conv3d(first, 3, 1)

    def forward(self, volume: Any) -> Any:
        """Return the logits of each voxel."""
        skips = [self.first(volume)]
        for down in self.down:
            skips.append(down(skips[-1]))
        deep = skips.pop()
        for up, join in zip(self.up, self.join, strict=True):
            deep = join(torch.cat([up(deep), skips.pop()], 1))
        return self.last(deep)


def dice_and_cross_entropy(logits: Any, target: Any) -> Any:
    """Return the mean of 1 - Dice and the cross entropy, in float32 as under autocast."""
    shares = torch.softmax(logits.float(), 1)
    wanted = F.one_hot(target, shares.shape[1]).movedim(-1, 1).to(shares.dtype)
    space = tuple(range(2, shares.dim()))
    both = (shares * wanted).sum(space)
    either = shares.sum(space) + wanted.sum(space)
    dice = (2 * both + 1e-6) / (either + 1e-6)
    return (1 - dice.mean() + F.cross_entropy(logits, target)) / 2


class _Bottleneck(nn.Module):  # type: ignore[misc, unused-ignore]
    """A block of ResNet-50: 1 x 1, 3 x 3 with the stride, 1 x 1, and the way around them."""

    def __init__(self, before: int, inner: int, stride: int) -> None:
        super().__init__()
        after = 4 * inner
        self.inside = nn.Sequential(
            *_conv2d(before, inner, 1),
            nn.ReLU(inplace=True),
            *_conv2d(inner, inner, 3, stride),
            nn.ReLU(inplace=True),
            *_conv2d(inner, after, 1),
        )
        changes = stride > 1 or before != after
        self.around = nn.Sequential(*(_conv2d(before, after, 1, stride) if changes else ()))

    def forward(self, image: Any) -> Any:
        return F.relu(self.inside(image) + self.around(image), inplace=True)


def _conv2d(before: int, after: int, kernel: int, stride: int = 1) -> list[Any]:
    padding = (kernel - 1) // 2
    return [
        nn.Conv2d(before, after, kernel, stride=stride, padding=padding, bias=False),
        nn.BatchNorm2d(after),
    ]


class ResNet50(nn.Module):  # type: ignore[misc, unused-ignore]
    """ResNet-50 v1.5: (batch, 3, side, side) to 1,000 classes."""

    def __init__(self) -> None:
        super().__init__()
        layers = [*_conv2d(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
        before = 64
        for inner, blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
            for number in range(blocks):
                layers.append(_Bottleneck(before, inner, 1 if number else stride))
                before = 4 * inner
        layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 1000)]
        self.layers = nn.Sequential(*layers)

    def forward(self, image: Any) -> Any:
        """Return the logits of each image."""
        return self.layers(image)


class CosmoFlow(nn.Module):  # type: ignore[misc, unused-ignore]
    """CosmoFlow: (batch, 4, side, side, side) to four parameters; `side` is a multiple of 32."""

    def __init__(self, side: int = 128) -> None:
        super().__init__()
        layers: list[Any] = []
        for before, after in itertools.pairwise((4, 32, 64, 128, 256, 512)):
            # Kernel 2 with the same size after it: one voxel is added at one end of each axis.
            layers += [nn.ConstantPad3d((0, 1, 0, 1, 0, 1), 0.0), nn.Conv3d(before, after, 2)]
            layers += [nn.LeakyReLU(), nn.MaxPool3d(2)]
        layers += [nn.Flatten(), nn.Linear(512 * (side // 32) ** 3, 128), nn.LeakyReLU()]
        layers += [nn.Dropout(0.5), nn.Linear(128, 64), nn.LeakyReLU(), nn.Dropout(0.5)]
        layers += [nn.Linear(64, 4), nn.Tanh()]
        self.layers = nn.Sequential(*layers)

    def forward(self, volume: Any) -> Any:
        """Return the four parameters, between -1.2 and 1.2."""
        return 1.2 * self.layers(volume)


@dataclass(frozen=True, kw_only=True)
class Network:
    """A network with its input: how bytes of a batch become it, and what it is trained against."""

    name: str
    side: int
    channels: int
    axes: int
    copies: int = 1
    """Channels that are made of one channel's bytes."""

    @property
    def sample_bytes(self) -> int:
        """Bytes of a sample that a step takes, one for each value."""
        return int(self.channels // self.copies * self.side**self.axes)

    def model(self) -> Any:
        """Return the network with random weights."""
        if self.name == "cosmoflow":
            return CosmoFlow(self.side)
        return UNet3D() if self.name == "unet3d" else ResNet50()

    def target(self, batch: int, device: str) -> Any:
        """Return labels of a batch, drawn at random."""
        if self.name == "unet3d":
            return torch.randint(3, (batch, *(self.side,) * 3), device=device)
        if self.name == "resnet50":
            return torch.randint(1000, (batch,), device=device)
        return torch.rand((batch, 4), device=device)

    def loss(self, output: Any, target: Any) -> Any:
        """Return the loss of a batch."""
        if self.name == "unet3d":
            return dice_and_cross_entropy(output, target)
        if self.name == "resnet50":
            return F.cross_entropy(output, target)
        return F.mse_loss(output.float(), target)

    def input(self, data: Any, layout: Any) -> Any:
        """Return the float32 input made of (batch, bytes) uint8 on the device."""
        rows = data[:, : self.sample_bytes]
        shape = (len(data), self.channels // self.copies, *(self.side,) * self.axes)
        values = rows.reshape(shape).float().div_(255)
        if self.copies > 1:
            values = values.repeat(1, self.copies, *(1,) * self.axes)
        return values.contiguous(memory_format=layout)


_NETWORKS = {
    "unet3d": {"side": 128, "channels": 1, "axes": 3},
    "resnet50": {"side": 224, "channels": 3, "axes": 2},
    # 2.8 MB are read for a sample; they hold the four channels of 128^3 compressed.
    "cosmoflow": {"side": 128, "channels": 4, "axes": 3, "copies": 4},
}


def network(name: str, side: int | None = None) -> Network:
    """Return a network by its name; `side` is the input's length along each axis."""
    fields = _NETWORKS[name] | ({} if side is None else {"side": side})
    return Network(name=name, **fields)


def memory_bytes(net: Network, batch: int) -> int:
    """Return about how many bytes a step in float32 holds, found on tensors that have no memory.

    What is kept for the way back, weights with gradients and momentum, and two of the largest
    tensors at hand: within 5 % of what the three networks took on a CPU.
    """
    kept: dict[int, Any] = {}

    def keep(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        kept[storage._cdata] = storage
        return tensor

    with torch.device("meta"):
        model = net.model()
        data = torch.empty((batch, net.sample_bytes), dtype=torch.uint8)
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            net.loss(model(net.input(data, torch.contiguous_format)), net.target(batch, "meta"))
    sizes = [int(storage.nbytes()) for storage in kept.values()]
    weights = sum(4 * int(weight.numel()) for weight in model.parameters())
    return sum(sizes) + 2 * max(sizes) + 3 * weights


_HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}
_BEFORE_GRAPH = 5
"""Steps before one is recorded as a graph."""


class Training:
    """A network in training on a device: `step` queues forward, loss, backward and optimizer."""

    def __init__(
        self,
        net: Network,
        device: str,
        *,
        layout: str = "channels_last",
        compiled: bool = False,
        precision: str = "bf16",
    ) -> None:
        self.net, self.device = net, device
        self._cuda = device.startswith("cuda")
        self._half = _HALVES.get(precision) if self._cuda else None
        self._scaler = torch.amp.GradScaler("cuda", enabled=self._half == torch.float16)
        last = torch.channels_last_3d if net.axes == 3 else torch.channels_last
        self._layout = last if layout == "channels_last" else torch.contiguous_format
        torch.backends.cudnn.benchmark = True
        torch.backends.cudnn.allow_tf32 = precision != "fp32"
        torch.backends.cuda.matmul.allow_tf32 = precision != "fp32"
        model = net.model().to(device).to(memory_format=self._layout)
        self.optimizer = torch.optim.SGD(
            model.parameters(),
            lr=1e-4,  # small: the loss must stay finite on random data
            momentum=0.9,
            nesterov=net.name == "unet3d",
            fused=self._cuda or None,
        )
        self.model = torch.compile(model) if compiled else model

    def data(self, batch: int) -> Any:
        """Return random bytes of a batch, (batch, bytes) uint8, on the device."""
        shape = (batch, self.net.sample_bytes)
        return torch.randint(0, 256, shape, dtype=torch.uint8, device=self.device)

    def step(self, data: Any, target: Any) -> Any:
        """Queue one step for (batch, bytes) uint8 on the device; return the loss."""
        half = self._half
        with torch.autocast("cuda", half or torch.bfloat16, enabled=half is not None):
            output = self.model(self.net.input(data, self._layout))
            loss = self.net.loss(output, target)
        self.optimizer.zero_grad(set_to_none=True)
        self._scaler.scale(loss).backward()  # the scaler passes all through, but in float16
        self._scaler.step(self.optimizer)
        self._scaler.update()
        return loss

    def graph(self, data: Any, target: Any) -> Callable[[], object]:
        """Record `step` as a CUDA graph on this very data; return what replays it.

        A replay is one launch, however many kernels the step has. New data is copied into `data`.
        """
        cuda: Any = torch.cuda
        side = cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # cuDNN chooses its kernels before they are recorded
            for _ in range(_BEFORE_GRAPH):
                self.step(data, target)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.step(data, target)
        return graph.replay
