"""Which launcher is found, and where the others are: from environments as launchers make them."""

from __future__ import annotations

from secrets import token_hex

import msgspec
import pytest

from paceline.engine.surroundings import Surroundings
from paceline.engine.torchrun.interfaces import interfaces
from paceline.engine.torchrun.launch import Launch, find_launch, first_host
from paceline.engine.torchrun.place import Place, connect_near, host_of, machine, name_here, shares_memory, trust_at
from paceline.errors import ConfigError
from paceline.messages import COORDINATOR, Address
from paceline.transport.connection import listener_at
from paceline.transport.shm import SocketPort
from paceline.transport.wire import Wire

TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_RESTART_COUNT": "2",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}
SLURM = {
    "SLURM_PROCID": "5",
    "SLURM_NTASKS": "8",
    "SLURM_LOCALID": "1",
    "SLURM_STEP_ID": "0",
    "SLURM_JOB_ID": "1234567",
    "SLURM_STEP_NODELIST": "gpu[07-08],login",
}
MPI = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
MASTER = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}


def found(environ: dict[str, str]) -> Launch:
    launch = find_launch(environ)
    assert launch is not None
    return launch


def test_torchrun_is_found_with_its_store_and_its_attempt() -> None:
    launch = found(TORCHRUN)
    assert (launch.launcher, launch.rank, launch.world_size, launch.local_rank) == ("torchrun", 3, 4, 1)
    assert launch.has_store
    assert not launch.is_one_host
    assert launch.attempt != found({**TORCHRUN, "TORCHELASTIC_RESTART_COUNT": "3"}).attempt


def test_torchrun_inside_of_srun_is_torchrun() -> None:
    assert found({**SLURM, **TORCHRUN}).launcher == "torchrun"


def test_a_task_of_srun_finds_the_first_host_of_its_step_and_a_port_from_the_job() -> None:
    launch = found(SLURM)
    assert (launch.launcher, launch.rank, launch.world_size, launch.local_rank) == ("Slurm", 5, 8, 1)
    assert launch.address == ("gpu07", 24567)
    assert not launch.has_store


def test_a_batch_script_of_slurm_is_no_task_of_a_step() -> None:
    assert find_launch({name: value for name, value in SLURM.items() if name != "SLURM_STEP_ID"}) is None
    assert find_launch({**SLURM, "SLURM_STEP_ID": "batch"}) is None


def test_mpirun_is_found_when_it_says_where_rank_0_is() -> None:
    assert found({**MPI, **MASTER}).is_one_host
    with pytest.raises(ConfigError, match=r"OMPI_COMM_WORLD_RANK, but MASTER_ADDR"):
        find_launch(MPI)


def test_the_arguments_of_torchrun_place_a_script_that_was_started_without_it() -> None:
    pet = {"PET_NNODES": "2", "PET_NODE_RANK": "1", "PET_MASTER_ADDR": "10.0.0.1", "PET_MASTER_PORT": "23456"}
    launch = found(pet)
    assert (launch.rank, launch.world_size, launch.local_rank, launch.address) == (1, 2, 0, ("10.0.0.1", 23456))
    assert find_launch({**pet, "PET_NPROC_PER_NODE": "8"}) is None


def test_nobody_has_launched_plain_python() -> None:
    assert find_launch({"RANK": "0"}) is None
    assert find_launch(MASTER) is None


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"RANK": "4"}, "rank 4 must be below the world's size 4"),
        ({"RANK": "-1"}, "RANK is '-1' in the environment"),
        ({"WORLD_SIZE": "many"}, "WORLD_SIZE is 'many'"),
        ({"MASTER_PORT": ""}, "MASTER_PORT"),
    ],
)
def test_nonsense_in_the_environment_is_named(wrong: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        find_launch({**TORCHRUN, **wrong})


@pytest.mark.parametrize(("nodes", "first"), [("a", "a"), ("n[1,3-5]x,z", "n1x"), ("", "")])
def test_the_first_host_of_a_list(nodes: str, first: str) -> None:
    assert first_host(nodes) == first


def test_one_host_stays_on_loopback_and_may_be_told_otherwise() -> None:
    one_host = found({**TORCHRUN, "LOCAL_WORLD_SIZE": "4"})
    assert host_of(one_host, {}) == "127.0.0.1"
    assert host_of(one_host, {"PACELINE_HOST": "10.0.0.7"}) == "10.0.0.7"
    assert host_of(found({**TORCHRUN, "MASTER_ADDR": "localhost"}), {}) == "127.0.0.1"


def test_the_own_address_may_be_told_as_an_interface() -> None:
    for one in interfaces()[:1]:
        assert host_of(found(TORCHRUN), {"PACELINE_HOST": one.name}) == one.address
    assert host_of(found(TORCHRUN), {"PACELINE_HOST": "no-such-interface"}) == "no-such-interface"


def test_processes_of_one_machine_share_memory_where_they_can_and_are_told_where_not(monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place("127.0.0.1", 1, f"paceline-test-{token_hex(8)}", machine())
    assert name_here(place, {}) == place.name
    assert name_here(place, {"PACELINE_SAME_HOST": "tcp"}) == name_here(msgspec.structs.replace(place, machine="another"), {}) == ""
    with pytest.raises(ConfigError, match="PACELINE_SAME_HOST: 'shm' is not allowed, it must be memory or tcp"):
        shares_memory({"PACELINE_SAME_HOST": "shm"})
    port = SocketPort(Address("worker", 0))
    try:
        assert connect_near(port, COORDINATOR, "") == ""
        assert connect_near(port, COORDINATOR, place.name) == "worker 0 cannot reach coordinator: Connection refused"
        with listener_at(place.name):
            monkeypatch.setattr("os.getuid", lambda: 12345)
            assert "belongs to user" in connect_near(port, COORDINATOR, place.name)
            monkeypatch.undo()
            assert connect_near(port, COORDINATOR, place.name) == ""
            assert port.peers == {COORDINATOR}
    finally:
        port.close()


def test_a_public_address_without_a_key_is_refused_and_a_wire_must_be_one() -> None:
    with pytest.raises(ConfigError, match="a key is needed"):
        trust_at("10.0.0.7", {})
    with pytest.raises(ConfigError, match=r"^203\.0\.113\.5 is not a loopback address, so a key is needed"):
        trust_at("127.0.0.1", {"PACELINE_ADVERTISE": "203.0.113.5:31000"})
    with pytest.raises(ConfigError, match=r"^10\.0\.0\.7 is not a loopback address, so a key is needed"):
        trust_at("10.0.0.7", {"PACELINE_ADVERTISE": "127.0.0.2"})
    assert trust_at("127.0.0.1", {"PACELINE_ADVERTISE": "127.0.0.2:31000"}).wire is Wire.PLAIN
    with pytest.raises(ConfigError, match=r"PACELINE_WIRE: 'rot13' is not allowed, it must be plain or mac or tls"):
        trust_at("127.0.0.1", {"PACELINE_WIRE": "rot13"})


def test_a_groups_sums_overlap_the_backward_pass_unless_the_environment_says_no(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Surroundings().overlaps
    monkeypatch.setenv("PACELINE_OVERLAP", "no")
    assert not Surroundings().overlaps
    monkeypatch.setenv("PACELINE_OVERLAP", "perhaps")
    with pytest.raises(ConfigError, match="PACELINE_OVERLAP: 'perhaps' is not allowed, it must be yes or no"):
        _ = Surroundings().overlaps
