//! memfd segments: seals, maps, huge pages, fd passing.
