//! The suite that every `Disk` must pass.
