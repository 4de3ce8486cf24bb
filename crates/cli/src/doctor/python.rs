//! Whether the engine's Python can load an adapter.

use super::Finding;
use crate::program::on_path;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Metadata only: importing an engine takes many seconds.
const PROBE: &str = "
import importlib.metadata as metadata, importlib.util as util, os
def version(name):
    try: return metadata.version(name)
    except metadata.PackageNotFoundError: return '-'
native = '-'
try:
    import orbitkv._native as module
    native = module.__version__
except ImportError as error:
    native = '!' + str(error).splitlines()[0]
def plugin():
    for found in metadata.entry_points(group='sglang.srt.plugins'):
        if found.value.startswith('orbitkv.'):
            wanted = os.environ.get('SGLANG_PLUGINS')
            names = [name.strip() for name in (wanted or found.name).split(',')]
            return found.name if found.name in names else '!' + wanted
    return '-'
print(version('orbitkv') if util.find_spec('orbitkv') else '-', native, version('vllm'), version('sglang'), plugin(), sep='\\n')
";
const PATIENCE: Duration = Duration::from_secs(20);
/// The engine versions that the adapters were written for and are tested with.
const TESTED_VLLM: &str = "0.29.";
const TESTED_SGLANG: &str = "0.5.20";

pub(super) fn findings(python: &Path) -> Vec<Finding> {
    let shown = python.display();
    let Some(program) = on_path(python) else {
        return vec![Finding::fail(
            format!("python: {shown} is not there"),
            "name the engine's with --python PATH",
        )];
    };
    match probe(&program) {
        Err(why) => {
            vec![Finding::fail(format!("python: {shown} {why}"), "name the engine's with --python PATH")]
        }
        Ok(text) => judge(&text, &program),
    }
}

fn judge(text: &str, program: &Path) -> Vec<Finding> {
    let shown = program.display();
    let mut lines = text.lines();
    let mut next = || lines.next().unwrap_or("-");
    let (package, native, vllm, sglang, plugin) = (next(), next(), next(), next(), next());
    let package = match (package, native.strip_prefix('!')) {
        ("-", _) if native.starts_with('!') => Finding::fail(
            format!("orbitkv: not installed for {shown}"),
            "install the orbitkv wheel into the engine's environment, or name its Python with --python PATH",
        ),
        (_, Some(why)) => Finding::fail(
            format!("orbitkv: the native module does not load ({why})"),
            "install the wheel of this platform again",
        ),
        _ => Finding::ok(format!("orbitkv: {native} loads in {shown}")),
    };
    let mut findings = vec![package];
    if (vllm, sglang) == ("-", "-") {
        findings.push(Finding::fail(
            format!("engine: neither vllm nor sglang is installed for {shown}"),
            "name the engine's Python with --python PATH",
        ));
    }
    if vllm != "-" {
        findings.push(engine("vllm", vllm, TESTED_VLLM));
    }
    if sglang != "-" {
        findings.extend([engine("sglang", sglang, TESTED_SGLANG), sglang_plugin(plugin)]);
    }
    findings
}

fn engine(name: &str, version: &str, tested: &str) -> Finding {
    if version.starts_with(tested) {
        return Finding::ok(format!("{name}: {version}"));
    }
    let tested = if tested.ends_with('.') { format!("{tested}x") } else { tested.to_owned() };
    Finding::warn(
        format!("{name}: {version}, and this adapter is tested with {tested}"),
        "look for `OrbitKV active` in the engine's log; if it is not there, use the tested version",
    )
}

/// SGLang loads adapters by their entry point; without it, the radix cache `orbitkv` is not known to it.
fn sglang_plugin(plugin: &str) -> Finding {
    match (plugin, plugin.strip_prefix('!')) {
        ("-", _) => Finding::fail(
            "sglang: it finds no plugin of orbitkv, so --radix-cache-backend orbitkv is unknown to it",
            "install the wheel with pip: files on PYTHONPATH alone have no entry point",
        ),
        (_, Some(wanted)) => Finding::fail(
            format!("sglang: SGLANG_PLUGINS={wanted} keeps it from loading the plugin of orbitkv"),
            "unset SGLANG_PLUGINS, or add orbitkv to it",
        ),
        _ => Finding::ok("sglang: it finds the plugin that registers the radix cache orbitkv"),
    }
}

/// Output of the probe, or one clause saying what went wrong.
fn probe(program: &Path) -> Result<String, String> {
    let mut child = Command::new(program)
        .args(["-c", PROBE])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| format!("does not start: {error}"))?;
    let begun = Instant::now();
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if begun.elapsed() < PATIENCE => thread::sleep(Duration::from_millis(20)),
            Ok(None) => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("does not answer within {} s", PATIENCE.as_secs()));
            }
            Err(error) => return Err(error.to_string()),
        }
    };
    let mut text = String::new();
    // A few short lines: they fit the pipe, so the child never waited for us to read.
    if let Some(mut out) = child.stdout.take() {
        let _ = out.read_to_string(&mut text);
    }
    if status.success() { Ok(text) } else { Err(format!("ended with {status}")) }
}

#[cfg(test)]
mod tests {
    use super::super::Grade;
    use super::*;

    fn grades(text: &str) -> Vec<Grade> {
        judge(text, Path::new("python3")).iter().map(|finding| finding.grade).collect()
    }

    #[test]
    fn what_the_probe_says_is_judged() {
        assert_eq!(grades("0.1.0\n0.1.0\n0.29.0+cpu\n-\n-\n"), [Grade::Ok, Grade::Ok]);
        assert_eq!(grades("0.1.0\n!no symbol\n0.31.0\n-\n-\n"), [Grade::Fail, Grade::Warn]);
        assert_eq!(grades("-\n!No module named 'orbitkv'\n-\n-\n-\n"), [Grade::Fail, Grade::Fail]);
        // From a directory on PYTHONPATH: no metadata, and it loads.
        assert_eq!(grades("-\n0.1.0\n0.29.0\n-\n-\n"), [Grade::Ok, Grade::Ok]);
    }

    #[test]
    fn sglang_is_judged_with_its_plugin() {
        let of = |sglang: &str, plugin: &str| grades(&format!("0.1.0\n0.1.0\n-\n{sglang}\n{plugin}\n"));
        assert_eq!(of("0.5.20", "orbitkv"), [Grade::Ok; 3]);
        assert_eq!(of("0.5.23", "orbitkv"), [Grade::Ok, Grade::Warn, Grade::Ok]);
        assert_eq!(of("0.5.20", "-"), [Grade::Ok, Grade::Ok, Grade::Fail]);
        assert_eq!(of("0.5.20", "!flexkv"), [Grade::Ok, Grade::Ok, Grade::Fail]);
        let text = "0.1.0\n0.1.0\n0.29.0\n0.5.20\norbitkv\n";
        assert_eq!(grades(text), [Grade::Ok; 4], "an environment may hold both engines");
    }

    #[test]
    fn a_real_interpreter_without_the_package_says_so() {
        let found = findings(Path::new("python3"));
        assert_eq!(found.len(), 2, "{found:?}");
    }

    #[test]
    fn no_interpreter_is_a_failure() {
        assert_eq!(findings(Path::new("/nonexistent/python3"))[0].grade, Grade::Fail);
    }
}
