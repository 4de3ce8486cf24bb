//! Which way of copying is used for which size.

use std::fmt;
use std::str::FromStr;

use super::config::CudaCopyConfig;

/// How fragments below `plain_min_bytes` are copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CopyMethod {
    /// Small ones by the kernel where it has passed its self-test; the others in batches where the driver's batch call
    /// has, else as rows, else one by one.
    Auto,
    /// One asynchronous copy each.
    Plain,
    /// As rows (`cuMemcpy2DAsync`) where blocks and pages lie at constant distances, else one by one.
    Rows,
    /// In batches, else one by one.
    Batch,
    /// By a kernel that reads and writes registered memory, else one by one.
    Kernel,
}

impl CopyMethod {
    const NAMED: [(CopyMethod, &str); 5] = [
        (CopyMethod::Auto, "auto"),
        (CopyMethod::Plain, "plain"),
        (CopyMethod::Rows, "rows"),
        (CopyMethod::Batch, "batch"),
        (CopyMethod::Kernel, "kernel"),
    ];
}

impl fmt::Display for CopyMethod {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = CopyMethod::NAMED.into_iter().find(|(method, _)| method == self);
        out.pad(named.map_or("", |(_, name)| name))
    }
}

/// A name that is none of the methods'.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{name:?} is no copy method: use auto, plain, rows, batch or kernel")]
pub struct UnknownMethod {
    /// What was given.
    pub name: String,
}

impl FromStr for CopyMethod {
    type Err = UnknownMethod;

    fn from_str(name: &str) -> Result<CopyMethod, UnknownMethod> {
        let named = CopyMethod::NAMED.into_iter().find(|(_, known)| *known == name);
        named.map(|(method, _)| method).ok_or_else(|| UnknownMethod { name: name.to_owned() })
    }
}

/// What the planner may use.
#[derive(Debug, Clone, Copy)]
pub(super) struct Choice {
    pub(super) method: CopyMethod,
    pub(super) kernel: bool,
    pub(super) batch: bool,
    pub(super) rows: bool,
    pub(super) batch_max_descriptors: usize,
    pub(super) kernel_below_bytes: usize,
    pub(super) kernel_unbatched_below_bytes: usize,
    pub(super) plain_min_bytes: usize,
    pub(super) staging_bytes: usize,
}

impl Choice {
    /// What the configuration asks for, with what works here.
    pub(super) fn new(config: &CudaCopyConfig, kernel: bool, batch: bool, rows: bool) -> Choice {
        Choice {
            method: config.method,
            kernel,
            batch,
            rows,
            batch_max_descriptors: config.batch_max_descriptors,
            kernel_below_bytes: config.kernel_below_bytes,
            kernel_unbatched_below_bytes: config.kernel_unbatched_below_bytes,
            plain_min_bytes: config.plain_min_bytes,
            staging_bytes: config.staging_slot_bytes,
        }
    }

    /// Whether the configuration asks for the kernel at any size.
    pub(super) fn wants_kernel(config: &CudaCopyConfig) -> bool {
        let bytes = [config.kernel_below_bytes, config.kernel_unbatched_below_bytes];
        match config.method {
            CopyMethod::Kernel => true,
            CopyMethod::Auto => bytes != [0, 0],
            CopyMethod::Plain | CopyMethod::Rows | CopyMethod::Batch => false,
        }
    }

    /// Below which size pieces in registered memory go by the kernel; 0 for none.
    pub(super) fn kernel_limit_bytes(&self) -> usize {
        let limit = match self.method {
            CopyMethod::Kernel => usize::MAX,
            CopyMethod::Auto if self.uses_batches() => self.kernel_below_bytes,
            CopyMethod::Auto => self.kernel_unbatched_below_bytes,
            CopyMethod::Plain | CopyMethod::Rows | CopyMethod::Batch => 0,
        };
        if self.kernel { limit.min(self.plain_min_bytes) } else { 0 }
    }

    pub(super) fn uses_batches(&self) -> bool {
        self.batch && matches!(self.method, CopyMethod::Auto | CopyMethod::Batch)
    }

    pub(super) fn uses_rows(&self) -> bool {
        self.rows && matches!(self.method, CopyMethod::Auto | CopyMethod::Rows)
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kernel, plain) = (self.kernel_limit_bytes(), self.plain_min_bytes);
        if kernel > 0 {
            write!(out, "below {} by a kernel, ", Size(kernel))?;
        }
        let grouped = match (self.uses_batches(), self.uses_rows()) {
            _ if kernel == plain => None,
            (true, _) => Some("in batches"),
            (false, true) => Some("as rows where they lie regularly"),
            (false, false) => None,
        };
        if let Some(grouped) = grouped {
            write!(out, "below {} {grouped}, ", Size(plain))?;
        }
        out.write_str(if kernel > 0 || grouped.is_some() { "others one by one" } else { "one by one" })
    }
}

/// A size in the largest unit that gives a whole number.
struct Size(usize);

impl fmt::Display for Size {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(20, "MiB"), (10, "KiB")];
        match units.into_iter().find(|(bits, _)| self.0.is_multiple_of(1 << bits)) {
            Some((bits, unit)) => write!(out, "{} {unit}", self.0 >> bits),
            None => write!(out, "{} bytes", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_are_read_as_they_are_written() {
        for (method, name) in CopyMethod::NAMED {
            assert_eq!((method.to_string().as_str(), name.parse()), (name, Ok(method)));
        }
        let error = "Kernel".parse::<CopyMethod>().unwrap_err().to_string();
        assert!(error.contains("\"Kernel\"") && error.contains("batch or kernel"), "{error}");
    }

    #[test]
    fn the_choice_says_what_is_used_for_which_size() {
        let said = |method, kernel, batch, rows| {
            let config = CudaCopyConfig { method, ..CudaCopyConfig::new(0) };
            Choice::new(&config, kernel, batch, rows).to_string()
        };
        use CopyMethod::{Auto, Batch, Kernel, Plain, Rows};
        let batches = "below 4 MiB in batches, others one by one";
        assert_eq!(said(Auto, true, true, true), format!("below 16 KiB by a kernel, {batches}"));
        assert_eq!(said(Auto, false, true, true), batches);
        let rows = "below 4 MiB as rows where they lie regularly, others one by one";
        assert_eq!(said(Auto, true, false, true), format!("below 128 KiB by a kernel, {rows}"));
        assert_eq!(said(Auto, false, false, true), rows);
        assert_eq!(said(Auto, false, false, false), "one by one");
        assert_eq!(said(Kernel, true, false, true), "below 4 MiB by a kernel, others one by one");
        assert_eq!(said(Kernel, false, false, true), "one by one");
        assert_eq!(said(Batch, false, true, true), batches);
        assert_eq!(said(Rows, false, false, true), rows);
        assert_eq!(said(Plain, true, true, true), "one by one");
    }

    #[test]
    fn a_kernel_that_is_switched_off_is_not_wanted() {
        let off = CudaCopyConfig {
            kernel_below_bytes: 0,
            kernel_unbatched_below_bytes: 0,
            ..CudaCopyConfig::new(0)
        };
        assert!(Choice::wants_kernel(&CudaCopyConfig::new(0)) && !Choice::wants_kernel(&off));
        assert_eq!(Choice::new(&off, true, true, true).kernel_limit_bytes(), 0);
    }
}
