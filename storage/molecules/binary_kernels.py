"""Compiled loop that reads the kinds of atoms and bonds from RDKit's binary form of molecules (`Mol.ToBinary(0)`).

A kind is what OGB's features depend on, packed into an int64: `atom_kind` and `bond_kind`. The form is that of version 16.4, which is in the head of each
molecule. The loop refuses every other head, tag or flag, so that a form that it does not know is never misread.
"""

import numba
import numpy as np

from graphmill.core.compile_cache import compiled

_HEAD = np.array([0xEF, 0xBE, 0xAD, 0xDE, 0, 0, 0, 0, 16, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0], np.uint8)
_SIZES, _AFTER_SIZES = 20, 28  # the counts of atoms and bonds, int32 each
_BEGIN_ATOMS, _BEGIN_BONDS, _BEGIN_RINGS, _END = 1, 11, 0x42, 23
_AROMATIC, _NO_IMPLICIT = 0x40, 0x20
_CONJUGATED, _HAS_TYPE, _HAS_DIRECTION, _HAS_STEREO = 0x20, 8, 4, 2
# One byte follows for each of the bits 1 to 7 of an atom's word: charge, chirality, hybridization, explicit hydrogens, two valences, radical electrons. Bit 8:
# the isotope, four bytes. Without the byte the number is 0, and the hybridization SP3.
_CHARGE, _CHIRALITY, _HYBRIDIZATION, _EXPLICIT, _IMPLICIT, _RADICALS, _ISOTOPE = 1, 2, 3, 4, 6, 7, 8
_SP3, _SINGLE = 4, 1


@numba.njit(inline="always")
def atom_kind(number, degree, charge, hydrogens, radicals, hybridization, chirality, is_aromatic, in_ring):
    """The kind of an atom from its properties in the order of OGB's features. Each number takes a byte, the last two a bit."""
    kind = number << 50 | degree << 42 | (charge + 128) << 34 | hydrogens << 26 | radicals << 18
    return kind | hybridization << 10 | chirality << 2 | is_aromatic << 1 | in_ring


@numba.njit(inline="always")
def bond_kind(of_type, stereo, is_conjugated):
    return of_type << 9 | stereo << 1 | is_conjugated


@numba.njit
def _count(text, place):
    """The int32 at a place."""
    return (
        np.int64(text[place])
        | np.int64(text[place + 1]) << 8
        | np.int64(text[place + 2]) << 16
        | np.int64(text[place + 3]) << 24
    )


@numba.njit
def _read_molecule(text, atoms, bonds, ends, values, degree, hydrogens, in_ring):
    """Reads one molecule; false if its form is another one. The last four arguments are scratch."""
    size, num_atoms, num_bonds = len(text), len(atoms), len(bonds)
    # An atom has up to 17 bytes, a bond up to 8 and more with stereo; each is checked against the end before it is read.
    if size < _AFTER_SIZES + 2 or _count(text, _SIZES) != num_atoms or _count(text, _SIZES + 4) != num_bonds:
        return False
    for place in range(len(_HEAD)):
        if text[place] != _HEAD[place]:
            return False
    if text[_AFTER_SIZES] != 0x80 or text[_AFTER_SIZES + 1] != _BEGIN_ATOMS:
        return False
    i = np.int64(_AFTER_SIZES + 2)
    degree[:num_atoms] = 0
    in_ring[:num_atoms] = 0
    for atom in range(num_atoms):
        if i + 17 > size:
            return False
        number, flags, word = np.int64(text[i]), np.int64(text[i + 1]), _count(text, i + 2)
        i += 6
        if flags & ~(_AROMATIC | _NO_IMPLICIT) or word & ~0x1FE:
            return False
        values[:_ISOTOPE] = 0
        values[_HYBRIDIZATION] = _SP3
        for bit in range(1, _ISOTOPE):
            if (word >> bit) & 1:
                values[bit] = text[i]
                i += 1
        i += 4 * ((word >> _ISOTOPE) & 1)
        charge = values[_CHARGE] - 256 * (values[_CHARGE] > 127)
        hydrogens[atom] = values[_EXPLICIT] + values[_IMPLICIT]
        # Without the number of bonds and the rings, which follow later.
        is_aromatic = np.int64(flags & _AROMATIC != 0)
        atoms[atom] = atom_kind(
            number,
            0,
            charge,
            hydrogens[atom],
            values[_RADICALS],
            values[_HYBRIDIZATION],
            values[_CHIRALITY],
            is_aromatic,
            0,
        )
    if i >= size or text[i] != _BEGIN_BONDS:
        return False
    i += 1
    for bond in range(num_bonds):
        if i + 8 > size:
            return False
        begin, end, flags = np.int64(text[i]), np.int64(text[i + 1]), np.int64(text[i + 2])
        i += 3
        if (flags & ~(_AROMATIC | _CONJUGATED | _HAS_TYPE | _HAS_DIRECTION | _HAS_STEREO)) or max(
            begin, end
        ) >= num_atoms:
            return False
        of_type, stereo = np.int64(_SINGLE), np.int64(0)
        if flags & _HAS_TYPE:
            of_type = np.int64(text[i])
            i += 1
        i += flags & _HAS_DIRECTION != 0
        if flags & _HAS_STEREO:
            stereo = np.int64(text[i])
            i += 2 + np.int64(text[i + 1])
        bonds[bond] = bond_kind(of_type, stereo, np.int64(flags & _CONJUGATED != 0))
        ends[bond, 0], ends[bond, 1] = begin, end
        degree[begin] += 1
        degree[end] += 1
    if i + 5 > size or text[i] != _BEGIN_RINGS:
        return False
    num_rings = _count(text, i + 1)
    i += 5
    for _ in range(num_rings):
        if i >= size or i + 1 + np.int64(text[i]) > size:
            return False
        for place in range(i + 1, i + 1 + np.int64(text[i])):
            if text[place] >= num_atoms:
                return False
            in_ring[text[place]] = 1
        i += 1 + np.int64(text[i])
    for atom in range(num_atoms):
        atoms[atom] |= min(degree[atom] + hydrogens[atom], 255) << 42 | in_ring[atom]
    return True


@compiled
def read_molecules(text, starts, num_atoms, num_bonds, atoms, bonds, ends, is_read):
    """Writes the kinds of all atoms and bonds and both ends of each bond, molecule after molecule. `is_read`: bool [k], false for a molecule of another form.

    text: uint8, the molecules; starts: int64 [k + 1]; num_atoms, num_bonds: int64 [k], at most 255 atoms are read; atoms, bonds: int64; ends: int32 [bonds, 2].
    """
    values, degree, hydrogens, in_ring = (
        np.zeros(8, np.int64),
        np.zeros(256, np.int64),
        np.zeros(256, np.int64),
        np.zeros(256, np.int64),
    )
    first_atom = first_bond = 0
    for m in range(len(starts) - 1):
        count, many = num_atoms[m], num_bonds[m]
        own = atoms[first_atom : first_atom + count]
        first_atom += count
        is_read[m] = count <= 255 and _read_molecule(
            text[starts[m] : starts[m + 1]],
            own,
            bonds[first_bond : first_bond + many],
            ends[first_bond : first_bond + many],
            values,
            degree,
            hydrogens,
            in_ring,
        )
        first_bond += many
