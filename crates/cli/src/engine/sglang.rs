//! What SGLang's server needs: our radix cache, and the linker through which it loads and offloads.

use super::flags::{self, Conflict, Flag};
use super::{EngineError, Wishes};
use std::ffi::OsString;

/// The name under which the adapter registers its radix cache.
const BACKEND: &str = "orbitkv";
const RADIX: Flag = Flag::new("--radix-cache-backend", "--radix-c");
const LINKER: Flag = Flag::new("--enable-unified-cache-external-linker", "--enable-unified-c");
const PAGE_SIZE: Flag = Flag::new("--page-size", "--pa");
const CONFIG: Flag = Flag::new("--config", "--conf");
pub(super) const PORT: Flag = Flag::new("--port", "--po");
pub(super) const HOST: Flag = Flag::new("--host", "--ho");

const OTHER_CACHE: &str = "it puts another cache behind the engine's own, and an engine has one";
const CONFLICTS: [Conflict; 6] = [
    (
        Flag::new("--disable-radix-cache", "--disable-r"),
        "without the radix cache, pages have no hash that the cache could find them by",
    ),
    (Flag::new("--enable-hierarchical-cache", "--enable-hie"), OTHER_CACHE),
    (Flag::new("--hicache-storage-backend", "--hicache-storage-backend"), OTHER_CACHE),
    (Flag::new("--enable-lmcache", "--enable-lm"), OTHER_CACHE),
    (Flag::new("--enable-flexkv", "--enable-fle"), OTHER_CACHE),
    (Flag::new("--unified-cache-external-linker-backend", "--uni"), OTHER_CACHE),
];

/// Pages of fewer tokens than this cost more to look up and to copy one by one than they are worth; the
/// adapter serves without the cache then. The engine's default is one token.
const MIN_PAGE_TOKENS: u32 = 16;

/// The user's command line, then our flags. The socket is in the environment: the engine has no flag for it.
pub(super) fn with_cache(command: &[OsString], wishes: Wishes<'_>) -> Result<Vec<OsString>, EngineError> {
    if wishes.load_mode.is_some() {
        return Err(EngineError::VllmOnly("--load-mode"));
    }
    flags::refuse_conflicts(command, &CONFLICTS)?;
    refuse_in_file(command)?;
    let mut line = command.to_vec();
    match flags::find(&line, &RADIX)? {
        Some(found) if found.value == BACKEND => {}
        Some(found) => return Err(EngineError::OtherRadixCache(found.value)),
        None => line.extend(["--radix-cache-backend".into(), BACKEND.into()]),
    }
    if !flags::given(&line, &LINKER) {
        line.push("--enable-unified-cache-external-linker".into());
    }
    Ok(line)
}

/// What is worth saying about a command line with which the engine starts and the cache does not work.
pub(super) fn note(command: &[OsString]) -> Option<String> {
    let tokens = match flags::find(command, &PAGE_SIZE) {
        Ok(Some(found)) => found.value.parse().ok()?,
        Ok(None) if is_in_file(command) => return None,
        Ok(None) => 1,
        Err(_) => return None,
    };
    (tokens < MIN_PAGE_TOKENS).then(|| {
        format!(
            "OrbitKV: pages of {tokens} token{} are too small for the cache, the engine will serve without it; \
             give it --page-size 64 (at least {MIN_PAGE_TOKENS})",
            if tokens == 1 { "" } else { "s" }
        )
    })
}

fn is_in_file(command: &[OsString]) -> bool {
    let file = flags::find(command, &CONFIG).ok().flatten();
    file.is_some_and(|file| flags::named_in_file(&file.value, [&PAGE_SIZE]).is_some())
}

/// What the command line says wins over the file, and what the file adds to it must not be another cache.
fn refuse_in_file(command: &[OsString]) -> Result<(), EngineError> {
    let Some(file) = flags::find(command, &CONFIG)? else { return Ok(()) };
    let flags = CONFLICTS.iter().map(|(flag, _)| flag).chain([&RADIX]);
    match flags::named_in_file(&file.value, flags) {
        Some(name) => Err(EngineError::InFile { flag: name.to_owned(), file: file.value }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{wishes, words};
    use super::*;

    const SERVE: [&str; 5] = ["python", "-m", "sglang.launch_server", "--model-path", "m"];

    fn added(more: &[&str]) -> Result<Vec<String>, EngineError> {
        let line = [&SERVE[..], more].concat();
        let line = with_cache(&words(&line), wishes())?;
        Ok(line[SERVE.len()..].iter().map(|word| word.to_str().unwrap().to_owned()).collect())
    }

    fn noted(more: &[&str]) -> Option<String> {
        note(&words(&[&SERVE[..], more].concat()))
    }

    #[test]
    fn our_radix_cache_and_the_linker_are_added_once() {
        let both = ["--radix-cache-backend", "orbitkv", "--enable-unified-cache-external-linker"];
        assert_eq!(added(&[]).unwrap(), both);
        assert_eq!(added(&both).unwrap(), both);
        let shortened = ["--radix-c=orbitkv", "--enable-unified-cache"];
        assert_eq!(added(&shortened).unwrap(), shortened);
    }

    #[test]
    fn another_cache_is_refused_by_name() {
        let other = added(&["--radix-cache-backend", "flexkv"]).unwrap_err();
        assert_eq!(other, EngineError::OtherRadixCache("flexkv".to_owned()));
        for flag in [
            "--disable-radix-cache",
            "--enable-hierarchical-cache",
            "--hicache-storage-backend=file",
            "--enable-lmcache",
            "--enable-flexkv",
            "--unified-cache-external-linker-backend",
        ] {
            let error = added(&[flag]).unwrap_err();
            assert!(matches!(error, EngineError::Conflict { .. }), "{flag}: {error}");
            assert!(error.to_string().contains(flag.split('=').next().unwrap()), "{error}");
        }
    }

    #[test]
    fn a_load_mode_is_vllms() {
        let wishes = Wishes { load_mode: Some("sync"), ..wishes() };
        assert_eq!(with_cache(&words(&SERVE), wishes), Err(EngineError::VllmOnly("--load-mode")));
    }

    #[test]
    fn another_cache_in_a_configuration_file_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().to_str().unwrap();
        std::fs::write(file.path(), "port: 1\npage-size: 64\n").unwrap();
        added(&["--config", path]).unwrap();
        assert_eq!(noted(&["--config", path]), None);
        std::fs::write(file.path(), "port: 1\nenable_hierarchical_cache: true\n").unwrap();
        let error = added(&["--config", path]).unwrap_err();
        assert!(error.to_string().contains("--enable-hierarchical-cache"), "{error}");
    }

    #[test]
    fn pages_that_the_adapter_refuses_are_said() {
        assert!(noted(&[]).unwrap().contains("pages of 1 token are too small"));
        assert!(noted(&["--page-size", "8"]).unwrap().contains("pages of 8 tokens"));
        assert_eq!(noted(&["--page-size=16"]), None);
        // The engine's own parser says what is wrong with this one.
        assert_eq!(noted(&["--page-size", "many"]), None);
    }
}
