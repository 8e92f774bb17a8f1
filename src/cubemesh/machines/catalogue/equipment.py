"""Equipment of a system: memory, drives, power, cooling and price.

    [memory]
    gb = 512                         # decimal; of one system
    type = "DDR4-2133"               # may be left out
    [[storage]]
    use = "data"                     # or boot
    drives = 4
    gb = 1920                        # of one drive
    medium = "ssd"                   # or hdd
    interface = "sas"                # nvme, sas or sata; may be left out, as the next two
    raid = 0                         # level
    read_gb_per_s = 2                # streaming read, all drives together
    [power]
    watts = 3500                     # maximum of the whole system
    cooling = "air"                  # may be left out
    [price]
    usd = 149000                     # of a new one at its launch
    year = 2017

All tables are optional: what no source states is missing. Errors name line and field (fields.py).
"""

from __future__ import annotations

from dataclasses import dataclass

from cubemesh.machines.catalogue.fields import Fields

GB = 1e9
TABLES = ("memory", "storage", "power", "price")
USES = ("data", "boot")
MEDIA = ("ssd", "hdd")
INTERFACES = ("nvme", "sas", "sata")
RAID_LEVELS = (0, 1, 5, 6, 10)
MOST_DRIVES = 256


@dataclass(frozen=True, kw_only=True)
class DriveGroup:
    """Equal drives that serve one use, as one volume where they form a RAID."""

    use: str
    """`data` or `boot`."""
    drives: int
    drive_bytes: float
    """Of one drive."""
    medium: str
    """`ssd` or `hdd`."""
    interface: str = ""
    """`nvme`, `sas`, `sata`; empty where it is not stated."""
    raid: int | None = None
    """RAID level; None where there is no RAID, or none is stated."""
    read_bytes_per_s: float | None = None
    """Streaming read rate of all of them together."""

    @property
    def total_bytes(self) -> float:
        """Of all drives, without what a RAID level uses for redundancy."""
        return self.drives * self.drive_bytes


@dataclass(frozen=True, kw_only=True)
class Equipment:
    """Memory, drives, power, cooling and price of one system."""

    memory_bytes: float | None = None
    memory_type: str = ""
    storage: tuple[DriveGroup, ...] = ()
    power_watts: float | None = None
    """Maximum of the whole system."""
    cooling: str = ""
    price_usd: float | None = None
    """At the launch, in US dollars of `price_year`."""
    price_year: int | None = None


def read_equipment(top: Fields) -> Equipment:
    """The equipment in a system's file; DataError for what does not fit."""
    memory, power, price = top.table("memory"), top.table("power"), top.table("price")
    if memory is not None:
        memory.only(("gb", "type"))
    if power is not None:
        power.only(("watts", "cooling"))
    if price is not None:
        price.only(("usd", "year"))
    return Equipment(
        memory_bytes=None if memory is None else _required(memory, "gb") * GB,
        memory_type="" if memory is None else memory.text("type", default=""),
        storage=tuple(map(_drives, top.tables("storage"))),
        power_watts=None if power is None else power.above_zero("watts"),
        cooling="" if power is None else power.text("cooling", default=""),
        price_usd=None if price is None else _required(price, "usd"),
        price_year=None if price is None else price.whole("year", 1980, 2100),
    )


def _drives(table: Fields) -> DriveGroup:
    table.only(("use", "drives", "gb", "medium", "interface", "raid", "read_gb_per_s"))
    rate = table.above_zero("read_gb_per_s")
    has_interface, has_raid = "interface" in table, "raid" in table
    return DriveGroup(
        use=table.one_of("use", USES),
        drives=table.whole("drives", 1, MOST_DRIVES),
        drive_bytes=_required(table, "gb") * GB,
        medium=table.one_of("medium", MEDIA),
        interface=table.one_of("interface", INTERFACES) if has_interface else "",
        raid=table.one_of("raid", RAID_LEVELS) if has_raid else None,
        read_bytes_per_s=None if rate is None else rate * GB,
    )


def _required(table: Fields, key: str) -> float:
    value = table.above_zero(key)
    if value is None:
        table.wrong(key, "is missing and must be a number above 0.")
    return value
