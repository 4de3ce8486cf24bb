//! OrbitKV protocol: message structs, framing, versions, limits.
