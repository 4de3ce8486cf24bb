//! The cache manager as seen from a command: where it is, how to start and stop it, who shares it.

mod configured;
mod endpoint;
mod find;
mod launch;
mod share;
mod ssd;
mod start;
mod stop;

pub(crate) use configured::{Configured, ConfiguredError};
pub(crate) use endpoint::Endpoint;
pub(crate) use find::{FindError, Http, Running, find};
pub(crate) use launch::Launch;
pub(crate) use share::{Share, ShareError};
pub(crate) use ssd::{Room, Ssd, SsdError, default_directory};
pub(crate) use start::{StartError, start};
pub(crate) use stop::stop;
