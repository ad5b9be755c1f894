"""Resolved execution strategy of the axes of clients and runs."""

from dataclasses import dataclass, field, replace

from fedjax_pfl.execution import mesh_shape, processes
from fedjax_pfl.execution.platforms import resolve_platform
from fedjax_pfl.utils.conversions import decimal
from fedjax_pfl.utils.errors import InputError, shown

CLIENT_AXES = ("auto", "map", "vmap", "a number of lanes such as 8")
SEED_AXES = ("auto", "map", "vmap")
CLIENT_STATES = ("device", "host", "auto")
MODELS = 32  # models scored at once, at least: they fill a matrix product if they are mixed


@dataclass(frozen=True)
class Execution:
    """Resolved strategy, part of a run's configuration and compiled program.

    Attributes:
      max_lanes: the most lanes that a device runs in parallel. 1 maps over the clients one by
        one, each with its own number of steps. 0 is one vmap over all clients if they take equally
        many steps, else over the fraction `fill` of them. A lane whose client has finished takes
        the next one, longest first.
      seeds: "map" or "vmap" over runs (seeds and settings).
      devices: number of devices that share the client axis, in each group of devices.
      run_groups: number of groups of devices, each of which has its share of the runs.
      runs_first: whether `shared` still has to divide the devices between runs and clients.
      auto: whether `max_lanes` may shrink to fit into the device's memory.
      fill: if `max_lanes` is 0, the fraction of the clients that are lanes; set by
        `lane_assignment.assign_lanes`.
      deal: whether clients with different numbers of steps move between devices, so that these have
        about the same work; set by `assign_lanes`, too.
      platform: "cpu", "gpu" or "tpu", for which programs are compiled.
      client_state: where per-client state is kept: "device", "host", or "auto".
    """

    max_lanes: int
    seeds: str
    devices: int = 1
    auto: bool = field(default=False, compare=False)
    fill: float = 1.0
    deal: bool = True
    platform: str = "cpu"
    run_groups: int = 1
    runs_first: bool = field(default=False, compare=False)
    client_state: str = field(default="device", compare=False)

    @property
    def all_devices(self) -> int:
        """Number of devices of all groups."""
        return self.devices * self.run_groups

    def shared(self, runs: int) -> "Execution":
        """Return the execution for a number of runs, with its mesh fixed.

        Raises:
          InputError: fewer runs than groups of devices.
        """
        if self.runs_first:
            mesh = mesh_shape.automatic(self.all_devices, runs)
            return replace(self, devices=mesh.clients, run_groups=mesh.runs, runs_first=False)
        if runs < self.run_groups:
            given = mesh_shape.MeshShape(self.devices, self.run_groups)
            fits = mesh_shape.automatic(self.all_devices, runs)
            raise InputError(
                f"mesh {given} has devices for {self.run_groups} runs at a time, but there are "
                f"{runs} (seeds times settings): {fits} would use them all."
            )
        return self

    def lanes(self, count: int) -> int:
        """Return how many of `count` rows one device runs in parallel."""
        share = -(-count // self.devices)
        return min(self.max_lanes or max(1, round(share * self.fill)), share)

    def width(self, count: int, trained: int) -> int:
        """Return how many of `count` rows have their models computed and scored at once.

        All of them with vmap, otherwise about as many as a round trains, and at least `MODELS`.
        """
        if self.max_lanes == 0:
            return count
        together = max(trained, self.max_lanes * self.devices, MODELS)
        turns = -(-count // together)
        return min(-(-count // (turns * self.devices)) * self.devices, count)

    def __str__(self) -> str:
        word = {0: "vmap", 1: "map"}.get(self.max_lanes, str(self.max_lanes))
        where = "" if self.devices == 1 else f" on each of {self.devices} devices"
        return word + where + ("" if self.run_groups == 1 else f", runs in {self.run_groups} parts")


def resolve_execution(
    clients: str | int = "auto",
    seeds: str = "auto",
    devices: int = 1,
    platform: str | None = None,
    mesh: str = mesh_shape.AUTO,
) -> Execution:
    """Resolve a user's choice; "auto" is map on CPUs and vmap on accelerators.

    `platform` is that of this process by default. `mesh` divides devices between clients and runs
    (`mesh_shape.parsed`) and takes as many devices as it needs if `devices` is 1; "auto" leaves the
    division to `Execution.shared`.

    On a CPU one client's matrix products already fill the cores, and in vmapped loops of unequal
    length short lanes wait; on an accelerator one client's products are too small. On a TPU seeds
    are mapped, as a second axis of lanes makes steps slower (docs/engineering_log.md).

    Raises:
      InputError: neither "auto", "map", "vmap" nor a positive number of lanes; too many devices; a
        mesh that does not fit them; an unknown platform.
    """
    platform = resolve_platform(platform)
    on_cpu = platform == "cpu"
    default = "map" if on_cpu else "vmap"
    if not (isinstance(seeds, str) and seeds in SEED_AXES):
        raise InputError(
            f"seed_execution must be one of {', '.join(SEED_AXES)}, got {shown(seeds)}."
        )
    max_lanes = _max_lanes(clients, default)
    whole = isinstance(devices, int) and not isinstance(devices, bool)
    there = len(processes.all_devices())
    asked = None if isinstance(mesh, str) and mesh == mesh_shape.AUTO else mesh_shape.parsed(mesh)
    if asked is not None:
        if whole and devices != 1:
            mesh_shape.check(asked, devices, f"devices is {devices}")
        if asked.devices > there or processes.is_distributed():
            mesh_shape.check(asked, there, f"there are {there}")
        devices = asked.devices
    if processes.is_distributed() and not (whole and devices == there):
        raise InputError(
            f"devices must be {there}, those of all {processes.count()} processes together, got "
            f"{shown(devices)}."
        )
    if not (whole and 1 <= devices <= there):
        more = " (JAX_NUM_CPU_DEVICES makes more of a CPU)" if on_cpu else ""
        raise InputError(f"devices must be in 1..{there}{more}, got {shown(devices)}.")
    seeds = {"gpu": "vmap"}.get(platform, "map") if seeds == "auto" else seeds
    mine = Execution(max_lanes, seeds, devices, auto=clients == "auto", platform=platform)
    if asked is None:
        return replace(mine, runs_first=devices > 1)
    return replace(mine, devices=asked.clients, run_groups=asked.runs)


def _max_lanes(clients: str | int, default: str) -> int:
    """Return `Execution.max_lanes` for a word or number; `default` replaces "auto"."""
    word = clients if isinstance(clients, str) else shown(clients)
    word = default if word == "auto" else word
    max_lanes = {"map": 1, "vmap": 0}.get(word)
    max_lanes = decimal(word) or None if max_lanes is None else max_lanes
    if max_lanes is None:
        raise InputError(
            f"client_execution must be one of {', '.join(CLIENT_AXES)}, got {shown(clients)}."
        )
    return max_lanes
