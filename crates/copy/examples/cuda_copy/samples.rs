//! Several measurements of one thing.

use std::time::Duration;

use serde_json::{Value, json};

/// Durations of the same work.
#[derive(Default)]
pub(crate) struct Samples(Vec<Duration>);

impl Samples {
    pub(crate) fn push(&mut self, took: Duration) {
        self.0.push(took);
        self.0.sort_unstable();
    }

    /// As many pushes, which sort only once.
    pub(crate) fn extend(&mut self, took: Vec<Duration>) {
        self.0.extend(took);
        self.0.sort_unstable();
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The sample below which `share` of all lie.
    pub(crate) fn at_share(&self, share: f64) -> Duration {
        let at = (self.0.len().saturating_sub(1) as f64 * share).round() as usize;
        self.0.get(at).copied().unwrap_or_default()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Least, median and most, in seconds.
    fn spread(&self) -> [f64; 3] {
        let at = |index: usize| self.0.get(index).map_or(f64::NAN, Duration::as_secs_f64);
        [at(0), at(self.0.len() / 2), at(self.0.len().saturating_sub(1))]
    }

    /// 10^9 bytes a second: median, and from the slowest to the fastest.
    pub(crate) fn rate(&self, bytes: usize) -> Value {
        let [fastest, median, slowest] = self.spread().map(|seconds| round(bytes as f64 / seconds / 1e9));
        json!({ "median": median, "min": slowest, "max": fastest })
    }

    pub(crate) fn micros(&self) -> Value {
        let [least, median, most] = self.spread().map(|seconds| round(seconds * 1e6));
        json!({ "median": median, "min": least, "max": most })
    }

    pub(crate) fn millis(&self) -> Value {
        let [least, median, most] = self.spread().map(|seconds| (seconds * 1e6).round() / 1e3);
        json!({ "median": median, "min": least, "max": most })
    }

    pub(crate) fn millis_per_gib(&self, bytes: usize) -> Value {
        let gib = bytes as f64 / f64::from(1 << 30);
        let [least, median, most] = self.spread().map(|seconds| round(seconds * 1e3 / gib));
        json!({ "median": median, "min": least, "max": most })
    }
}

pub(crate) fn round(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

/// `median (min..max)` of such a value.
pub(crate) fn text(value: &Value) -> String {
    let of = |name: &str| value.get(name).and_then(Value::as_f64).unwrap_or(f64::NAN);
    format!("{:.1} ({:.1}..{:.1})", of("median"), of("min"), of("max"))
}
