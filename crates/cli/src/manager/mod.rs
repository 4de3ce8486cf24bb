//! The cache manager as seen from a command: where it is, how to start and stop it, who shares it.

mod endpoint;
mod find;
mod launch;
mod share;
mod start;
mod stop;

pub(crate) use endpoint::Endpoint;
pub(crate) use find::{FindError, Running, find};
pub(crate) use launch::{Launch, Ssd, SsdError};
pub(crate) use share::{Share, ShareError};
pub(crate) use start::{StartError, start};
pub(crate) use stop::stop;
