"""What each accelerator writes, to the byte; who plays which, on one host and on several."""

import pytest

from dlemu.checkpoint.plan import ShardPlan, Share, files_of, share_of
from dlemu.config.checkpoint_sections import ModelSection
from dlemu.config.model import load_model
from dlemu.ranks.world import Alone


class Ranks(Alone):
    """One of several ranks; `places` has host and local rank of each."""

    share: Share
    """What rank 0 says."""

    def __init__(self, rank: int, places: list[tuple[int, int]]) -> None:
        super().__init__()
        self.rank, self.num_ranks, self._places = rank, len(places), places
        self.host_index, self.local_rank = places[rank]
        self.num_hosts = len({host for host, _ in places})

    def broadcast(self, value: object) -> object:  # type: ignore[override]
        return value or self.share

    def all_gather(self, value: object) -> list[object]:  # type: ignore[override]
        return list(self._places)


def plans(
    places: list[tuple[int, int]], name: str = "llama3_8b", **keys: object
) -> list[ShardPlan]:
    workload = load_model(name, keys)
    Ranks.share = share_of(workload.model, None, "default")
    return [ShardPlan.of(workload, Ranks(rank, places)) for rank in range(len(places))]


@pytest.mark.parametrize(
    "places", [[(0, 0), (0, 1), (1, 0), (1, 1)], [(0, 0), (1, 0), (0, 1), (1, 1)]]
)
def test_hosts_are_filled_one_after_the_other(places: list[tuple[int, int]]) -> None:
    found = plans(places)
    assert found[0].hosts == (0, 0, 0, 0, 1, 1, 1, 1)
    parts = dict(zip(places, (plan.accelerators for plan in found), strict=True))
    in_order = [parts[place] for place in sorted(places)]
    assert in_order == [range(2), range(2, 4), range(4, 6), range(6, 8)]
    assert found[0].shift == 4 and found[0].foreign_share == 1
    read = [file for plan in found for a in plan.accelerators for file in plan.read_by(a, 2)]
    written = [file for plan in found for a in plan.accelerators for file in plan.written_by(a, 2)]
    assert sorted(read) == sorted(written) and read != written
    assert found[0].on_own_hosts().read_by(0, 2) == found[0].written_by(0, 2)


@pytest.mark.parametrize(
    ("ranks", "foreign"),
    [([1, 2, 1], 1.0), ([2, 1, 1], 1.0), ([1, 1, 2], 1.0), ([3, 1], 0.5), ([1, 3], 0.5)],
)
def test_uneven_hosts_read_as_much_of_others_as_there_is(ranks: list[int], foreign: float) -> None:
    places = [(host, local) for host, number in enumerate(ranks) for local in range(number)]
    assert {plan.foreign_share for plan in plans(places)} == {foreign}


def test_no_two_files_share_their_bytes() -> None:
    [plan] = plans([(0, 0)], "llama3_405b", **{"checkpoint.scale": 1e-6})
    files = [
        file for step in (1, 2) for a in plan.accelerators for file in plan.written_by(a, step)
    ]
    assert len({sample for _, _, sample in files}) == len(files) == 2 * 1544


def model(name: str, **parallelism: int) -> ModelSection:
    keys = {f"model.parallelism.{key}": value for key, value in parallelism.items()}
    return load_model(name, keys).model


# Computed from the formulas of DLIO's base_checkpointing.py; the totals agree with the table of
# MLPerf Storage's rules to its rounding (105 GB, 912 GB, 5.29 TB; that of 1t there is wrong).
PARAMETERS = 8_030_261_248
"""Those of llama3_8b."""
TOTALS = {
    "llama3_8b": (8, 112_425_623_552, 8 + 8),
    "llama3_70b": (64, 978_406_572_032, 64 + 64),
    "llama3_405b": (512, 5_682_508_791_808, 1032 + 512),
    "llama3_1t": (1024, 16_564_174_094_592, 1048 + 1024),
    "unet3d": (1, 499_153_191, 1),
}


@pytest.mark.parametrize("name", TOTALS)
def test_the_whole_checkpoint_and_its_files(name: str) -> None:
    own, (ranks, num_bytes, num_files) = model(name), TOTALS[name]
    assert share_of(own, None, "default") == Share(ranks, ranks)
    if name != "unet3d":
        assert share_of(own, None, "subset") == Share(8, ranks)
    files = files_of(own, ranks, range(ranks))
    assert sum(file.num_bytes for file in files) == num_bytes
    names = [file.name for file in files]
    assert len(set(names)) == len(names) == num_files


def test_the_names_are_dlios() -> None:
    def names(model: ModelSection, total: int, rank: int) -> list[str]:
        return [file.name for file in files_of(model, total, [rank])]

    assert names(model("llama3_405b"), 512, 251) == [
        *(f"layer_{layer}-model_251_model_states.pt" for layer in (124, 125, 126, 127, 128)),
        "zero_pp_rank_0_mp_rank_251_optim_states.pt",
    ]
    assert names(model("llama3_405b"), 512, 300) == ["zero_pp_rank_1_mp_rank_44_optim_states.pt"]
    states, _ = names(model("llama3_8b", zero_stage=2), 8, 0)
    assert states == "model_0_model_states.pt"


def test_without_zero_one_copy_saves_for_all() -> None:
    own = model("llama3_8b", zero_stage=0, tensor=2)
    assert [len(files_of(own, 8, [rank])) for rank in range(8)] == [2, 2, 0, 0, 0, 0, 0, 0]
    states, optimizer = files_of(own, 8, [1])
    # Norms are whole on both tensor ranks: 65 of 4096 elements of 2 bytes.
    assert states.num_bytes == PARAMETERS + 65 * 4096
    assert optimizer.num_bytes == 12 * (PARAMETERS // 2 + 5 * 4096)


def test_a_flat_model_is_written_once_or_by_each() -> None:
    size = 499_153_191
    for stage, writers in ((0, [0]), (3, [0, 1, 2, 3])):
        files = files_of(model("unet3d", zero_stage=stage), 4, range(4))
        assert [(file.rank, file.num_bytes) for file in files] == [(rank, size) for rank in writers]


def test_a_scale_shortens_each_file() -> None:
    whole = [file.num_bytes for file in files_of(model("llama3_405b"), 512, [0])]
    for scale in (0.01, 1e-12):
        scaled = files_of(model("llama3_405b"), 512, [0], scale=scale)
        assert [file.num_bytes for file in scaled] == [max(1, round(n * scale)) for n in whole]


def test_tensors_of_a_layer_and_groups_of_an_optimizer_are_dlios() -> None:
    """As DLIO's base_checkpointing.py computes them for its megatron_deepspeed_LLNL.yaml."""
    keys = {
        "num_layers": 40,
        "model_size_bytes": 30102,
        "layer_parameters": [52583936, 209715200],
        "optimization_groups": [1009254400, 865075200, 793600],
        "parallelism": {"pipeline": 8, "tensor": 4, "zero_stage": 1},
    }
    megatron = ModelSection.model_validate(keys)
    optimizer = 3 * (1009254400 + 865075200 + 793600)
    first, last, copy = (files_of(megatron, 64, [rank]) for rank in (0, 31, 32))
    layer = 52583936 // 4 + 209715200 // 4
    assert [(file.name, file.num_bytes) for file in first] == [
        ("model_states-0.pt", 30102),
        *((f"layer_{number}-model_0_model_states.pt", layer) for number in range(1, 6)),
        ("zero_pp_rank_0_mp_rank_0_optim_states.pt", optimizer),
    ]
    assert last[-2].name == "layer_40-model_31_model_states.pt"
    assert [file.num_bytes for file in copy] == [30102, optimizer], "layers are saved once"
    alone = model("unet3d", zero_stage=1).model_copy(update={"optimization_groups": (9,)})
    assert [file.num_bytes for file in files_of(alone, 2, [1])] == [499_153_191, 27]
