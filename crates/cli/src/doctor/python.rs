//! Whether the engine's Python can load the adapter.

use super::Finding;
use crate::program::on_path;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Metadata only: importing an engine takes many seconds.
const PROBE: &str = "
import importlib.metadata as metadata, importlib.util as util
def version(name):
    try: return metadata.version(name)
    except metadata.PackageNotFoundError: return '-'
native = '-'
try:
    import orbitkv._native as module
    native = module.__version__
except ImportError as error:
    native = '!' + str(error).splitlines()[0]
print(version('orbitkv') if util.find_spec('orbitkv') else '-', native, version('vllm'), sep='\\n')
";
const PATIENCE: Duration = Duration::from_secs(20);
/// The engine version that the adapter was written for and is tested with.
const TESTED_VLLM: &str = "0.29.";

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
    let (package, native) = (lines.next().unwrap_or("-"), lines.next().unwrap_or("-"));
    let vllm = lines.next().unwrap_or("-");
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
    let engine = match vllm {
        "-" => Finding::fail(
            format!("vllm: not installed for {shown}"),
            "name the engine's Python with --python PATH",
        ),
        version if version.starts_with(TESTED_VLLM) => Finding::ok(format!("vllm: {version}")),
        version => Finding::warn(
            format!("vllm: {version}, and this adapter is tested with {TESTED_VLLM}x"),
            "look for `OrbitKV active` in the engine's log; if it is not there, use the tested version",
        ),
    };
    vec![package, engine]
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
        assert_eq!(grades("0.1.0\n0.1.0\n0.29.0+cpu\n"), [Grade::Ok, Grade::Ok]);
        assert_eq!(grades("0.1.0\n!no symbol\n0.31.0\n"), [Grade::Fail, Grade::Warn]);
        assert_eq!(grades("-\n!No module named 'orbitkv'\n-\n"), [Grade::Fail, Grade::Fail]);
        // From a directory on PYTHONPATH: no metadata, and it loads.
        assert_eq!(grades("-\n0.1.0\n0.29.0\n"), [Grade::Ok, Grade::Ok]);
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
