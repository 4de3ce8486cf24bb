//! Which restored pages a worker compares with their checksums: its own choice, shown to people.

use std::fmt;

/// As in the connector's `verify_restore`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verification {
    /// None.
    Off,
    /// Every N-th.
    Sample(u64),
    /// Every one.
    All,
}

impl Verification {
    /// For labels.
    pub(crate) const NAMES: [&'static str; 3] = ["all", "off", "sample"];

    pub(crate) fn parse(text: &str) -> Option<Self> {
        match text {
            "off" => Some(Self::Off),
            "all" => Some(Self::All),
            _ => text.strip_prefix("sample:")?.parse().ok().filter(|n| *n > 0).map(Self::Sample),
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Sample(_) => "sample",
            Self::All => "all",
        }
    }
}

impl fmt::Display for Verification {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sample(n) => write!(f, "sample:{n}"),
            rule => f.write_str(rule.name()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_is_written_as_it_is_read() {
        for text in ["off", "sample:16", "all"] {
            assert_eq!(Verification::parse(text).map(|rule| rule.to_string()).as_deref(), Some(text));
        }
        for text in ["", "sample", "sample:0", "sample:-1", "All", "often"] {
            assert_eq!(Verification::parse(text), None, "{text}");
        }
    }
}
