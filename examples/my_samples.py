"""What a worker of one's own job does with a sample, for `dlemu steptime`.

    cd examples
    dlemu steptime workload=resnet50_h100 steptime.preprocess=my_samples:picture

The function is called once in each worker, without arguments. It returns a function that prepares
one sample, given its number. It must not read from storage: dlemu's workers do that.
"""

import io
from collections.abc import Callable

import numpy as np
from PIL import Image


def picture() -> Callable[[int], object]:
    """Return what ResNet-50's training does: decode a JPEG, crop it, resize it to 224 x 224."""
    generator = np.random.default_rng(0)
    coarse = Image.fromarray(generator.integers(0, 256, (24, 32, 3), dtype=np.uint8))
    encoded = io.BytesIO()
    coarse.resize((500, 375), Image.Resampling.BICUBIC).save(encoded, "JPEG", quality=95)

    def prepare(number: int) -> object:
        left = number % 100
        with Image.open(io.BytesIO(encoded.getvalue())) as image:
            crop = image.convert("RGB").crop((left, 20, left + 330, 350))
        return np.asarray(crop.resize((224, 224)))

    return prepare
