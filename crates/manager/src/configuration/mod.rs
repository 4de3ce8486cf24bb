//! What a manager is told to do, and by whom: built-in defaults, then the file of `--config`, then the
//! environment, then flags; the later wins.

mod file;
mod file_error;
mod origin;
mod setting;
mod show;

pub use file_error::{FileError, FileProblem};
pub use origin::Origin;
pub(crate) use show::show;

use crate::args::{Args, Command, CommandLine, ConfigCommand};
use clap::parser::ValueSource;
use clap::{ArgMatches, CommandFactory, FromArgMatches};
use std::collections::BTreeMap;
use std::ffi::OsString;
use thiserror::Error;

/// What a command line asks for.
#[derive(Debug)]
pub enum Invocation {
    /// Serve engines.
    Serve(Configuration),
    /// Print the configuration.
    ShowConfig {
        /// Which.
        configuration: Configuration,
        /// As JSON.
        json: bool,
    },
}

/// A command line that asks for nothing that can be done.
#[derive(Debug, Error)]
pub enum InvocationError {
    /// Wrong flags; also a request for help or the version, as clap has it.
    #[error(transparent)]
    Usage(#[from] clap::Error),
    /// Wrong file.
    #[error(transparent)]
    File(#[from] FileError),
}

/// Values, each with its origin. They are well-formed; whether they can work on this host is not
/// known yet.
#[derive(Clone, Debug)]
pub struct Configuration {
    pub(crate) args: Args,
    /// By key; what is not in it is a default.
    origins: BTreeMap<&'static str, Origin>,
}

impl Invocation {
    /// Reads a command line, its first word the program's name, and the file it names.
    ///
    /// # Errors
    /// The first flag, key or value that is wrong.
    pub fn parse<I>(words: I) -> Result<Self, InvocationError>
    where
        I: IntoIterator<Item: Into<OsString> + Clone>,
    {
        Self::from_matches(&CommandLine::command().try_get_matches_from(words)?)
    }

    fn from_matches(matches: &ArgMatches) -> Result<Self, InvocationError> {
        let line = CommandLine::from_arg_matches(matches)?;
        match line.command {
            None => Ok(Self::Serve(Configuration::layered(line.args, matches)?)),
            Some(Command::Config(ConfigCommand::Show(show))) => {
                let configuration = Configuration::layered(show.args, innermost(matches))?;
                Ok(Self::ShowConfig { configuration, json: show.json })
            }
        }
    }
}

impl Configuration {
    /// Puts the file, if there is one, under what the command line and the environment gave.
    fn layered(mut args: Args, matches: &ArgMatches) -> Result<Self, FileError> {
        let mut origins = BTreeMap::new();
        for setting in setting::ALL {
            let origin = match matches.value_source(setting.key) {
                Some(ValueSource::CommandLine) => Origin::Flag,
                Some(ValueSource::EnvVariable) => {
                    Origin::Environment { name: setting.environment.unwrap_or("") }
                }
                _ => continue,
            };
            origins.insert(setting.key, origin);
        }
        let Some(path) = args.config.clone() else { return Ok(Self { args, origins }) };
        for entry in file::read(&path)? {
            // A value that loses is checked like the others: the flag may be gone tomorrow.
            let mut unused = args.clone();
            let wins = !origins.contains_key(entry.setting.key);
            let target = if wins { &mut args } else { &mut unused };
            entry.apply(target, &path)?;
            if wins {
                origins.insert(entry.setting.key, Origin::File { path: path.clone(), line: entry.line });
            }
        }
        Ok(Self { args, origins })
    }

    /// Where the value of a key comes from.
    pub(crate) fn origin(&self, key: &str) -> &Origin {
        self.origins.get(key).unwrap_or(&Origin::Default)
    }

    /// How to call a value in an error, so that its reader finds it: by its flag, or by key and line.
    pub(crate) fn name(&self, key: &str) -> String {
        match self.origin(key) {
            Origin::File { path, line } => format!("{key} ({}:{line})", path.display()),
            Origin::Environment { name } => (*name).to_owned(),
            Origin::Default | Origin::Flag => flag(key),
        }
    }
}

/// The flag of a key.
pub(crate) fn flag(key: &str) -> String {
    format!("--{}", key.replace('_', "-"))
}

/// The matches of the command that was reached.
fn innermost(matches: &ArgMatches) -> &ArgMatches {
    matches.subcommand().map_or(matches, |(_, inner)| innermost(inner))
}

#[cfg(test)]
mod tests;
