"""Every pipe has an address of its own."""

from __future__ import annotations

from sluiceway.ipc.pipes.addresses import Addresses


def addresses_of(addresses: Addresses) -> list[str]:
    return [getattr(addresses, name) for name in Addresses.__slots__]


def test_pipes_are_five_different_files_in_the_given_directory() -> None:
    found = addresses_of(Addresses.in_directory("/run/x"))
    assert all(address.startswith("ipc:///run/x/") for address in found)
    assert len(set(found)) == len(found) == 5


def test_two_servers_in_one_process_have_different_addresses() -> None:
    first, second = Addresses.in_process("a"), Addresses.in_process("b")
    assert all(address.startswith("inproc://") for address in addresses_of(first))
    assert not set(addresses_of(first)) & set(addresses_of(second))
