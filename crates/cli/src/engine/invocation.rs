//! Which program is asked for.

use super::{Engine, EngineError};
use std::ffi::{OsStr, OsString};
use std::path::Path;

/// Options of Python that take the next argument.
const PYTHON_OPTIONS_WITH_VALUE: [&str; 3] = ["-X", "-W", "--check-hash-based-pycs"];

/// The server of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Invocation {
    pub(crate) engine: Engine,
    /// Only its help: no cache is needed.
    pub(crate) help: bool,
}

impl Invocation {
    /// Recognises a command line.
    ///
    /// # Errors
    /// Anything but the server of a supported engine.
    pub(crate) fn of(command: &[OsString]) -> Result<Self, EngineError> {
        let words: Vec<&str> = command.iter().map(|word| word.to_str().unwrap_or_default()).collect();
        let program = command.first().map(Path::new).and_then(Path::file_name).and_then(OsStr::to_str);
        let arguments = words.get(1..).unwrap_or_default();
        let (engine, rest) = match program {
            Some("vllm") => (Engine::Vllm, serve_arguments(Engine::Vllm, arguments)?),
            Some("sglang") => (Engine::Sglang, serve_arguments(Engine::Sglang, arguments)?),
            Some(name) if name.starts_with("python") => module_arguments(&words)?,
            _ => return Err(unsupported(&words)),
        };
        let help = rest.iter().any(|word| matches!(*word, "-h" | "--help") || word.starts_with("--help="));
        Ok(Self { engine, help })
    }
}

fn serve_arguments<'a>(engine: Engine, words: &'a [&'a str]) -> Result<&'a [&'a str], EngineError> {
    let other = match words {
        ["serve", rest @ ..] => return Ok(rest),
        [] => "without a command",
        [other, ..] => other,
    };
    Err(EngineError::NotServe { program: engine.program(), command: other.to_owned() })
}

/// What follows `-m MODULE` of one of the servers.
fn module_arguments<'a>(words: &'a [&'a str]) -> Result<(Engine, &'a [&'a str]), EngineError> {
    let mut rest = words.get(1..).unwrap_or_default();
    loop {
        match rest {
            ["-m", "vllm.entrypoints.openai.api_server", rest @ ..] => return Ok((Engine::Vllm, rest)),
            ["-m", "vllm" | "vllm.entrypoints.cli.main", rest @ ..] => {
                return Ok((Engine::Vllm, serve_arguments(Engine::Vllm, rest)?));
            }
            ["-m", "sglang.launch_server", rest @ ..] => return Ok((Engine::Sglang, rest)),
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
            assert_eq!(of(line), Ok(Invocation { engine: Engine::Vllm, help: false }), "{line}");
        }
        for line in ["vllm serve --help", "vllm serve --help=CacheConfig"] {
            assert_eq!(of(line), Ok(Invocation { engine: Engine::Vllm, help: true }), "{line}");
        }
    }

    #[test]
    fn servers_of_sglang() {
        for line in [
            "sglang serve m",
            "/venv/bin/sglang serve --model-path m --port 1",
            "python -m sglang.launch_server --model-path m",
            "/usr/bin/python3.12 -u -X dev -m sglang.launch_server",
        ] {
            assert_eq!(of(line), Ok(Invocation { engine: Engine::Sglang, help: false }), "{line}");
        }
        let help = of("python -m sglang.launch_server --help");
        assert_eq!(help, Ok(Invocation { engine: Engine::Sglang, help: true }));
    }

    #[test]
    fn anything_else_is_named_with_what_is_supported() {
        for (line, program, command) in
            [("vllm bench serve", "vllm", "bench"), ("sglang generate m", "sglang", "generate")]
        {
            assert_eq!(of(line), Err(EngineError::NotServe { program, command: command.to_owned() }));
        }
        for line in [
            "python -m sglang.bench_serving",
            "python script.py",
            "python -c import",
            "python -m http.server",
            "python",
        ] {
            let error = of(line).unwrap_err().to_string();
            for part in ["`vllm serve MODEL …`", "`python -m sglang.launch_server …`", line] {
                assert!(error.contains(part), "{line}: {error}");
            }
        }
    }
}
