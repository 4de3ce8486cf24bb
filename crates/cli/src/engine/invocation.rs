//! Which program is asked for.

use super::EngineError;
use std::ffi::{OsStr, OsString};
use std::path::Path;

/// Options of Python that take the next argument.
const PYTHON_OPTIONS_WITH_VALUE: [&str; 3] = ["-X", "-W", "--check-hash-based-pycs"];

/// A way to start the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Invocation {
    /// The server.
    Serve,
    /// Only its help: no cache is needed.
    Help,
}

impl Invocation {
    /// Recognises a command line.
    ///
    /// # Errors
    /// Anything but vLLM's server.
    pub(crate) fn of(command: &[OsString]) -> Result<Self, EngineError> {
        let words: Vec<&str> = command.iter().map(|word| word.to_str().unwrap_or_default()).collect();
        let program = command.first().map(Path::new).and_then(Path::file_name).and_then(OsStr::to_str);
        let rest = match program {
            Some("vllm") => serve_arguments(words.get(1..).unwrap_or_default())?,
            Some(name) if name.starts_with("python") => module_arguments(&words)?,
            _ => return Err(unsupported(&words)),
        };
        let help = rest.iter().any(|word| matches!(*word, "-h" | "--help") || word.starts_with("--help="));
        Ok(if help { Self::Help } else { Self::Serve })
    }
}

fn serve_arguments<'a>(words: &'a [&'a str]) -> Result<&'a [&'a str], EngineError> {
    match words {
        ["serve", rest @ ..] => Ok(rest),
        [] => Err(EngineError::NotServe("without a command".to_owned())),
        [other, ..] => Err(EngineError::NotServe((*other).to_owned())),
    }
}

/// What follows `-m MODULE` of one of vLLM's servers.
fn module_arguments<'a>(words: &'a [&'a str]) -> Result<&'a [&'a str], EngineError> {
    let mut rest = words.get(1..).unwrap_or_default();
    loop {
        match rest {
            ["-m", "vllm.entrypoints.openai.api_server", rest @ ..] => return Ok(rest),
            ["-m", "vllm" | "vllm.entrypoints.cli.main", rest @ ..] => return serve_arguments(rest),
            [option, _, tail @ ..] if PYTHON_OPTIONS_WITH_VALUE.contains(option) => rest = tail,
            [option, tail @ ..] if option.starts_with('-') && *option != "-m" && *option != "-c" => {
                rest = tail;
            }
            _ => return Err(unsupported(words)),
        }
    }
}

fn unsupported(words: &[&str]) -> EngineError {
    // The first words say what was meant; a whole command line would bury the sentence.
    EngineError::Unsupported(words.iter().take(3).copied().collect::<Vec<_>>().join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(line: &str) -> Result<Invocation, EngineError> {
        Invocation::of(&line.split(' ').map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn servers_of_vllm() {
        for line in [
            "vllm serve m",
            "/venv/bin/vllm serve m --port 1",
            "python -m vllm.entrypoints.openai.api_server --model m",
            "/usr/bin/python3.12 -u -X dev -m vllm.entrypoints.openai.api_server",
            "python3 -m vllm.entrypoints.cli.main serve m",
        ] {
            assert_eq!(of(line), Ok(Invocation::Serve), "{line}");
        }
        assert_eq!(of("vllm serve --help"), Ok(Invocation::Help));
        assert_eq!(of("vllm serve --help=CacheConfig"), Ok(Invocation::Help));
    }

    #[test]
    fn anything_else_is_named_with_what_is_supported() {
        assert_eq!(of("vllm bench serve"), Err(EngineError::NotServe("bench".to_owned())));
        for line in
            ["sglang serve m", "python script.py", "python -c import", "python -m http.server", "python"]
        {
            let error = of(line).unwrap_err().to_string();
            assert!(error.contains("`vllm serve MODEL …`") && error.contains(line), "{line}: {error}");
        }
    }
}
