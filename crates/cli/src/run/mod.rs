//! `orbitkv run`: an engine in the foreground, with a cache manager that is there as long as it is needed.

mod cache;
mod engine_process;
mod signals;
mod watch;

use crate::args::{ExecArgs, LoadMode, RunArgs};
use crate::engine::{self, Engine, EngineError, Invocation, Line, Wishes};
use crate::manager::{Configured, Endpoint, StartError};
use crate::program::on_path;
use crate::say;
use cache::{Cache, CacheError};
use engine_process::EngineProcess;
use signals::Signals;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use thiserror::Error;

/// As shells report a program that is not there.
const NOT_FOUND: u8 = 127;

/// Why the engine was not run, or not to its end.
#[derive(Debug, Error)]
pub(crate) enum RunError {
    /// Its command line.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The manager.
    #[error("{0}\nthe engine was not started; --best-effort starts it without the cache")]
    Cache(#[from] CacheError),
    /// The program.
    #[error("{program}: {source}")]
    Program {
        /// Which.
        program: PathBuf,
        /// The answer.
        source: io::Error,
    },
    /// Signals.
    #[error("signals: {0}")]
    Signals(io::Error),
    /// The parent is not there any more.
    #[error("orbitkv run ended before the engine began")]
    Orphan,
}

/// Runs the engine to its end and returns its exit code.
pub(crate) fn run(args: &RunArgs) -> Result<ExitCode, RunError> {
    let Invocation { engine, help } = Invocation::of(&args.engine)?;
    let name = args.engine.first().map(PathBuf::from).unwrap_or_default();
    let Some(program) = on_path(&name) else {
        say::line(&format!("error: {} is not on PATH; activate the engine's environment", name.display()));
        return Ok(ExitCode::from(NOT_FOUND));
    };
    if help {
        let source = engine_process::become_program(&program, args.engine.get(1..).unwrap_or_default());
        return Err(RunError::Program { program, source });
    }
    let configured = args.config.as_deref().map(Configured::read).transpose().map_err(CacheError::Configured);
    let endpoint = endpoint(engine, args, configured.as_ref().ok().and_then(Option::as_ref))?;
    let line = engine::with_cache(engine, &args.engine, wishes(args, &endpoint))?;
    // From here on a signal ends what was started.
    let mut signals = Signals::register().map_err(RunError::Signals)?;
    let open = |configured| Cache::open(&endpoint, args, configured, || signals.ending().is_some());
    match configured.and_then(open) {
        Ok(cache) => {
            say::line(&cache.line(engine, engine::installed_version(engine, &program), args));
            if let Some(note) = engine::note(engine, &args.engine) {
                say::line(&note);
            }
            let ended = serve(&program, &line, &mut signals, Some((&cache, engine)));
            cache.close();
            ended
        }
        Err(CacheError::Start(StartError::Interrupted)) => Ok(signals.exit_code()),
        Err(error) if args.best_effort => {
            say::line(&format!("OrbitKV: off, the engine serves without the cache: {error}"));
            let line = Line { words: args.engine.clone(), environment: Vec::new() };
            serve(&program, &line, &mut signals, None)
        }
        Err(error) => Err(error.into()),
    }
}

fn endpoint(
    engine: Engine,
    args: &RunArgs,
    configured: Option<&Configured>,
) -> Result<Endpoint, EngineError> {
    let mut endpoint = Endpoint::of(&args.place);
    let in_engine = engine::socket_in(engine, &args.engine)?.map(PathBuf::from);
    let socket = in_engine.or_else(|| configured?.socket.clone());
    if let Some(socket) = socket.filter(|_| !endpoint.socket_given) {
        endpoint.socket = std::path::absolute(&socket).unwrap_or(socket);
    }
    endpoint.http_configured = configured.and_then(Configured::http_address);
    Ok(endpoint)
}

fn wishes<'a>(args: &RunArgs, endpoint: &'a Endpoint) -> Wishes<'a> {
    let Endpoint { socket, socket_given, .. } = endpoint;
    Wishes { socket, socket_given: *socket_given, load_mode: args.load_mode.map(LoadMode::name) }
}

fn serve(
    program: &Path,
    line: &Line,
    signals: &mut Signals,
    cache: Option<(&Cache, Engine)>,
) -> Result<ExitCode, RunError> {
    if signals.ending().is_some() {
        return Ok(signals.exit_code());
    }
    let watch = cache.and_then(|(cache, engine)| cache.watch(engine, &line.words));
    let failed = |source| RunError::Program { program: program.into(), source };
    let mut engine = EngineProcess::spawn(program, line).map_err(failed)?;
    if let Some(watch) = watch {
        watch.start();
    }
    let reap = || cache.map_or((), |(cache, _)| cache.reap());
    engine.wait(signals, reap).map_err(failed)
}

/// `orbitkv exec-with-parent`: the last step between `run` and the engine.
pub(crate) fn exec_with_parent(args: &ExecArgs) -> Result<ExitCode, RunError> {
    engine_process::exec_with_parent(args)
}
