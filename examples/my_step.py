"""One training step of a model of one's own, for `dlemu steptime`.

    cd examples
    dlemu steptime workload=unet3d_h100 steptime.model=my_step:dense

The function is called with the batch size and the device ("cuda" or "cpu"). It makes model and data
and returns a function that does one step. That function must not wait for the GPU: no loss.item().
"""

from collections.abc import Callable

import torch


def dense(batch: int, device: str) -> Callable[[], None]:
    """Return one step of a small dense network, its data on the device."""
    model = torch.nn.Sequential(
        torch.nn.Linear(1024, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1)
    )
    model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    data = torch.randn(batch, 1024, device=device)

    def step() -> None:
        loss = model(data).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step
